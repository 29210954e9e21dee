package netdev_test

import (
	"bytes"
	"errors"
	"testing"

	"github.com/vhostnet/vhostnet/driver"
	"github.com/vhostnet/vhostnet/netdev"
	"github.com/vhostnet/vhostnet/virtio"
)

// packedRings makes the drivers of all tests use packed rings.
var packedRings bool

// format gives a driver the ring format at hand.
func format(c driver.Config) driver.Config {
	c.Packed = c.Packed || packedRings
	return c
}

// TestPacked runs the package's other tests with packed rings: whatever a device does,
// it does with either. TestBothWays has its own.
func TestPacked(t *testing.T) {
	packedRings = true
	t.Cleanup(func() { packedRings = false })
	for name, f := range map[string]func(*testing.T){
		"NoAllocations": TestNoAllocations, "Batches": TestBatches, "PlainAmongOthers": TestPlainAmongOthers,
		"Mergeable": TestMergeable, "TooLong": TestTooLong, "PortBlocks": TestPortBlocks, "Header": TestHeader,
		"Offloads": TestOffloads, "GuestDIM": TestGuestDIM, "GuestDIMAlone": TestGuestDIMAlone,
		"LimitsInForce": TestLimitsInForce, "Early": TestEarly, "Settings": TestSettings,
		"StopAndContinue": TestStopAndContinue, "Policy": TestPolicy, "Engines": TestEngines, "QueuePairs": TestQueuePairs,
		"EnableWithoutControl": TestEnableWithoutControl, "Disabled": TestDisabled, "Filter": TestFilter, "Announce": TestAnnounce,
	} {
		t.Run(name, f)
	}
}

// TestPackedPause: a VMM's stop and cont leave what the driver has set, also where
// the control ring stops at its very beginning, and rings go on where they were.
func TestPackedPause(t *testing.T) {
	r := newRig(t, netdev.Config{}, driver.Config{Packed: true, QueueSize: 5, TXSegments: 2})
	if err := r.d.SetRXCoalesce(70, 7); err != nil {
		t.Fatal(err)
	}
	frame := testFrame(1, 600)
	// The control ring has 64 descriptors, of which the command above takes two and
	// the one below three: after 42 of these it is back where it began.
	for i := range 130 {
		r.port.queues[0].inject(frame)
		if got := r.receive(0, 1)[0]; !bytes.Equal(got, frame[virtio.NetHeaderLen:]) {
			t.Fatalf("%d bytes", len(got))
		}
		if err := r.d.Pair(0).TX.Send(frame[virtio.NetHeaderLen:]); err != nil && !errors.Is(err, driver.ErrFull) {
			t.Fatal(err)
		}
		if err := errors.Join(r.d.Pause(), r.d.Resume()); err != nil {
			t.Fatal(err)
		}
		usecs, packets, err := r.d.VQCoalesce(0)
		if err != nil || usecs != 70 || packets != 7 {
			t.Fatalf("after %d pauses: %d us, %d packets, %v", i+1, usecs, packets, err)
		}
	}
}
