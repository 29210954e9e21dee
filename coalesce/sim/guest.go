package sim

import "github.com/vhostnet/vhostnet/coalesce"

// guest is the driver's end of a queue, with a processor of its own.
type guest struct {
	*queue
	// polling: it was notified and has not gone idle since; waking: it does not
	// run yet.
	polling, waking bool
	// runs is set by a source that keeps the guest's processor awake.
	runs bool
	// done is the driver's used index, pass how many entries it has taken in
	// this pass, unposted how many rx buffers it has not posted again.
	done     uint16
	pass     int
	unposted int
	// debt is processor time that interrupts took from polling.
	debt int64
	// rearmed is called when the driver asks for notifications again.
	rearmed func()

	// dim is the driver's own moderation, nil if it has none.
	dim                  coalesce.Engine
	irqs, packets, bytes uint32
	busy                 bool // a command is on its way

	doPass, doTake, doRearm func()
}

// command is how long a driver's VQ_SET takes until it holds.
const command = 30 * microsecond

// guestDIM is what a Linux driver does with adaptive-rx.
func guestDIM() coalesce.Engine {
	return coalesce.EngineSpec{Kind: coalesce.EngineNetDim}.New()
}

func (g *guest) bind() { g.doPass, g.doTake, g.doRearm = g.nextPass, g.take, g.rearm }

// sleeps tells whether a notification has to wake a processor.
func (g *guest) sleeps() bool { return !g.polling && !g.runs }

// interrupt is a notification.
func (g *guest) interrupt() {
	g.m.guest(g.now, g.p.Interrupt)
	g.irqs++
	switch {
	case g.polling:
		// It comes too late to be of use: the driver is at it already.
		g.debt += g.p.Interrupt
		g.m.spurious++
		return
	case g.runs:
		g.after(g.p.Interrupt, g.doPass)
	default:
		g.after(g.p.Wake+g.p.Interrupt, g.doPass)
	}
	g.polling, g.waking = true, true
}

// nextPass begins a pass over the ring.
func (g *guest) nextPass() {
	g.pass, g.waking = 0, false
	g.m.guest(g.now, g.p.Poll)
	g.step(g.p.Poll)
}

func (g *guest) service() int64 {
	if g.dir == coalesce.TX {
		return g.p.Reclaim
	}
	return g.p.Service
}

// step goes on to the next entry, or ends the pass.
func (g *guest) step(extra int64) {
	if g.pass < g.p.Budget && g.used.len() > 0 {
		e := g.used.at(0)
		if e.announced < 0 {
			e.announced, e.ahead = g.now, 0
		}
		g.after(g.service()+g.debt+extra, g.doTake)
		g.debt = 0
		return
	}
	g.repost()
	if g.pass == g.p.Budget {
		g.after(extra, g.doPass)
		return
	}
	// What is published before it has asked for notifications again brings none.
	g.m.guest(g.now, g.p.Poll)
	g.after(extra+g.p.Poll, g.doRearm)
}

// rearm asks for notifications again and looks once more.
func (g *guest) rearm() {
	g.ring.event = g.done
	g.moderate()
	if g.used.len() > 0 {
		g.nextPass()
		return
	}
	g.polling = false
	if g.rearmed != nil {
		g.rearmed()
	}
}

// take is the end of one entry's work.
func (g *guest) take() {
	g.m.guest(g.now, g.service())
	g.takeOne()
	g.pass++
	g.step(0)
}

func (g *guest) takeOne() {
	e := g.used.pop()
	if e.announced < 0 {
		e.announced = g.now
	}
	g.undecided = min(g.undecided, g.used.len())
	g.done++
	g.unposted++
	g.packets++
	g.bytes += e.bytes
	g.m.done(g.now, e, g.service(), g.p)
	g.source.taken(e.packet)
}

// repost gives rx buffers back to the device when there are some.
func (g *guest) repost() {
	if g.dir == coalesce.TX || g.unposted <= min(g.p.Budget, g.p.Ring)/2 {
		return
	}
	d := &g.device
	starved := d.posted == 0
	d.posted += g.unposted
	g.unposted = 0
	if starved && d.port.len() > 0 {
		d.wake(true)
	}
}

// moderate is the driver's own moderation: it is fed when polling ends, and
// what it decides reaches the device as a command.
func (g *guest) moderate() {
	if g.dim == nil || g.packets == 0 || g.busy {
		return
	}
	o := coalesce.Observation{Now: g.now, Packets: g.packets, Bytes: uint64(g.bytes), Notified: g.irqs}
	g.packets, g.bytes, g.irqs = 0, 0, 0
	l := g.dim.Observe(&o).Limits
	if l == g.device.guestLimits {
		return
	}
	g.busy = true
	g.after(command, func() {
		g.busy = false
		d := &g.device
		d.guestLimits = l
		d.apply()
		// A worker that slept has a new deadline now.
		d.wake(false)
	})
}
