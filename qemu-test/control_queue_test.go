package qemutest

import (
	"context"
	"fmt"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vhostnet/vhostnet/netdev"
)

// pairs is how many queue pairs the guests with a control queue get.
const pairs = 4

// What the backend's configuration space has for them.
const (
	mac = "52:54:00:76:6e:01"
	mtu = "1400"
)

// TestTestDevice runs everything that needs the driver's control queue on QEMU's
// generic device, and what only a virtual machine can do: reset and stop.
func TestTestDevice(t *testing.T) {
	ctx := limit(t, 5*time.Minute)
	r := newRig(t, ctx, Config{Lane: LaneTestDevice, QueuePairs: pairs}, "--mac", mac, "--mtu", mtu)
	controlQueueSuite(t, ctx, r, "packed")
	t.Run("stop and continue", func(t *testing.T) { testStopContinue(t, ctx, r) })
	t.Run("reboot", func(t *testing.T) { testReboot(t, ctx, r) })
	t.Run("power off", func(t *testing.T) { testPowerOff(t, ctx, r) })
}

// TestUML runs the same on User-Mode Linux, with both kinds of rings: as there, the
// guest takes packed ones if it can have them.
func TestUML(t *testing.T) {
	for format, features := range map[string]string{"packed": "+RING_PACKED", "split": "-RING_PACKED"} {
		t.Run(format, func(t *testing.T) {
			ctx := limit(t, 3*time.Minute)
			r := newRig(t, ctx, Config{Lane: LaneUML, QueuePairs: pairs}, "--mac", mac, "--mtu", mtu, "--features="+features)
			controlQueueSuite(t, ctx, r, format)
			t.Run("power off", func(t *testing.T) { testPowerOff(t, ctx, r) })
		})
	}
}

func controlQueueSuite(t *testing.T, ctx context.Context, r *rig, format string) {
	for _, step := range []struct {
		name string
		run  func(*testing.T, context.Context, *rig)
	}{
		{"probe", testProbe},
		{"ring format", func(t *testing.T, ctx context.Context, r *rig) { testFormat(t, ctx, r, format) }},
		{"ping", testPing},
		{"traffic", testTraffic},
		{"fewer calls", testFewerCalls},
		{"answer within the limit", testAnswerWithinLimit},
		{"all queues", testAllQueues},
		{"one queue", testOneQueue},
		{"queue pairs under traffic", testQueuePairs},
		{"adaptive under traffic", testAdaptive},
		{"receive offloads", testReceiveOffloads},
		{"module reload", testModuleReload},
	} {
		t.Run(step.name, func(t *testing.T) { step.run(t, ctx, r) })
	}
}

// testProbe: what was negotiated, and that the driver sets nothing by itself.
func testProbe(t *testing.T, ctx context.Context, r *rig) {
	d := r.wait(t, ctx, "running queues", func(d netdev.DeviceSnapshot) bool {
		return d.FrontEnd.Connected && len(d.Queues) == 2*pairs+1 && d.Queues[0].Started && d.Queues[0].Enabled
	})
	for _, f := range []string{
		"VIRTIO_NET_F_CTRL_VQ", "VIRTIO_NET_F_MQ", "VIRTIO_NET_F_NOTF_COAL", "VIRTIO_NET_F_VQ_NOTF_COAL",
		"VIRTIO_NET_F_MRG_RXBUF", "VIRTIO_F_VERSION_1", "VIRTIO_F_EVENT_IDX",
	} {
		if !slices.Contains(d.NegotiatedFeatures, f) {
			t.Errorf("%s was not negotiated: %v", f, d.NegotiatedFeatures)
		}
	}
	if d.FrontEnd.MemoryBytes < 256<<20 {
		t.Errorf("%d bytes of guest memory are mapped", d.FrontEnd.MemoryBytes)
	}
	if !everyQueue(d, "rx", 0, 0) || !everyQueue(d, "tx", 0, 0) {
		t.Errorf("limits without a command: %v", guestLimits(d))
	}
	out := must(t, ctx, r.guest, "ethtool -i eth0; ethtool -c eth0; ethtool -l eth0; ip link show eth0")
	for _, part := range []string{"driver: virtio_net", "rx-usecs:", "link/ether " + mac, "mtu " + mtu + " "} {
		if !strings.Contains(out, part) {
			t.Errorf("the guest does not show %q:\n%s", part, out)
		}
	}
}

func testPing(t *testing.T, ctx context.Context, r *rig) {
	before := r.device(t, ctx)
	r.ping(t, ctx, "10")
	after := r.device(t, ctx)
	for _, kind := range []string{"rx", "tx"} {
		if n := Sum(after, kind).Minus(Sum(before, kind)).Packets; n < 10 {
			t.Errorf("the device counted %d %s packets for 10 pings", n, kind)
		}
	}
	if n := Sum(after, "rx").Minus(Sum(before, "rx")).Calls; n < 10 {
		t.Errorf("the device called the driver %d times for 10 single packets", n)
	}
}

// testTraffic: iperf3 in both directions. Its exit status is the control
// connection's; that the bytes went through the device is for the counters.
func testTraffic(t *testing.T, ctx context.Context, r *rig) {
	for _, c := range []struct {
		name, args, kind string
		least            uint64 // bytes
	}{
		{"TCP out", "-t 2", "tx", 1 << 20},
		{"TCP in", "-t 2 -R", "rx", 1 << 20},
		{"UDP out", "-t 2 -u -b 4M -l 500", "tx", 500 << 10},
		{"UDP in", "-t 2 -u -b 4M -l 500 -R", "rx", 500 << 10},
	} {
		before := r.device(t, ctx)
		out := r.iperf(t, ctx, c.args)
		after := r.device(t, ctx)
		got := Sum(after, c.kind).Minus(Sum(before, c.kind))
		if got.Bytes < c.least {
			t.Errorf("%s: the device counted %d bytes\n%s", c.name, got.Bytes, out)
		}
		t.Logf("%s: %s; device: %d packets, %d calls", c.name, lastRate(out), got.Packets, got.Calls)
	}
	for _, q := range r.device(t, ctx).Queues {
		if q.Broken != "" || q.CallErrors != 0 {
			t.Errorf("queue %d: broken %q, %d failed calls", q.Index, q.Broken, q.CallErrors)
		}
	}
}

// lastRate is the receiver's line of iperf3's summary.
func lastRate(out string) string {
	rate := ""
	for line := range strings.Lines(out) {
		if strings.Contains(line, "receiver") {
			rate = strings.Join(strings.Fields(line), " ")
		}
	}
	return rate
}

// testAllQueues: `ethtool -C` sets the limits of a direction, the guest shows
// what it set, and the device applies it to every queue.
func testAllQueues(t *testing.T, ctx context.Context, r *rig) {
	before := r.device(t, ctx)
	must(t, ctx, r.guest, "ethtool -C eth0 rx-usecs 64 rx-frames 64 tx-usecs 50 tx-frames 32")
	out := must(t, ctx, r.guest, "ethtool -c eth0")
	if !shows(out, "rx-usecs", 64) || !shows(out, "rx-frames", 64) || !shows(out, "tx-usecs", 50) || !shows(out, "tx-frames", 32) {
		t.Errorf("the guest shows\n%s", out)
	}
	d := r.device(t, ctx)
	if !everyQueue(d, "rx", 64, 64) || !everyQueue(d, "tx", 50, 32) {
		t.Errorf("the device has %v", guestLimits(d))
	}
	for _, q := range d.Queues {
		if q.Kind != "control" && q.Coalesce.Effective != q.Coalesce.Guest {
			t.Errorf("queue %d applies %+v, the guest set %+v", q.Index, q.Coalesce.Effective, q.Coalesce.Guest)
		}
	}
	for _, c := range []string{cmdTXSet, cmdRXSet} {
		if n := commands(d, c) - commands(before, c); n != 1 {
			t.Errorf("%d commands %s for one ethtool -C", n, c)
		}
	}
	if d.Control.Err != before.Control.Err {
		t.Errorf("%d commands failed", d.Control.Err-before.Control.Err)
	}
	r.ping(t, ctx, "5")
}

// shows tells whether ethtool printed a value.
func shows(out, name string, value int) bool {
	for line := range strings.Lines(out) {
		if f := strings.Fields(line); len(f) == 2 && f[0] == name+":" && f[1] == fmt.Sprint(value) {
			return true
		}
	}
	return false
}

// testOneQueue: `ethtool -Q` sets one queue pair and leaves the others alone.
func testOneQueue(t *testing.T, ctx context.Context, r *rig) {
	must(t, ctx, r.guest, "ethtool -L eth0 combined 4; ethtool -C eth0 rx-usecs 64 rx-frames 64 tx-usecs 64 tx-frames 64")
	before := r.device(t, ctx)
	want := guestLimits(before)
	for i := range pairs {
		must(t, ctx, r.guest, fmt.Sprintf(
			"ethtool -Q eth0 queue_mask 0x%x --coalesce rx-usecs %d rx-frames %d tx-usecs %d tx-frames %d",
			1<<i, 10+i, 20+i, 30+i, 40+i))
		want[2*i] = netdev.LimitsSnapshot{Usecs: uint32(10 + i), Packets: uint32(20 + i)}
		want[2*i+1] = netdev.LimitsSnapshot{Usecs: uint32(30 + i), Packets: uint32(40 + i)}
		if diff := cmp.Diff(want, guestLimits(r.device(t, ctx))); diff != "" {
			t.Errorf("after queue %d (-want +device):\n%s", i, diff)
		}
	}
	after := r.device(t, ctx)
	if n := commands(after, cmdVQSet) - commands(before, cmdVQSet); n != 2*pairs {
		t.Errorf("%d VQ_SETs for %d queue pairs", n, pairs)
	}
	if after.Control.Err != before.Control.Err {
		t.Errorf("%d commands failed", after.Control.Err-before.Control.Err)
	}
	out := must(t, ctx, r.guest, "ethtool -Q eth0 queue_mask 0x4 --show-coalesce")
	if !shows(out, "rx-usecs", 12) || !shows(out, "tx-frames", 42) {
		t.Errorf("the guest shows for queue 2\n%s", out)
	}
	r.ping(t, ctx, "5")
	// The direction's command replaces what queues had of their own.
	must(t, ctx, r.guest, "ethtool -C eth0 rx-usecs 0 rx-frames 0 tx-usecs 0 tx-frames 1")
	if d := r.device(t, ctx); !everyQueue(d, "rx", 0, 0) || !everyQueue(d, "tx", 0, 1) {
		t.Errorf("after ethtool -C for all queues: %v", guestLimits(d))
	}
}

// testQueuePairs changes the number of queue pairs while TCP runs both ways.
func testQueuePairs(t *testing.T, ctx context.Context, r *rig) {
	load, err := r.guest.Go("iperf3 -c "+hostAddress+" -t 5 -P 4 --bidir", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	before := r.device(t, ctx)
	for i, n := range []int{4, 2, 3, 1, 4} {
		start := Sum(r.device(t, ctx), "tx").Packets
		must(t, ctx, r.guest, fmt.Sprintf("ethtool -L eth0 combined %d", n))
		r.wait(t, ctx, "the number of queue pairs", func(d netdev.DeviceSnapshot) bool { return d.ActiveQueuePairs == n })
		if i < 4 { // the load may have ended by the last
			r.wait(t, ctx, "traffic after the change", func(d netdev.DeviceSnapshot) bool { return Sum(d, "tx").Packets > start+20 })
		}
	}
	if result, err := load.Wait(ctx); err != nil || result.Exit != 0 {
		t.Errorf("iperf3 did not survive: %v, status %d\n%s", err, result.Exit, result.Output)
	}
	d := r.device(t, ctx)
	// The guest skips a command that changes nothing, and the first may be that.
	if n := commands(d, cmdPairs) - commands(before, cmdPairs); n < 4 || d.Control.Err != before.Control.Err {
		t.Errorf("%d changes of the number of queue pairs arrived, %d failed", n, d.Control.Err-before.Control.Err)
	}
	// Flows from the host spread over the queues by their hash.
	r.iperf(t, ctx, "-t 2 -P 8 -u -b 1M -l 500 -R")
	after := r.device(t, ctx)
	used := 0
	for i, q := range after.Queues {
		if q.Kind == "rx" && q.Packets > d.Queues[i].Packets {
			used++
		}
	}
	if used < 2 {
		t.Errorf("8 flows used %d of %d receive queues", used, pairs)
	}
	must(t, ctx, r.guest, "ethtool -L eth0 combined 1")
	r.ping(t, ctx, "5")
}

// testAdaptive: the guest's own moderation sends VQ_SETs while traffic runs, and
// the device applies them.
func testAdaptive(t *testing.T, ctx context.Context, r *rig) {
	before := r.device(t, ctx)
	must(t, ctx, r.guest, "ethtool -C eth0 adaptive-rx on")
	load, err := r.guest.Go("iperf3 -R -c "+hostAddress+" -t 4", time.Minute)
	if err != nil {
		t.Fatal(err)
	}
	d := r.wait(t, ctx, "a VQ_SET of the guest's moderation", func(d netdev.DeviceSnapshot) bool {
		return commands(d, cmdVQSet) > commands(before, cmdVQSet) && d.Queues[0].Coalesce.Guest.Packets == 256
	})
	if q := d.Queues[0]; !slices.Contains([]uint32{1, 8, 64, 128, 256}, q.Coalesce.Guest.Usecs) {
		t.Errorf("queue 0 has %+v, which is not in the guest's table", q.Coalesce.Guest)
	} else if q.Coalesce.Effective != q.Coalesce.Guest {
		t.Errorf("queue 0 applies %+v, the guest set %+v", q.Coalesce.Effective, q.Coalesce.Guest)
	}
	if result, err := load.Wait(ctx); err != nil || result.Exit != 0 {
		t.Errorf("iperf3: %v, status %d\n%s", err, result.Exit, result.Output)
	}
	d = r.device(t, ctx)
	t.Logf("%d VQ_SETs", commands(d, cmdVQSet)-commands(before, cmdVQSet))
	must(t, ctx, r.guest, "ethtool -C eth0 adaptive-rx off")
	after := r.device(t, ctx)
	if commands(after, cmdRXSet) == commands(d, cmdRXSet) || after.Control.Err != before.Control.Err {
		t.Errorf("adaptive-rx off: %d RX_SETs, %d failed commands",
			commands(after, cmdRXSet)-commands(d, cmdRXSet), after.Control.Err-before.Control.Err)
	}
	must(t, ctx, r.guest, "ethtool -C eth0 rx-usecs 0 rx-frames 0 tx-usecs 0 tx-frames 1")
	if d := r.device(t, ctx); !everyQueue(d, "rx", 0, 0) {
		t.Errorf("back to none: %v", guestLimits(d))
	}
}

// testReceiveOffloads switches large receive frames off and on.
func testReceiveOffloads(t *testing.T, ctx context.Context, r *rig) {
	has := func(d netdev.DeviceSnapshot, name string) bool {
		return slices.ContainsFunc(d.GuestOffloads, func(o string) bool { return strings.Contains(o, name) })
	}
	before := r.device(t, ctx)
	if !has(before, "TSO4") {
		t.Fatalf("large frames are off from the start: %v", before.GuestOffloads)
	}
	must(t, ctx, r.guest, "ethtool -K eth0 rx-gro-hw off")
	off := r.device(t, ctx)
	if has(off, "TSO") || !has(off, "CSUM") {
		t.Errorf("after rx-gro-hw off: %v", off.GuestOffloads)
	}
	size := func(d, old netdev.DeviceSnapshot) float64 {
		n := Sum(d, "rx").Minus(Sum(old, "rx"))
		return float64(n.Bytes) / float64(max(n.Packets, 1))
	}
	r.iperf(t, ctx, "-R -t 2")
	end := r.device(t, ctx)
	if mean := size(end, off); mean > 1600 {
		t.Errorf("with large frames off the mean frame had %.0f bytes", mean)
	}
	must(t, ctx, r.guest, "ethtool -K eth0 rx-gro-hw on")
	on := r.device(t, ctx)
	if !has(on, "TSO4") {
		t.Errorf("after rx-gro-hw on: %v", on.GuestOffloads)
	}
	r.iperf(t, ctx, "-R -t 2")
	if mean := size(r.device(t, ctx), on); mean < 1600 {
		t.Errorf("with large frames on the mean frame had %.0f bytes", mean)
	}
	if n := commands(on, cmdOffloads) - commands(before, cmdOffloads); n != 2 {
		t.Errorf("%d offload commands", n)
	}
}

// testModuleReload: a driver that leaves resets the device, and a new one starts
// from nothing.
func testModuleReload(t *testing.T, ctx context.Context, r *rig) {
	must(t, ctx, r.guest, "ethtool -C eth0 rx-usecs 100 rx-frames 10 tx-usecs 100 tx-frames 10")
	must(t, ctx, r.guest, "rmmod virtio_net")
	must(t, ctx, r.guest, "modprobe virtio_net")
	r.network(t, ctx)
	d := r.wait(t, ctx, "running queues", func(d netdev.DeviceSnapshot) bool {
		return d.Queues[0].Started && d.Queues[0].Enabled && d.Queues[1].Started
	})
	if !everyQueue(d, "rx", 0, 0) || !everyQueue(d, "tx", 0, 0) {
		t.Errorf("a new driver found limits: %v", guestLimits(d))
	}
	r.ping(t, ctx, "5")
	r.iperf(t, ctx, "-t 1")
}

// testStopContinue: a machine that is stopped and goes on keeps the device's
// state, although its rings were stopped meanwhile.
func testStopContinue(t *testing.T, ctx context.Context, r *rig) {
	must(t, ctx, r.guest, "ethtool -C eth0 rx-usecs 40 rx-frames 40 tx-usecs 40 tx-frames 40")
	m, err := r.guest.Monitor()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Execute(ctx, "stop", nil); err != nil {
		t.Fatal(err)
	}
	r.wait(t, ctx, "stopped rings", func(d netdev.DeviceSnapshot) bool { return !d.Queues[0].Started && !d.Queues[1].Started })
	if _, err := m.Execute(ctx, "cont", nil); err != nil {
		t.Fatal(err)
	}
	d := r.wait(t, ctx, "running rings", func(d netdev.DeviceSnapshot) bool { return d.Queues[0].Started && d.Queues[1].Started })
	if !everyQueue(d, "rx", 40, 40) || !everyQueue(d, "tx", 40, 40) {
		t.Errorf("the guest's limits were lost over stop and cont: %v", guestLimits(d))
	}
	r.ping(t, ctx, "5")
}

// testReboot restarts the guest's kernel, once by itself and once by the reset
// button. QEMU tells the backend of neither: the new driver starts from a base
// of zero.
func testReboot(t *testing.T, ctx context.Context, r *rig) {
	must(t, ctx, r.guest, "ethtool -C eth0 rx-usecs 70 rx-frames 70 tx-usecs 70 tx-frames 70")
	check := func(what string) {
		t.Helper()
		if err := r.guest.WaitReady(ctx); err != nil {
			t.Fatal(err)
		}
		d := r.wait(t, ctx, "running rings", func(d netdev.DeviceSnapshot) bool { return d.Queues[0].Started && d.Queues[1].Started })
		if !everyQueue(d, "rx", 0, 0) || !everyQueue(d, "tx", 0, 0) || d.ActiveQueuePairs != 1 {
			t.Errorf("%s: the new driver found %d queue pairs and limits %v", what, d.ActiveQueuePairs, guestLimits(d))
		}
		r.ping(t, ctx, "5")
		r.iperf(t, ctx, "-t 1")
	}
	if err := r.guest.Reboot(); err != nil {
		t.Fatal(err)
	}
	check("after a reboot")
	must(t, ctx, r.guest, "ethtool -C eth0 rx-usecs 70 rx-frames 70 tx-usecs 70 tx-frames 70")
	m, err := r.guest.Monitor()
	if err != nil {
		t.Fatal(err)
	}
	if _, err := m.Execute(ctx, "system_reset", nil); err != nil {
		t.Fatal(err)
	}
	check("after a reset")
}

// testPowerOff: the front-end leaves, the backend goes on and ends cleanly.
func testPowerOff(t *testing.T, ctx context.Context, r *rig) {
	if err := r.guest.PowerOff(ctx); err != nil {
		t.Error(err)
	}
	d := r.wait(t, ctx, "the front-end's leave", func(d netdev.DeviceSnapshot) bool { return !d.FrontEnd.Connected })
	for _, q := range d.Queues {
		if q.Started || q.Broken != "" {
			t.Errorf("queue %d: started %v, broken %q", q.Index, q.Started, q.Broken)
		}
	}
	if err := r.backend.Stop(ctx); err != nil {
		t.Errorf("SIGTERM: %v", err)
	}
	// A guest that keeps to the rules is no reason for an error.
	if log := r.backend.Log.String(); strings.Contains(log, "level=error") {
		t.Errorf("vhostnet logged errors:\n%s", log)
	}
}
