package qemutest

import (
	"context"
	"os"
	"slices"
	"strings"
	"sync"
	"testing"
	"time"

	"github.com/vhostnet/vhostnet/netdev"
)

// Addresses of the two ends of the TAP.
const (
	hostAddress  = "10.77.0.1"
	guestAddress = "10.77.0.2"
	prefixLength = "/24"
	tapName      = "vn0"
)

// rig is a backend on a TAP in a namespace of its own, an iperf3 server behind
// the TAP, and a guest in front.
type rig struct {
	ns      *Namespace
	backend *Backend
	guest   *Guest
	config  BackendConfig
	// owner is the test that the programs live as long as; a subtest may start
	// some of them anew.
	owner *testing.T
}

// backendBinary builds the command once.
var backendBinary = sync.OnceValues(func() (string, error) {
	ctx, cancel := context.WithTimeout(context.Background(), 3*time.Minute)
	defer cancel()
	return BuildBackend(ctx, workDir)
})

// shortDir is a folder whose path leaves room for the name of a socket.
func shortDir(t *testing.T) string {
	t.Helper()
	dir, err := os.MkdirTemp("", "vn-")
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { os.RemoveAll(dir) })
	return dir
}

// newRig boots a guest of a lane with a number of queue pairs.
func newRig(t *testing.T, ctx context.Context, c Config, args ...string) *rig {
	t.Helper()
	r := &rig{owner: t}
	binary, err := backendBinary()
	if err != nil {
		t.Fatal(err)
	}
	if r.ns, err = NewNamespace(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { r.ns.Close() })
	pairs := max(c.QueuePairs, 1)
	if err := r.ns.AddTAP(tapName, hostAddress+prefixLength, pairs); err != nil {
		t.Fatal(err)
	}
	r.config = BackendConfig{
		Binary: binary, Dir: shortDir(t), Namespace: r.ns, Port: "tap:" + tapName, QueuePairs: pairs, Args: args,
	}
	r.startBackend(t, ctx)
	r.hostTool(t, "iperf3 server", "iperf3", "-s", "-B", hostAddress)
	c.Socket, c.Address = r.backend.Socket, guestAddress+prefixLength
	r.guest = boot(t, ctx, c)
	return r
}

func (r *rig) startBackend(t *testing.T, ctx context.Context) {
	t.Helper()
	b, err := StartBackend(ctx, r.config)
	if err != nil {
		t.Fatal(err)
	}
	r.backend = b
	r.owner.Cleanup(func() {
		b.Close()
		if r.owner.Failed() {
			r.owner.Logf("vhostnet:\n%s", b.Log.Tail(60))
		}
	})
}

// hostTool starts a provisioned program in the namespace for the time of the test.
func (r *rig) hostTool(t *testing.T, title, name string, args ...string) *Console {
	t.Helper()
	cmd := assets.Tool(context.Background(), name, args...)
	out := &Console{}
	cmd.Stdout, cmd.Stderr = out, out
	p, err := r.ns.Start(title, cmd)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(p.Kill)
	return out
}

// device is the device as it is now.
func (r *rig) device(t *testing.T, ctx context.Context) netdev.DeviceSnapshot {
	t.Helper()
	d, err := r.backend.Device(ctx)
	if err != nil {
		t.Fatal(err)
	}
	return d
}

// wait waits for a state of the device.
func (r *rig) wait(t *testing.T, ctx context.Context, what string, holds func(netdev.DeviceSnapshot) bool) netdev.DeviceSnapshot {
	t.Helper()
	ctx, cancel := context.WithTimeout(ctx, 20*time.Second)
	defer cancel()
	d, err := r.backend.WaitDevice(ctx, what, holds)
	if err != nil {
		t.Fatalf("%v\nqueues: %+v", err, d.Queues)
	}
	return d
}

// ping sends a number of pings from the guest, all of which must be answered.
func (r *rig) ping(t *testing.T, ctx context.Context, count string) string {
	t.Helper()
	out := must(t, ctx, r.guest, "ping -c "+count+" -i 0.2 -W 5 "+hostAddress)
	if !strings.Contains(out, " 0% packet loss") {
		t.Errorf("pings were lost:\n%s", out)
	}
	return out
}

// iperf runs an iperf3 client in the guest, whose exit status covers the control
// connection.
func (r *rig) iperf(t *testing.T, ctx context.Context, args string) string {
	t.Helper()
	return must(t, ctx, r.guest, "iperf3 -f m -c "+hostAddress+" "+args)
}

// network gives eth0 its address again after it was made anew.
func (r *rig) network(t *testing.T, ctx context.Context) {
	t.Helper()
	must(t, ctx, r.guest, "ip addr add "+guestAddress+prefixLength+" dev eth0; ip link set eth0 up")
}

// guestLimits are what the driver has set, by virtqueue index.
func guestLimits(d netdev.DeviceSnapshot) map[int]netdev.LimitsSnapshot {
	limits := map[int]netdev.LimitsSnapshot{}
	for _, q := range d.Queues {
		if q.Kind != "control" {
			limits[q.Index] = q.Coalesce.Guest
		}
	}
	return limits
}

// everyQueue tells whether all queues of a kind have these limits.
func everyQueue(d netdev.DeviceSnapshot, kind string, usecs, packets uint32) bool {
	return !slices.ContainsFunc(d.Queues, func(q netdev.QueueSnapshot) bool {
		return q.Kind == kind && q.Coalesce.Guest != (netdev.LimitsSnapshot{Usecs: usecs, Packets: packets})
	})
}

// commands is how often the driver's command succeeded.
func commands(d netdev.DeviceSnapshot, name string) uint64 { return d.Control.Commands[name] }

// Names of the commands in the API.
const (
	cmdTXSet    = "NOTF_COAL/TX_SET"
	cmdRXSet    = "NOTF_COAL/RX_SET"
	cmdVQSet    = "NOTF_COAL/VQ_SET"
	cmdPairs    = "MQ/VQ_PAIRS_SET"
	cmdOffloads = "GUEST_OFFLOADS/SET"
)

// reasons sums the moderator's reasons over the queues of a kind.
func reasons(d netdev.DeviceSnapshot, kind string) map[string]uint64 {
	sum := map[string]uint64{}
	for _, q := range d.Queues {
		if q.Kind == kind {
			for name, n := range q.CallReasons {
				sum[name] += n
			}
		}
	}
	return sum
}
