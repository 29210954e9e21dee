package qemutest

import (
	"context"
	"fmt"
	"net"
	"os/exec"
	"regexp"
	"slices"
	"strconv"
	"strings"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/netdev"
)

// Names of the commands in the API.
const (
	cmdRSS        = "MQ/RSS_CONFIG"
	cmdStatsQuery = "STATS/QUERY"
	cmdStatsGet   = "STATS/GET"
)

// TestFeaturesUML runs what is offered on request, and what a guest's tools reach
// beside coalescing, on User-Mode Linux.
func TestFeaturesUML(t *testing.T) { testFeatures(t, LaneUML, 3*time.Minute) }

// TestFeaturesTestDevice runs the same on QEMU's generic device.
func TestFeaturesTestDevice(t *testing.T) { testFeatures(t, LaneTestDevice, 5*time.Minute) }

func testFeatures(t *testing.T, lane Lane, most time.Duration) {
	ctx := limit(t, most)
	r := newRig(t, ctx, Config{Lane: lane, QueuePairs: pairs, Modules: []string{"virtio_net", "8021q"}},
		"--mac", mac, "--mtu", mtu, "--link-speed", "25000", "--features", "+rss,+hash_report")
	for _, step := range []struct {
		name string
		run  func(*testing.T, context.Context, *rig)
	}{
		{"probe", testFeatureProbe},
		{"indirection table", testIndirection},
		{"hash types", testHashTypes},
		{"statistics", testStatistics},
		{"mtu", testGuestMTU},
		{"filter", testGuestFilter},
		{"vlan", testGuestVLAN},
		{"address", testGuestAddress},
		{"link", testGuestLink},
	} {
		t.Run(step.name, func(t *testing.T) { step.run(t, ctx, r) })
	}
}

func contains(t *testing.T, out string, parts ...string) {
	t.Helper()
	for _, p := range parts {
		if !strings.Contains(out, p) {
			t.Errorf("no %q in\n%s", p, out)
		}
	}
}

// noErrors: the device refused no command since before.
func noErrors(t *testing.T, before, after netdev.DeviceSnapshot) {
	t.Helper()
	if n := after.Control.Err - before.Control.Err; n != 0 {
		t.Errorf("%d commands failed", n)
	}
}

func testFeatureProbe(t *testing.T, ctx context.Context, r *rig) {
	d := r.wait(t, ctx, "running queues", func(d netdev.DeviceSnapshot) bool {
		return d.FrontEnd.Connected && d.Queues[0].Started && d.Queues[0].Enabled
	})
	for _, f := range []string{
		"VIRTIO_NET_F_RSS", "VIRTIO_NET_F_HASH_REPORT", "VIRTIO_NET_F_DEVICE_STATS", "VIRTIO_NET_F_SPEED_DUPLEX",
	} {
		if !slices.Contains(d.NegotiatedFeatures, f) {
			t.Errorf("%s was not negotiated: %v", f, d.NegotiatedFeatures)
		}
	}
	if d.Steering != "port" {
		t.Errorf("steering by %q", d.Steering)
	}
	if n := commands(d, cmdStatsQuery); n != 1 || d.Control.Err != 0 {
		t.Errorf("%d queries, %d commands failed", n, d.Control.Err)
	}
	contains(t, must(t, ctx, r.guest, "ethtool -i eth0"), "driver: virtio_net", "supports-statistics: yes")
	contains(t, must(t, ctx, r.guest, "ethtool eth0"), "Speed: 25000Mb/s", "Duplex: Full", "Link detected: yes")
	contains(t, must(t, ctx, r.guest, "ethtool -x eth0"), "RX flow hash indirection table for eth0 with 1 RX ring(s)", "RSS hash key:", "toeplitz: on")
	r.ping(t, ctx, "5")
}

// testIndirection: `ethtool -X` decides on which queue frames come in.
func testIndirection(t *testing.T, ctx context.Context, r *rig) {
	before := r.device(t, ctx)
	must(t, ctx, r.guest, "ethtool -L eth0 combined 4")
	for to := range pairs {
		weights := make([]string, pairs)
		for i := range weights {
			weights[i] = "0"
		}
		weights[to] = "1"
		must(t, ctx, r.guest, "ethtool -X eth0 weight "+strings.Join(weights, " "))
		start := r.device(t, ctx)
		if start.Steering != "port" || start.ActiveQueuePairs != to+1 {
			t.Errorf("weight on queue %d: steering by %q over %d pairs", to, start.Steering, start.ActiveQueuePairs)
		}
		r.ping(t, ctx, "5")
		r.iperf(t, ctx, "-t 1 -R")
		end := r.device(t, ctx)
		// Frames without a hash, ARP for one, go to the queue for those, the first.
		for i := range pairs {
			n := end.Queues[2*i].Packets - start.Queues[2*i].Packets
			if i == to && n < 10 || i != to && n > 5 {
				t.Errorf("weight on queue %d: %d frames on queue %d", to, n, i)
			}
		}
	}
	must(t, ctx, r.guest, "ethtool -X eth0 equal 2")
	out := must(t, ctx, r.guest, "ethtool -x eth0")
	if m := regexp.MustCompile(`(?m)^\s+0:\s+0\s+1\s+0\s+1`).FindString(out); m == "" {
		t.Errorf("the guest shows\n%s", out)
	}
	if d := r.device(t, ctx); d.ActiveQueuePairs != 2 {
		t.Errorf("%d pairs get frames, want 2", d.ActiveQueuePairs)
	}
	key := strings.TrimSuffix(strings.Repeat("6d:5a:", 20), ":")
	must(t, ctx, r.guest, "ethtool -X eth0 hkey "+key)
	contains(t, must(t, ctx, r.guest, "ethtool -x eth0"), key)
	r.ping(t, ctx, "5")
	must(t, ctx, r.guest, "ethtool -X eth0 default")
	r.iperf(t, ctx, "-t 1 -P 8 -R")
	after := r.device(t, ctx)
	if n := commands(after, cmdRSS) - commands(before, cmdRSS); n < 7 {
		t.Errorf("%d RSS commands", n)
	}
	noErrors(t, before, after)
}

// testHashTypes: `ethtool -N rx-flow-hash` chooses what is hashed.
func testHashTypes(t *testing.T, ctx context.Context, r *rig) {
	before := r.device(t, ctx)
	const udp4 = 1 << 2
	contains(t, must(t, ctx, r.guest, "ethtool -n eth0 rx-flow-hash tcp4"), "IP SA", "L4 bytes 0 & 1")
	for _, fields := range []string{"sd", "sdfn"} {
		want := uint32(0)
		if fields == "sdfn" {
			want = udp4
		}
		must(t, ctx, r.guest, "ethtool -K eth0 rxhash on; ethtool -N eth0 rx-flow-hash udp4 "+fields)
		if d := r.device(t, ctx); d.HashTypes&udp4 != want {
			t.Errorf("udp4 %s: hash types %#x", fields, d.HashTypes)
		}
	}
	noErrors(t, before, r.device(t, ctx))
}

// testStatistics: `ethtool -S` shows the device's own counters, its notifications
// as interrupts.
func testStatistics(t *testing.T, ctx context.Context, r *rig) {
	r.ping(t, ctx, "5")
	before := r.device(t, ctx)
	out := must(t, ctx, r.guest, "ethtool -S eth0")
	after := r.device(t, ctx)
	if commands(after, cmdStatsGet) == commands(before, cmdStatsGet) {
		t.Fatalf("no command for\n%s", out)
	}
	value := func(name string) uint64 {
		m := regexp.MustCompile(`(?m)^\s*` + name + `: (\d+)$`).FindStringSubmatch(out)
		if m == nil {
			t.Fatalf("no %s in\n%s", name, out)
		}
		n, err := strconv.ParseUint(m[1], 10, 64)
		if err != nil {
			t.Fatal(err)
		}
		return n
	}
	for i := range pairs {
		for kind, at := range map[string]int{"rx": 2 * i, "tx": 2*i + 1} {
			name := fmt.Sprintf("%s%d_hw_interrupts", kind, i)
			if n := value(name); n < before.Queues[at].Calls || n > after.Queues[at].Calls {
				t.Errorf("%s is %d, the device counted %d to %d", name, n, before.Queues[at].Calls, after.Queues[at].Calls)
			}
		}
	}
	noErrors(t, before, after)
}

// testGuestMTU: the advised MTU is the largest that the guest may set.
func testGuestMTU(t *testing.T, ctx context.Context, r *rig) {
	contains(t, must(t, ctx, r.guest, "ip link show eth0"), "mtu "+mtu+" ")
	if res, err := r.guest.Run(ctx, "ip link set eth0 mtu 1401"); err != nil || res.Exit == 0 {
		t.Errorf("a larger MTU is taken: %v\n%s", err, res.Output)
	}
	must(t, ctx, r.guest, "ip link set eth0 mtu 1300; ping -c 1 -s 1200 -M do "+hostAddress+"; ip link set eth0 mtu "+mtu)
}

// testGuestFilter: modes and addresses of the guest's interface reach the device's filter.
func testGuestFilter(t *testing.T, ctx context.Context, r *rig) {
	const group = "01:00:5e:01:02:03"
	before := r.device(t, ctx)
	must(t, ctx, r.guest, "ip maddr add "+group+" dev eth0; ip link set eth0 promisc on")
	r.wait(t, ctx, "promiscuous mode and a group", func(d netdev.DeviceSnapshot) bool {
		return d.Filter.Promiscuous && slices.Contains(d.Filter.Multicast, group)
	})
	must(t, ctx, r.guest, "ip maddr del "+group+" dev eth0; ip link set eth0 promisc off; ip link set eth0 allmulticast on")
	r.wait(t, ctx, "all multicast", func(d netdev.DeviceSnapshot) bool {
		return !d.Filter.Promiscuous && d.Filter.AllMulti && !slices.Contains(d.Filter.Multicast, group)
	})
	must(t, ctx, r.guest, "ip link set eth0 allmulticast off")
	d := r.wait(t, ctx, "a filter", func(d netdev.DeviceSnapshot) bool { return !d.Filter.AllMulti })
	noErrors(t, before, d)
}

// testGuestVLAN: an interface of 8021q makes its tag pass, and only as long as it is there.
func testGuestVLAN(t *testing.T, ctx context.Context, r *rig) {
	before := r.device(t, ctx)
	must(t, ctx, r.guest, "ip link add link eth0 name eth0.77 type vlan id 77; ip addr add 10.78.0.2/24 dev eth0.77; ip link set eth0.77 up")
	r.wait(t, ctx, "the tag", func(d netdev.DeviceSnapshot) bool { return slices.Contains(d.Filter.VLANs, 77) })
	count := func() string {
		return strings.TrimSpace(must(t, ctx, r.guest, "cat /sys/class/net/eth0.77/statistics/rx_packets"))
	}
	from := count()
	r.sendTagged(t, 77)
	must(t, ctx, r.guest, "for i in $(seq 100); do [ $(cat /sys/class/net/eth0.77/statistics/rx_packets) -gt "+from+" ] && exit 0; sleep 0.1; done; exit 1")
	must(t, ctx, r.guest, "ip link del eth0.77")
	d := r.wait(t, ctx, "no tag", func(d netdev.DeviceSnapshot) bool { return !slices.Contains(d.Filter.VLANs, 77) })
	dropped := func(d netdev.DeviceSnapshot) (n uint64) {
		for _, q := range d.Queues {
			n += q.Drops["filter"]
		}
		return n
	}
	r.sendTagged(t, 77)
	r.wait(t, ctx, "a tagged frame that is filtered", func(now netdev.DeviceSnapshot) bool { return dropped(now) > dropped(d) })
	noErrors(t, before, r.device(t, ctx))
}

// sendTagged sends a broadcast with a VLAN tag into the TAP.
func (r *rig) sendTagged(t *testing.T, id uint16) {
	t.Helper()
	f := make([]byte, 64)
	copy(f, []byte{0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 2, 0, 0, 0, 0, 1, 0x81, 0, byte(id >> 8), byte(id), 8, 6})
	err := r.ns.Do(func() error {
		link, err := net.InterfaceByName(tapName)
		if err != nil {
			return err
		}
		fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			return err
		}
		defer unix.Close(fd)
		return unix.Sendto(fd, f, 0, &unix.SockaddrLinklayer{Ifindex: link.Index})
	})
	if err != nil {
		t.Fatal(err)
	}
}

// testGuestAddress changes the guest's address while it runs.
func testGuestAddress(t *testing.T, ctx context.Context, r *rig) {
	const other = "52:54:00:76:6e:99"
	before := r.device(t, ctx)
	must(t, ctx, r.guest, "ip link set dev eth0 address "+other)
	d := r.wait(t, ctx, "the address", func(d netdev.DeviceSnapshot) bool { return d.MAC == other })
	noErrors(t, before, d)
	if out, err := r.ns.Run("ip", exec.Command("ip", "neigh", "flush", "dev", tapName)); err != nil {
		t.Fatalf("%v\n%s", err, out)
	}
	r.ping(t, ctx, "5")
}

// testGuestLink: the guest's carrier follows the TAP's link.
func testGuestLink(t *testing.T, ctx context.Context, r *rig) {
	for _, s := range [][2]string{{"down", "0"}, {"up", "1"}} {
		if out, err := r.ns.Run("ip", exec.Command("ip", "link", "set", tapName, s[0])); err != nil {
			t.Fatalf("%v\n%s", err, out)
		}
		must(t, ctx, r.guest, "for i in $(seq 100); do [ \"$(cat /sys/class/net/eth0/carrier)\" = "+s[1]+" ] && exit 0; sleep 0.1; done; exit 1")
	}
	r.ping(t, ctx, "5")
}
