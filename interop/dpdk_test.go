package interop

import (
	"bytes"
	"context"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"slices"
	"strconv"
	"testing"
	"time"

	"github.com/vhostnet/vhostnet/bench/peer"
	"github.com/vhostnet/vhostnet/mgmt"
	"github.com/vhostnet/vhostnet/netdev"
	"github.com/vhostnet/vhostnet/qemu-test/provision"
)

// What every test uses, made once.
var (
	kit    *peer.Kit
	binary string
	// workDir is short, as the paths of Unix sockets have to be.
	workDir string
)

func TestMain(m *testing.M) {
	code, err := run(m)
	if err != nil {
		fmt.Fprintln(os.Stderr, err)
		code = 1
	}
	os.Exit(code)
}

func run(m *testing.M) (code int, err error) {
	ctx, cancel := context.WithTimeout(context.Background(), 5*time.Minute)
	defer cancel()
	peers, err := provision.EnsurePeers(ctx, provision.Options{
		Log: func(format string, args ...any) { fmt.Fprintf(os.Stderr, format+"\n", args...) },
	})
	if err != nil {
		return 1, err
	}
	if workDir, err = os.MkdirTemp("", "vn-interop-"); err != nil {
		return 1, err
	}
	defer os.RemoveAll(workDir)
	root, err := provision.RepositoryRoot()
	if err != nil {
		return 1, err
	}
	binary = filepath.Join(workDir, "vhostnet")
	build := exec.CommandContext(ctx, "go", "build", "-o", binary, "./cmd/vhostnet")
	build.Dir = root
	if out, err := build.CombinedOutput(); err != nil {
		return 1, fmt.Errorf("building vhostnet: %w\n%s", err, out)
	}
	kit = peer.NewKit(peers, 1)
	defer func() {
		if cerr := kit.Close(); err == nil {
			err = cerr
		}
	}()
	return m.Run(), nil
}

// patience is how long something that must happen may take on a busy machine.
const patience = 60 * time.Second

// serve runs vhostnet with an echo until the test ends.
func serve(ctx context.Context, t *testing.T, pairs int) (socket string, api *mgmt.Client) {
	t.Helper()
	dir, err := os.MkdirTemp(workDir, "")
	if err != nil {
		t.Fatal(err)
	}
	socket = filepath.Join(dir, "s")
	var log bytes.Buffer
	// Not under the context, which ends before the cleanup.
	cmd := exec.Command(binary, "serve", "--socket-path", socket, "--port", "echo",
		"--queue-pairs", strconv.Itoa(pairs), "--api", "unix:"+filepath.Join(dir, "api"))
	cmd.Stdout, cmd.Stderr = &log, &log
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		_ = cmd.Process.Signal(os.Interrupt)
		if err := cmd.Wait(); err != nil {
			t.Errorf("vhostnet: %v", err)
		}
		if t.Failed() {
			t.Logf("vhostnet said\n%s", &log)
		}
	})
	for {
		if api, err = mgmt.Dial(ctx, "unix:"+filepath.Join(dir, "api")); err == nil {
			t.Cleanup(api.Close)
			return socket, api
		}
		select {
		case <-ctx.Done():
			t.Fatal(err)
		case <-time.After(10 * time.Millisecond):
		}
	}
}

// TestVirtioUser has DPDK's driver send frames round an echo, with all kinds of
// rings. Afterwards both sides have counted the same, in each direction.
func TestVirtioUser(t *testing.T) {
	const packets = 200_000
	for _, packed := range []bool{false, true} {
		for _, inOrder := range []bool{false, true} {
			for _, mergeable := range []bool{false, true} {
				for _, pairs := range []int{1, 2} {
					r := peer.Rings{Packed: packed, InOrder: inOrder, Mergeable: mergeable, Pairs: pairs}
					t.Run(fmt.Sprintf("packed=%t,in_order=%t,mrg_rxbuf=%t,queues=%d", packed, inOrder, mergeable, pairs), func(t *testing.T) {
						counted(t, r, packets)
					})
				}
			}
		}
	}
}

func counted(t *testing.T, r peer.Rings, packets uint64) {
	ctx, cancel := context.WithTimeoutCause(t.Context(), patience, fmt.Errorf("no end after %v", patience))
	t.Cleanup(cancel)
	socket, api := serve(ctx, t, r.Pairs)
	front, err := kit.CountedVirtioUser(ctx, socket, 64, r, peer.Place{Core: 0})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := front.Close(); err != nil {
			t.Error(err)
		}
	}()
	if err := front.Run(ctx, packets); err != nil {
		t.Fatal(err)
	}
	device := func() netdev.DeviceSnapshot {
		devices, err := api.Devices(ctx)
		if err != nil || len(devices) != 1 {
			t.Fatal(len(devices), err)
		}
		return devices[0]
	}
	// What is on its way arrives, or never will.
	var s peer.PortStats
	var d netdev.DeviceSnapshot
	for {
		if s, err = front.Stats(ctx); err != nil {
			t.Fatalf("%v; virtio-user %+v, device %+v", err, s, d.Counters)
		}
		if d = device(); s.TXPackets == s.RXPackets && d.Counters["tx_packets"] == s.TXPackets && d.Counters["rx_packets"] == s.RXPackets {
			break
		}
		select {
		case <-ctx.Done():
			t.Fatalf("virtio-user %+v, device %+v", s, d.Counters)
		case <-time.After(10 * time.Millisecond):
		}
	}
	if want := map[bool]string{false: "split", true: "packed"}[r.Packed]; d.RingFormat != want {
		t.Errorf("%s rings, want %s", d.RingFormat, want)
	}
	for name, want := range map[string]bool{"VIRTIO_F_IN_ORDER": r.InOrder, "VIRTIO_NET_F_MRG_RXBUF": r.Mergeable} {
		if slices.Contains(d.NegotiatedFeatures, name) != want {
			t.Errorf("%s is negotiated: %t", name, !want)
		}
	}
	used := 0
	for _, q := range d.Queues {
		if len(q.Drops) != 0 || q.Broken != "" {
			t.Errorf("virtqueue %d: drops %v, %s", q.Index, q.Drops, q.Broken)
		}
		if q.Kind != "control" && q.Packets > 0 {
			used++
		}
	}
	if used != 2*r.Pairs {
		t.Errorf("%d virtqueues were used", used)
	}
	t.Logf("%d frames each way", s.TXPackets)
}
