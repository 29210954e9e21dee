package vring

import (
	"encoding/binary"

	"github.com/vhostnet/vhostnet/virtio"
)

// maxTable is the least that the longest chain in an indirect table may have,
// also in a small ring.
const maxTable = 1024

// walk appends the chain that begins at head to b. It reports false, with b as
// it was, if b has no room; a chain for which an empty batch has no room is
// faulty.
func (q *split) walk(b *Batch, head uint16) bool {
	base := uint32(len(b.segs))
	b.Chains = append(b.Chains, Chain{ID: head, start: base, mid: base, end: base})
	c := &b.Chains[len(b.Chains)-1]
	at, fault := head, FaultNone
	for links := 0; ; links++ {
		if links == q.size {
			fault = FaultLength
			break
		}
		c.Count++
		// The descriptor's two halves are loaded once each.
		addr := q.desc.Load64(descSize * int(at))
		rest := q.desc.Load64(descSize*int(at) + 8)
		flags := uint16(rest >> 32)
		if flags&virtio.DescFIndirect != 0 {
			fault = q.indirect(b, c, addr, uint32(rest), flags)
			break
		}
		if fault = q.add(b, c, addr, uint32(rest), flags); fault != FaultNone || flags&virtio.DescFNext == 0 {
			break
		}
		if at = uint16(rest >> 48); int(at) >= q.size {
			fault = FaultNext
			break
		}
	}
	if fault == FaultNone {
		return true
	}
	clear(b.segs[base:])
	b.segs = b.segs[:base]
	if fault == FaultSegments && len(b.Chains) > 1 {
		b.Chains = b.Chains[:len(b.Chains)-1]
		return false
	}
	c.Fault, c.ReadLen, c.WriteLen, c.mid, c.end = fault, 0, 0, base, base
	return true
}

// add appends one buffer to a chain.
func (q *split) add(b *Batch, c *Chain, addr uint64, n uint32, flags uint16) Fault {
	write := flags&virtio.DescFWrite != 0
	switch {
	case n == 0:
		return FaultNone // legal filler, wherever it points
	case !write && c.WriteLen != 0:
		return FaultOrder
	case len(b.segs) >= b.limit:
		return FaultSegments
	}
	segs, ok := q.m.AppendSlices(b.segs, addr, uint64(n))
	if !ok {
		return FaultAddress
	}
	b.segs = segs
	c.end = uint32(len(segs))
	if write {
		c.WriteLen += uint64(n)
	} else {
		c.ReadLen += uint64(n)
		c.mid = c.end
	}
	return FaultNone
}

// indirect appends the chain in an indirect table (virtio 1.4, "Indirect
// Descriptors"). The table needs no alignment, and the descriptor that refers to
// it may have the write flag, which means nothing.
func (q *split) indirect(b *Batch, c *Chain, table uint64, n uint32, flags uint16) Fault {
	switch {
	case !q.cfg.Features.Has(virtio.FeatureIndirectDesc), flags&virtio.DescFNext != 0, n == 0, n%descSize != 0:
		return FaultIndirect
	}
	entries := n / descSize
	limit := min(int(entries), max(q.size, maxTable))
	at := uint32(0)
	for range limit {
		var d [descSize]byte
		if !q.read(d[:], table+descSize*uint64(at)) {
			return FaultAddress
		}
		flags := binary.LittleEndian.Uint16(d[12:])
		if flags&virtio.DescFIndirect != 0 {
			return FaultIndirect
		}
		f := q.add(b, c, binary.LittleEndian.Uint64(d[:]), binary.LittleEndian.Uint32(d[8:]), flags)
		if f != FaultNone || flags&virtio.DescFNext == 0 {
			return f
		}
		if at = uint32(binary.LittleEndian.Uint16(d[14:])); at >= entries {
			return FaultNext
		}
	}
	return FaultLength
}

// read copies len(dst) bytes at a guest address, which may cross regions.
func (q *split) read(dst []byte, gpa uint64) bool {
	if src, ok := q.m.Slice(gpa, uint64(len(dst))); ok {
		copy(dst, src)
		return true
	}
	pieces, ok := q.m.AppendSlices(q.pieces[:0], gpa, uint64(len(dst)))
	if !ok {
		return false
	}
	for _, p := range pieces {
		dst = dst[copy(dst, p):]
	}
	return true
}
