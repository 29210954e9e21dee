package coalesce_test

import (
	"math"
	"testing"

	"pgregory.net/rapid"

	"github.com/vhostnet/vhostnet/coalesce"
)

// TestAdaptiveWithinBounds feeds any observations, sensible or not, on any
// clock: limits stay within the budget, a tick is asked for only while packets
// are pending and within the budget from now, and a flush only for packets.
func TestAdaptiveWithinBounds(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		budget := rapid.Uint32Range(1, coalesce.MaxHostUsecs).Draw(t, "budget")
		dir := coalesce.Direction(rapid.IntRange(0, 1).Draw(t, "direction"))
		e := coalesce.EngineSpec{Kind: coalesce.EngineAdaptive, Direction: dir, MaxLatency: budget}.New()
		now := rapid.OneOf(rapid.Just(int64(0)), rapid.Int64Range(0, 1<<60), rapid.Int64Range(-1<<60, 0)).Draw(t, "start")
		gap := rapid.Int64Range(0, 300_000).Draw(t, "gap")
		size := rapid.SampledFrom([]uint32{0, 1, 2, 64, 256, 1024, 32768}).Draw(t, "size")
		few := rapid.Uint32Range(0, 3)
		check := func(a coalesce.Advice, backlog uint32) {
			switch l := a.Limits; {
			case l.Usecs > budget:
				t.Fatalf("%v with a budget of %d us", l, budget)
			case l == coalesce.Limits{} || l.Packets == 0:
				t.Fatalf("%v", l)
			case l.Packets > max(size/2, 64):
				t.Fatalf("%v for a ring of %d", l, size)
			}
			if backlog == 0 && (a.Next != 0 || a.Flush) {
				t.Fatalf("%+v with nothing pending", a)
			}
			if a.Next != 0 && (a.Next <= now || a.Next > now+int64(budget)*1000) {
				t.Fatalf("tick at %d, now %d, budget %d", a.Next, now, budget)
			}
			if a.Next != 0 && a.Flush {
				t.Fatalf("%+v", a)
			}
			d := e.Decision()
			for _, f := range [...]float64{d.Inputs.PPMS, d.Inputs.BPMS, d.Inputs.EPMS, d.Inputs.Ratio, d.Inputs.GapUS, d.Inputs.ServiceUS, d.Inputs.SuppressedRatio} {
				if math.IsNaN(f) || math.IsInf(f, 0) || f < 0 {
					t.Fatalf("%+v", d)
				}
			}
			if d.Reason == "" || d.Step != -1 {
				t.Fatalf("%+v", d)
			}
		}
		var backlog uint32
		for range rapid.IntRange(1, 400).Draw(t, "observations") {
			switch rapid.IntRange(0, 40).Draw(t, "clock") {
			case 0:
				now -= rapid.Int64Range(0, 1<<50).Draw(t, "back")
			case 1:
				now += rapid.Int64Range(0, 1<<50).Draw(t, "ahead")
			case 2:
			default:
				now += gap
			}
			o := coalesce.Observation{Now: now, Size: size, Free: rapid.Uint32Range(0, size).Draw(t, "free")}
			if rapid.IntRange(0, 9).Draw(t, "kind") > 0 {
				o.Packets = few.Draw(t, "packets")
				o.PortEmpty = rapid.Bool().Draw(t, "empty")
			} else {
				o.Packets, o.Bytes = rapid.Uint32().Draw(t, "packets"), rapid.Uint64().Draw(t, "bytes")
			}
			o.Notified, o.Suppressed = few.Draw(t, "notified"), few.Draw(t, "suppressed")
			o.Consumed, o.Idle = few.Draw(t, "consumed"), rapid.Bool().Draw(t, "idle")
			if backlog = 0; rapid.Bool().Draw(t, "pending") {
				backlog = max(o.Packets, 1)
			}
			o.Backlog = backlog
			a := e.Observe(&o)
			check(a, backlog)
			if a.Next != 0 && rapid.Bool().Draw(t, "tick") {
				now = a.Next
				tick := e.Tick(now)
				if tick.Next == now {
					t.Fatalf("asks for the tick that it just got: %+v", tick)
				}
				check(tick, backlog)
			}
		}
	})
}
