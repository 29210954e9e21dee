package netdev

import (
	"fmt"

	"github.com/vhostnet/vhostnet/coalesce"
	"github.com/vhostnet/vhostnet/ctrlq"
	"github.com/vhostnet/vhostnet/virtio"
)

// commands is the device as the control queue's commands see it. Its methods
// run on the control worker; they are the only place where it takes the device's
// mutex.
type commands Device

var _ ctrlq.Handler = (*commands)(nil)

// lock gives the device with its mutex held.
func (c *commands) lock() (*Device, func()) {
	d := (*Device)(c)
	d.mu.Lock()
	return d, d.mu.Unlock
}

// refilter replaces the receive filter.
func (c *commands) refilter(change func(*ctrlq.Filter) *ctrlq.Filter) error {
	d, unlock := c.lock()
	defer unlock()
	d.guest.filter = change(d.guest.filter)
	d.applyFilter()
	return nil
}

func (c *commands) mode(command uint8, on bool) error {
	return c.refilter(func(f *ctrlq.Filter) *ctrlq.Filter { return f.WithMode(command, on) })
}

// SetPromisc implements [ctrlq.Handler].
func (c *commands) SetPromisc(on bool) error { return c.mode(virtio.CtrlRXPromisc, on) }

// SetAllMulti implements [ctrlq.Handler].
func (c *commands) SetAllMulti(on bool) error { return c.mode(virtio.CtrlRXAllMulti, on) }

// SetAllUni implements [ctrlq.Handler].
func (c *commands) SetAllUni(on bool) error { return c.mode(virtio.CtrlRXAllUni, on) }

// SetNoMulti implements [ctrlq.Handler].
func (c *commands) SetNoMulti(on bool) error { return c.mode(virtio.CtrlRXNoMulti, on) }

// SetNoUni implements [ctrlq.Handler].
func (c *commands) SetNoUni(on bool) error { return c.mode(virtio.CtrlRXNoUni, on) }

// SetNoBcast implements [ctrlq.Handler].
func (c *commands) SetNoBcast(on bool) error { return c.mode(virtio.CtrlRXNoBcast, on) }

// SetMACTable implements [ctrlq.Handler].
func (c *commands) SetMACTable(unicast, multicast [][6]byte) error {
	return c.refilter(func(f *ctrlq.Filter) *ctrlq.Filter { return f.WithTable(unicast, multicast) })
}

// AddVLAN implements [ctrlq.Handler].
func (c *commands) AddVLAN(id uint16) error {
	return c.refilter(func(f *ctrlq.Filter) *ctrlq.Filter { return f.WithVLAN(id, true) })
}

// DelVLAN implements [ctrlq.Handler].
func (c *commands) DelVLAN(id uint16) error {
	return c.refilter(func(f *ctrlq.Filter) *ctrlq.Filter { return f.WithVLAN(id, false) })
}

// SetMAC implements [ctrlq.Handler].
func (c *commands) SetMAC(mac [6]byte) error {
	d, unlock := c.lock()
	defer unlock()
	d.guest.mac = mac
	// The configuration space shows the new address before the command is
	// answered (virtio 1.4, "Setting MAC Address Filtering").
	d.config.MAC = mac
	d.guest.filter = d.guest.filter.WithMAC(mac)
	d.applyFilter()
	return nil
}

// AckAnnounce implements [ctrlq.Handler].
func (c *commands) AckAnnounce() error {
	d, unlock := c.lock()
	defer unlock()
	d.config.Status &^= virtio.NetStatusAnnounce
	return nil
}

// SetQueuePairs implements [ctrlq.Handler].
func (c *commands) SetQueuePairs(n uint16) error {
	d, unlock := c.lock()
	defer unlock()
	if n < 1 || int(n) > len(d.pairs) {
		return fmt.Errorf("netdev: %d queue pairs: want 1 to %d", n, len(d.pairs))
	}
	d.guest.pairs = int(n)
	// What is hashed for reports stays; steering is automatic from here on.
	d.setSteering(d.guest.steer.automatic())
	return nil
}

// SetRSS implements [ctrlq.Handler].
func (c *commands) SetRSS(cfg ctrlq.RSSConfig) error {
	d, unlock := c.lock()
	defer unlock()
	s, err := d.newSteering(cfg.HashConfig)
	if err != nil {
		return err
	}
	if err := s.setTable(cfg, len(d.pairs), d.cfg.RSSTable); err != nil {
		return err
	}
	d.setSteering(s)
	return nil
}

// SetHash implements [ctrlq.Handler].
func (c *commands) SetHash(cfg ctrlq.HashConfig) error {
	d, unlock := c.lock()
	defer unlock()
	s, err := d.newSteering(cfg)
	if err != nil {
		return err
	}
	d.setSteering(s)
	return nil
}

// SetGuestOffloads implements [ctrlq.Handler].
func (c *commands) SetGuestOffloads(bits uint64) error {
	d, unlock := c.lock()
	defer unlock()
	f := virtio.FeaturesFromGuestOffloads(bits)
	if virtio.GuestOffloads(f) != bits || f&^d.features != 0 {
		return fmt.Errorf("netdev: guest offloads %#x were not negotiated", bits)
	}
	old := d.guest.offloads
	d.guest.offloads = f
	if err := d.configurePort(); err != nil {
		d.guest.offloads = old
		return err
	}
	d.applyOffloads()
	return nil
}

// SetTXCoalesce implements [ctrlq.Handler].
func (c *commands) SetTXCoalesce(usecs, packets uint32) error {
	d, unlock := c.lock()
	defer unlock()
	d.guest.coalesce.SetAllTX(coalesce.Limits{Usecs: usecs, Packets: packets})
	d.applyDirection(1)
	return nil
}

// SetRXCoalesce implements [ctrlq.Handler].
func (c *commands) SetRXCoalesce(usecs, packets uint32) error {
	d, unlock := c.lock()
	defer unlock()
	d.guest.coalesce.SetAllRX(coalesce.Limits{Usecs: usecs, Packets: packets})
	d.applyDirection(0)
	return nil
}

// SetVQCoalesce implements [ctrlq.Handler].
func (c *commands) SetVQCoalesce(vq uint16, usecs, packets uint32) error {
	d, unlock := c.lock()
	defer unlock()
	if err := d.dataQueue(vq); err != nil {
		return err
	}
	d.guest.coalesce.SetVQ(int(vq), coalesce.Limits{Usecs: usecs, Packets: packets})
	d.applyLimits(int(vq))
	return nil
}

// VQCoalesce implements [ctrlq.Handler]. It reports what the driver set, not
// what the host makes of it.
func (c *commands) VQCoalesce(vq uint16) (usecs, packets uint32, err error) {
	d, unlock := c.lock()
	defer unlock()
	if err := d.dataQueue(vq); err != nil {
		return 0, 0, err
	}
	l := d.guest.coalesce.VQ(int(vq))
	return l.Usecs, l.Packets, nil
}

// dataQueue returns an error unless vq is an enabled receive or transmit queue
// (virtio 1.4, "Notifications Coalescing"). A queue of a pair that the driver does
// not use at present counts: Linux sets those too.
func (d *Device) dataQueue(vq uint16) error {
	i := int(vq)
	if !d.hasWorker(i) || !d.rings[i].started || !d.rings[i].enabled {
		return fmt.Errorf("netdev: queue %d is not an enabled receive or transmit queue", vq)
	}
	return nil
}

// applyDirection sends the limits of all receive (0) or transmit (1) rings to
// their workers.
func (d *Device) applyDirection(dir int) {
	for i := dir; i < 2*len(d.pairs); i += 2 {
		d.applyLimits(i)
	}
}
