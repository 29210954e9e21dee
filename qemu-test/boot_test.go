package qemutest

import (
	"strings"
	"testing"
	"time"

	"github.com/vhostnet/vhostnet/qemu-test/provision"
)

// TestGuestsBoot boots every lane's machine without a network device: the kernel
// reaches the init, modules load, the programs run, and the machine powers off.
func TestGuestsBoot(t *testing.T) {
	for _, lane := range []Lane{LaneTestDevice, LaneOldNetdev, LaneUML} {
		t.Run(lane.String(), func(t *testing.T) {
			ctx := limit(t, time.Minute)
			g := boot(t, ctx, Config{Lane: lane})
			if out := must(t, ctx, g, "lsmod"); !strings.Contains(out, "virtio_net") {
				t.Errorf("virtio_net is not loaded:\n%s", out)
			}
			must(t, ctx, g, "ethtool --version && ip -V && iperf3 --version && sockperf --version && tc -V")
			r, err := g.Run(ctx, "echo seen; exit 3")
			if err != nil || r.Exit != 3 || r.Output != "seen\n" {
				t.Errorf("got %+v, %v", r, err)
			}
			// Two scripts at once: the second ends while the first still runs.
			long, err := g.Go("while [ ! -e /tmp/go ]; do sleep 0.1; done; echo long", 30*time.Second)
			if err != nil {
				t.Fatal(err)
			}
			must(t, ctx, g, "touch /tmp/go")
			if r, err := long.Wait(ctx); err != nil || r.Output != "long\n" {
				t.Errorf("got %+v, %v", r, err)
			}
			if r, err := g.Go("sleep 60", time.Second); err != nil {
				t.Error(err)
			} else if _, err := r.Wait(ctx); err == nil {
				t.Error("a script outlived its limit")
			}
			if err := g.PowerOff(ctx); err != nil {
				t.Error(err)
			}
		})
	}
}

// TestGuestScript runs a script that is part of the initramfs.
func TestGuestScript(t *testing.T) {
	ctx := limit(t, time.Minute)
	g, err := Start(ctx, Config{
		Lane: LaneUML, Assets: assets, Agent: agent, Dir: t.TempDir(),
		Files: []provision.File{{Name: "etc/vhostnet/script", Content: "echo from the script; exit 7\n"}},
	})
	if err != nil {
		t.Fatal(err)
	}
	defer g.Close()
	for _, line := range []string{"^from the script$", "^vhostnet-guest: script exit 7$", "^vhostnet-guest: power off$"} {
		if _, err := g.Console.WaitFor(ctx, line); err != nil {
			t.Fatal(err)
		}
	}
	if err := g.Wait(ctx); err != nil {
		t.Error(err)
	}
}

// TestHungGuestEnds: a guest that does not answer anything is gone after Close.
func TestHungGuestEnds(t *testing.T) {
	ctx := limit(t, time.Minute)
	g := boot(t, ctx, Config{Lane: LaneUML})
	g.Close()
	select {
	case <-g.Process().Done():
	default:
		t.Error("the guest runs after Close")
	}
	if _, err := g.Run(ctx, "true"); err == nil {
		t.Error("a closed guest ran a script")
	}
}
