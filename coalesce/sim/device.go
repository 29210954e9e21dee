package sim

import (
	"math"

	"github.com/vhostnet/vhostnet/coalesce"
)

// device is the worker's end of a queue. It does what netdev's worker does, step
// by step; a step takes time, and what happens meanwhile is seen at the next.
type device struct {
	*queue
	mod         coalesce.Moderator
	engine      coalesce.Engine
	learns      bool
	strict      bool
	guestLimits coalesce.Limits
	host        coalesce.Limits
	seen        coalesce.Observation
	event       uint16
	deadline    int64
	tick        int64
	// slots is how many entries the driver cannot have seen coming back.
	slots int
	// drained: the last burst of a tx queue took all that there was.
	drained bool
	// longest is the longest time limit in force since the last decision.
	longest int64

	port fifo[packet]
	// posted is how many buffers an rx driver has posted that are not used.
	posted int
	batch  []packet
	bytes  uint64
	asleep bool
	kicked bool
	// timer tells the latest timer from those that were overtaken.
	timer uint64
	// spent is the time that the current step has taken so far.
	spent int64

	doStep, doPacket func()
}

func (d *device) bind() {
	d.doStep, d.doPacket = d.step, d.packet
	d.host = d.engine.Decision().Limits
	d.apply()
}

// wake is an arrival, or a kick.
func (d *device) wake(kick bool) {
	if !d.asleep {
		return
	}
	d.asleep = false
	d.kicked = d.kicked || kick
	d.timer++
	d.after(d.p.DeviceWake, d.doStep)
}

// step is one turn of the worker's loop.
func (d *device) step() {
	if d.kicked {
		d.kicked, d.seen.Kicked = false, true
	}
	if d.port.len() > 0 && (d.dir == coalesce.TX || d.posted > 0) {
		d.batch, d.bytes = d.batch[:0], 0
		d.after(d.p.PerBurst+d.cost(), d.doPacket)
		return
	}
	d.spent = 0
	d.expire()
	if d.spent > 0 {
		d.after(d.spent, d.doStep)
		return
	}
	d.sleep()
}

func (d *device) cost() int64 {
	if d.dir == coalesce.TX {
		return d.p.Transmit
	}
	return d.p.Receive
}

// packet is the end of one packet's work.
func (d *device) packet() {
	p := d.port.pop()
	d.batch = append(d.batch, p)
	d.bytes += uint64(p.bytes)
	if d.dir == coalesce.RX {
		d.posted--
	}
	if len(d.batch) < d.p.Burst && d.port.len() > 0 && (d.dir == coalesce.TX || d.posted > 0) {
		d.after(d.cost(), d.doPacket)
		return
	}
	d.finish()
}

// finish ends a burst.
func (d *device) finish() {
	d.spent = 0
	n := len(d.batch)
	d.m.host(d.now, d.p.PerBurst+int64(n)*d.cost())
	d.publish(d.batch)
	d.slots += n
	d.act(d.mod.Observe(d.now, uint32(n), d.bytes))
	if d.dir == coalesce.RX {
		d.consult(uint32(n), d.bytes)
		if d.deadline != 0 && d.posted <= d.p.Ring/4 {
			d.act(d.mod.Flush(d.now, coalesce.ReasonRingPressure))
		}
	} else {
		d.drained = n < d.p.Burst
		d.consult(uint32(n), d.bytes)
		if d.deadline != 0 && d.p.Ring-d.slots < max(d.p.Ring/4, 20) {
			d.act(d.mod.Flush(d.now, coalesce.ReasonRingPressure))
		}
	}
	d.expire()
	d.after(d.spent, d.doStep)
}

// turn is how long, in nanoseconds, a worker that has nothing to do needs to find
// that out.
const turn = 100

// sleep waits for an arrival, a kick or the next deadline.
func (d *device) sleep() {
	if d.learns && d.glance() {
		d.consult(0, 0)
		if d.spent > 0 {
			d.after(d.spent, d.doStep)
			return
		}
	}
	d.asleep = true
	d.timer++
	at := int64(math.MaxInt64)
	for _, t := range [...]int64{d.deadline, d.tick} {
		if t != 0 {
			at = min(at, t)
		}
	}
	if at == math.MaxInt64 {
		return
	}
	mine := d.timer
	// One turn of the loop takes that long, also if what was asked for is past.
	at = max(at, d.now+turn)
	if at-d.now > d.p.Spin {
		at += d.p.Late
	}
	d.at(at, func() {
		if d.asleep && d.timer == mine {
			d.asleep = false
			d.step()
		}
	})
}

func (d *device) expire() {
	if d.deadline != 0 && d.now >= d.deadline {
		d.act(d.mod.Expire(d.now))
		d.consult(0, 0)
	}
	if d.tick != 0 && d.now >= d.tick {
		d.tick = 0
		d.m.ticks++
		d.take(d.engine.Tick(d.now))
	}
}

func (d *device) act(v coalesce.Verdict) {
	switch v.Action {
	case coalesce.Signal:
		d.signal(v.Reason)
	case coalesce.Wait:
		d.deadline = v.Deadline
	default:
		d.deadline = 0
	}
}

// signal decides about a notification, and sends it unless the driver wants none.
func (d *device) signal(r coalesce.Reason) {
	_, since := d.mod.Pending()
	d.m.held(d.now-since, d.longest)
	d.longest = limitOf(d.mod.Limits())
	d.deadline, d.slots = 0, 0
	d.mod.Fired(d.now)
	d.m.reasons[r]++
	d.decided()
	if !d.ring.needSignal() {
		d.m.suppress(d.now)
		d.seen.Suppressed++
		return
	}
	d.seen.Notified++
	cost := d.p.Call
	if d.guest.sleeps() {
		cost = d.p.CallAsleep
	}
	d.spent += cost
	d.m.notify(d.now, cost)
	d.guest.interrupt()
}

func (d *device) consult(packets uint32, bytes uint64) {
	if !d.learns {
		return
	}
	o := &d.seen
	o.Now, o.Packets, o.Bytes = d.now, packets, bytes
	o.Backlog, o.Size = d.ring.span, uint32(d.p.Ring)
	free, empty := d.look()
	o.Free, o.PortEmpty = uint32(max(free, 0)), empty
	d.glance()
	advice := d.engine.Observe(o)
	d.seen = coalesce.Observation{}
	d.take(advice)
}

// look is what the engine is told of the ring and the port.
func (d *device) look() (free int, portEmpty bool) {
	if d.dir == coalesce.RX {
		return d.posted, d.port.len() == 0
	}
	return d.p.Ring - d.slots, d.drained
}

// glance looks whether the driver has gone idle.
func (d *device) glance() bool {
	idx, moved := d.ring.driverEvent()
	if !moved {
		return false
	}
	by := idx - d.event
	d.event = idx
	if int(by) > d.p.Ring {
		return false
	}
	d.seen.Consumed += uint32(by)
	d.seen.Idle = true
	return true
}

func (d *device) take(a coalesce.Advice) {
	d.tick = a.Next
	if a.Limits != d.host {
		d.host = a.Limits
		d.m.change(d.now, a.Limits)
		d.apply()
	}
	if a.Flush {
		d.act(d.mod.Flush(d.now, coalesce.ReasonPortIdle))
	}
}

// apply joins what the driver and the engine want.
func (d *device) apply() {
	l := coalesce.Effective(d.guestLimits, d.host, d.strict)
	if l == d.mod.Limits() {
		return
	}
	d.longest = max(d.longest, limitOf(l))
	d.act(d.mod.SetLimits(d.now, l))
}

// limitOf is how long limits let a packet wait, in nanoseconds.
func limitOf(l coalesce.Limits) int64 {
	if l.EveryPacket() {
		return 0
	}
	return int64(l.Usecs) * microsecond
}
