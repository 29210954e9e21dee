package scripted

import (
	"fmt"

	"github.com/vhostnet/vhostnet/virtio"
)

// PackedRing is the driver's half of a packed ring: descriptors where a split ring
// has them, and the event structures where that has its other parts. Positions run
// freely, and begin with the first lap.
type PackedRing struct {
	*Ring
	// Next is the position of the next descriptor to make available, Seen that of
	// the next used one.
	Next, Seen int

	counts map[uint16]int
}

// Packed makes ring q a packed one of any size.
func (g *Guest) Packed(q, size int) *PackedRing {
	g.tb.Helper()
	r := g.Ring(q)
	r.Size = size
	clear(g.Mem.At(r.Desc, RingStride))
	return &PackedRing{Ring: r, counts: make(map[uint16]int)}
}

// Advance moves a ring that has not been used to a position in a later life: all that
// is before it was used.
func (r *PackedRing) Advance(pos int) {
	for p := max(pos-r.Size, 0); p < pos; p++ {
		r.mem.View.Store16(int(r.Desc)+16*(p%r.Size)+14, r.flags(p, true))
	}
	r.Next, r.Seen = pos, pos
}

// Base is where both sides are, as SET_VRING_BASE says it.
func (r *PackedRing) Base() uint32 {
	at := uint32(r.Seen % r.Size)
	if r.Seen/r.Size%2 == 0 {
		at |= virtio.PackedWrap
	}
	return at | at<<16
}

// StartPacked starts a packed ring where it is.
func (g *Guest) StartPacked(r *PackedRing) {
	g.tb.Helper()
	g.Must(g.SetVringNum(r.Index, r.Size))
	g.Must(g.SetVringBase(r.Index, r.Base()))
	g.Must(g.SendAddr(r.Index))
	g.Must(g.SetVringKick(r.Index, r.Kick))
	g.Must(g.SetVringCall(r.Index, r.Call))
	g.Must(g.SetVringEnable(r.Index, true))
}

// flags are those of a descriptor at a position, available or used.
func (r *PackedRing) flags(pos int, used bool) uint16 {
	first := pos/r.Size%2 == 0
	f := uint16(0)
	if first {
		f = virtio.DescFAvail
	}
	if first == used {
		f |= virtio.DescFUsed
	}
	return f
}

// Put writes the chain of these segments, all but the flags of its first
// descriptor, for which the device waits. Its ID is in its last descriptor only.
// Show makes it available.
func (r *PackedRing) Put(id uint16, segs ...Seg) (show func()) {
	head := r.Next
	flags := make([]uint16, len(segs))
	for i, s := range segs {
		pos := r.Next + i
		flags[i] = r.flags(pos, false)
		if s.Write {
			flags[i] |= virtio.DescFWrite
		}
		name := ^id
		if i+1 < len(segs) {
			flags[i] |= virtio.DescFNext
		} else {
			name = id
		}
		at := int(r.Desc) + 16*(pos%r.Size)
		r.mem.View.Store64(at, s.Addr)
		r.mem.View.Store32(at+8, s.Len)
		r.mem.View.Store16(at+12, name)
		if i > 0 {
			r.mem.View.Store16(at+14, flags[i])
		}
	}
	r.counts[id] = len(segs)
	r.Next += len(segs)
	return func() { r.mem.View.Store16(int(r.Desc)+16*(head%r.Size)+14, flags[0]) }
}

// Used tells whether the next chain is used.
func (r *PackedRing) Used() bool {
	f := r.mem.View.Load16(int(r.Desc) + 16*(r.Seen%r.Size) + 14)
	return f&(virtio.DescFAvail|virtio.DescFUsed) == r.flags(r.Seen, true)
}

// Reap returns the next used chain, if there is one.
func (r *PackedRing) Reap() (id uint16, n uint32, ok bool, err error) {
	if !r.Used() {
		return 0, 0, false, nil
	}
	at := int(r.Desc) + 16*(r.Seen%r.Size)
	f := r.mem.View.Load16(at + 14)
	id, n = r.mem.View.Load16(at+12), r.mem.View.Load32(at+8)
	count, known := r.counts[id]
	if !known {
		return id, n, true, fmt.Errorf("scripted: ring %d: chain %d at %d was not available", r.Index, id, r.Seen)
	}
	delete(r.counts, id)
	r.Seen += count
	if f&virtio.DescFWrite == 0 {
		n = 0
	}
	return id, n, true, nil
}

// WaitPacked waits for the next used chain.
func (g *Guest) WaitPacked(r *PackedRing) (id uint16, n uint32) {
	g.tb.Helper()
	Until(g.tb, fmt.Sprintf("ring %d uses a descriptor at %d", r.Index, r.Seen), func() bool {
		var ok bool
		var err error
		id, n, ok, err = r.Reap()
		g.Must(err)
		return ok
	})
	return id, n
}
