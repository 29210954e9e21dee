package qemutest

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"strconv"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/mgmt"
	"github.com/vhostnet/vhostnet/netdev"
)

// pollInterval is how often the backend is asked while a test waits for it to
// reach a state.
const pollInterval = 20 * time.Millisecond

// BackendConfig describes a vhostnet process.
type BackendConfig struct {
	// Binary is the vhostnet command, as BuildBackend makes it.
	Binary string
	// Dir holds its sockets; Unix socket paths must be short.
	Dir string
	// Namespace is where its port is.
	Namespace *Namespace
	// Port is the port as on the command line.
	Port string
	// QueuePairs is the number of queue pairs; 0 means 1.
	QueuePairs int
	// Args are added to the command line.
	Args []string
}

// Backend is a running vhostnet process.
type Backend struct {
	// Log is what it printed.
	Log *Console
	// Socket is the path for the front-end.
	Socket string

	config  BackendConfig
	process *Process
	api     *mgmt.Client
}

// StartBackend starts vhostnet and waits until its API answers.
func StartBackend(ctx context.Context, c BackendConfig) (*Backend, error) {
	if c.QueuePairs == 0 {
		c.QueuePairs = 1
	}
	b := &Backend{Log: &Console{}, Socket: filepath.Join(c.Dir, "vhost.sock"), config: c}
	api := filepath.Join(c.Dir, "api.sock")
	args := append([]string{
		"serve", "--socket-path", b.Socket, "--port", c.Port,
		"--queue-pairs", strconv.Itoa(c.QueuePairs), "--api", "unix:" + api,
	}, c.Args...)
	cmd := exec.CommandContext(context.WithoutCancel(ctx), c.Binary, args...)
	cmd.Stdout, cmd.Stderr = b.Log, b.Log
	var err error
	if b.process, err = c.Namespace.Start("vhostnet", cmd); err != nil {
		return nil, err
	}
	for {
		b.api, err = mgmt.Dial(ctx, "unix:"+api)
		if err == nil {
			break
		}
		select {
		case <-b.process.Done():
			return nil, fmt.Errorf("qemutest: vhostnet ended at start: %w\n%s", b.process.err, b.Log)
		case <-ctx.Done():
			b.Close()
			return nil, fmt.Errorf("qemutest: vhostnet's API: %w\n%s", err, b.Log)
		case <-time.After(pollInterval):
		}
	}
	// The API may be up before the socket is.
	return b, b.waitSocket(ctx)
}

func (b *Backend) waitSocket(ctx context.Context) error {
	for unix.Access(b.Socket, unix.F_OK) != nil {
		select {
		case <-b.process.Done():
			return fmt.Errorf("qemutest: vhostnet ended at start: %w\n%s", b.process.err, b.Log)
		case <-ctx.Done():
			b.Close()
			return fmt.Errorf("qemutest: vhostnet's socket: %w\n%s", context.Cause(ctx), b.Log)
		case <-time.After(pollInterval):
		}
	}
	return nil
}

// Process is the vhostnet process.
func (b *Backend) Process() *Process { return b.process }

// Device is a snapshot of the device.
func (b *Backend) Device(ctx context.Context) (netdev.DeviceSnapshot, error) {
	list, err := b.api.Devices(ctx)
	if err != nil {
		return netdev.DeviceSnapshot{}, fmt.Errorf("qemutest: %w", err)
	}
	if len(list) != 1 {
		return netdev.DeviceSnapshot{}, fmt.Errorf("qemutest: the API shows %d devices", len(list))
	}
	return list[0], nil
}

// SetModeration changes the host's moderation engine of a virtqueue.
func (b *Backend) SetModeration(ctx context.Context, queue int, engine string) error {
	d, err := b.Device(ctx)
	if err == nil {
		err = b.api.SetModeration(ctx, d.Name, queue, engine)
	}
	if err != nil {
		return fmt.Errorf("qemutest: %w", err)
	}
	return nil
}

// WaitDevice waits until a condition holds and returns the snapshot in which it
// did.
func (b *Backend) WaitDevice(ctx context.Context, what string, holds func(netdev.DeviceSnapshot) bool) (netdev.DeviceSnapshot, error) {
	for {
		d, err := b.Device(ctx)
		if err == nil && holds(d) {
			return d, nil
		}
		select {
		case <-ctx.Done():
			return d, fmt.Errorf("qemutest: waiting for %s: %w", what, errors.Join(context.Cause(ctx), err))
		case <-b.process.Done():
			return d, fmt.Errorf("qemutest: waiting for %s: vhostnet ended: %v\n%s", what, b.process.err, b.Log.Tail(30))
		case <-time.After(pollInterval):
		}
	}
}

// Stop asks the process to end and waits for exit status 0.
func (b *Backend) Stop(ctx context.Context) error {
	if err := b.process.Signal(unix.SIGTERM); err != nil {
		return err
	}
	return b.process.Wait(ctx)
}

// Close ends the process.
func (b *Backend) Close() {
	b.process.Kill()
	if b.api != nil {
		b.api.Close()
	}
}

// Totals are sums over the queues of one kind, "rx" or "tx".
type Totals struct {
	Packets, Bytes, Kicks, Calls, Suppressed uint64
}

// Sum adds the counters of a device's queues of one kind.
func Sum(d netdev.DeviceSnapshot, kind string) Totals {
	var t Totals
	for _, q := range d.Queues {
		if q.Kind == kind {
			t.Packets += q.Packets
			t.Bytes += q.Bytes
			t.Kicks += q.Kicks
			t.Calls += q.Calls
			t.Suppressed += q.CallsSuppressed
		}
	}
	return t
}

// Minus is what was added since an earlier snapshot.
func (t Totals) Minus(old Totals) Totals {
	return Totals{
		t.Packets - old.Packets, t.Bytes - old.Bytes, t.Kicks - old.Kicks,
		t.Calls - old.Calls, t.Suppressed - old.Suppressed,
	}
}
