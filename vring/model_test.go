package vring

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/guestmem"
	"github.com/vhostnet/vhostnet/virtio"
)

// Where the test memory lies. Guest and front-end addresses differ, so that
// mixing them up is found.
const (
	gpaBase = uint64(0x1_0000_0000)
	uvaBase = uint64(0x7f55_0000_0000)
	memSize = 4 << 20
)

// kinds are the memories that tests run on: the race detector sees only the
// heap, and only a file is what a front-end shares.
var kinds = map[string]func(testing.TB, ...guestmem.Region) *guestmem.Map{
	"heap":  heapMap,
	"memfd": memfdMap,
}

func onEach(t *testing.T, f func(t *testing.T, m *guestmem.Map)) {
	for name, kind := range kinds {
		t.Run(name, func(t *testing.T) { f(t, kind(t, region(memSize))) })
	}
}

func region(size uint64) guestmem.Region {
	return guestmem.Region{GuestAddr: gpaBase, Size: size, UserAddr: uvaBase}
}

func heapMap(t testing.TB, rs ...guestmem.Region) *guestmem.Map {
	t.Helper()
	m, err := guestmem.NewHeap(rs)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Release)
	return m
}

func memfdMap(t testing.TB, rs ...guestmem.Region) *guestmem.Map {
	t.Helper()
	m, _ := memfdFile(t, rs...)
	return m
}

func memfdFile(t testing.TB, rs ...guestmem.Region) (*guestmem.Map, int) {
	t.Helper()
	fd, err := unix.MemfdCreate("vring-test", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	var end uint64
	fds := make([]int, len(rs))
	for i, r := range rs {
		end, fds[i] = max(end, r.Offset+r.Size), fd
	}
	if err := unix.Ftruncate(fd, int64(end)); err != nil {
		t.Fatal(err)
	}
	m, err := guestmem.New(rs, fds)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Release)
	return m, fd
}

// model is a driver that does one thing after the other and knows nothing of
// this package: the layout is written down a second time.
type model struct {
	t                 testing.TB
	m                 *guestmem.Map
	n                 int
	desc, avail, used guestmem.View
	ring              []uint16 // of the available ring
	cfg               Config
	availIdx, seen    uint16 // what was published, what was taken back
	buffers           uint64 // offset where memory is free for buffers
}

// newModel lays out a ring of n entries that starts at index base.
func newModel(t testing.TB, m *guestmem.Map, n int, base uint16, f virtio.Features) *model {
	t.Helper()
	r := m.Regions()[0]
	at := uint64(0x1000)
	area := func(size int) (uint64, []byte) {
		a := at
		at = (at + uint64(size) + 0xfff) &^ 0xfff
		b, ok := m.Slice(r.GuestAddr+a, uint64(size))
		if !ok {
			t.Fatalf("no memory for a ring of %d", n)
		}
		return r.UserAddr + a, b
	}
	d := &model{t: t, m: m, n: n, availIdx: base, seen: base}
	d.cfg = Config{Size: n, Base: uint32(base), Features: f | virtio.FeatureVersion1}
	var desc, avail, used []byte
	d.cfg.Desc, desc = area(16 * n)
	d.cfg.Driver, avail = area(6 + 2*n)
	d.cfg.Device, used = area(6 + 8*n)
	d.desc, d.avail, d.used = guestmem.NewView(desc), guestmem.NewView(avail), guestmem.NewView(used)
	d.ring = guestmem.Words16(avail)[2 : 2+n]
	d.avail.Store16(2, base)
	d.used.Store32(0, uint32(base)<<16)
	d.buffers = at
	return d
}

func (d *model) activate() Queue {
	d.t.Helper()
	q, err := Activate(d.m, d.cfg)
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { q.Stop() })
	return q
}

// buffer is the guest address of buffer i, 2048 bytes apart.
func (d *model) buffer(i int) uint64 {
	return d.m.Regions()[0].GuestAddr + d.buffers + uint64(i)*2048
}

// set writes a descriptor.
func (d *model) set(i int, addr uint64, length uint32, flags, next uint16) {
	d.desc.Store64(16*i, addr)
	d.desc.Store64(16*i+8, uint64(length)|uint64(flags)<<32|uint64(next)<<48)
}

// post makes chains available by their heads, all at once.
func (d *model) post(heads ...uint16) {
	for _, h := range heads {
		d.ring[int(d.availIdx)%d.n] = h
		d.availIdx++
	}
	d.avail.Store16(2, d.availIdx)
}

// take returns the used elements that are new.
func (d *model) take() (ids, lens []uint32) {
	for d.seen != d.usedIdx() {
		at := 4 + 8*(int(d.seen)%d.n)
		ids = append(ids, d.used.Load32(at))
		lens = append(lens, d.used.Load32(at+4))
		d.seen++
	}
	return ids, lens
}

func (d *model) usedIdx() uint16       { return d.used.Load16(2) }
func (d *model) usedFlags() uint16     { return d.used.Load16(0) }
func (d *model) availEvent() uint16    { return d.used.Load16(4 + 8*d.n) }
func (d *model) setUsedEvent(x uint16) { d.avail.Store16(4+2*d.n, x) }
func (d *model) setFlags(x uint16)     { d.avail.Store16(0, x) }

// table writes an indirect table at a guest address of any alignment.
func (d *model) table(gpa uint64, descs ...[4]uint64) {
	d.t.Helper()
	for _, e := range descs {
		var b []byte
		for i, width := range []int{8, 4, 2, 2} {
			for k := range width {
				b = append(b, byte(e[i]>>(8*k)))
			}
		}
		d.write(gpa, b)
		gpa += 16
	}
}

// write stores bytes at a guest address, one by one.
func (d *model) write(gpa uint64, b []byte) {
	d.t.Helper()
	for i := range b {
		p, ok := d.m.Slice(gpa+uint64(i), 1)
		if !ok {
			d.t.Fatalf("no memory at %#x", gpa+uint64(i))
		}
		p[0] = b[i]
	}
}

// pop pops chains that must be there.
func pop(t testing.TB, q Queue, b *Batch, want int) {
	t.Helper()
	if n, err := q.Pop(b, want+1); err != nil || n != want {
		t.Fatalf("Pop: %d, %v; want %d", n, err, want)
	}
}

// lengths are the sizes of segments.
func lengths(segs [][]byte) []int {
	out := []int{}
	for _, s := range segs {
		out = append(out, len(s))
	}
	return out
}
