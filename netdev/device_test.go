package netdev_test

import (
	"bytes"
	"errors"
	"strings"
	"testing"

	"github.com/vhostnet/vhostnet/driver"
	"github.com/vhostnet/vhostnet/netdev"
	"github.com/vhostnet/vhostnet/vhostuser"
	"github.com/vhostnet/vhostnet/virtio"
)

func TestBothWays(t *testing.T) {
	for name, dcfg := range map[string]driver.Config{
		"one descriptor":        {},
		"header apart":          {TXSegments: 2},
		"many descriptors":      {TXSegments: 15},
		"indirect":              {TXSegments: 4, Indirect: true},
		"memory in eight parts": {TXSegments: 3, MemRegions: 8},
		"no event index":        {Without: virtio.FeatureEventIdx},
		"no mergeable buffers":  {Without: virtio.FeatureMrgRxBuf},
		"small ring":            {QueueSize: 16},

		"packed":                        {Packed: true},
		"packed, header apart":          {Packed: true, TXSegments: 2},
		"packed, many descriptors":      {Packed: true, TXSegments: 15},
		"packed, indirect":              {Packed: true, TXSegments: 4, Indirect: true},
		"packed, memory in eight parts": {Packed: true, TXSegments: 3, MemRegions: 8},
		"packed, no event index":        {Packed: true, Without: virtio.FeatureEventIdx},
		"packed, no mergeable buffers":  {Packed: true, Without: virtio.FeatureMrgRxBuf},
		"packed, odd ring":              {Packed: true, QueueSize: 19, TXSegments: 2},
		"packed, one descriptor":        {Packed: true, QueueSize: 1},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, netdev.Config{}, dcfg)
			if f := r.dev.Snapshot().RingFormat; f != map[bool]string{false: "split", true: "packed"}[dcfg.Packed] {
				t.Errorf("ring format %s", f)
			}
			q := r.port.queues[0]
			const n = 300
			sizes := []int{60, 61, 257, 1000, 1514}
			var in [][]byte
			for i := range n {
				in = append(in, testFrame(uint32(i), sizes[i%len(sizes)]))
			}
			q.inject(in...)
			got := r.receive(0, n)
			for i, f := range got {
				if !bytes.Equal(f, in[i][virtio.NetHeaderLen:]) {
					t.Fatalf("received frame %d has %d bytes", i, len(f))
				}
			}
			tx := r.d.Pair(0).TX
			for i := range n {
				for {
					err := tx.Send(in[i][virtio.NetHeaderLen:])
					if err == nil {
						break
					}
					if !errors.Is(err, driver.ErrFull) {
						t.Fatal(err)
					}
					if _, err := tx.Wait(patience); err != nil {
						t.Fatal(err)
					}
					tx.Reclaim()
				}
			}
			tx.Flush()
			r.until("all frames are sent", func() bool { return len(q.sent()) == n })
			for i, f := range q.sent() {
				if !bytes.Equal(f, in[i]) {
					t.Fatalf("sent frame %d has %d bytes", i, len(f))
				}
			}
			if s := r.queue(1); s.Packets != n || len(s.Drops) != 0 {
				t.Errorf("transmit queue: %+v", s)
			}
			if s := r.queue(0); s.Packets != n || len(s.Drops) != 0 {
				t.Errorf("receive queue: %+v", s)
			}
		})
	}
}

// TestMergeable: frames over several buffers, with the room offered to the port
// growing and shrinking.
func TestMergeable(t *testing.T) {
	r := newRig(t, netdev.Config{}, driver.Config{RXBufferSize: 256, QueueSize: 512})
	for _, size := range []int{60, 9000, 1514, 65535, 60, 244, 245, 60, 30000} {
		f := testFrame(7, size)
		r.port.queues[0].inject(f)
		if got := r.receive(0, 1)[0]; !bytes.Equal(got, f[virtio.NetHeaderLen:]) {
			t.Fatalf("%d bytes came as %d", size, len(got))
		}
	}
	if s := r.queue(0); s.Packets != 9 || len(s.Drops) != 0 {
		t.Errorf("receive queue: %+v", s)
	}
}

// TestTooLong covers reference case N03: a frame that cannot fit is dropped, and
// the next one arrives.
func TestTooLong(t *testing.T) {
	for name, dcfg := range map[string]driver.Config{
		"one buffer":        {RXBufferSize: 100, Without: virtio.FeatureMrgRxBuf},
		"the whole ring":    {RXBufferSize: 16, QueueSize: 64},
		"more than a batch": {RXBufferSize: 16, QueueSize: 2048},
	} {
		t.Run(name, func(t *testing.T) {
			r := newRig(t, netdev.Config{}, dcfg)
			r.port.queues[0].inject(testFrame(1, 30000), testFrame(2, 60))
			if got := r.receive(0, 1)[0]; !bytes.Equal(got, testFrame(2, 60)[virtio.NetHeaderLen:]) {
				t.Fatalf("got a frame of %d bytes", len(got))
			}
			s := r.queue(0)
			if s.Packets != 1 || s.Drops["small_buffer"]+s.Drops["no_buffer"] != 1 || s.Broken != "" {
				t.Errorf("receive queue: %+v", s)
			}
		})
	}
}

// TestPortBlocks: what the port does not take stays, in order, and is sent once.
func TestPortBlocks(t *testing.T) {
	r := newRig(t, netdev.Config{}, driver.Config{})
	q := r.port.queues[0]
	q.setBlock(true)
	tx := r.d.Pair(0).TX
	for i := range 20 {
		if err := tx.Send(testFrame(uint32(i), 60)[virtio.NetHeaderLen:]); err != nil {
			t.Fatal(err)
		}
	}
	tx.Flush()
	r.until("the worker has tried", func() bool { return r.queue(1).Kicks > 0 })
	if n := len(q.sent()); n != 0 {
		t.Fatalf("%d frames went through", n)
	}
	q.setBlock(false)
	r.until("all are sent", func() bool { return len(q.sent()) >= 20 })
	for i, f := range q.sent() {
		if !bytes.Equal(f, testFrame(uint32(i), 60)) {
			t.Fatalf("frame %d is another one", i)
		}
	}
}

// TestHeader covers what a driver gets to see of a port's header (N01, N06).
func TestHeader(t *testing.T) {
	f := testFrame(1, 60)
	f[0], f[6], f[8] = virtio.NetHdrFDataValid, 14, 16
	r := newRig(t, netdev.Config{}, driver.Config{})
	r.port.queues[0].inject(f)
	var p [1]driver.Packet
	r.until("it has arrived", func() bool { return r.d.Pair(0).RX.Receive(p[:]) == 1 })
	if h := p[0].Header(); h != (virtio.NetHeader{NumBuffers: 1}) {
		t.Errorf("header %+v without GUEST_CSUM", h)
	}
	gso := testFrame(2, 60)
	gso[0], gso[1], gso[4] = virtio.NetHdrFNeedsCSum, virtio.GSOTCPv4, 100
	r.port.queues[0].inject(gso, testFrame(3, 60))
	if got := r.receive(0, 1)[0]; !bytes.Equal(got, testFrame(3, 60)[virtio.NetHeaderLen:]) {
		t.Error("a frame with an offload that was not negotiated came through")
	}
	if s := r.queue(0); s.Drops["bad_header"] != 1 {
		t.Errorf("receive queue: %+v", s)
	}
	r.stop()

	r.drive(driver.Config{Features: driver.DefaultFeatures | driver.Offloads})
	r.port.queues[0].inject(gso)
	r.until("it has arrived", func() bool { return r.d.Pair(0).RX.Receive(p[:]) == 1 })
	if h := p[0].Header(); h.GSOType != virtio.GSOTCPv4 || h.Flags != virtio.NetHdrFNeedsCSum || h.NumBuffers != 1 {
		t.Errorf("header %+v with GUEST_TSO4", h)
	}
	// Transmission: what was negotiated passes, the rest is refused.
	tx := r.d.Pair(0).TX
	h := virtio.NetHeader{Flags: virtio.NetHdrFNeedsCSum, CSumStart: 34, CSumOffset: 16, GSOType: virtio.GSOTCPv4, GSOSize: 1000}
	for _, gsoType := range []uint8{virtio.GSOTCPv4, virtio.GSOTCPv6, 0x7f} {
		h.GSOType = gsoType
		if err := tx.SendPacket(&h, testFrame(4, 60)[virtio.NetHeaderLen:]); err != nil {
			t.Fatal(err)
		}
	}
	tx.Flush()
	r.until("two are dropped", func() bool { return r.queue(1).Drops["bad_header"] == 2 })
	if out := r.port.queues[0].sent(); len(out) != 1 || out[0][1] != virtio.GSOTCPv4 {
		t.Errorf("%d frames were sent", len(out))
	}
}

// TestOffloads: the port follows what the driver accepts, and forgets it.
func TestOffloads(t *testing.T) {
	r := newRig(t, netdev.Config{}, driver.Config{Features: driver.DefaultFeatures | driver.Offloads})
	state := func() (virtio.Features, int) {
		r.port.mu.Lock()
		defer r.port.mu.Unlock()
		return r.port.guest, r.port.resets
	}
	both := virtio.FeatureGuestCSum | virtio.FeatureGuestTSO4
	if f, _ := state(); f != both {
		t.Errorf("after the start: %s", f)
	}
	if err := r.d.SetGuestOffloads(virtio.GuestOffloads(virtio.FeatureGuestCSum)); err != nil {
		t.Fatal(err)
	}
	if f, _ := state(); f != virtio.FeatureGuestCSum {
		t.Errorf("after the command: %s", f)
	}
	if err := r.d.SetGuestOffloads(virtio.GuestOffloads(virtio.FeatureGuestTSO6)); !errors.Is(err, driver.ErrRefused) {
		t.Errorf("an offload that was not negotiated: %v", err)
	}
	r.stop()
	if f, n := state(); f != 0 || n == 0 {
		t.Errorf("after the stop: %s, %d resets", f, n)
	}
	r.drive(driver.Config{})
	if f, _ := state(); f != 0 {
		t.Errorf("a driver that accepts none: %s", f)
	}
}

func TestConfig(t *testing.T) {
	for name, cfg := range map[string]netdev.Config{
		"pairs":      {QueuePairs: netdev.MaxQueuePairs + 1},
		"queue size": {QueueSize: 300},
		"mtu":        {MTU: 40},
		"mac":        {MAC: [6]byte{1}},
		"port":       {QueuePairs: 4},
		"feature":    {With: virtio.FeatureRingReset},
	} {
		if _, err := netdev.New(cfg, newFakePort(t, 2)); !errors.Is(err, netdev.ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
	r := newRig(t, netdev.Config{MAC: [6]byte{2, 1}, MTU: 9000, QueuePairs: 3, Without: virtio.FeatureCtrlVLAN | virtio.FeatureRingPacked},
		driver.Config{QueuePairs: 3})
	if r.d.MAC() != [6]byte{2, 1} || r.d.MTU() != 9000 || r.d.MaxQueuePairs() != 3 {
		t.Errorf("MAC %x, MTU %d, %d pairs", r.d.MAC(), r.d.MTU(), r.d.MaxQueuePairs())
	}
	if r.d.Offer().Has(virtio.FeatureCtrlVLAN) || r.d.Offer()&(virtio.FeatureRingReset|virtio.FeatureRingPacked) != 0 {
		t.Errorf("offer %s", r.d.Offer())
	}
}

// TestNothingPointsIntoOldMemory: when rings have stopped, or memory has changed, no
// slice of the device's is left that points into what may be unmapped.
func TestNothingPointsIntoOldMemory(t *testing.T) {
	r := newRig(t, netdev.Config{}, driver.Config{})
	for i := range 40 {
		f := testFrame(uint32(i), 60+35*i)
		r.port.queues[0].inject(f)
		if err := r.d.Pair(0).TX.Send(f[virtio.NetHeaderLen:]); err != nil {
			t.Fatal(err)
		}
		r.d.Pair(0).TX.Flush()
	}
	r.receive(0, 40)
	r.until("all are sent", func() bool { return len(r.port.queues[0].sent()) == 40 })
	if r.dev.Pointers() == 0 {
		t.Error("nothing points into the driver's memory while it is there: the test sees nothing")
	}
	r.stop()
	if n := r.dev.Pointers(); n != 0 {
		t.Errorf("%d slices", n)
	}
}

// A driver that accepts a feature without what it depends on is refused, with an
// answer, in the device status, and in that no ring starts; a correct set then
// works.
func TestFeatureDependencies(t *testing.T) {
	p := newFakePort(t, 1)
	dev := newDevice(t, netdev.Config{}, p)
	defer func() { _ = dev.Close() }()
	dev.Connected()
	const good = virtio.FeatureVersion1 | virtio.FeatureCSum | virtio.FeatureHostTSO4
	const ok = virtio.StatusAcknowledge | virtio.StatusDriver | virtio.StatusFeaturesOK
	status := func(f virtio.Features) (uint8, error) {
		err := dev.SetFeatures(f)
		if e := dev.SetStatus(ok); e != nil {
			t.Error(e)
		}
		return dev.Status(), err
	}
	s, err := status(good &^ virtio.FeatureCSum)
	if !errors.Is(err, virtio.ErrFeature) || !strings.Contains(err.Error(), "HOST_TSO4 needs VIRTIO_NET_F_CSUM") || s != ok&^virtio.StatusFeaturesOK {
		t.Errorf("status %#x, %v", s, err)
	}
	if err := dev.StartRing(0, vhostuser.RingConfig{Size: 8}, -1); !errors.Is(err, virtio.ErrFeature) {
		t.Errorf("start: %v", err)
	}
	if s, err := status(good); err != nil || s != ok {
		t.Errorf("status %#x, %v", s, err)
	}
	// A front-end that keeps the control queue to itself leaves its bit out.
	if s, err := status(good | virtio.FeatureGuestAnnounce | virtio.FeatureCtrlRX | virtio.FeatureCtrlRXExtra | virtio.FeatureVQNotfCoal); err != nil || s != ok {
		t.Errorf("status %#x, %v", s, err)
	}
	dev.Disconnected()
}
