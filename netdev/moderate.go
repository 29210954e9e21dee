package netdev

import (
	"github.com/vhostnet/vhostnet/coalesce"
)

// moderation is who decides about a ring's notification limits: the driver, the
// host's engine, and what follows from the two. It belongs to the ring's worker.
type moderation struct {
	// guest is what the driver set. strict takes its "every packet" at its word.
	guest  coalesce.Limits
	strict bool
	// engine chooses host, which the driver's limits are a ceiling for.
	engine coalesce.Engine
	host   coalesce.Limits
	// learns: the engine wants to be told what happens.
	learns bool
	// seen is what the engine has not been told of yet, event the driver's event
	// index when it was last told.
	seen  coalesce.Observation
	event uint16
	// tick is when the engine wants to be called, 0: not.
	tick int64
	// look returns what else the engine is told: how many entries are ready for
	// traffic, and whether the burst is over.
	look  func() (free int, portEmpty bool)
	trace func(queue int, o *coalesce.Observation, d coalesce.Decision, a coalesce.Advice)
}

// setGuest changes what the driver asks for.
func (r *ring) setGuest(now int64, l coalesce.Limits, strict bool) {
	r.guest, r.strict = l, strict
	r.apply(now)
}

// setEngine changes who chooses the host's limits.
func (r *ring) setEngine(now int64, e coalesce.Engine, learns bool) {
	r.engine, r.learns, r.tick, r.seen = e, learns, 0, coalesce.Observation{}
	r.host = e.Decision().Limits
	r.apply(now)
}

// apply puts the limits in force that follow from the driver's and the host's;
// what is pending is judged anew.
func (r *ring) apply(now int64) {
	l := coalesce.Effective(r.guest, r.host, r.strict)
	r.c.host.Store(pack(r.host))
	r.c.inForce.Store(pack(l))
	if l == r.mod.Limits() {
		return
	}
	v := r.mod.SetLimits(now, l)
	if r.live() {
		r.act(now, v)
	}
}

// restart begins anew with a ring that was just started.
func (r *ring) restart(now int64) {
	r.mod.Reset()
	r.deadline, r.tick, r.slots = 0, 0, 0
	r.seen = coalesce.Observation{}
	if r.engine != nil {
		r.engine.Reset()
		r.host = r.engine.Decision().Limits
	}
	r.apply(now)
}

// consult tells the engine what the worker has just seen, and takes its advice.
func (r *ring) consult(now int64, packets uint32, bytes uint64) {
	if !r.learns {
		return
	}
	o := &r.seen
	o.Now, o.Packets, o.Bytes = now, packets, bytes
	o.Backlog, o.Size = uint32(r.q.Unsignalled()), uint32(r.q.Size())
	free, empty := r.look()
	o.Free, o.PortEmpty = uint32(max(free, 0)), empty
	r.glance()
	advice := r.engine.Observe(o)
	if r.trace != nil {
		r.trace(r.index, o, r.engine.Decision(), advice)
	}
	r.seen = coalesce.Observation{}
	r.take(now, advice)
}

// glance looks whether the driver has gone idle.
func (r *ring) glance() (idle bool) {
	idx, moved := r.q.DriverEvent()
	if !moved {
		return false
	}
	// A transmit queue's driver may take back what it has asked for ahead.
	if by := idx - r.event; by < 1<<15 {
		r.seen.Consumed += uint32(by)
	}
	r.event = idx
	r.seen.Idle = true
	return true
}

// doze tells the engine before the worker sleeps that the driver has gone idle:
// at the next burst it would be a long time ago.
func (r *ring) doze() {
	if r.learns && r.live() && r.q.Broken() == nil && r.glance() {
		r.consult(nanotime(), 0, 0)
	}
}

// take follows an engine's advice.
func (r *ring) take(now int64, a coalesce.Advice) {
	r.tick = a.Next
	if a.Limits != r.host {
		r.host = a.Limits
		r.apply(now)
	}
	if a.Flush {
		r.flush(now, coalesce.ReasonPortIdle)
	}
}

// pack keeps limits in one word, so that a snapshot reads both at once.
func pack(l coalesce.Limits) uint64 { return uint64(l.Usecs)<<32 | uint64(l.Packets) }

func unpack(v uint64) LimitsSnapshot {
	return LimitsSnapshot{Usecs: uint32(v >> 32), Packets: uint32(v)}
}

// engineSpecs returns the host's policy for each virtqueue of pairs.
func (c *Config) engineSpecs() []coalesce.EngineSpec {
	specs := make([]coalesce.EngineSpec, 2*c.QueuePairs)
	for i := range specs {
		specs[i] = c.RXModeration
		if i&1 == 1 {
			specs[i] = c.TXModeration
		}
	}
	return specs
}

// SetModeration changes the host's policy for one data virtqueue while it runs.
// It may be called from any goroutine. It fails with [ErrQueue] for a virtqueue
// that is no receive or transmit queue.
func (d *Device) SetModeration(queue int, s coalesce.EngineSpec) error {
	d.mu.Lock()
	defer d.mu.Unlock()
	if queue < 0 || queue >= len(d.specs) {
		return errNoQueue(queue, len(d.specs))
	}
	d.specs[queue] = s
	return d.applyEngine(queue)
}

func (d *Device) applyEngine(i int) (err error) {
	e, learns := d.specs[i].New(), d.specs[i].Kind > coalesce.EngineFixed
	w := d.pairs[i/2]
	d.post(w, func() {
		r := w.ringFor(i)
		w.guard(r, func() { r.setEngine(nanotime(), e, learns) })
	}, &err)
	return err
}
