package driver

// ControlPages returns the guest addresses of what a device writes for a control
// command: the reply, and the device's area of the control ring.
func (d *Driver) ControlPages() (reply, device uint64) {
	return d.ctrl.in.guest(), d.ctrl.q.usedArea.guest()
}
