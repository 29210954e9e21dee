package netdev

// Move moves a queue pair to a thread of the device's pool, and reports whether it is
// there now.
func (d *Device) Move(pair, thread int) bool {
	w := d.pairs[pair]
	from, to := w.on.Load(), d.cfg.Pool.runners[thread]
	if from != to {
		w.move(from, to)
	}
	return w.on.Load() == to
}
