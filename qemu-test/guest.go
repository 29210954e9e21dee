package qemutest

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/qemu-test/provision"
)

// Lane is a way to put a Linux guest in front of the backend.
type Lane int

const (
	// LaneTestDevice is QEMU's generic vhost-user device: every queue and all of
	// the configuration space come from the backend. One interrupt line serves all
	// queues.
	LaneTestDevice Lane = iota
	// LaneNetdev is `-netdev vhost-user` with virtio-net-pci: only data queues
	// reach the backend, QEMU has the control queue.
	LaneNetdev
	// LaneOldNetdev is LaneNetdev under an older QEMU.
	LaneOldNetdev
	// LaneUML is User-Mode Linux, which runs at native speed.
	LaneUML
	// LaneTAP is QEMU's own virtio-net on a TAP, without vhostnet: to compare with.
	LaneTAP
)

// String is the lane's name in logs.
func (l Lane) String() string {
	switch l {
	case LaneTestDevice:
		return "test-device"
	case LaneNetdev:
		return "netdev"
	case LaneOldNetdev:
		return "old-netdev"
	case LaneUML:
		return "uml"
	case LaneTAP:
		return "tap"
	}
	return fmt.Sprintf("lane(%d)", int(l))
}

// Config describes a guest.
type Config struct {
	Lane   Lane
	Assets *provision.Assets
	// Dir holds the guest's files; it must exist and be the guest's own.
	Dir string
	// Socket is the backend's vhost-user socket, which must be listening. Empty
	// means a guest without a network device.
	Socket string
	// TAP is what LaneTAP has instead of a socket: an attached TAP of one queue with
	// IFF_VNET_HDR. The caller may close it once the guest was started.
	TAP *os.File
	// QueuePairs is what the front-end is set up for; 0 means 1.
	QueuePairs int
	// Agent is the guest's init, as BuildAgent makes it.
	Agent string
	// Address is eth0's IPv4 address with prefix length.
	Address string
	// Modules are loaded at start; nil means virtio_net.
	Modules []string
	// Files are added to the initramfs. A file etc/vhostnet/script is run instead
	// of serving commands.
	Files []provision.File
	// MemoryMB is the guest's memory; 0 means 512.
	MemoryMB int
	// CPUs is the number of virtual CPUs (QEMU only); 0 means 1.
	CPUs int
	// ReconnectMS makes QEMU's netdev lanes connect again after the backend was
	// lost, after this many milliseconds; 0 means never. The older QEMU counts
	// whole seconds.
	ReconnectMS int
	// Packed offers packed virtqueues to the guest of a netdev lane. On the others
	// that is for the backend to do.
	Packed bool
	// Echo receives the console's lines.
	Echo io.Writer
}

func (c *Config) fill() {
	if c.QueuePairs == 0 {
		c.QueuePairs = 1
	}
	if c.MemoryMB == 0 {
		c.MemoryMB = 512
	}
	if c.CPUs == 0 {
		c.CPUs = 1
	}
	if c.Modules == nil {
		c.Modules = []string{"virtio_net"}
	}
}

// Guest is a running guest. Close must be called.
type Guest struct {
	// Console is what the kernel and the init printed.
	Console *Console
	// Stderr is what the VMM itself printed.
	Stderr *Console
	// BootTime is the time from the VMM's start to the init's first command.
	BootTime time.Duration

	config  Config
	process *Process
	control *control
	monitor *Monitor // nil for User-Mode Linux
	files   []*os.File
}

// Start starts a guest and returns without waiting for it.
func Start(ctx context.Context, c Config) (*Guest, error) {
	c.fill()
	g := &Guest{Console: &Console{Echo: c.Echo}, Stderr: &Console{}, config: c}
	initrd := filepath.Join(c.Dir, "initramfs.cpio")
	if err := writeInitramfs(initrd, c); err != nil {
		return nil, err
	}
	ours, theirs, err := socketPair("guest control")
	if err != nil {
		return nil, err
	}
	defer theirs.Close()
	g.files = append(g.files, ours)
	g.control = newControl(ours)
	if c.Lane == LaneUML {
		err = g.startUML(ctx, initrd, theirs)
	} else {
		err = g.startQEMU(ctx, initrd, theirs)
	}
	if err != nil {
		g.Close()
		return nil, err
	}
	go func() {
		<-g.process.Done()
		g.Console.end()
		g.Stderr.end()
	}()
	return g, nil
}

// Boot starts a guest and waits until its init takes commands.
func Boot(ctx context.Context, c Config) (*Guest, error) {
	start := time.Now()
	g, err := Start(ctx, c)
	if err != nil {
		return nil, err
	}
	if err := g.WaitReady(ctx); err != nil {
		g.Close()
		return nil, err
	}
	g.BootTime = time.Since(start)
	return g, nil
}

// WaitReady waits until the guest's init takes commands, after a start or a
// reboot.
func (g *Guest) WaitReady(ctx context.Context) error {
	select {
	case <-g.control.ready:
		return nil
	case <-g.process.Done():
		return fmt.Errorf("%w before it was up (%v)\n%s\n%s", ErrGuestGone, g.process.err, g.Stderr.Tail(20), g.Console.Tail(20))
	case <-ctx.Done():
		return fmt.Errorf("qemutest: %v guest is not up: %w\n%s\n%s", g.config.Lane, context.Cause(ctx), g.Stderr.Tail(20), g.Console.Tail(30))
	}
}

// Go runs a shell script in the guest without waiting; the guest ends it after
// the limit.
func (g *Guest) Go(script string, limit time.Duration) (*Command, error) {
	return g.control.start(script, limit)
}

// Run runs a shell script in the guest, for at most as long as ctx allows.
func (g *Guest) Run(ctx context.Context, script string) (Result, error) {
	limit := time.Minute
	if end, ok := ctx.Deadline(); ok {
		limit = max(time.Until(end), time.Second)
	}
	c, err := g.Go(script, limit)
	if err != nil {
		return Result{Exit: -1}, err
	}
	return c.Wait(ctx)
}

// Reboot makes the guest's kernel restart the machine; WaitReady returns when it
// is up again.
func (g *Guest) Reboot() error {
	_, err := g.control.send(wire{Stop: "reboot"})
	return err
}

// PowerOff makes the guest power off and waits for the VMM's end.
func (g *Guest) PowerOff(ctx context.Context) error {
	if _, err := g.control.send(wire{Stop: "poweroff"}); err != nil {
		return err
	}
	err := g.process.Wait(ctx)
	if g.config.Lane == LaneUML && umlAborted(err) && strings.Contains(g.Console.Tail(5), "reboot: Power down") {
		// The guest has ended, and its kernel has said so. What is left of it, a program
		// that takes its signal handlers down, sometimes aborts on a busy machine.
		return nil
	}
	return err
}

// umlAborted tells whether User-Mode Linux, or the shell before it, ended with SIGABRT.
func umlAborted(err error) bool {
	var exit *exec.ExitError
	return errors.As(err, &exit) && exit.ExitCode() == 128+int(unix.SIGABRT)
}

// Wait waits for the VMM's end.
func (g *Guest) Wait(ctx context.Context) error { return g.process.Wait(ctx) }

// Process is the VMM.
func (g *Guest) Process() *Process { return g.process }

// Monitor is QEMU's monitor.
func (g *Guest) Monitor() (*Monitor, error) {
	if g.monitor == nil {
		return nil, errors.New("qemutest: this guest has no monitor")
	}
	return g.monitor, nil
}

// Close ends the guest, whatever state it is in.
func (g *Guest) Close() {
	if g.process != nil {
		g.process.Kill()
	}
	for _, f := range g.files {
		f.Close()
	}
}
