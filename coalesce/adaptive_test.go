package coalesce_test

import (
	"testing"

	"github.com/vhostnet/vhostnet/coalesce"
)

// bed is a worker with a driver that sleeps until it is notified, takes wake ns
// to run and service ns for each packet, and then arms its event index.
type bed struct {
	t             *testing.T
	e             coalesce.Engine
	m             coalesce.Moderator
	now           int64
	wake, service int64
	// rearm is when the driver arms its event index, with taken entries more.
	rearm        int64
	taken        uint32
	awake, blind bool
	free         uint32
	deadline     int64
	next         int64
	notified     int
	suppressed   int
	flushed      int
	held         []int64 // how long the first packet of each decision waited
	reasons      map[string]bool
}

func newBed(t *testing.T, spec string, wake, service int64) *bed {
	return &bed{t: t, e: engine(t, spec, coalesce.RX), wake: wake, service: service, free: 200, reasons: map[string]bool{}}
}

func (b *bed) observe(o coalesce.Observation) {
	o.Now, o.Size, o.Free = b.now, 256, b.free
	o.Backlog, _ = b.m.Pending()
	if b.awake && b.now >= b.rearm {
		b.awake = false
		if !b.blind {
			o.Idle, o.Consumed = true, b.taken
		}
		b.taken = 0
	}
	b.use(b.e.Observe(&o))
	b.reasons[b.e.Decision().Reason] = true
}

func (b *bed) use(a coalesce.Advice) {
	b.next = a.Next
	if pending, _ := b.m.Pending(); a.Next != 0 && pending == 0 {
		b.t.Fatalf("a tick at %d with nothing pending", a.Next)
	}
	if a.Limits != b.m.Limits() {
		b.act(b.m.SetLimits(b.now, a.Limits))
	}
	if a.Flush {
		b.flushed++
		b.act(b.m.Flush(b.now, coalesce.ReasonPortIdle))
	}
}

func (b *bed) act(v coalesce.Verdict) {
	b.deadline = v.Deadline
	if v.Action != coalesce.Signal {
		return
	}
	n, since := b.m.Pending()
	b.held = append(b.held, b.now-since)
	b.m.Fired(b.now)
	b.taken += n
	o := coalesce.Observation{Suppressed: 1}
	if b.awake && b.now < b.rearm {
		b.suppressed++
		b.rearm += int64(n) * b.service
	} else {
		o = coalesce.Observation{Notified: 1}
		b.notified++
		b.awake, b.rearm = true, b.now+b.wake+int64(n)*b.service
	}
	b.observe(o)
}

// until lets time pass.
func (b *bed) until(at int64) {
	for {
		due := at
		for _, d := range [...]int64{b.deadline, b.next} {
			if d != 0 {
				due = min(due, d)
			}
		}
		if due >= at {
			b.now = at
			return
		}
		b.now = max(due, b.now)
		if b.next == due {
			b.next = 0
			b.use(b.e.Tick(b.now))
		} else {
			b.deadline = 0
			b.act(b.m.Expire(b.now))
		}
	}
}

func (b *bed) packet() {
	v := b.m.Observe(b.now, 1, 64)
	b.observe(coalesce.Observation{Packets: 1, Bytes: 64, PortEmpty: true})
	if p, _ := b.m.Pending(); p != 0 {
		if v = b.m.Expire(b.now); v.Action == coalesce.Signal {
			b.act(v)
		} else {
			b.deadline = v.Deadline
		}
	}
}

func (b *bed) stream(d, gap int64) {
	for end := b.now + d; b.now < end; b.until(b.now + gap) {
		b.packet()
	}
}

func TestAdaptiveBegins(t *testing.T) {
	b := newBed(t, "adaptive", 20*us, 500)
	b.stream(3*ms, 10*us)
	if !b.reasons["confirm"] || !b.reasons["rate"] || b.m.Limits() != lim(200, 128) {
		t.Fatalf("%v, %v", b.reasons, b.m.Limits())
	}
	before := b.notified
	b.stream(100*ms, 10*us)
	// 10,000 packets; a driver that is woken for each takes two or three at once.
	if n := b.notified - before; n > 1000 || n < 100 {
		t.Errorf("%d notifications", n)
	}
	for _, h := range b.held {
		if h > 200*us {
			t.Fatalf("a packet was held for %d ns", h)
		}
	}
	d := b.e.Decision()
	if d.Inputs.PPMS < 95 || d.Inputs.PPMS > 105 || d.Inputs.ServiceUS < 20 || d.Inputs.ServiceUS > 31 || d.Inputs.GapUS < 9 || d.Inputs.GapUS > 11 {
		t.Errorf("%+v", d)
	}
}

// TestAdaptiveSparse: what comes less often than it could be held back for is
// not held back at all, whatever came before.
func TestAdaptiveSparse(t *testing.T) {
	for _, gap := range []int64{80 * us, ms, 7 * ms} {
		b := newBed(t, "adaptive", 20*us, 500)
		b.stream(50*ms, gap)
		if n := b.notified; n != len(b.held) || b.reasons["rate"] {
			t.Errorf("gap %d: %d notifications, %d decisions, %v", gap, n, len(b.held), b.reasons)
		}
		b.stream(50*ms, 5*us)
		b.until(b.now + 5*ms)
		b.held = nil
		b.stream(50*ms, gap)
		late := 0
		for _, h := range b.held {
			if h > 0 {
				late++
			}
		}
		if late > 16 {
			t.Errorf("gap %d after a stream: %d of %d packets were held back", gap, late, len(b.held))
		}
	}
}

// TestAdaptiveAwake: while the driver is awake all decisions are taken at once,
// and need no timer.
func TestAdaptiveAwake(t *testing.T) {
	b := newBed(t, "adaptive", 20*us, 500)
	b.stream(20*ms, 10*us)
	b.until(b.now + ms)
	b.packet()
	b.held = nil
	b.until(b.now + us)
	b.packet()
	if len(b.held) != 1 || b.held[0] != 0 || b.next != 0 || b.suppressed == 0 {
		t.Errorf("held %v, next %d, %d suppressed", b.held, b.next, b.suppressed)
	}
}

// TestAdaptiveBurstOver: a wait ends when the burst does.
func TestAdaptiveBurstOver(t *testing.T) {
	b := newBed(t, "adaptive", 5*us, 100)
	b.stream(20*ms, 4*us)
	for p, _ := b.m.Pending(); p == 0; p, _ = b.m.Pending() {
		b.packet()
		b.until(b.now + 4*us)
	}
	last := b.now - 4*us
	if b.next == 0 || b.next > last+13*us {
		t.Fatalf("the next tick is at %d, the last packet came at %d", b.next, last)
	}
	flushed := b.flushed
	b.until(b.next + 1)
	if p, _ := b.m.Pending(); p != 0 || b.flushed != flushed+1 {
		t.Errorf("%d pending after the burst", p)
	}
}

func TestAdaptivePressure(t *testing.T) {
	b := newBed(t, "adaptive", 5*us, 100)
	b.stream(20*ms, 4*us)
	b.free = 63
	b.packet()
	b.held = nil
	b.stream(ms, 4*us)
	for _, h := range b.held {
		if h != 0 {
			t.Fatalf("held for %d ns with %d buffers left", h, b.free)
		}
	}
}

// TestAdaptiveSpacing: a driver that is cheap to wake is woken more often.
func TestAdaptiveSpacing(t *testing.T) {
	b := newBed(t, "adaptive", 2*us, 100)
	b.stream(50*ms, us)
	if l := b.m.Limits(); l.Usecs < 32 || l.Usecs > 48 {
		t.Errorf("limits %v for a driver that wakes in 2 us", l)
	}
}

// TestAdaptivePingPong: the next packet comes only after the driver took this
// one, and so fast that it looks like a stream.
func TestAdaptivePingPong(t *testing.T) {
	b := newBed(t, "adaptive", 3*us, 500)
	for range 50_000 {
		b.packet()
		for p, _ := b.m.Pending(); p != 0; p, _ = b.m.Pending() {
			b.until(b.now + us)
		}
		b.until(b.rearm + 2*us)
	}
	late := 0
	for _, h := range b.held {
		if h > 0 {
			late++
		}
	}
	if late == 0 || late > 50 {
		t.Errorf("%d of %d packets were held back", late, len(b.held))
	}
	if !b.reasons["futile"] {
		t.Errorf("%v", b.reasons)
	}
	// A stream is other traffic, however often it failed before.
	start := b.now
	b.stream(8*ms, us)
	if l := b.m.Limits(); l.EveryPacket() {
		t.Errorf("%d us of stream after ping-pong: %v, %+v", (b.now-start)/us, l, b.e.Decision())
	}
}

// TestAdaptiveNoEventIndex: notifications without a movement of the index.
func TestAdaptiveNoEventIndex(t *testing.T) {
	b := newBed(t, "adaptive", 10*us, 100)
	b.blind = true
	b.stream(20*ms, 5*us)
	before := b.notified
	b.stream(20*ms, 5*us)
	if n := b.notified - before; n > 4000/10 || n < 50 {
		t.Errorf("%d notifications for 4000 packets with %v", n, b.m.Limits())
	}
}

func TestAdaptiveReset(t *testing.T) {
	b := newBed(t, "adaptive:max-latency=77", 20*us, 500)
	b.stream(20*ms, 10*us)
	b.e.Reset()
	fresh := engine(t, "adaptive:max-latency=77", coalesce.RX)
	if b.e.Decision() != fresh.Decision() || b.e.Tick(b.now) != fresh.Tick(b.now) {
		t.Errorf("%+v", b.e.Decision())
	}
	b.stream(20*ms, 10*us)
	if l := b.m.Limits(); l.Usecs != 77 {
		t.Errorf("limits %v", l)
	}
}

func TestAdaptiveAllocations(t *testing.T) {
	for _, dir := range []coalesce.Direction{coalesce.RX, coalesce.TX} {
		e := engine(t, "adaptive", dir)
		now, o := int64(0), new(coalesce.Observation)
		if n := testing.AllocsPerRun(10_000, func() { observeStream(e, o, &now) }); n != 0 {
			t.Errorf("%v: %v allocations", dir, n)
		}
	}
}

func observeStream(e coalesce.Engine, o *coalesce.Observation, now *int64) {
	*now += 10 * us
	*o = coalesce.Observation{Now: *now, Packets: 4, Bytes: 6000, Backlog: 4, Size: 256, Free: 200, PortEmpty: true}
	switch (*now / us / 10) & 7 {
	case 0:
		o.Notified, o.Backlog = 1, 0
	case 4:
		o.Idle, o.Consumed = true, 32
	}
	if a := e.Observe(o); a.Next != 0 {
		e.Tick(*now + us)
	}
	e.Decision()
}

func BenchmarkAdaptive(b *testing.B) {
	for _, dir := range []coalesce.Direction{coalesce.RX, coalesce.TX} {
		b.Run(dir.String(), func(b *testing.B) {
			e := engine(b, "adaptive", dir)
			now, o := int64(0), new(coalesce.Observation)
			for b.Loop() {
				observeStream(e, o, &now)
			}
		})
	}
}
