package coalesce_test

import (
	"testing"

	"github.com/vhostnet/vhostnet/coalesce"
)

// window is 64 notifications' worth of traffic and the decision that it must
// lead to. Rates are worked out by hand: n*1000/us, rounded up.
type window struct {
	us      int64
	packets uint32
	bytes   uint64
	step    int
	reason  string
}

// replay feeds windows. Each is opened by an observation without traffic at the
// moment at which the one before ended, which is where a change of limits leaves
// off, and which is nothing in a window that is open already.
func replay(t *testing.T, e coalesce.Engine, start int64, windows []window) (now int64) {
	t.Helper()
	now = start
	for i, w := range windows {
		e.Observe(&coalesce.Observation{Now: now})
		now += w.us * us
		e.Observe(&coalesce.Observation{Now: now, Packets: w.packets, Bytes: w.bytes, Notified: 64})
		d := e.Decision()
		if d.Step != w.step || d.Reason != w.reason || d.At != now {
			t.Fatalf("window %d: step %d because %q at %d, want %d because %q at %d (%+v)",
				i+1, d.Step, d.Reason, d.At, w.step, w.reason, now, d.Inputs)
		}
	}
	return now
}

func TestNetDimTraces(t *testing.T) {
	tests := []struct {
		name    string
		windows []window
	}{
		{"fewer notifications for the same traffic: up to the last limits, and parked there", []window{
			// 640*1000/1000 = 640 packets/ms, 64000 bytes/ms, 64*1000/1000 = 64
			// notifications/ms. There was nothing before: 64000 bytes are better.
			{1000, 640, 64_000, 1, "changed"},
			// 1280*1000/2000 = 640 and 64000 as before; 64000/2000 = 32 notifications:
			// 100*32/64 = 50 % fewer.
			{2000, 1280, 128_000, 2, "better"},
			// 64000/4000 = 16, 50 % fewer than 32; then 8, 50 % fewer than 16.
			{4000, 2560, 256_000, 3, "better"},
			{8000, 5120, 512_000, 4, "better"},
			// 4, 50 % fewer than 8: better, but step 4 is the last.
			{16_000, 10_240, 1_024_000, 4, "edge"},
			// The same: it stays.
			{16_000, 10_240, 1_024_000, 4, "parked"},
			// 16*71039 bytes: 71039/ms, 100*7039/64000 = 10.99 -> 10 %, not more than
			// 10. 11264*1000/16000 = 704 packets/ms, 100*64/640 = 10. The same.
			{16_000, 11_264, 16 * 71_039, 4, "parked"},
			// 71040: 100*7040/64000 = 11. Compared with the traffic at arrival, not with
			// the window before, from which it differs by 0 %. Less moderation first.
			{16_000, 11_264, 16 * 71_040, 3, "changed"},
		}},
		{"a top in the middle", []window{
			{1000, 640, 64_000, 1, "changed"},
			// 80000 to 64000 bytes: 25 % more. 100000 to 80000: 25 % more.
			{1000, 640, 80_000, 2, "better"},
			{1000, 640, 100_000, 3, "better"},
			// 100*20000/100000 = 20 % less: turn, one step left. That was 3 steps to the
			// right and now 1 to the left.
			{1000, 640, 80_000, 2, "turned"},
			// 25 % more again: a top, with 3 > 1 to the right and 1 to the left. It stays.
			{1000, 640, 100_000, 2, "top"},
			{1000, 640, 100_000, 2, "parked"},
		}},
		{"one step up and one down is no top", []window{
			{1000, 640, 64_000, 1, "changed"},
			// Same: not better. Left; 1 step to the right is not more than 1.
			{1000, 640, 64_000, 0, "turned"},
			// Better, going left, but at the first limits.
			{1000, 640, 80_000, 0, "edge"},
		}},
		{"nothing changes anything: tired after ten steps, ten windows of rest", []window{
			// Ten steps, each but the first after a turn: 1 0 1 0 1 0 1 0 1 0.
			{1000, 640, 64_000, 1, "changed"},
			{1000, 640, 64_000, 0, "turned"},
			{1000, 640, 64_000, 1, "turned"},
			{1000, 640, 64_000, 0, "turned"},
			{1000, 640, 64_000, 1, "turned"},
			{1000, 640, 64_000, 0, "turned"},
			{1000, 640, 64_000, 1, "turned"},
			{1000, 640, 64_000, 0, "turned"},
			{1000, 640, 64_000, 1, "turned"},
			{1000, 640, 64_000, 0, "turned"},
			// The eleventh is not taken.
			{1000, 640, 64_000, 0, "tired"},
			// Ten windows: nine are ignored, whatever they bring, the tenth ends it.
			{1000, 640, 640_000, 0, "resting"},
			{1000, 6400, 64_000, 0, "resting"},
			{1000, 0, 0, 0, "resting"},
			{1000, 640, 64_000, 0, "resting"},
			{1000, 640, 64_000, 0, "resting"},
			{1000, 640, 64_000, 0, "resting"},
			{1000, 640, 64_000, 0, "resting"},
			{1000, 640, 64_000, 0, "resting"},
			{1000, 640, 64_000, 0, "resting"},
			{1000, 640, 64_000, 1, "rested"},
			// Compared with the tenth: 25 % more bytes.
			{1000, 640, 80_000, 2, "better"},
		}},
		{"bytes count before packets, packets before notifications", []window{
			{1000, 640, 64_000, 1, "changed"},
			// More bytes (25 %) in fewer packets (50 %) and more notifications (64000/500
			// = 128): better.
			{500, 160, 40_000, 2, "better"},
			// 80000 bytes/ms as before. 480 packets/ms instead of 320: 50 % more. 64 to
			// 128 notifications, 50 % fewer.
			{1000, 480, 80_000, 3, "better"},
			// The same bytes; 384 packets are 20 % fewer: worse, though there are fewer
			// notifications (32 to 64).
			{2000, 768, 160_000, 2, "turned"},
		}},
		{"rates are rounded up, so slow traffic looks the same", []window{
			// 64 packets of 100 bytes in 64 s: 64*1000/64000000 = 0.001 -> 1 packet/ms,
			// 6400*1000/64000000 = 0.1 -> 1 byte/ms, 0.001 -> 1 notification/ms.
			{64_000_000, 64, 6400, 1, "changed"},
			// Half of that: 1, 1, 1. Not better.
			{128_000_000, 64, 6400, 0, "turned"},
		}},
		{"no traffic is no reason to move", []window{
			{1000, 0, 0, 0, "parked"},
			// Packets without bytes cannot be told from nothing: bytes/ms were 0 and are.
			{1000, 640, 0, 0, "parked"},
			{1000, 640, 1, 1, "changed"},
			// From 1 byte/ms to 0: 100 % less.
			{1000, 640, 0, 0, "turned"},
			// After 0 bytes/ms any are better. Going left there is no step.
			{1000, 0, 1, 0, "edge"},
			// The same byte; after 0 packets any are better: a change.
			{1000, 1, 1, 1, "changed"},
		}},
		{"2^32 us are none, nor are as many bytes", []window{
			// 2^32 + 1000 us count as 1000 us.
			{1<<32 + 1000, 640, 64_000, 1, "changed"},
			{1000, 640, 80_000, 2, "better"},
			// 2^32 + 100000 bytes count as 100000.
			{1000, 640, 1<<32 + 100_000, 3, "better"},
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := engine(t, "net-dim", coalesce.RX)
			replay(t, e, 0, tt.windows)
			e.Reset()
			if got, want := e.Decision(), (coalesce.Decision{Limits: lim(1, 256), Reason: "start"}); got != want {
				t.Errorf("after a reset: %+v", got)
			}
			replay(t, e, -1<<40, tt.windows)
		})
	}
}

func TestRDMADimTraces(t *testing.T) {
	tests := []struct {
		name    string
		windows []window
	}{
		{"more and more packets: to the last limits, where it turns", []window{
			// 100 packets/ms, 64 notifications/ms, 100*100/64 = 156 packets per 100
			// notifications. There was nothing before, so nothing to compare with.
			{1000, 100, 0, 0, "same"},
			// 100*12/100 = 12 % more each time: 112, 126 (12.5), 142 (12.7), 160 (12.7),
			// 180 (12.5), 202 (12.2), 227 (12.4), 255 (12.3), 286 (12.2).
			{1000, 112, 0, 1, "better"},
			{1000, 126, 0, 2, "better"},
			{1000, 142, 0, 3, "better"},
			{1000, 160, 0, 4, "better"},
			{1000, 180, 0, 5, "better"},
			{1000, 202, 0, 6, "better"},
			{1000, 227, 0, 7, "better"},
			{1000, 255, 0, 8, "better"},
			{1000, 286, 0, 8, "edge"},
			// 100*286/64 = 446 per 100; 50*8 = 400 would be too few. It stays.
			{1000, 286, 0, 8, "same"},
			// 321: 12 % more, and it goes down now.
			{1000, 321, 0, 7, "better"},
			// 285: 100*36/321 = 11 % less: turn, up.
			{1000, 285, 0, 8, "turned"},
			// 257: 100*28/285 = 9 % less. 100*257/64 = 401 per 100, 9 % less than 445,
			// and more than 400.
			{1000, 257, 0, 8, "same"},
			// 256: 400, which is 50*8: back to the first limits.
			{1000, 256, 0, 0, "few_per_notification"},
			{1000, 256, 0, 0, "same"},
		}},
		{"it turns at the first limits too", []window{
			{1000, 100, 0, 0, "same"},
			// 20 % less: turn, but there is nothing below. It faces up again.
			{1000, 80, 0, 0, "edge"},
			{1000, 100, 0, 1, "better"},
			// 20 % less, then 25 % more going down: turn at 0.
			{1000, 80, 0, 0, "turned"},
			{1000, 100, 0, 0, "edge"},
			{1000, 125, 0, 1, "better"},
		}},
		{"packets per notification decide between equal rates", []window{
			// 6400*1000/10000 = 640; 64000/10000 = 6.4 -> 7; 64000/7 = 9142.
			{10_000, 6400, 0, 0, "same"},
			// 640 as well; 64000/20000 = 3.2 -> 4; 64000/4 = 16000: 75 % more.
			{20_000, 12_800, 0, 1, "better"},
			// 640; 64000/21000 -> 4: the same. 16000 > 50.
			{21_000, 13_440, 0, 1, "same"},
			// 640; 7 again; 9142 is 42 % less: turn.
			{10_000, 6400, 0, 0, "turned"},
		}},
		{"nothing is no measure", []window{
			{1000, 0, 0, 0, "same"},
			{1000, 100, 0, 0, "same"},
			// From 100 to 0: worse, an edge.
			{1000, 0, 0, 0, "edge"},
			{1000, 100, 0, 0, "same"},
			{1000, 200, 0, 1, "better"},
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			e := engine(t, "rdma-dim", coalesce.TX)
			replay(t, e, 0, tt.windows)
			e.Reset()
			if got, want := e.Decision(), (coalesce.Decision{Limits: lim(1, 1), Reason: "start"}); got != want {
				t.Errorf("after a reset: %+v", got)
			}
			replay(t, e, 12345, tt.windows)
		})
	}
}

// TestDimWindow checks where windows begin and end.
func TestDimWindow(t *testing.T) {
	for _, spec := range []string{"net-dim", "rdma-dim"} {
		e := engine(t, spec, coalesce.RX)
		observe := func(at int64, packets, notified uint32) coalesce.Decision {
			e.Observe(&coalesce.Observation{Now: at * us, Packets: packets, Bytes: 100 * uint64(packets), Notified: notified})
			return e.Decision()
		}
		// The first observation only opens the window, whatever it brings.
		if d := observe(0, 1000, 1000); d.Reason != "start" {
			t.Fatalf("%s: %+v from one observation", spec, d)
		}
		if d := observe(500, 32, 63); d.Reason != "start" {
			t.Fatalf("%s: %+v after 63 notifications", spec, d)
		}
		// 64 packets, of which 32 came in the second half; 64000/1000 notifications.
		d := observe(1000, 32, 1)
		if d.At != 1000*us || d.Inputs.PPMS != 64 || d.Inputs.EPMS != 64 || d.Inputs.WindowUS != 1000 || d.Inputs.Ratio != 1 {
			t.Fatalf("%s: %+v after 64", spec, d)
		}
		if spec == "net-dim" {
			// The limits changed, so this opens the next window, and its packets are from
			// before it.
			d = observe(1500, 77, 64)
		} else {
			// They did not: the window has been open since 1000 us.
			d = observe(1500, 0, 0)
		}
		if d.At != 1000*us {
			t.Fatalf("%s: %+v", spec, d)
		}
		// More notifications than 64 at once are one window, and count as 64.
		d = observe(2500, 150, 1000)
		if spec == "net-dim" {
			// 150*1000/1000; 64*1000/1000.
			if d.Inputs.PPMS != 150 || d.Inputs.EPMS != 64 {
				t.Fatalf("%s: %+v", spec, d)
			}
		} else if d.Inputs.PPMS != 100 || d.Inputs.EPMS != 43 {
			// 150*1000/1500; 64*1000/1500 = 42.7 -> 43.
			t.Fatalf("%s: %+v", spec, d)
		}
	}
}

// TestDimZeroInterval: a window of no length gives no rates; the next moment
// completes it. Under a microsecond is no length.
func TestDimZeroInterval(t *testing.T) {
	for _, spec := range []string{"net-dim", "rdma-dim"} {
		e := engine(t, spec, coalesce.RX)
		for _, at := range []int64{5, 5, 5, 6, 1004} {
			e.Observe(&coalesce.Observation{Now: at, Packets: 10, Bytes: 1000, Notified: 64})
			if d := e.Decision(); d.Reason != "start" {
				t.Fatalf("%s: %+v from no time", spec, d)
			}
		}
		e.Observe(&coalesce.Observation{Now: 1005, Packets: 10, Bytes: 1000})
		// 50 packets in 1 us are 50000/ms.
		if d := e.Decision(); d.At != 1005 || d.Inputs.PPMS != 50_000 || d.Inputs.EPMS != 64_000 {
			t.Fatalf("%s: %+v", spec, d)
		}
	}
}

// TestDimEventWrap: 2^16 notifications between two observations are none, as
// they are for a 16-bit counter; what follows is measured as ever.
func TestDimEventWrap(t *testing.T) {
	for _, spec := range []string{"net-dim", "rdma-dim"} {
		e := engine(t, spec, coalesce.RX)
		e.Observe(&coalesce.Observation{})
		e.Observe(&coalesce.Observation{Now: 500 * us, Packets: 640, Bytes: 6400, Notified: 1<<16 + 63})
		if d := e.Decision(); d.Reason != "start" {
			t.Fatalf("%s: %+v", spec, d)
		}
		// 2^32 packets and bytes more than 640 and 6400 are none more.
		e.Observe(&coalesce.Observation{Now: 800 * us, Packets: 1<<32 - 1})
		e.Observe(&coalesce.Observation{Now: 1000 * us, Packets: 1, Bytes: 1 << 32, Notified: 1})
		if d := e.Decision(); d.Inputs.PPMS != 640 || d.Inputs.EPMS != 64 || (spec == "net-dim" && d.Inputs.BPMS != 6400) {
			t.Fatalf("%s: %+v", spec, d)
		}
	}
}

// climb drives net-dim through all limits: each window has twice the bytes.
func climb(t *testing.T, e coalesce.Engine) (seen []coalesce.Limits) {
	t.Helper()
	seen = append(seen, e.Tick(0).Limits)
	now := int64(0)
	for i := range 4 {
		now = replay(t, e, now, []window{{1000, 64, 1000 << i, i + 1, []string{"changed", "better", "better", "better"}[i]}})
		seen = append(seen, e.Tick(now).Limits)
	}
	return seen
}

func TestNetDimProfiles(t *testing.T) {
	tests := []struct {
		spec string
		dir  coalesce.Direction
		want [5]coalesce.Limits
	}{
		{"net-dim", coalesce.RX, [5]coalesce.Limits{{1, 256}, {8, 256}, {64, 256}, {128, 256}, {256, 256}}},
		{"net-dim:eqe", coalesce.RX, [5]coalesce.Limits{{1, 256}, {8, 256}, {64, 256}, {128, 256}, {256, 256}}},
		{"net-dim:cqe", coalesce.RX, [5]coalesce.Limits{{2, 256}, {8, 128}, {16, 64}, {32, 64}, {64, 64}}},
		{"net-dim:eqe", coalesce.TX, [5]coalesce.Limits{{1, 128}, {8, 128}, {32, 128}, {64, 128}, {128, 128}}},
		{"net-dim:cqe", coalesce.TX, [5]coalesce.Limits{{5, 128}, {8, 64}, {16, 32}, {32, 32}, {64, 32}}},
		{"net-dim:1,2_3,4_5,6_7,8_9,10", coalesce.TX, [5]coalesce.Limits{{1, 2}, {3, 4}, {5, 6}, {7, 8}, {9, 10}}},
		{"net-dim:cqe:0,0_3,4_5,6_7,8_9,10", coalesce.RX, [5]coalesce.Limits{{0, 1}, {3, 4}, {5, 6}, {7, 8}, {9, 10}}},
	}
	for _, tt := range tests {
		t.Run(tt.spec+" "+tt.dir.String(), func(t *testing.T) {
			if got := climb(t, engine(t, tt.spec, tt.dir)); [5]coalesce.Limits(got) != tt.want {
				t.Errorf("got %v, want %v", got, tt.want)
			}
		})
	}
}
