package main

import (
	"context"
	"fmt"
	"os"
	"os/signal"
	"time"

	"golang.org/x/sys/unix"

	qemutest "github.com/vhostnet/vhostnet/qemu-test"
	"github.com/vhostnet/vhostnet/qemu-test/provision"
)

// Addresses of the two ends of the TAP, and the number of queue pairs.
const (
	hostAddress  = "10.77.0.1"
	guestAddress = "10.77.0.2"
	prefixLength = "/24"
	tapName      = "vn0"
	queuePairs   = 2
)

// timeLimit bounds the whole run, provisioning included.
const timeLimit = 4 * time.Minute

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	defer stop()
	ctx, cancel := context.WithTimeoutCause(ctx, timeLimit, fmt.Errorf("no end after %v", timeLimit))
	defer cancel()
	start := time.Now()
	if err := run(ctx); err != nil {
		fmt.Fprintln(os.Stderr, "demo:", err)
		os.Exit(1)
	}
	fmt.Printf("\ndone in %.0f s\n", time.Since(start).Seconds())
}

func run(ctx context.Context) error {
	if os.Geteuid() != 0 {
		return fmt.Errorf("it needs root, for a network namespace; \"vhostnet demo\" shows the embedded guest without")
	}
	dir, err := os.MkdirTemp("", "vhostnet-demo-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	d, err := set(ctx, dir)
	if d != nil {
		defer d.close()
	}
	if err != nil {
		return err
	}
	for _, step := range []func(context.Context) error{d.introduce, d.allQueues, d.oneQueue} {
		if err := step(ctx); err != nil {
			return fmt.Errorf("%w\nvhostnet:\n%s\nconsole:\n%s", err, d.backend.Log.Tail(20), d.guest.Console.Tail(20))
		}
	}
	return d.guest.PowerOff(ctx)
}

// stage is what the demo shows: a backend, a guest and a load generator.
type stage struct {
	namespace *qemutest.Namespace
	server    *qemutest.Process
	backend   *qemutest.Backend
	guest     *qemutest.Guest
}

// set builds the stage. What has been built is returned with an error, too.
func set(ctx context.Context, dir string) (*stage, error) {
	heading("provisioning")
	assets, err := provision.Ensure(ctx, provision.Options{
		Log: func(format string, args ...any) { fmt.Printf(format+"\n", args...) },
	})
	if err != nil {
		return nil, err
	}
	fmt.Println(assets.Summary())
	agent, err := qemutest.BuildAgent(ctx, dir)
	if err != nil {
		return nil, err
	}
	binary, err := qemutest.BuildBackend(ctx, dir)
	if err != nil {
		return nil, err
	}
	s := &stage{}
	if s.namespace, err = qemutest.NewNamespace(); err != nil {
		return s, err
	}
	if err := s.namespace.AddTAP(tapName, hostAddress+prefixLength, queuePairs); err != nil {
		return s, err
	}
	s.backend, err = qemutest.StartBackend(ctx, qemutest.BackendConfig{
		Binary: binary, Dir: dir, Namespace: s.namespace, Port: "tap:" + tapName, QueuePairs: queuePairs,
	})
	if err != nil {
		return s, err
	}
	server := assets.Tool(context.WithoutCancel(ctx), "iperf3", "-s", "-B", hostAddress)
	if s.server, err = s.namespace.Start("iperf3 server", server); err != nil {
		return s, err
	}
	heading("a Linux guest under QEMU (vhost-user-test-device-pci) on vhostnet")
	s.guest, err = qemutest.Boot(ctx, qemutest.Config{
		Lane: qemutest.LaneTestDevice, Assets: assets, Dir: dir, Socket: s.backend.Socket,
		QueuePairs: queuePairs, Agent: agent, Address: guestAddress + prefixLength,
	})
	if err != nil {
		return s, fmt.Errorf("%w\nvhostnet:\n%s", err, s.backend.Log.Tail(20))
	}
	fmt.Printf("up after %.1f s\n", s.guest.BootTime.Seconds())
	return s, nil
}

func (s *stage) close() {
	if s.guest != nil {
		s.guest.Close()
	}
	if s.server != nil {
		s.server.Kill()
	}
	if s.backend != nil {
		s.backend.Close()
	}
	if s.namespace != nil {
		s.namespace.Close()
	}
}

func heading(text string) { fmt.Printf("\n== %s\n", text) }
