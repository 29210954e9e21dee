package vhostuser

import (
	"testing"

	"github.com/vhostnet/vhostnet/guestmem"
	"github.com/vhostnet/vhostnet/virtio"
)

// P05: an index is compared in its full width.
func TestRingIndex(t *testing.T) {
	s := begin(t)
	s.hello()
	for _, i := range []uint32{fakeRings, 0x100, 0x10001, 0x80000001, 0xFFFFFFFF} {
		s.refused(ReqSetVringNum, u32s(i, 64))
		s.refused(ReqSetVringBase, u32s(i, 0))
		s.refused(ReqSetVringEnable, u32s(i, 1))
		s.refused(ReqSetVringAddr, append(u32s(i), make([]byte, 36)...))
		s.tell(ReqGetVringBase, FlagVersion, u32s(i, 0))
		if b := s.reply(ReqGetVringBase); len(b) != 8 || ne.Uint32(b) != i {
			t.Errorf("ring %#x: % x", i, b)
		}
		s.inStep()
	}
	fd := s.event()
	for _, v := range []uint64{0xff, fakeRings, 0x200, 1 << 32, 1<<63 | 1, 0xff | noFD} {
		for _, r := range []Request{ReqSetVringKick, ReqSetVringCall, ReqSetVringErr} {
			s.refused(r, u64(v), fd)
			s.refused(r, u64(v))
		}
	}
	s.refused(ReqSetVringCall, u64(1|noFD), fd) // none, and yet one
	s.refused(ReqSetVringCall, u64(1))          // one, and yet none
	s.calls()
}

func TestRingNumbers(t *testing.T) {
	s := begin(t)
	s.hello()
	for _, n := range []uint32{0, 3, 200, 32769, 65536, 0x80000000, 0xFFFFFFFF} {
		s.refused(ReqSetVringNum, u32s(0, n))
	}
	for n := uint32(1); n <= 32768; n <<= 1 {
		s.accepted(ReqSetVringNum, u32s(0, n))
	}
	s.accepted(ReqSetVringBase, u32s(0, 0xffff))
	s.refused(ReqSetVringBase, u32s(0, 0x10000))
	s.refused(ReqSetVringEnable, u32s(0, 2))
	s.calls()
}

// Packed rings have any size, both positions in their base, and small areas behind
// which there may be nothing.
func TestPackedRing(t *testing.T) {
	s := begin(t)
	s.hello()
	s.accepted(ReqSetFeatures, u64(uint64(offer|virtio.FeatureRingPacked|virtio.FeatureProtocolFeatures)))
	s.b.take()
	for _, n := range []uint32{0, 32769, 65536, 0xFFFFFFFF} {
		s.refused(ReqSetVringNum, u32s(0, n))
	}
	for _, n := range []uint32{1, 3, 32767, 32768, 200} {
		s.accepted(ReqSetVringNum, u32s(0, n))
	}
	s.accepted(ReqSetVringBase, u32s(0, 0x80058005))
	const end = uva + memSize
	for _, a := range [][3]uint64{
		{end - 16*199, uva, uva + 8},
		{uva + 8, uva, uva},
		{uva, uva + 0x4002, uva},
		{uva, uva, uva + 0x4002},
		{uva, end, uva},
		{uva, uva, end - 2},
	} {
		if err := s.SetVringAddr(0, a[0], a[1], a[2]); !nacked(err) {
			t.Errorf("%#x: %v", a, err)
		}
	}
	s.must(s.SetVringAddr(0, end-16*200, end-4, end-8))
	s.must(s.SetVringKick(0, s.event()))
	s.calls("StartRing 0 size 200 base 2147844101")
	s.b.stopAt(0x80068006)
	if base, err := s.GetVringBase(0); err != nil || base != 0x80068006 {
		t.Errorf("base %#x, %v", base, err)
	}
}

func TestRingAddresses(t *testing.T) {
	s := begin(t)
	s.hello()
	s.must(s.SetVringNum(0, 256))
	const end = uva + memSize
	good := [3]uint64{uva, uva + 0x4000, uva + 0x8000} // descriptors, available, used
	for name, c := range map[string]struct {
		part int
		addr uint64
	}{
		"descriptors at the end":   {0, end - 16},
		"descriptors, one too far": {0, end - 16*256 + 16},
		"descriptors unaligned":    {0, uva + 8},
		"available odd":            {1, uva + 0x4001},
		"available, tail outside":  {1, end - 6 - 512 + 2},
		"used unaligned":           {2, uva + 0x8002},
		"used, tail outside":       {2, end - 6 - 2048 + 4},
		"guest addresses":          {0, 0x1000},
		"wraps around":             {2, ^uint64(0) - 3},
		"null":                     {1, 0},
	} {
		a := good
		a[c.part] = c.addr
		if err := s.SetVringAddr(0, a[0], a[1], a[2]); !nacked(err) {
			t.Errorf("%s: %v", name, err)
		}
	}
	s.must(s.SetVringAddr(0, end-16*256, uva+0x4002, end-16*256-2056))
	s.calls()
}

func TestRingAddressesWithoutMemory(t *testing.T) {
	s := begin(t)
	s.must(s.SetProtocolFeatures(protoOffer))
	if err := s.addr(0); !nacked(err) {
		t.Error(err)
	}
}

// A ring without what it needs is not started, and its kick is closed.
func TestStartTooEarly(t *testing.T) {
	s := begin(t)
	s.hello()
	kick := s.event()
	if err := s.SetVringKick(0, kick); !nacked(err) {
		t.Error("without anything:", err)
	}
	s.must(s.SetVringNum(0, 64))
	if err := s.SetVringKick(0, kick); !nacked(err) {
		t.Error("without addresses:", err)
	}
	s.must(s.addr(0))
	s.must(s.SetVringKick(0, -1)) // polled
	s.calls("StartRing 0 size 64 base 0")
}

// S01: the base is what the back-end stopped at, as often as it is asked for.
func TestGetVringBase(t *testing.T) {
	s := begin(t)
	s.hello()
	base := func(i int, want uint32) {
		t.Helper()
		if got, err := s.GetVringBase(i); err != nil || got != want {
			t.Errorf("ring %d: %d, %v, want %d", i, got, err, want)
		}
	}
	base(3, 0)
	s.must(s.SetVringBase(3, 0xFFFD))
	base(3, 0xFFFD)
	s.start(1, 64)
	s.must(s.SetVringEnable(1, true))
	s.b.stopAt(2)
	base(1, 2)
	base(1, 2)
	s.calls("StartRing 1 size 64 base 0", "EnableRing 1 true", "StopRing 1")
	// It goes on from there, with the addresses that it has.
	s.must(s.SetVringKick(1, s.event()))
	s.calls("StartRing 1 size 64 base 2")
	s.b.failing("StopRing", true)
	base(1, 2)
	s.b.failing("StopRing", false)
}

// Started and enabled are two bits that do not know each other.
func TestRingStates(t *testing.T) {
	s := begin(t)
	s.hello()
	s.must(s.SetVringEnable(0, true))
	s.must(s.SetVringEnable(0, true)) // changes nothing
	s.start(0, 64)
	s.must(s.SetVringEnable(0, false))
	s.must(s.SetVringEnable(0, true))
	_, err := s.GetVringBase(0)
	s.must(err)
	s.must(s.SetVringKick(0, s.event()))
	s.calls("EnableRing 0 true", "StartRing 0 size 64 base 0", "EnableRing 0 false", "EnableRing 0 true",
		"StopRing 0", "StartRing 0 size 64 base 0")

	// In use, its size and base stay; addresses and kick may be replaced.
	s.refused(ReqSetVringNum, u32s(0, 128))
	s.refused(ReqSetVringBase, u32s(0, 5))
	s.calls()
	s.must(s.addr(0))
	s.must(s.SetVringKick(0, s.event()))
	s.calls("SetRingAddr 0 0x7f5500000000", "SetRingKick 0 true")
}

// User-Mode Linux sets rings up again that it has disabled and never stopped.
func TestSetupWithoutStop(t *testing.T) {
	s := begin(t)
	s.hello()
	for i := range 2 {
		s.start(i, 64)
		s.must(s.SetVringEnable(i, true))
	}
	for i := range 2 {
		s.must(s.SetVringEnable(i, false))
	}
	s.b.take()
	s.b.stopAt(9)
	s.must(s.SetFeatures(virtio.FeatureVersion1 | virtio.FeatureProtocolFeatures))
	s.calls("StopRing 0", "StopRing 1", "SetFeatures 0x100000000")
	s.start(0, 128)
	s.must(s.SetVringEnable(0, true))
	s.calls("StartRing 0 size 128 base 0", "EnableRing 0 true")

	// The same without new features.
	s.must(s.SetVringEnable(0, false))
	s.b.take()
	s.start(0, 64)
	s.calls("StopRing 0", "StartRing 0 size 64 base 0")
}

// P11: features that come again.
func TestFeaturesAgain(t *testing.T) {
	const f = offer | virtio.FeatureProtocolFeatures
	s := begin(t)
	s.hello()
	s.start(0, 64)
	s.must(s.SetVringEnable(0, true))
	s.b.take()
	for range 50 {
		s.must(s.SetFeatures(f))
	}
	s.calls()
	for _, other := range []virtio.Features{f &^ virtio.FeatureMrgRxBuf, f | 1<<63, f | virtio.FeatureMQ, 0} {
		if err := s.SetFeatures(other); !nacked(err) {
			t.Errorf("%v: %v", other, err)
		}
	}
	s.calls()
	// Once it is disabled, they may change.
	s.must(s.SetVringEnable(0, false))
	s.must(s.SetFeatures(f &^ virtio.FeatureMrgRxBuf))
	s.calls("EnableRing 0 false", "StopRing 0", "SetFeatures 0x120020000")
}

// P11: the dirty-log bit is not on offer; a front-end that tries it, and takes it
// back, disturbs nothing.
func TestLogBit(t *testing.T) {
	s := begin(t)
	s.hello()
	s.start(0, 64)
	s.must(s.SetVringEnable(0, true))
	s.b.take()
	for range 50 {
		if err := s.SetFeatures(offer | virtio.FeatureProtocolFeatures | virtio.FeatureLogAll); !nacked(err) {
			t.Fatal(err)
		}
		s.must(s.SetFeatures(offer | virtio.FeatureProtocolFeatures))
	}
	s.calls()
}

// Without VHOST_USER_F_PROTOCOL_FEATURES rings are enabled from the start.
func TestFeaturesWithoutBit30(t *testing.T) {
	s := begin(t)
	s.must(s.SetOwner())
	s.must(s.SetFeatures(virtio.FeatureVersion1))
	s.must(s.SetMemTable([]guestmem.Region{region0}, []int{s.file(memSize)}))
	s.inStep()
	var want []string
	want = append(want, "SetFeatures 0x100000000")
	for _, i := range "01234" {
		want = append(want, "EnableRing "+string(i)+" true")
	}
	s.calls(append(want, "SetMemory 1")...)
	// With the bit, none is disabled.
	s.must(s.SetFeatures(virtio.FeatureVersion1 | virtio.FeatureProtocolFeatures))
	s.inStep()
	s.calls()
}

func TestResets(t *testing.T) {
	s := begin(t)
	s.hello()
	s.start(0, 64)
	s.must(s.SetVringEnable(0, true))
	s.b.take()
	s.must(s.ResetOwner())
	s.calls("EnableRing 0 false")
	s.must(s.SetVringEnable(0, true))
	s.b.take()
	s.must(s.ResetDevice())
	s.calls("ResetDevice")
	if base, err := s.GetVringBase(0); err != nil || base != 0 {
		t.Errorf("base %d after the reset, %v", base, err)
	}
	s.start(0, 64)
	s.must(s.SetVringEnable(0, true))
	s.calls("StartRing 0 size 64 base 0", "EnableRing 0 true")
}
