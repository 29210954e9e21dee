package vring_test

import (
	"encoding/binary"
	"testing"

	"github.com/vhostnet/vhostnet/guestmem"
	"github.com/vhostnet/vhostnet/virtio"
	"github.com/vhostnet/vhostnet/vring"
)

const packedRing = split | virtio.FeatureRingPacked

// packedModel is a driver of a packed ring that does one thing after the other. It
// keeps free-running positions, of which slot and wrap counter follow by division,
// where the device keeps offsets and flags.
type packedModel struct {
	t              testing.TB
	m              *guestmem.Map
	n              int
	cfg            vring.Config
	desc           guestmem.View
	words          []uint64 // desc, for what a flag elsewhere publishes
	driver, device guestmem.View
	// next is the position of the next descriptor to make available, last that of
	// the next used one.
	next, last int
	counts     map[uint16][]int // descriptors of the chains that the device has, by ID
}

// newPackedModel lays out a ring of n that has been around it laps times and then
// some: pos is how many descriptors it has used.
func newPackedModel(t testing.TB, m *guestmem.Map, n int, f virtio.Features, pos int) *packedModel {
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
	ring := area(descAt, 16*n)
	d := &packedModel{
		t: t, m: m, n: n, next: pos, last: pos, counts: map[uint16][]int{},
		desc: guestmem.NewView(ring), words: guestmem.Words64(ring),
		driver: guestmem.NewView(area(availAt+0x80000, 4)), device: guestmem.NewView(area(usedAt+0x80000, 4)),
	}
	// What earlier laps have left: used descriptors.
	for i := range n {
		if p := pos - 1 - (pos-1-i+n*n)%n; p >= 0 && pos > 0 {
			d.words[2*i], d.words[2*i+1] = bufBase, d.used(p)
		}
	}
	d.cfg = vring.Config{
		Size: n, Desc: user + descAt, Driver: user + availAt + 0x80000, Device: user + usedAt + 0x80000,
		Base: d.base(pos, pos), Features: f | packedRing,
	}
	return d
}

// wrap is the counter at a position: 1 in the first lap.
func (d *packedModel) wrap(pos int) int { return 1 - pos/d.n%2 }

// half is a position as the front-end says it.
func (d *packedModel) half(pos int) uint16 { return uint16(pos%d.n | d.wrap(pos)<<15) }

func (d *packedModel) base(avail, used int) uint32 {
	return uint32(d.half(avail)) | uint32(d.half(used))<<16
}

// avail and used are the flags of a descriptor at a position, in the upper quarter
// of the word.
func (d *packedModel) avail(pos int) uint64 {
	w := uint64(d.wrap(pos))
	return w<<55 | (1-w)<<63
}

func (d *packedModel) used(pos int) uint64 {
	w := uint64(d.wrap(pos))
	return w<<55 | w<<63
}

func (d *packedModel) activate() vring.Queue {
	d.t.Helper()
	q, err := vring.Activate(d.m, d.cfg)
	if err != nil {
		d.t.Fatal(err)
	}
	d.t.Cleanup(func() { q.Stop() })
	return q
}

// free is how many descriptors the driver has.
func (d *packedModel) free() int { return d.n - (d.next - d.last) }

// offer makes a chain available; the flags of its first descriptor come last. Those
// of chain need no NEXT.
func (d *packedModel) offer(id uint16, chain ...desc) {
	var head uint64
	for i, c := range chain {
		pos := d.next + i
		if i < len(chain)-1 {
			c.flags |= next
		}
		// Only the last one's ID counts.
		name := ^id
		if i == len(chain)-1 {
			name = id
		}
		w := uint64(c.n) | uint64(name)<<32 | uint64(c.flags)<<48 | d.avail(pos)
		at := 2 * (pos % d.n)
		d.words[at] = c.addr
		if i == 0 {
			head = w
		} else {
			d.words[at+1] = w
		}
	}
	d.desc.Store64(16*(d.next%d.n)+8, head)
	d.counts[id] = append(d.counts[id], len(chain))
	d.next += len(chain)
}

// single offers a chain of one readable buffer of n bytes.
func (d *packedModel) single(id uint16, n uint32) { d.offer(id, desc{bufBase, n, 0, 0}) }

// take takes the next used chain, if there is one.
func (d *packedModel) take() (id uint16, n uint32, ok bool) {
	w := d.desc.Load64(16*(d.last%d.n) + 8)
	if w&(1<<55|1<<63) != d.used(d.last) {
		return 0, 0, false
	}
	id = uint16(w >> 32)
	left := d.counts[id]
	if len(left) == 0 {
		d.t.Errorf("chain %d is used, but the device does not have it", id)
		return id, 0, false
	}
	d.last += left[0]
	d.counts[id] = left[1:]
	if w&(1<<49) == 0 && uint32(w) != 0 {
		d.t.Errorf("chain %d: %d bytes written, and not", id, uint32(w))
	}
	return id, uint32(w), true
}

// takeAll takes what is used and returns the IDs.
func (d *packedModel) takeAll() (ids []uint16) {
	for {
		id, _, ok := d.take()
		if !ok {
			return ids
		}
		ids = append(ids, id)
	}
}

// setEvent writes the driver's event structure.
func (d *packedModel) setEvent(mode, pos int) {
	d.driver.Store32(0, uint32(d.half(pos))|uint32(mode)<<16)
}

// kickEvent reads the device's.
func (d *packedModel) kickEvent() (mode int, at uint16) {
	w := d.device.Load32(0)
	return int(w >> 16), uint16(w)
}

// table writes an indirect table at any address, with IDs that mean nothing.
func (d *packedModel) table(at uint64, descs ...desc) {
	for i, c := range descs {
		b, ok := d.m.Slice(at+16*uint64(i), 16)
		if !ok {
			d.t.Fatal("table is not in memory")
		}
		binary.LittleEndian.PutUint64(b, c.addr)
		binary.LittleEndian.PutUint32(b[8:], c.n)
		binary.LittleEndian.PutUint16(b[12:], 0xffff)
		binary.LittleEndian.PutUint16(b[14:], c.flags)
	}
}
