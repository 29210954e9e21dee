package netdev

import (
	"errors"
	"fmt"

	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/guestmem"
	"github.com/vhostnet/vhostnet/port"
	"github.com/vhostnet/vhostnet/vhostuser"
	"github.com/vhostnet/vhostnet/virtio"
	"github.com/vhostnet/vhostnet/vring"
)

// isControl tells whether ring i is served by the control worker.
func (d *Device) isControl(i int) bool { return i == d.controlIndex() }

// hasWorker tells whether a worker of a queue pair serves ring i. Without
// VIRTIO_NET_F_MQ ring 2 is the control queue of a driver, but a pair's receive
// queue of the device.
func (d *Device) hasWorker(i int) bool { return i < 2*len(d.pairs) && !d.isControl(i) }

// StartRing implements [vhostuser.Backend].
func (d *Device) StartRing(i int, c vhostuser.RingConfig, kick int) error {
	err := d.startRing(i, c, kick)
	if err != nil {
		closeFD(kick)
	}
	return err
}

func (d *Device) startRing(i int, c vhostuser.RingConfig, kick int) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	switch {
	case d.refused != nil:
		return fmt.Errorf("netdev: queue %d: the driver's features were refused: %w", i, d.refused)
	case c.Size > d.cfg.QueueSize:
		return fmt.Errorf("netdev: queue %d: size %d is above the limit of %d", i, c.Size, d.cfg.QueueSize)
	case !d.isControl(i) && !d.hasWorker(i):
		return fmt.Errorf("netdev: queue %d does not exist with the negotiated features", i)
	}
	q, err := d.activateRing(c)
	if err != nil {
		return fmt.Errorf("netdev: queue %d: %w", i, err)
	}
	if d.running == 0 {
		if err := d.configurePort(); err != nil {
			q.Stop()
			return err
		}
	}
	f := ringFDs{kick: kick, call: d.rings[i].call, err: d.rings[i].err}
	if d.isControl(i) {
		if q.Fresh() {
			// The driver starts from scratch: what an earlier one set is gone.
			d.resetGuestLocked()
		}
		d.mu.Unlock()
		d.control.post2(func() {
			d.control.ring.logged = logged{c.Log, c.LogAddr}
			err = d.control.attach(i, q, f, d.features)
		}, &err)
		d.mu.Lock()
	} else {
		w := d.pairs[i/2]
		d.post(w, func() {
			w.ringFor(i).enabled = d.ringEnabled(i)
			w.ringFor(i).logged = logged{c.Log, c.LogAddr}
			w.features, w.hdrLen = d.features, virtio.NetHeaderSize(d.features)
			err = w.attach(i, q, f)
		}, &err)
	}
	if err != nil {
		q.Stop()
		return err
	}
	r := &d.rings[i]
	r.started, r.size = true, c.Size
	d.running++
	d.applyPairs()
	if d.running == 1 && d.guest.steer != nil {
		d.applySteering()
	}
	return nil
}

// ErrQueue is wrapped by errors about a virtqueue that a device does not have.
var ErrQueue = errors.New("netdev: no such virtqueue")

func errNoQueue(i, n int) error {
	return fmt.Errorf("%w: %d is not a receive or transmit queue: want 0 to %d", ErrQueue, i, n-1)
}

// activateRing validates a ring's addresses against the memory table.
func (d *Device) activateRing(c vhostuser.RingConfig) (q vring.Queue, err error) {
	fault := guestmem.CatchFaults(func() {
		q, err = vring.Activate(d.mem, vring.Config{
			Size: c.Size, Desc: c.Desc, Driver: c.Driver, Device: c.Device, Base: c.Base, Features: d.features,
		})
	})
	if fault != nil {
		return nil, fault
	}
	return q, err
}

// post runs f on a worker and reports in err if the worker has ended.
func (d *Device) post(w *worker, f func(), err *error) {
	if e := w.post(f); e != nil {
		*err = e
	}
}

// StopRing implements [vhostuser.Backend].
func (d *Device) StopRing(i int) (base uint32, err error) {
	d.mu.Lock()
	if !d.rings[i].started {
		d.mu.Unlock()
		return 0, nil
	}
	control := d.isControl(i)
	if control {
		d.mu.Unlock()
		d.control.post2(func() { base = d.control.detach() }, &err)
		d.mu.Lock()
	} else {
		w := d.pairs[i/2]
		d.post(w, func() { base = w.detach(i) }, &err)
	}
	defer d.mu.Unlock()
	r := &d.rings[i]
	r.started, r.stoppedSinceDisable = false, true
	d.running--
	d.applyPairs()
	if d.running == 0 {
		d.stopForwarding()
		if p, ok := d.port.(port.Configurer); ok {
			err = errors.Join(err, p.Reset())
		}
	}
	return base, err
}

// configurePort tells the port what the driver can take.
func (d *Device) configurePort() error {
	p, ok := d.port.(port.Configurer)
	if !ok {
		return nil
	}
	if err := p.Configure(virtio.NetHeaderSize(d.features), d.guest.offloads); err != nil {
		return fmt.Errorf("netdev: port %s: %w", d.port, err)
	}
	return nil
}

// EnableRing implements [vhostuser.Backend].
func (d *Device) EnableRing(i int, on bool) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	r := &d.rings[i]
	if on && !r.enabled && r.started && !r.stoppedSinceDisable {
		// Disabled and enabled again without a stop in between: the queue
		// takes the values of its direction (virtio 1.4, "Notifications
		// Coalescing"). A stop with its resume is transparent to the driver.
		if d.hasWorker(i) {
			d.guest.coalesce.Reenable(i)
			d.applyLimits(i)
		}
	}
	if !on && r.enabled {
		r.stoppedSinceDisable = false
	}
	r.enabled = on
	d.applyPairs()
	return nil
}

// SetRingAddr implements [vhostuser.Backend].
func (d *Device) SetRingAddr(i int, c vhostuser.RingConfig) (err error) {
	d.mu.Lock()
	control := d.isControl(i)
	if control || !d.hasWorker(i) {
		d.mu.Unlock()
		d.control.post2(func() { err = d.control.setAddr(c) }, &err)
		return err
	}
	defer d.mu.Unlock()
	w := d.pairs[i/2]
	d.post(w, func() {
		r := w.ringFor(i)
		if r.q == nil {
			return
		}
		if !r.paused {
			w.settle(r)
		}
		w.guard(r, func() {
			if err = r.q.SetAddr(c.Desc, c.Driver, c.Device); err == nil {
				r.paused, r.due = false, true
				r.logged = logged{c.Log, c.LogAddr}
				w.setLog(w.dirty)
			}
		})
	}, &err)
	return err
}

// SetRingKick implements [vhostuser.Backend].
func (d *Device) SetRingKick(i, fd int) (err error) {
	if !d.rings[i].started {
		closeFD(fd)
		return fmt.Errorf("netdev: queue %d is not started", i)
	}
	d.onRing(i, func(l *loop, r *ring, s source) {
		if fd >= 0 {
			if err = l.add(fd, s, unix.EPOLLIN); err != nil {
				closeFD(fd)
				return
			}
		}
		if r.kick >= 0 {
			l.remove(r.kick)
			closeFD(r.kick)
		}
		r.kick, r.polled = fd, fd < 0
	}, &err)
	return err
}

// SetRingCall implements [vhostuser.Backend]. The new descriptor is signalled
// once: a notification may have gone to the old one, which nobody watches any
// more, and a needless interrupt is harmless where a lost one is not.
func (d *Device) SetRingCall(i, fd int) (err error) {
	old := d.rings[i].call
	d.rings[i].call = fd
	d.onRing(i, func(_ *loop, r *ring, _ source) { r.call = fd }, &err)
	closeFD(old)
	if fd >= 0 {
		b := [8]byte{1}
		_, _ = unix.Write(fd, b[:])
	}
	return err
}

// SetRingErr implements [vhostuser.Backend].
func (d *Device) SetRingErr(i, fd int) (err error) {
	old := d.rings[i].err
	d.rings[i].err = fd
	d.onRing(i, func(_ *loop, r *ring, _ source) { r.err = fd }, &err)
	closeFD(old)
	return err
}

// onRing runs f on the worker that serves ring i, if the ring is started.
func (d *Device) onRing(i int, f func(*loop, *ring, source), err *error) {
	d.mu.Lock()
	switch {
	case !d.rings[i].started:
		d.mu.Unlock()
	case d.hasWorker(i):
		defer d.mu.Unlock()
		w := d.pairs[i/2]
		d.post(w, func() { f(w.at, w.ringFor(i), w.source(kickTag(i))) }, err)
	default:
		d.mu.Unlock()
		c := d.control
		c.post2(func() { f(c.loop, &c.ring, source{tag: tagControlKick}) }, err)
	}
}

// ringEnabled tells whether the worker may serve ring i fully: it is enabled
// and, for a receive ring, the driver uses its pair.
func (d *Device) ringEnabled(i int) bool {
	return d.rings[i].enabled && (i&1 == 1 || i/2 < d.activePairs())
}

// activePairs is how many queue pairs the driver uses. The device knows it only
// when it serves the control queue; a front-end that keeps the control queue to
// itself enables and disables rings instead.
func (d *Device) activePairs() int {
	at := d.controlIndex()
	if at < 0 || d.features&(virtio.FeatureMQ|virtio.FeatureRSS) == 0 || !d.rings[at].started {
		return len(d.pairs)
	}
	if s := d.guest.steer; s != nil && s.table != nil {
		return s.pairs
	}
	return d.guest.pairs
}

// applyPairs brings the workers and the port's queues in line with what is
// started, enabled and used.
func (d *Device) applyPairs() {
	for i := range 2 * len(d.pairs) {
		if !d.hasWorker(i) {
			continue
		}
		w, on := d.pairs[i/2], d.ringEnabled(i)
		if i&1 == 0 && on && d.rings[i].started {
			d.activate(i/2, true)
		}
		_ = w.post(func() {
			r := w.ringFor(i)
			if r.enabled && !on {
				if r.live() {
					w.settle(r)
				}
			}
			if !r.enabled && on && r == &w.rx {
				w.portReady = true
			}
			r.enabled = on
			if r == &w.rx {
				w.inbox.open(on && r.q != nil)
			}
		})
		if i&1 == 0 && (!on || !d.rings[i].started) {
			d.activate(i/2, false)
		}
	}
}

// idlePort detaches the queues of a port on which nobody receives yet.
func (d *Device) idlePort() {
	for i := range d.pairs {
		d.active[i] = true
		d.activate(i, false)
	}
}

func (d *Device) activate(pair int, on bool) {
	if d.active[pair] == on {
		return
	}
	d.active[pair] = on
	if p, ok := d.port.(port.QueueActivator); ok {
		if err := p.SetActive(pair, on); err != nil {
			d.log.Warn("port queue", "queue", pair, "active", on, "error", err)
		}
	}
}

// applyLimits sends what the driver set for ring i to its worker. A driver that
// has set nothing has not asked for "every packet" either.
func (d *Device) applyLimits(i int) {
	l := d.guest.coalesce.VQ(i)
	strict := d.cfg.Strict && d.guest.coalesce.Configured(i)
	w := d.pairs[i/2]
	_ = w.post(func() {
		r := w.ringFor(i)
		w.guard(r, func() { r.setGuest(nanotime(), l, strict) })
	})
}
