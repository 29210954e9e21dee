package qemutest

import (
	"context"
	"fmt"
	"testing"
)

// testFewerCalls: under a one-way load a limit makes the device call at least
// eight times less for the same packets.
func testFewerCalls(t *testing.T, ctx context.Context, r *rig) {
	perPacket := func(usecs, frames int) float64 {
		t.Helper()
		must(t, ctx, r.guest, fmt.Sprintf("ethtool -C eth0 rx-usecs %d rx-frames %d", usecs, frames))
		before := r.device(t, ctx)
		out := r.iperf(t, ctx, "-t 3 -u -b 8M -l 64 -R")
		n := Sum(r.device(t, ctx), "rx").Minus(Sum(before, "rx"))
		if n.Packets < 5000 {
			t.Fatalf("the load was %d packets\n%s", n.Packets, out)
		}
		t.Logf("rx %d us / %d frames: %d packets, %d calls, %d suppressed; %s",
			usecs, frames, n.Packets, n.Calls, n.Suppressed, lastRate(out))
		return float64(n.Calls) / float64(n.Packets)
	}
	none := perPacket(0, 0)
	some := perPacket(64, 64)
	must(t, ctx, r.guest, "ethtool -C eth0 rx-usecs 0 rx-frames 0")
	if some*8 > none {
		t.Errorf("calls per packet went from %.4f to %.4f, less than eightfold", none, some)
	}
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
			t.Errorf("%d notifications by reason %q for %d single packets: %v, before %v\n%s", has[reason]-had[reason], reason, count, has, had, out)
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
