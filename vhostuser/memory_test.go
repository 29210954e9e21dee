package vhostuser

import (
	"bytes"
	"fmt"
	"os"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/guestmem"
)

// regions are n regions of memSize bytes that do not touch.
func (s *script) regions(n int) (rs []guestmem.Region) {
	for i := range uint64(n) {
		rs = append(rs, guestmem.Region{GuestAddr: i << 32, Size: memSize, UserAddr: uva + i<<32})
	}
	return rs
}

func region(gpa, size, user, off uint64) guestmem.Region {
	return guestmem.Region{GuestAddr: gpa, Size: size, UserAddr: user, Offset: off}
}

func mappings(t *testing.T) int {
	t.Helper()
	b, err := os.ReadFile("/proc/self/maps")
	if err != nil {
		t.Fatal(err)
	}
	return bytes.Count(b, []byte("/memfd:test"))
}

// P06: a table is taken whole or not at all; the old one stays.
func TestMemTableAtomic(t *testing.T) {
	s := begin(t)
	s.hello()
	good, file := region0, s.file(memSize)
	high := s.regions(2)[1]
	var pipe [2]int
	s.must(unix.Pipe2(pipe[:], unix.O_CLOEXEC))
	t.Cleanup(func() { closeFDs(pipe[:]) })
	for _, n := range []uint32{0, 9, 0xffffffff} {
		s.refused(ReqSetMemTable, table(n, s.regions(8)...))
	}
	s.refused(ReqSetMemTable, table(0, good), file)
	s.refused(ReqSetMemTable, table(2, good), file, file)
	s.refused(ReqSetMemTable, table(2, good, high), file, pipe[0])
	s.refused(ReqSetMemTable, table(2, good, high), pipe[0], file)
	s.refused(ReqSetMemTable, table(1, guestmem.Region{Size: 2 * memSize, UserAddr: uva}), file)
	s.calls()
	if n := mappings(t); n != 1 {
		t.Errorf("%d mappings", n)
	}
	// The old table is still there for ring addresses.
	s.must(s.SetVringNum(0, 64))
	s.must(s.addr(0))

	s.b.failing("SetMemory", true)
	s.refused(ReqSetMemTable, table(2, good, high), file, file)
	s.b.failing("SetMemory", false)
	if n := mappings(t); n != 1 {
		t.Errorf("%d mappings after the back-end's refusal", n)
	}
	s.must(s.addr(0))
	s.accepted(ReqSetMemTable, table(2, good, high), file, file)
	if n := mappings(t); n != 2 {
		t.Errorf("%d mappings for two regions", n)
	}
}

// Byte k of a region is byte k of the file behind the offset, page aligned or not.
func TestMemTableOffsets(t *testing.T) {
	s := begin(t)
	s.hello()
	file := s.file(memSize)
	for _, at := range []int64{0, 0x800, memSize / 2} {
		if _, err := unix.Pwrite(file, []byte{byte(at >> 8), 0xA5}, at); err != nil {
			t.Fatal(err)
		}
	}
	const half = memSize / 2
	for _, c := range []struct {
		regions []guestmem.Region
		first   map[uint64]byte // by guest address
	}{
		{[]guestmem.Region{region(0, half, uva, 0), region(1<<32, half, uva+1<<32, half)}, map[uint64]byte{0: 0, 1 << 32: half >> 8 & 0xff}},
		{[]guestmem.Region{region(0, half, uva, 0x800)}, map[uint64]byte{0: 8}},
	} {
		fds := []int{file, file}[:len(c.regions)]
		s.accepted(ReqSetMemTable, table(uint32(len(c.regions)), c.regions...), fds...)
		s.b.mu.Lock()
		for gpa, want := range c.first {
			if b, ok := s.b.mem.Slice(gpa, 2); !ok || b[0] != want || b[1] != 0xA5 {
				t.Errorf("at %#x: % x, %v, want %#x a5", gpa, b, ok, want)
			}
		}
		s.b.mu.Unlock()
	}
}

// P07: arithmetic that wraps around, nothing at all, and overlaps.
func TestMemTableArithmetic(t *testing.T) {
	s := begin(t)
	s.hello()
	file, other := s.file(memSize), s.file(memSize)
	const half = memSize / 2
	for name, rs := range map[string][]guestmem.Region{
		"A size and offset": {region(0, 0xFFFFFFFFFFFFF000, uva, 0x2000)},
		"B guest address":   {region(0xFFFFFFFFFFFFF000, 0x2000, uva, 0)},
		"C user address":    {region(0, 0x2000, 0xFFFFFFFFFFFFF000, 0)},
		"D nothing":         {region(0, 0, uva, 0)},
		"E guest overlap":   {region(0, half, uva, 0), region(half/2, half, uva+1<<32, 0)},
		"F user overlap":    {region(0, half, uva, 0), region(1<<32, half, uva+half/2, 0)},
		"G offset":          {region(0, memSize, uva, 1<<63)},
		"all ones":          {region(^uint64(0), ^uint64(0), ^uint64(0), ^uint64(0))},
	} {
		s.refused(ReqSetMemTable, table(uint32(len(rs)), rs...), []int{file, other}[:len(rs)]...)
		if n := mappings(t); n != 1 {
			t.Errorf("%s: %d mappings", name, n)
		}
		s.accepted(ReqSetMemTable, table(1, region0), file)
		s.must(s.SetVringNum(0, 64))
		s.must(s.addr(0))
	}
	// To the last byte of the address space is no wrap.
	s.accepted(ReqSetMemTable, table(1, guestmem.Region{GuestAddr: ^uint64(0) - memSize + 1, Size: memSize, UserAddr: uva}), file)
}

// P15: regions that come and go.
func TestMemRegions(t *testing.T) {
	s := begin(t)
	s.must(s.SetProtocolFeatures(protoOffer))
	if n, err := s.GetMaxMemSlots(); err != nil || n < 32 {
		t.Fatalf("%d slots, %v", n, err)
	}
	file := s.file(memSize)
	rs := s.regions(guestmem.MaxSlots + 1)
	for range 20 {
		for _, r := range rs[:40] {
			s.must(s.AddMemRegion(r, file))
		}
		if n := mappings(t); n != 40 {
			t.Fatalf("%d mappings for 40 regions", n)
		}
		for i, r := range rs[:40] {
			if i%2 == 0 {
				s.must(s.RemMemRegion(r))
			} else {
				s.accepted(ReqRemMemReg, appendRegion(u64(0), r), file)
			}
		}
	}
	if n := mappings(t); n != 0 {
		t.Errorf("%d mappings for none", n)
	}
	for _, r := range rs[:guestmem.MaxSlots] {
		s.must(s.AddMemRegion(r, file))
	}
	if err := s.AddMemRegion(rs[guestmem.MaxSlots], file); !nacked(err) {
		t.Error("one region too many:", err)
	}
	s.refused(ReqAddMemReg, appendRegion(u64(0), rs[guestmem.MaxSlots])) // no file
	other := rs[0]
	other.Size /= 2
	s.refused(ReqAddMemReg, appendRegion(u64(0), other), file)           // it overlaps
	s.refused(ReqRemMemReg, appendRegion(u64(0), rs[guestmem.MaxSlots])) // it is not
	s.refused(ReqRemMemReg, appendRegion(u64(0), rs[0]), file, file)     // two files
	s.must(s.SetVringNum(0, 64))
	s.must(s.addr(0))
	s.must(s.SetVringKick(0, s.event()))
	// The rings' own region may go: the back-end pauses them.
	s.must(s.RemMemRegion(rs[0]))
	if err := s.addr(0); !nacked(err) {
		t.Error("addresses in memory that is gone:", err)
	}
	s.b.failing("SetMemory", true)
	if err := s.AddMemRegion(rs[0], file); !nacked(err) {
		t.Error(err)
	}
	s.b.failing("SetMemory", false)
	if n := mappings(t); n != guestmem.MaxSlots-1 {
		t.Errorf("%d mappings", n)
	}
}

// QEMU before 8.0 adds a region once for each queue pair, and removes it as often.
func TestRepeatedRegion(t *testing.T) {
	s := begin(t)
	s.must(s.SetProtocolFeatures(protoOffer))
	file := s.file(memSize)
	r := s.regions(1)[0]
	for range 4 {
		s.must(s.AddMemRegion(r, file))
	}
	for range 4 {
		if n := mappings(t); n != 1 {
			t.Errorf("%d mappings of one region", n)
		}
		s.must(s.RemMemRegion(r))
	}
	if n := mappings(t); n != 0 {
		t.Errorf("%d mappings of none", n)
	}
	s.refused(ReqRemMemReg, appendRegion(u64(0), r))
}

// P15: what is not offered is refused, and its descriptors are closed.
func TestNotOffered(t *testing.T) {
	s := begin(t)
	s.hello()
	file := s.file(0x1000)
	before := openFDs(t)
	for range 200 {
		s.refused(ReqSetLogBase, append(u64(0x1000), u64(0)...), file)
		s.refused(ReqSetLogBase, append(u64(0xFFFFFFFFFFFFF000), u64(0x2000)...), file)
		s.refused(ReqSetLogFD, nil, file)
		s.refused(ReqGetInflightFD, append(append(u64(0), u64(0)...), 2, 0, 0, 1))
		s.refused(ReqSetInflightFD, append(append(u64(16), u64(0)...), 2, 0, 0, 1), file)
		s.refused(ReqPostcopyAdvise, nil)
		s.refused(ReqVringKick, u32s(0, 0))
		s.refused(ReqGetShmemConfig, nil)
	}
	s.inStep()
	s.calls()
	if after := openFDs(t); after != before {
		t.Errorf("%d descriptors, had %d", after, before)
	}
}

// P15: a channel replaces the one before it.
func TestBackendChannelReplaced(t *testing.T) {
	s := begin(t)
	s.hello()
	near, far := pair(t)
	defer func() { _, _ = near.Close(), far.Close() }()
	f, err := far.File()
	s.must(err)
	defer func() { _ = f.Close() }()
	before := openFDs(t)
	for range 200 {
		s.must(s.SetBackendReqFD(int(f.Fd())))
	}
	if after := openFDs(t); after > before+1 {
		t.Errorf("%d descriptors, had %d", after, before)
	}
	s.refused(ReqSetBackendReqFD, nil)
	s.refused(ReqSetBackendReqFD, nil, s.file(1))
}

// A table that is refused leaves the count of repeated regions as it was, and the
// count does not outlive its regions: the front-end could make up ever new ones.
func TestRepeatedRegionCount(t *testing.T) {
	s := begin(t)
	s.must(s.SetProtocolFeatures(protoOffer))
	file := s.file(memSize)
	r := s.regions(1)[0]
	s.must(s.AddMemRegion(r, file))
	s.must(s.AddMemRegion(r, file))
	s.b.failing("SetMemory", true)
	s.refused(ReqSetMemTable, table(1, s.regions(2)[1]), file)
	s.b.failing("SetMemory", false)
	s.must(s.RemMemRegion(r))
	if n := mappings(t); n != 1 {
		t.Errorf("%d mappings while the region is there once", n)
	}
	s.must(s.RemMemRegion(r))

	own := &session{b: newFake(), mem: guestmem.Empty(), repeats: map[slot]int{}}
	for i := range uint64(20) {
		payload := appendRegion(u64(0), region(i<<32, memSize, uva+i<<32, 0))
		for _, do := range []func(*message) ([]byte, error){own.addMemReg, own.addMemReg, own.remMemReg, own.remMemReg} {
			if _, err := do(&message{payload: payload, fds: []int{file}}); err != nil {
				t.Fatal(err)
			}
		}
	}
	if n := len(own.repeats); n != 0 {
		t.Errorf("%d counts of regions that are gone", n)
	}
	own.b.(*fake).mem.Release()
	own.mem.Release()
}

// P09: tables that come while rings run reach the back-end and stop nothing; the
// mappings of those before are gone when the answer comes.
func TestMemTableWhileRunning(t *testing.T) {
	s := begin(t)
	s.hello()
	s.start(0, 64)
	s.must(s.SetVringEnable(0, true))
	s.b.take()
	file, other := s.file(memSize), s.file(memSize)
	rs := s.regions(2)
	for i := range 200 {
		n := 1 + i%2
		s.accepted(ReqSetMemTable, table(uint32(n), rs[:n]...), []int{file, other}[:n]...)
		if got := mappings(t); got != n {
			t.Fatalf("table %d: %d mappings of %d regions", i, got, n)
		}
		s.calls(fmt.Sprint("SetMemory ", n))
	}
	moved := rs[0]
	moved.UserAddr += 1 << 40
	s.accepted(ReqSetMemTable, table(1, moved), file)
	if err := s.addr(0); !nacked(err) {
		t.Error("addresses of before:", err)
	}
	at := moved.UserAddr
	s.must(s.SetVringAddr(0, at, at+0x4000, at+0x8000))
	s.calls("SetMemory 1", fmt.Sprintf("SetRingAddr 0 %#x", at))
}
