package vring_test

import (
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/guestmem"
	"github.com/vhostnet/vhostnet/virtio"
	"github.com/vhostnet/vhostnet/vring"
)

// Where things lie in the test memory, by guest address. The front-end's
// addresses are others, so that mixing the two up is found.
const (
	memSize  = 4 << 20
	userBase = 0x7f55_0000_0000
	descAt   = 0x10000
	availAt  = 0x40000
	usedAt   = 0x80000
	bufBase  = 0x100000

	split = virtio.FeatureVersion1
)

func wholeRegion() []guestmem.Region {
	return []guestmem.Region{{Size: memSize, UserAddr: userBase}}
}

// heap is memory that the race detector sees.
func heap(t testing.TB) *guestmem.Map {
	t.Helper()
	m, err := guestmem.NewHeap(wholeRegion())
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Release)
	return m
}

// memfd is memory such as a front-end shares.
func memfd(t testing.TB) *guestmem.Map {
	t.Helper()
	m, _ := memfdFile(t)
	return m
}

func memfdFile(t testing.TB) (*guestmem.Map, int) {
	t.Helper()
	fd, err := unix.MemfdCreate("vring-test", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) })
	if err := unix.Ftruncate(fd, memSize); err != nil {
		t.Fatal(err)
	}
	m, err := guestmem.New(wholeRegion(), []int{fd})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Release)
	return m, fd
}

// model is a driver that does one thing after the other. It shares nothing with
// the device but memory: the layout of the rings is written down a second time.
type model struct {
	t                 testing.TB
	m                 *guestmem.Map
	n                 int
	cfg               vring.Config
	desc, avail, used guestmem.View
	// heads are the entries of the available ring. They are plain memory, made
	// visible by the index, so that the race detector checks the order.
	heads []uint16
	idx   uint16 // the available index
}

// newModel lays out a ring of n whose indices begin at base.
func newModel(t testing.TB, m *guestmem.Map, n int, f virtio.Features, base uint16) *model {
	t.Helper()
	user := m.Regions()[0].UserAddr
	area := func(at uint64, size int) []byte {
		b, ok := m.Slice(at, uint64(size))
		if !ok {
			t.Fatalf("no memory at %#x", at)
		}
		clear(b)
		return b
	}
	avail := area(availAt, 6+2*n)
	d := &model{
		t: t, m: m, n: n, idx: base,
		cfg: vring.Config{
			Size: n, Desc: user + descAt, Driver: user + availAt, Device: user + usedAt,
			Base: uint32(base), Features: f,
		},
		desc:  guestmem.NewView(area(descAt, 16*n)),
		avail: guestmem.NewView(avail),
		used:  guestmem.NewView(area(usedAt, 6+8*n)),
		heads: guestmem.Words16(avail)[2 : 2+n],
	}
	d.avail.Store16(2, base)
	d.used.Store16(2, base)
	return d
}

func (d *model) activate() vring.Queue {
	d.t.Helper()
	q, err := vring.Activate(d.m, d.cfg)
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { q.Stop() })
	return q
}

// put writes descriptor i.
func (d *model) put(i int, addr uint64, n uint32, flags, next uint16) {
	d.desc.Store64(16*i, addr)
	d.desc.Store64(16*i+8, uint64(n)|uint64(flags)<<32|uint64(next)<<48)
}

// offer makes chains available, all with one store of the index.
func (d *model) offer(heads ...uint16) {
	for _, h := range heads {
		d.heads[int(d.idx)%d.n] = h
		d.idx++
	}
	d.avail.Store16(2, d.idx)
}

// single offers a chain of one readable buffer of n bytes.
func (d *model) single(id uint16, n uint32) {
	d.put(int(id), bufBase+2048*uint64(id), n, 0, 0)
	d.offer(id)
}

func (d *model) usedIdx() uint16 { return d.used.Load16(2) }

// usedElem returns the element that a used index stands for.
func (d *model) usedElem(at uint16) (id, n uint32) {
	off := 4 + 8*(int(at)%d.n)
	return d.used.Load32(off), d.used.Load32(off + 4)
}

func (d *model) availEvent() uint16 { return d.used.Load16(4 + 8*d.n) }

func (d *model) setUsedEvent(x uint16) { d.avail.Store16(4+2*d.n, x) }

// pop pops up to limit chains into a batch of its own.
func pop(t testing.TB, q vring.Queue, limit int) *vring.Batch {
	t.Helper()
	b := vring.NewBatch(limit, 2048)
	if n, err := q.Pop(b, limit); err != nil || n != len(b.Chains) {
		t.Fatalf("popped %d, %v", n, err)
	}
	return b
}

// finish completes all chains of a batch with no byte written, and publishes.
func finish(q vring.Queue, b *vring.Batch) {
	for i := range b.Chains {
		q.Complete(&b.Chains[i], 0)
	}
	q.Publish()
}
