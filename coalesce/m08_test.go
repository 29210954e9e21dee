package coalesce_test

import (
	"math"
	"testing"

	"github.com/vhostnet/vhostnet/coalesce"
)

// rig is a worker with its virtqueue, engine and moderator on a clock that only
// the test moves: what the traces of reference case M08 are played on. Its
// driver wants every notification and takes everything at each.
type rig struct {
	t    *testing.T
	spec coalesce.EngineSpec
	e    coalesce.Engine
	m    coalesce.Moderator
	now  int64
	// o gathers what the next observation reports.
	o coalesce.Observation
	// deadline is the moderator's and tick the engine's, 0 for none.
	deadline, tick int64
	first          int64 // when the oldest packet that waits came
	waited         int64 // the longest that one waited, in ns
	longest        int64 // the longest that the limits allowed so far, in ns
	packets        int64
	notified       int64
	changes        int64 // of limits
	limits         coalesce.Limits
}

func newRig(t *testing.T, spec coalesce.EngineSpec) *rig {
	r := &rig{t: t, spec: spec, e: spec.New(), now: 1}
	r.use(r.e.Tick(r.now))
	r.changes = 0
	return r
}

func (r *rig) observe() {
	r.o.Now, r.o.Size, r.o.Free = r.now, 256, 200
	p, _ := r.m.Pending()
	r.o.Backlog = p
	a := r.e.Observe(&r.o)
	r.o = coalesce.Observation{}
	r.use(a)
}

// use follows an advice.
func (r *rig) use(a coalesce.Advice) {
	r.tick = a.Next
	r.longest = max(r.longest, int64(a.Limits.Usecs)*us)
	if a.Limits != r.limits {
		r.limits = a.Limits
		r.changes++
		r.act(r.m.SetLimits(r.now, a.Limits))
	}
	if a.Flush {
		r.act(r.m.Flush(r.now, coalesce.ReasonPortIdle))
	}
}

func (r *rig) act(v coalesce.Verdict) {
	r.deadline = v.Deadline
	if v.Action != coalesce.Signal {
		return
	}
	r.waited = max(r.waited, r.now-r.first)
	r.o.Idle = true
	r.o.Consumed, _ = r.m.Pending()
	r.m.Fired(r.now)
	r.notified++
	r.o.Notified++
	r.observe()
}

// run lets time pass, with what falls due in it.
func (r *rig) run(until int64) {
	for range 1_000_000 {
		at := r.deadline
		if r.tick != 0 && (at == 0 || r.tick < at) {
			at = r.tick
		}
		if at == 0 || at > until {
			r.now = until
			return
		}
		r.now = max(r.now, at)
		if at == r.deadline {
			r.act(r.m.Expire(r.now))
		} else {
			r.use(r.e.Tick(r.now))
		}
	}
	r.t.Fatalf("%v: a million timers before %d", r.spec, until)
}

// burst delivers packets of size bytes at once, now.
func (r *rig) burst(packets uint32, size uint64, empty bool) {
	if p, _ := r.m.Pending(); p == 0 {
		r.first = r.now
	}
	r.packets += int64(packets)
	r.o.Packets, r.o.Bytes, r.o.PortEmpty = packets, uint64(packets)*size, empty
	v := r.m.Observe(r.now, packets, uint64(packets)*size)
	r.observe()
	if p, _ := r.m.Pending(); p != 0 {
		if v.Action != coalesce.Signal {
			v = r.m.Expire(r.now)
		}
		r.act(v)
	}
}

// stream sends at a steady rate for some time, in bursts.
func (r *rig) stream(d int64, burst uint32, every int64, size uint64) {
	for end := r.now + d; r.now < end; r.run(r.now + every) {
		r.burst(burst, size, true)
	}
}

// check judges what every trace must keep: no packet waited longer than the
// engine's limits allow, none waits for ever, and the last decision's numbers are
// numbers of this world.
func (r *rig) check() {
	r.t.Helper()
	r.run(r.now + r.longest)
	if p, _ := r.m.Pending(); p != 0 {
		r.t.Errorf("%v: %d packets wait, for %d ns so far", r.spec, p, r.now-r.first)
	}
	if r.waited > r.longest {
		r.t.Errorf("%v: a packet waited for %d ns", r.spec, r.waited)
	}
	d := r.e.Decision()
	for _, v := range []float64{
		d.Inputs.WindowUS, d.Inputs.PPMS, d.Inputs.BPMS, d.Inputs.EPMS, d.Inputs.Ratio, d.Inputs.Consumed,
		d.Inputs.SuppressedRatio, d.Inputs.ServiceUS, d.Inputs.GapUS,
	} {
		if v < 0 || v > 1e15 || math.IsNaN(v) {
			r.t.Errorf("%v: %+v", r.spec, d)
		}
	}
}

const (
	ms     = 1000 * us
	second = 1000 * ms
	hour   = 3600 * second
)

// lineRate is 2 million packets of 64 bytes a second in bursts of 32.
func (r *rig) lineRate(d int64) { r.stream(d, 32, 16*us, 64) }

func m08(t *testing.T, f func(t *testing.T, r *rig)) {
	for _, s := range engines(t) {
		t.Run(s.Direction.String()+" "+s.String(), func(t *testing.T) { f(t, newRig(t, s)) })
	}
}

// dim tells whether the engine is net-dim or rdma-dim.
func (r *rig) dim() bool {
	return r.spec.Kind == coalesce.EngineNetDim || r.spec.Kind == coalesce.EngineRDMADim
}

func TestM08IdleHourThenLineRate(t *testing.T) {
	m08(t, func(t *testing.T, r *rig) {
		r.lineRate(50 * ms)
		if r.dim() && r.e.Decision().At == 0 {
			t.Fatal("nothing was decided in 50 ms of line rate")
		}
		r.run(r.now + hour)
		if r.tick != 0 {
			t.Errorf("asks for a tick at %d in an idle hour", r.tick)
		}
		woken := r.now
		r.lineRate(50 * ms)
		if d := r.e.Decision(); r.dim() && (d.At < woken || d.Inputs.PPMS < 1800 || d.Inputs.PPMS > 2200) {
			t.Errorf("50 ms after an idle hour the last decision is %+v", d)
		}
		r.check()
	})
}

// TestM08Bursts: 10 ms on, 10 ms off. The limits of the published engines may
// move once in 64 notifications and no more, and each window has a rate between
// nothing and line rate.
func TestM08Bursts(t *testing.T) {
	m08(t, func(t *testing.T, r *rig) {
		for range 100 {
			r.lineRate(10 * ms)
			r.run(r.now + 10*ms)
			if d := r.e.Decision(); d.Inputs.PPMS > 2500 {
				t.Fatalf("%+v is faster than line rate", d)
			}
		}
		if r.dim() && r.changes > r.notified/64 {
			t.Errorf("%d changes of limits in %d notifications", r.changes, r.notified)
		}
		r.check()
	})
}

// TestM08OnePacketASecond: so little traffic must not wait, and its windows of
// 64 s are nothing special.
func TestM08OnePacketASecond(t *testing.T) {
	m08(t, func(t *testing.T, r *rig) {
		for range 64 * 20 {
			r.burst(1, 64, true)
			r.run(r.now + second)
		}
		if r.notified != r.packets {
			t.Errorf("%d notifications for %d packets", r.notified, r.packets)
		}
		if d := r.e.Decision(); r.dim() && (d.Inputs.PPMS != 1 || d.Inputs.EPMS != 1 || d.At < r.now-130*second) {
			t.Errorf("%+v at %d", d, r.now)
		}
		if r.dim() && r.changes > r.notified/64 {
			t.Errorf("%d changes of limits in %d notifications", r.changes, r.notified)
		}
		r.check()
	})
}

// TestM08FortyNineDays: 2 million packets a second for 49 days. Most of it goes
// by in jumps of 2^30 us, in which packets (2^31), bytes (2^37) and
// notifications wrap or nearly so; between them all windows are measured right.
func TestM08FortyNineDays(t *testing.T) {
	m08(t, func(t *testing.T, r *rig) {
		const jump = int64(1<<30) * us
		end := r.now + 49*24*hour
		looked, measured := 0, 0
		for jumps := 0; r.now < end; jumps++ {
			if p, _ := r.m.Pending(); p != 0 {
				r.act(r.m.Flush(r.now, coalesce.ReasonStop)) // nothing waits across the jump
			}
			r.now += jump
			r.o.Notified += uint32(r.now) // any number
			r.o.Packets, r.o.Bytes = 1<<31, 1<<37
			r.observe()
			if jumps%40 != 0 {
				continue
			}
			// The window that holds the jump ends in this, and two more begin in it.
			looked++
			settled := r.now
			for windows, at := 0, r.e.Decision().At; windows < 3 && r.now < settled+60*ms; {
				r.burst(32, 64, true)
				r.run(r.now + 16*us)
				if d := r.e.Decision(); d.At != at {
					at = d.At
					windows++
					if windows == 3 {
						measured++
						if r.dim() && (d.Inputs.PPMS < 1900 || d.Inputs.PPMS > 2100) {
							t.Fatalf("%+v after %d s", d, r.now/second)
						}
					}
				}
			}
		}
		if r.dim() && measured < looked {
			t.Errorf("only %d of %d looks found three windows", measured, looked)
		}
		r.check()
	})
}

// TestM08ClockBackwards: the clock is said to be monotonic. If it is not,
// nothing is measured across the step, nothing divides by zero, and the
// next window is as good as any.
func TestM08ClockBackwards(t *testing.T) {
	m08(t, func(t *testing.T, r *rig) {
		r.now = hour
		for _, back := range []int64{1, us, 20 * ms, 30 * 60 * second} {
			r.lineRate(20 * ms)
			if p, _ := r.m.Pending(); p != 0 {
				r.act(r.m.Flush(r.now, coalesce.ReasonStop))
			}
			before := r.e.Decision()
			r.now -= back
			r.o.Notified += 64
			r.observe()
			if d := r.e.Decision(); r.dim() && back > 20*us && d != before {
				t.Fatalf("a step back by %d ns made it decide %+v", back, d)
			}
			r.lineRate(40 * ms)
			if d := r.e.Decision(); r.dim() && (d.At < r.now-40*ms || d.Inputs.PPMS < 1800 || d.Inputs.PPMS > 2200) {
				t.Fatalf("40 ms after a step back by %d ns the last decision is %+v at %d", back, d, r.now)
			}
		}
		r.check()
	})
}

// TestM08ZeroInterval: time stands still while a lot happens.
func TestM08ZeroInterval(t *testing.T) {
	m08(t, func(t *testing.T, r *rig) {
		r.run(5 * ms)
		r.o.Notified = 1
		r.observe()
		before := r.e.Decision()
		for range 1000 {
			r.o.Packets, r.o.Bytes, r.o.Notified = 64, 4096, 64
			r.observe()
		}
		if d := r.e.Decision(); r.dim() && d != before {
			t.Errorf("decided %+v in no time", d)
		}
		r.lineRate(50 * ms)
		if d := r.e.Decision(); r.dim() && d.At == before.At {
			t.Error("stuck after an interval of no length")
		}
		r.check()
	})
}

// TestM08UnchangedProfile: steps between equal limits change nothing for the
// driver, and must not stop the measuring either.
func TestM08UnchangedProfile(t *testing.T) {
	s, err := coalesce.ParseEngine("net-dim:20,32_20,32_20,32_20,32_20,32", coalesce.RX)
	if err != nil {
		t.Fatal(err)
	}
	r := newRig(t, s)
	steps := map[int]bool{}
	last := int64(0)
	for range 200 {
		r.lineRate(2 * ms)
		d := r.e.Decision()
		if d.At <= last {
			t.Fatalf("nothing was decided since %d: %+v at %d", last, d, r.now)
		}
		last = d.At
		steps[d.Step] = true
	}
	if len(steps) < 2 || r.changes != 0 || r.e.Tick(r.now).Limits != lim(20, 32) {
		t.Errorf("steps %v, %d changes", steps, r.changes)
	}
	r.check()
}

// TestM08Silent: while the driver wants no notifications no window ends, and the
// first 64 that it wants again end one.
func TestM08Silent(t *testing.T) {
	for _, spec := range []string{"net-dim", "rdma-dim"} {
		e := engine(t, spec, coalesce.TX)
		now := int64(0)
		for range 100_000 {
			now += 16 * us
			e.Observe(&coalesce.Observation{Now: now, Packets: 32, Bytes: 2048, Suppressed: 1})
		}
		if d := e.Decision(); d.Reason != "start" {
			t.Errorf("%s: %+v without a notification", spec, d)
		}
		for range 64 {
			now += 16 * us
			e.Observe(&coalesce.Observation{Now: now, Packets: 32, Bytes: 2048, Notified: 1})
		}
		// 100063 bursts of 32 in as many times 16 us.
		if d := e.Decision(); d.At != now || d.Inputs.PPMS != 2000 || d.Inputs.EPMS != 1 {
			t.Errorf("%s: %+v", spec, d)
		}
	}
}
