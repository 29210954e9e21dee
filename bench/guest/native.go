package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/bench/peer"
	"github.com/vhostnet/vhostnet/driver"
	"github.com/vhostnet/vhostnet/nativeguest"
	"github.com/vhostnet/vhostnet/netdev"
	qemutest "github.com/vhostnet/vhostnet/qemu-test"
	"github.com/vhostnet/vhostnet/qemu-test/provision"
	"github.com/vhostnet/vhostnet/tap"
)

// Processors of the native lane: the guest, with its thread and its programs, has
// one, as a virtual machine with one processor would; the device and the host's
// programs have the other.
const guestCPU, hostCPU = 0, 1

// errNoGuest is for a guest that did not start again.
var errNoGuest = errors.New("there is no guest")

// nativeSite is a native guest: the embedded driver with a TAP in a second
// namespace behind it, in this process.
type nativeSite struct {
	assets       *provision.Assets
	dir          string
	host, inside *qemutest.Namespace
	backend      *qemutest.Backend
	driver       *driver.Driver
	port         *tap.Port
	guest        *nativeguest.Guest
	ran          chan error
	config       guestConfig
}

// newNativeSite starts a device and a guest on it.
func newNativeSite(ctx context.Context, assets *provision.Assets, binary string) (s *nativeSite, err error) {
	s = &nativeSite{assets: assets}
	defer func() {
		if err != nil {
			s.Close()
		}
	}()
	// The path of a Unix socket has to be short.
	if s.dir, err = os.MkdirTemp("", "vn-"); err != nil {
		return s, err
	}
	if s.host, err = newSide(hostAddress); err != nil {
		return s, err
	}
	if s.inside, err = newSide(guestAddress); err != nil {
		return s, err
	}
	s.backend, err = qemutest.StartBackend(ctx, qemutest.BackendConfig{
		Binary: binary, Dir: s.dir, Namespace: s.host, Port: "tap:" + tapName,
	})
	if err != nil {
		return s, err
	}
	if err := bindProcess(s.backend.Process().PID(), hostCPU); err != nil {
		return s, err
	}
	s.driver, err = driver.Dial(s.backend.Socket, driver.Config{
		Features: nativeguest.Features, RXBufferSize: nativeguest.BufferSize, TXBufferSize: nativeguest.BufferSize,
	})
	if err != nil {
		return s, err
	}
	err = s.inside.Do(func() (err error) {
		s.port, err = tap.Open(tapName, tap.Options{})
		return err
	})
	if err != nil {
		return s, err
	}
	return s, s.start()
}

// bindProcess binds all threads of a process to a processor; those that they
// start later are bound with them.
func bindProcess(pid, cpu int) error {
	tasks, err := os.ReadDir(filepath.Join("/proc", strconv.Itoa(pid), "task"))
	if err != nil {
		return err
	}
	var set unix.CPUSet
	set.Set(cpu)
	for _, t := range tasks {
		tid, err := strconv.Atoi(t.Name())
		if err != nil {
			continue
		}
		if err := unix.SchedSetaffinity(tid, &set); err != nil && !errors.Is(err, unix.ESRCH) {
			return fmt.Errorf("bind thread %d to processor %d: %w", tid, cpu, err)
		}
	}
	return nil
}

// start begins the guest's work.
func (s *nativeSite) start() (err error) {
	s.guest, err = nativeguest.New(s.driver, s.port, nativeguest.Config{
		CPU: guestCPU, Orphan: s.config.orphan, InterruptCost: s.config.interruptCost,
	})
	if err != nil {
		return err
	}
	s.ran = make(chan error, 1)
	go func(g *nativeguest.Guest) { s.ran <- g.Run() }(s.guest)
	return nil
}

// stop ends it.
func (s *nativeSite) stop() error {
	if s.guest == nil {
		return nil
	}
	s.guest.Stop()
	err := errors.Join(<-s.ran, s.guest.Close())
	s.guest = nil
	return err
}

// Lane names the lane.
func (s *nativeSite) Lane() string { return "native" }

// Configure starts the guest anew, on the same device.
func (s *nativeSite) Configure(_ context.Context, c guestConfig) error {
	if s.config == c {
		return nil
	}
	s.config = c
	return errors.Join(s.stop(), s.start())
}

// bound is a command that runs on one processor.
func bound(ctx context.Context, cpu int, cmd *exec.Cmd) *exec.Cmd {
	args := append([]string{"-c", strconv.Itoa(cpu)}, cmd.Args...)
	args[2] = cmd.Path
	b := exec.CommandContext(ctx, "taskset", args...)
	b.Env = cmd.Env
	return b
}

// Guest runs a shell script in the guest's namespace, in which the tools are
// found by their names.
func (s *nativeSite) Guest(ctx context.Context, script string) (string, error) {
	var functions strings.Builder
	for _, name := range nativeTools {
		cmd := s.assets.Tool(ctx, name)
		fmt.Fprintf(&functions, "%s() { %s \"$@\"; }\n", strings.ReplaceAll(name, "-", "_"), strings.Join(cmd.Args, " "))
	}
	shell := exec.CommandContext(ctx, "/bin/sh", "-c", functions.String()+nativeNames.Replace(script))
	return s.inside.Run("guest script", bound(ctx, guestCPU, shell))
}

// nativeTools are programs that scripts call by name. A shell's function has no
// hyphen in its name.
var nativeTools = []string{"sockperf", "iperf3", "redis-server", "redis-benchmark", "wrk", "nginx"}

var nativeNames = strings.NewReplacer("redis-server", "redis_server", "redis-benchmark", "redis_benchmark")

// Host runs a tool in the host's namespace.
func (s *nativeSite) Host(ctx context.Context, name string, args ...string) (string, error) {
	return s.host.Run(name, bound(ctx, hostCPU, s.assets.Tool(ctx, name, args...)))
}

// StartHost starts a server in the host's namespace.
func (s *nativeSite) StartHost(ctx context.Context, name string, args ...string) (stop func(), err error) {
	p, err := s.host.Start(name, bound(ctx, hostCPU, s.assets.Tool(ctx, name, args...)))
	if err != nil {
		return nil, err
	}
	return p.Kill, nil
}

// Namespace is the host's side.
func (s *nativeSite) Namespace() *qemutest.Namespace { return s.host }

// SetEngines changes the host's engines.
func (s *nativeSite) SetEngines(ctx context.Context, rx, tx string) error {
	return errors.Join(s.backend.SetModeration(ctx, 0, rx), s.backend.SetModeration(ctx, 1, tx))
}

// GuestAdaptive switches the guest's own moderation.
func (s *nativeSite) GuestAdaptive(_ context.Context, on bool) error {
	if s.guest == nil {
		return errNoGuest
	}
	return s.guest.SetAdaptive(on)
}

// Device is a snapshot of the device.
func (s *nativeSite) Device(ctx context.Context) (netdev.DeviceSnapshot, error) {
	return s.backend.Device(ctx)
}

// Interrupts is how many the guest has taken.
func (s *nativeSite) Interrupts(context.Context) (uint64, error) {
	if s.guest == nil {
		return 0, errNoGuest
	}
	select {
	case err := <-s.ran:
		s.ran <- err
		return 0, fmt.Errorf("the guest has ended: %w", err)
	default:
	}
	c := s.guest.Counters()
	return c.RXInterrupts + c.TXInterrupts, nil
}

// BackendCPU is the processor time of the device's process.
func (s *nativeSite) BackendCPU() (time.Duration, error) {
	return peer.CPUTime(s.backend.Process().PID())
}

// Close ends everything.
func (s *nativeSite) Close() {
	_ = s.stop()
	if s.driver != nil {
		_ = s.driver.Close()
	}
	if s.port != nil {
		_ = s.port.Close()
	}
	if s.backend != nil {
		s.backend.Close()
	}
	for _, n := range []*qemutest.Namespace{s.host, s.inside} {
		if n != nil {
			_ = n.Close()
		}
	}
	if s.dir != "" {
		_ = os.RemoveAll(s.dir)
	}
}
