package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/vhostnet/vhostnet/bench/peer"
	"github.com/vhostnet/vhostnet/netdev"
	qemutest "github.com/vhostnet/vhostnet/qemu-test"
	"github.com/vhostnet/vhostnet/qemu-test/provision"
)

// binaries are the programs of this repository that a site needs.
type binaries struct {
	backend, agent string
}

// build compiles them into dir.
func build(ctx context.Context, dir string) (b *binaries, err error) {
	b = &binaries{}
	if b.backend, err = qemutest.BuildBackend(ctx, dir); err != nil {
		return nil, err
	}
	b.agent, err = qemutest.BuildAgent(ctx, dir)
	return b, err
}

// machineSite is a guest that boots a kernel.
type machineSite struct {
	lane      qemutest.Lane
	assets    *provision.Assets
	dir       string
	namespace *qemutest.Namespace
	backend   *qemutest.Backend
	guest     *qemutest.Guest
	orphan    bool
	adaptive  bool
	servers   int
}

// newMachineSite boots a guest.
func newMachineSite(ctx context.Context, lane qemutest.Lane, assets *provision.Assets, b *binaries) (_ site, err error) {
	s := &machineSite{lane: lane, assets: assets}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	// The path of a Unix socket has to be short.
	if s.dir, err = os.MkdirTemp("", "vn-"); err != nil {
		return nil, err
	}
	if s.namespace, err = newSide(hostAddress); err != nil {
		return nil, err
	}
	s.backend, err = qemutest.StartBackend(ctx, qemutest.BackendConfig{
		Binary: b.backend, Dir: s.dir, Namespace: s.namespace, Port: "tap:" + tapName,
	})
	if err != nil {
		return nil, err
	}
	files, err := assets.BenchFiles()
	if err != nil {
		return nil, err
	}
	guestDir := filepath.Join(s.dir, "guest")
	if err := os.Mkdir(guestDir, 0o755); err != nil {
		return nil, err
	}
	modules := []string{"virtio_net"}
	if emulated(lane.String()) {
		modules = append(modules, "pktgen")
	}
	s.guest, err = qemutest.Boot(ctx, qemutest.Config{
		Lane: lane, Assets: assets, Dir: guestDir, Socket: s.backend.Socket,
		Agent: b.agent, Address: guestAddress + prefixLength, Modules: modules, Files: files,
	})
	if err != nil {
		return nil, fmt.Errorf("%w\nvhostnet:\n%s", err, s.backend.Log.Tail(20))
	}
	return s, nil
}

func (s *machineSite) Lane() string { return s.lane.String() }

func (s *machineSite) Guest(ctx context.Context, script string) (string, error) {
	r, err := s.guest.Run(ctx, script)
	if err == nil && r.Exit != 0 {
		err = fmt.Errorf("%q in the guest: exit status %d", script, r.Exit)
	}
	if err != nil {
		return r.Output, fmt.Errorf("%w\n%s", err, r.Output)
	}
	return r.Output, nil
}

func (s *machineSite) StartGuest(ctx context.Context, name string, args ...string) (stop func(), err error) {
	s.servers++
	script := fmt.Sprintf("%s %s >/tmp/server%d.log 2>&1 </dev/null & echo $!", name, strings.Join(args, " "), s.servers)
	pid, err := s.Guest(ctx, script)
	if err != nil {
		return nil, err
	}
	return func() {
		ctx, cancel := context.WithTimeout(context.WithoutCancel(ctx), 10*time.Second)
		defer cancel()
		_, _ = s.Guest(ctx, "kill -9 "+strings.TrimSpace(pid)+"; true")
	}, nil
}

func (s *machineSite) Host(ctx context.Context, name string, args ...string) (string, error) {
	return s.namespace.Run(name, s.assets.Tool(ctx, name, args...))
}

func (s *machineSite) StartHost(ctx context.Context, name string, args ...string) (stop func(), err error) {
	p, err := s.namespace.Start(name, s.assets.Tool(ctx, name, args...))
	if err != nil {
		return nil, err
	}
	return p.Kill, nil
}

func (s *machineSite) Namespace() *qemutest.Namespace { return s.namespace }

func (s *machineSite) SetEngines(ctx context.Context, rx, tx string) error {
	d, err := s.Device(ctx)
	if err != nil {
		return err
	}
	for _, q := range d.Queues {
		switch q.Kind {
		case "rx":
			err = errors.Join(err, s.backend.SetModeration(ctx, q.Index, rx))
		case "tx":
			err = errors.Join(err, s.backend.SetModeration(ctx, q.Index, tx))
		}
	}
	return err
}

func (s *machineSite) GuestAdaptive(ctx context.Context, on bool) error {
	if s.lane == qemutest.LaneNetdev {
		if on {
			return errNotHere
		}
		return nil
	}
	if s.adaptive == on {
		return nil
	}
	script := "ethtool -C eth0 adaptive-rx on"
	if !on {
		// The guest's moderation leaves its last limits behind.
		script = "ethtool -C eth0 adaptive-rx off && ethtool -Q eth0 queue_mask 1 --coalesce rx-usecs 0 rx-frames 0"
	}
	if _, err := s.Guest(ctx, script); err != nil {
		return err
	}
	s.adaptive = on
	return nil
}

// Configure loads the driver anew: it looks at its parameter when it finds a
// device.
func (s *machineSite) Configure(ctx context.Context, c guestConfig) error {
	if c.interruptCost != 0 {
		return fmt.Errorf("cost of interrupts: %w", errNotHere)
	}
	if s.orphan == c.orphan {
		return nil
	}
	napi := 1
	if c.orphan {
		napi = 0
	}
	_, err := s.Guest(ctx, fmt.Sprintf(`modprobe -r virtio_net && modprobe virtio_net napi_tx=%d || exit 1
n=0; until [ -e /sys/class/net/eth0 ]; do n=$((n+1)); [ $n -lt 50 ] || exit 2; sleep 0.1; done
ip addr add %s dev eth0 && ip link set eth0 up`, napi, guestAddress+prefixLength))
	if err != nil {
		return fmt.Errorf("load the driver with napi_tx=%d: %w", napi, err)
	}
	s.orphan, s.adaptive = c.orphan, false
	return nil
}

func (s *machineSite) Device(ctx context.Context) (netdev.DeviceSnapshot, error) {
	return s.backend.Device(ctx)
}

func (s *machineSite) Interrupts(ctx context.Context) (uint64, error) {
	out, err := s.Guest(ctx, "cat /proc/interrupts")
	if err != nil {
		return 0, err
	}
	return virtioInterrupts(out)
}

// virtioInterrupts sums a one-processor guest's interrupts of virtio devices.
func virtioInterrupts(text string) (sum uint64, err error) {
	for line := range strings.Lines(text) {
		if !strings.Contains(line, "virtio") {
			continue
		}
		var name string
		var n uint64
		if _, err := fmt.Sscan(line, &name, &n); err != nil {
			return 0, fmt.Errorf("/proc/interrupts: %q: %w", line, err)
		}
		sum += n
	}
	return sum, nil
}

func (s *machineSite) BackendCPU() (time.Duration, error) {
	return peer.CPUTime(s.backend.Process().PID())
}

func (s *machineSite) Close() {
	if s.guest != nil {
		s.guest.Close()
	}
	if s.backend != nil {
		s.backend.Close()
	}
	if s.namespace != nil {
		_ = s.namespace.Close()
	}
	if s.dir != "" {
		_ = os.RemoveAll(s.dir)
	}
}
