package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"time"

	"github.com/vhostnet/vhostnet/netdev"
	qemutest "github.com/vhostnet/vhostnet/qemu-test"
	"github.com/vhostnet/vhostnet/qemu-test/provision"
)

// Addresses of the two ends, and the name of the TAP.
const (
	hostAddress  = "10.77.0.1"
	guestAddress = "10.77.0.2"
	prefixLength = "/24"
	network      = "10.77.0.0" + prefixLength
	tapName      = "vn0"
)

// congestionControl is what Linux has by default, which the machine may not. BBR
// for one takes every delay beyond the shortest for a queue, so that under it a
// delayed notification costs throughput in a way of its own.
const congestionControl = "cubic"

// newSide makes a namespace with a TAP of that address, whose connections over it
// have the congestion control of every machine.
func newSide(address string) (n *qemutest.Namespace, err error) {
	if n, err = qemutest.NewNamespace(); err != nil {
		return nil, err
	}
	if err = n.AddTAP(tapName, address+prefixLength, 1); err == nil {
		_, err = n.Run("ip route", exec.Command("ip", "route", "replace", network, "dev", tapName,
			"proto", "kernel", "scope", "link", "src", address, "congctl", congestionControl))
	}
	if err != nil {
		return nil, errors.Join(err, n.Close())
	}
	return n, nil
}

// errNotHere is what a site returns for what its lane cannot do.
var errNotHere = errors.New("this lane cannot")

// guestConfig is how a guest is set up.
type guestConfig struct {
	// orphan is transmission without NAPI (napi_tx=0).
	orphan bool
	// interruptCost is for how long each interrupt keeps the processor of a native
	// guest busy, on top of what waking up takes.
	interruptCost time.Duration
}

// site is a running guest of some lane with a vhostnet process behind it and a
// network namespace on the host side. One goroutine uses it, but for Device and
// BackendCPU, which may be asked while a load runs.
type site interface {
	// Lane is the lane's name, as in laneNames.
	Lane() string
	// Guest runs a shell script in the guest and returns its output.
	Guest(ctx context.Context, script string) (string, error)
	// StartGuest starts a server in the guest; arguments must not need quoting.
	StartGuest(ctx context.Context, name string, args ...string) (stop func(), err error)
	// Host runs a tool in the namespace of the host side.
	Host(ctx context.Context, name string, args ...string) (string, error)
	// StartHost starts a server there.
	StartHost(ctx context.Context, name string, args ...string) (stop func(), err error)
	// Namespace is the host side.
	Namespace() *qemutest.Namespace
	// SetEngines sets the host's engines of all receive and transmit queues.
	SetEngines(ctx context.Context, rx, tx string) error
	// GuestAdaptive switches the guest's own moderation of its receive queues;
	// off leaves the guest as its driver starts. errNotHere where the device does
	// not get the driver's commands.
	GuestAdaptive(ctx context.Context, on bool) error
	// Configure sets the guest up; errNotHere for what its lane has not.
	Configure(ctx context.Context, c guestConfig) error
	// Device is a snapshot of the device.
	Device(ctx context.Context) (netdev.DeviceSnapshot, error)
	// Interrupts is how many of the device the guest has taken.
	Interrupts(ctx context.Context) (uint64, error)
	// BackendCPU is the processor time of the vhostnet process.
	BackendCPU() (time.Duration, error)
	// Close ends everything.
	Close()
}

// laneNames are the lanes that there are.
var laneNames = []string{"native", "uml", "netdev", "test-device"}

// emulated tells whether a lane's guest runs on a processor in software, which
// bounds what it can take.
func emulated(lane string) bool { return lane == "netdev" || lane == "test-device" }

// newSite starts a guest.
func newSite(ctx context.Context, lane string, assets *provision.Assets, b *binaries) (site, error) {
	switch lane {
	case "native":
		return newNativeSite(ctx, assets, b.backend)
	case "uml":
		return newMachineSite(ctx, qemutest.LaneUML, assets, b)
	case "netdev":
		return newMachineSite(ctx, qemutest.LaneNetdev, assets, b)
	case "test-device":
		return newMachineSite(ctx, qemutest.LaneTestDevice, assets, b)
	}
	return nil, fmt.Errorf("no lane %q", lane)
}

// pause waits, unless the run ends first.
func pause(ctx context.Context, d time.Duration) error {
	select {
	case <-ctx.Done():
		return context.Cause(ctx)
	case <-time.After(d):
		return nil
	}
}
