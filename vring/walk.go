package vring

import (
	"encoding/binary"

	"github.com/vhostnet/vhostnet/guestmem"
	"github.com/vhostnet/vhostnet/virtio"
)

// maxTable is the least that the longest chain in an indirect table may have,
// also in a small ring.
const maxTable = 1024

// buffers finds buffers in guest memory, and those that indirect tables list.
type buffers struct {
	// cur finds buffers, tables indirect tables, which may lie elsewhere.
	cur, tables guestmem.Cursor
	size        int
	indirect    bool // INDIRECT_DESC was negotiated
	links       int  // descriptors followed in this burst, of unusual chains only
}

func newBuffers(m *guestmem.Map, c Config) buffers {
	return buffers{
		cur: guestmem.NewCursor(m), tables: guestmem.NewCursor(m),
		size: c.Size, indirect: c.Features.Has(virtio.FeatureIndirectDesc),
	}
}

// move goes to another memory map.
func (q *buffers) move(m *guestmem.Map) {
	q.cur, q.tables = guestmem.NewCursor(m), guestmem.NewCursor(m)
}

// walk appends the chain that begins at head to b. It reports false, with b as
// it was, if b has no room; a chain for which an empty batch has no room is
// faulty.
func (q *split) walk(b *Batch, head uint16) bool {
	base := uint32(len(b.segs))
	b.Chains = append(b.Chains, Chain{ID: head, start: base, mid: base, end: base})
	c := &b.Chains[len(b.Chains)-1]
	return b.settle(q.follow(b, c))
}

// settle ends the last chain of a batch, which may be faulty. It takes it out and
// reports false if there is no room for it.
func (b *Batch) settle(fault Fault) bool {
	if fault == FaultNone {
		return true
	}
	c := &b.Chains[len(b.Chains)-1]
	base := c.start
	clear(b.segs[base:])
	b.segs = b.segs[:base]
	if fault == FaultSegments && base > 0 {
		b.Chains = b.Chains[:len(b.Chains)-1]
		return false
	}
	c.Fault, c.ReadLen, c.WriteLen, c.mid, c.end = fault, 0, 0, base, base
	return true
}

// follow appends the buffers of a chain. The driver can make a loop of its links,
// so they are counted.
func (q *split) follow(b *Batch, c *Chain) Fault {
	at := uint(c.ID)
	for range q.size {
		if 2*at+1 >= uint(len(q.desc)) {
			return FaultNext
		}
		// The descriptor's two halves are read once each.
		addr, rest := q.desc[2*at], q.desc[2*at+1]
		flags := uint16(rest >> 32)
		c.Count++
		q.links++
		if flags&virtio.DescFIndirect != 0 {
			return q.followTable(b, c, addr, uint32(rest), flags)
		}
		if f := q.add(b, c, addr, uint32(rest), flags); f != FaultNone || flags&virtio.DescFNext == 0 {
			return f
		}
		at = uint(rest >> 48)
	}
	return FaultLength
}

// add appends one buffer to a chain.
func (q *buffers) add(b *Batch, c *Chain, addr uint64, length uint32, flags uint16) Fault {
	if length == 0 {
		return FaultNone // legal filler, wherever it points
	}
	n := uint64(length)
	write := flags&virtio.DescFWrite != 0
	if write {
		c.WriteLen += n
	} else {
		if c.WriteLen != 0 {
			return FaultOrder
		}
		c.ReadLen += n
	}
	if n-1 > ^addr {
		return FaultAddress
	}
	for n > 0 {
		p := q.cur.Prefix(addr, n)
		if p == nil {
			return FaultAddress
		}
		if len(b.segs) == cap(b.segs) {
			return FaultSegments
		}
		b.segs = append(b.segs, p)
		addr += uint64(len(p))
		n -= uint64(len(p))
	}
	c.end = uint32(len(b.segs))
	if !write {
		c.mid = c.end
	}
	return FaultNone
}

// followTable appends the chain in an indirect table (virtio 1.4, "Indirect
// Descriptors"). The table needs no alignment, and the descriptor that refers to
// it may have the write flag, which means nothing.
func (q *split) followTable(b *Batch, c *Chain, table uint64, length uint32, flags uint16) Fault {
	if !q.indirect || flags&virtio.DescFNext != 0 || length == 0 || length%descSize != 0 {
		return FaultIndirect
	}
	if uint64(length)-1 > ^table {
		return FaultAddress
	}
	entries := length / descSize
	at := uint32(0)
	for range min(int(entries), max(q.size, maxTable)) {
		var d [descSize]byte
		if !q.read(&d, table+descSize*uint64(at)) {
			return FaultAddress
		}
		q.links++
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

// read copies a descriptor from a guest address to private memory, once. It may
// cross regions.
func (q *buffers) read(dst *[descSize]byte, gpa uint64) bool {
	for done := 0; done < descSize; {
		p := q.tables.Prefix(gpa+uint64(done), uint64(descSize-done))
		if p == nil {
			return false
		}
		done += copy(dst[done:], p)
	}
	return true
}
