package netdev

import (
	"github.com/vhostnet/vhostnet/ctrlq"
	"github.com/vhostnet/vhostnet/virtio"
)

// resetGuestLocked forgets what the driver has set, as a device reset does
// (virtio 1.4, "Notifications Coalescing": upon reset all values are 0), and
// tells the workers.
func (d *Device) resetGuestLocked() {
	g := &d.guest
	g.coalesce.Reset()
	g.pairs = 1
	g.filter = ctrlq.NewFilter(d.cfg.MAC).WithVLANFiltering(d.features.Has(virtio.FeatureCtrlVLAN))
	g.offloads = d.features & guestOffloads
	g.mac = d.cfg.MAC
	d.config.MAC = d.cfg.MAC
	d.config.Status &^= virtio.NetStatusAnnounce
	for i := range 2 * len(d.pairs) {
		d.applyLimits(i)
	}
	g.steer = nil
	d.applyFilter()
	d.applyOffloads()
	d.applyPairs()
	d.applySteering()
	if d.running > 0 {
		if err := d.configurePort(); err != nil {
			d.log.Warn("offloads after a reset of the driver", "error", err)
		}
	}
}

// applyOffloads tells the workers which receive offloads are in force.
func (d *Device) applyOffloads() {
	f := d.features&^guestOffloads | d.guest.offloads
	for _, w := range d.pairs {
		_ = w.post(func() { w.guest = f })
	}
}

// applyFilter hands a snapshot of the receive filter to the workers. One that
// lets everything pass costs them nothing.
func (d *Device) applyFilter() {
	var f *ctrlq.Filter
	if !d.guest.filter.PassesAll() {
		f = d.guest.filter
	}
	for _, w := range d.pairs {
		_ = w.post(func() { w.filter = f })
	}
}
