package qemutest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"
)

// ratio is calls and interrupts per packet of one load.
type ratio struct {
	packets, calls, interrupts uint64
}

func (r ratio) callsPerPacket() float64 { return float64(r.calls) / float64(max(r.packets, 1)) }

// testFewerCalls: under a one-way load of evenly spaced packets a limit makes the
// device call less, and the guest takes as many interrupts less.
//
// How much less is a matter of arithmetic: the driver has its notifications off
// while it polls, so a guest that is slower than the load coalesces by itself,
// and for a guest that keeps up a window of W us holds W divided by the distance
// of the packets. 64 us hold two packets of a load that these guests can take.
func testFewerCalls(t *testing.T, ctx context.Context, r *rig) {
	must(t, ctx, r.guest, "udp-sink "+loadPort+" >/dev/null 2>&1 & echo $! > /tmp/sink")
	load := func(usecs, frames, packets int, distance time.Duration) ratio {
		t.Helper()
		must(t, ctx, r.guest, fmt.Sprintf("ethtool -C eth0 rx-usecs %d rx-frames %d", usecs, frames))
		before, interrupts := r.device(t, ctx), r.interrupts(t, ctx)
		r.udpLoad(t, packets, distance)
		// The ping is behind the load in the queue, and late enough to be announced.
		r.ping(t, ctx, "1")
		got := ratio{interrupts: r.interrupts(t, ctx) - interrupts}
		n := Sum(r.device(t, ctx), "rx").Minus(Sum(before, "rx"))
		got.packets, got.calls = n.Packets, n.Calls
		t.Logf("%v apart, rx %d us / %d frames: %d packets, %d calls (%d suppressed), %.3f calls per packet; the guest took %d interrupts",
			distance, usecs, frames, got.packets, got.calls, n.Suppressed, got.callsPerPacket(), got.interrupts)
		if n.Packets < uint64(packets)/2 {
			t.Fatalf("only %d of %d packets arrived", n.Packets, packets)
		}
		// An interrupt never comes without a call; the other queues share the line.
		if got.interrupts > got.calls+got.calls/4+20 {
			t.Errorf("%d interrupts for %d receive calls", got.interrupts, got.calls)
		}
		return got
	}
	// compare repeats a measurement that the machine's other work may have spoiled:
	// a guest that gets no processor time coalesces by itself.
	compare := func(usecs, frames, packets int, distance time.Duration, factor float64) {
		t.Helper()
		var none, some ratio
		for range 5 {
			none, some = load(0, 0, packets, distance), load(usecs, frames, packets, distance)
			if some.callsPerPacket()*factor <= none.callsPerPacket() && float64(some.interrupts)*factor/2 <= float64(none.interrupts) {
				return
			}
		}
		t.Errorf("%d/%d: calls per packet went from %.4f to %.4f, wanted a factor of %.1f; the guest's interrupts from %d to %d",
			usecs, frames, none.callsPerPacket(), some.callsPerPacket(), factor, none.interrupts, some.interrupts)
	}
	compare(5000, 64, 10000, 100*time.Microsecond, 8)
	compare(64, 64, 20000, 40*time.Microsecond, 1.5)
	must(t, ctx, r.guest, "ethtool -C eth0 rx-usecs 0 rx-frames 0; kill $(cat /tmp/sink)")
}

// interrupts is how many the guest has taken from virtio devices.
func (r *rig) interrupts(t *testing.T, ctx context.Context) uint64 {
	t.Helper()
	var sum uint64
	for line := range strings.Lines(must(t, ctx, r.guest, "cat /proc/interrupts")) {
		var name string
		var n uint64
		if !strings.Contains(line, "virtio") {
			continue
		}
		if _, err := fmt.Sscan(line, &name, &n); err != nil {
			t.Fatalf("/proc/interrupts: %q: %v", line, err)
		}
		sum += n
	}
	return sum
}

// testAnswerWithinLimit: a single packet is announced at once without limits, and
// when the time is up with them.
func testAnswerWithinLimit(t *testing.T, ctx context.Context, r *rig) {
	const count = 10
	check := func(reason, other string) {
		t.Helper()
		before := r.device(t, ctx)
		out := r.ping(t, ctx, fmt.Sprint(count))
		after := r.device(t, ctx)
		had, has := reasons(before, "rx"), reasons(after, "rx")
		n := Sum(after, "rx").Minus(Sum(before, "rx"))
		if has[reason]-had[reason] < count {
			t.Errorf("%d notifications by reason %q for %d single packets: %v, before %v\n%s",
				has[reason]-had[reason], reason, count, has, had, out)
		}
		if has[other] != had[other] {
			t.Errorf("%d notifications by reason %q", has[other]-had[other], other)
		}
		if n.Calls+n.Suppressed < count {
			t.Errorf("%d calls and %d suppressed for %d packets", n.Calls, n.Suppressed, n.Packets)
		}
	}
	must(t, ctx, r.guest, "ethtool -C eth0 rx-usecs 0 rx-frames 0")
	check("every_packet", "timeout")
	must(t, ctx, r.guest, "ethtool -C eth0 rx-usecs 2000 rx-frames 64")
	check("timeout", "packets")
	must(t, ctx, r.guest, "ethtool -C eth0 rx-usecs 0 rx-frames 0")
}
