package qemutest

import (
	"context"
	"fmt"
	"strings"
	"testing"
	"time"

	"github.com/vhostnet/vhostnet/netdev"
)

// TestNetdev runs `-netdev vhost-user` with virtio-net-pci, the production
// shape, under the current and the older QEMU. QEMU has the control queue there,
// so limits come from the host alone.
func TestNetdev(t *testing.T) {
	for _, c := range []struct {
		lane Lane
		back time.Duration // traffic is back within this after a restart
	}{
		{LaneNetdev, 2 * time.Second},
		{LaneOldNetdev, 3 * time.Second}, // it tries once a second
	} {
		t.Run(c.lane.String(), func(t *testing.T) {
			ctx := limit(t, 3*time.Minute)
			r := newRig(t, ctx, Config{Lane: c.lane, QueuePairs: pairs, ReconnectMS: 300},
				"--rx-coalesce", "50/32", "--tx-coalesce", "60/48")
			t.Run("probe", func(t *testing.T) { testNetdevProbe(t, ctx, r) })
			t.Run("ping", func(t *testing.T) { testNetdevPing(t, ctx, r) })
			t.Run("traffic", func(t *testing.T) { testTraffic(t, ctx, r) })
			t.Run("queue pairs", func(t *testing.T) { testNetdevQueuePairs(t, ctx, r) })
			t.Run("backend killed under traffic", func(t *testing.T) { testBackendKilled(t, ctx, r, c.back) })
			t.Run("reboot", func(t *testing.T) { testNetdevReboot(t, ctx, r) })
			t.Run("power off", func(t *testing.T) { testPowerOff(t, ctx, r) })
		})
	}
}

// TestNetdevPacked runs it with packed rings, which QEMU has to be asked for. It does
// not know where they are when it loses a backend, so that is left out.
func TestNetdevPacked(t *testing.T) {
	ctx := limit(t, 3*time.Minute)
	r := newRig(t, ctx, Config{Lane: LaneNetdev, QueuePairs: pairs, Packed: true},
		"--rx-coalesce", "50/32", "--tx-coalesce", "60/48")
	t.Run("probe", func(t *testing.T) {
		testNetdevProbe(t, ctx, r)
		testFormat(t, ctx, r, "packed")
	})
	t.Run("ping", func(t *testing.T) { testNetdevPing(t, ctx, r) })
	t.Run("traffic", func(t *testing.T) { testTraffic(t, ctx, r) })
	t.Run("queue pairs", func(t *testing.T) { testNetdevQueuePairs(t, ctx, r) })
	t.Run("stop and continue", func(t *testing.T) { testNetdevStopContinue(t, ctx, r) })
	t.Run("reboot", func(t *testing.T) { testNetdevReboot(t, ctx, r) })
	t.Run("power off", func(t *testing.T) { testPowerOff(t, ctx, r) })
}

// testFormat: which kind of rings was negotiated.
func testFormat(t *testing.T, ctx context.Context, r *rig, want string) {
	if d := r.device(t, ctx); d.RingFormat != want {
		t.Errorf("%s rings, want %s", d.RingFormat, want)
	}
}

// testNetdevStopContinue: rings go on where they were.
func testNetdevStopContinue(t *testing.T, ctx context.Context, r *rig) {
	m, err := r.guest.Monitor()
	if err != nil {
		t.Fatal(err)
	}
	for range 3 {
		for _, command := range []string{"stop", "cont"} {
			if _, err := m.Execute(ctx, command, nil); err != nil {
				t.Fatal(err)
			}
		}
		r.ping(t, ctx, "3")
	}
}

func testNetdevProbe(t *testing.T, ctx context.Context, r *rig) {
	d := r.wait(t, ctx, "running queues", func(d netdev.DeviceSnapshot) bool {
		return d.FrontEnd.Connected && d.Queues[0].Started && d.Queues[0].Enabled
	})
	for _, q := range d.Queues {
		if q.Kind == "control" {
			if q.Started {
				t.Error("the control queue reached the backend")
			}
			continue
		}
		want := netdev.LimitsSnapshot{Usecs: 50, Packets: 32}
		if q.Kind == "tx" {
			want = netdev.LimitsSnapshot{Usecs: 60, Packets: 48}
		}
		if q.Coalesce.Guest != (netdev.LimitsSnapshot{}) || q.Coalesce.Host != want || q.Coalesce.Effective != want {
			t.Errorf("queue %d has limits %+v, want the host's %+v", q.Index, q.Coalesce, want)
		}
	}
}

func testNetdevPing(t *testing.T, ctx context.Context, r *rig) {
	before := r.device(t, ctx)
	r.ping(t, ctx, "10")
	after := r.device(t, ctx)
	if n := reasons(after, "rx")["timeout"] - reasons(before, "rx")["timeout"]; n < 10 {
		t.Errorf("%d notifications at the host's time limit for 10 single packets", n)
	}
}

// testNetdevQueuePairs: the driver's choice of queue pairs reaches the backend as
// enabled rings.
func testNetdevQueuePairs(t *testing.T, ctx context.Context, r *rig) {
	enabled := func(n int) func(netdev.DeviceSnapshot) bool {
		return func(d netdev.DeviceSnapshot) bool {
			for _, q := range d.Queues {
				if q.Kind != "control" && (q.Started && q.Enabled) != (q.Pair < n) {
					return false
				}
			}
			return true
		}
	}
	load, err := r.guest.Go("iperf3 -c "+hostAddress+" -t 4 -P 4 --bidir", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	for _, n := range []int{4, 1, 4} {
		must(t, ctx, r.guest, fmt.Sprintf("ethtool -L eth0 combined %d", n))
		r.wait(t, ctx, fmt.Sprintf("%d queue pairs", n), enabled(n))
	}
	if result, err := load.Wait(ctx); err != nil || result.Exit != 0 {
		t.Errorf("iperf3 did not survive: %v, status %d\n%s", err, result.Exit, result.Output)
	}
	before := r.device(t, ctx)
	r.iperf(t, ctx, "-t 2 -P 8 -u -b 1M -l 500 -R")
	after := r.device(t, ctx)
	used := 0
	for i, q := range after.Queues {
		if q.Kind == "rx" && q.Packets > before.Queues[i].Packets {
			used++
		}
	}
	if used < 2 {
		t.Errorf("8 flows used %d of %d receive queues", used, pairs)
	}
}

// testBackendKilled kills the backend while pings run and starts another one.
// The guest notices nothing but a short loss of carrier. Its kernel can take up
// to a second to act on the carrier's return, which is in the time given.
func testBackendKilled(t *testing.T, ctx context.Context, r *rig, within time.Duration) {
	load, err := r.guest.Go("ping -i 0.1 -c 60 -W 1 "+hostAddress+"; true", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	before := r.device(t, ctx)
	r.wait(t, ctx, "pings", func(d netdev.DeviceSnapshot) bool { return Sum(d, "rx").Packets > Sum(before, "rx").Packets+5 })
	r.backend.Process().Kill()
	r.startBackend(t, ctx)
	start := time.Now()
	r.wait(t, ctx, "traffic through the new backend", func(d netdev.DeviceSnapshot) bool {
		return Sum(d, "rx").Packets > 0 && Sum(d, "tx").Packets > 0
	})
	took := time.Since(start)
	result, err := load.Wait(ctx)
	if err != nil {
		t.Fatal(err)
	}
	replies := strings.Count(result.Output, "seq=")
	t.Logf("traffic was back %.2f s after the restart; %d of 60 pings were answered", took.Seconds(), replies)
	if took > within {
		t.Errorf("traffic was back after %v", took)
	}
	// The last pings must be among those answered.
	if !strings.Contains(result.Output, "seq=59 ") {
		t.Errorf("the last ping was lost:\n%s", result.Output)
	}
	r.ping(t, ctx, "5")
	r.iperf(t, ctx, "-t 1")
	r.iperf(t, ctx, "-t 1 -R")
}

func testNetdevReboot(t *testing.T, ctx context.Context, r *rig) {
	if err := r.guest.Reboot(); err != nil {
		t.Fatal(err)
	}
	if err := r.guest.WaitReady(ctx); err != nil {
		t.Fatal(err)
	}
	r.ping(t, ctx, "5")
	r.iperf(t, ctx, "-t 1")
}
