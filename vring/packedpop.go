package vring

import (
	"encoding/binary"
	"errors"
	"sync/atomic"
)

// errEndless is why a packed ring is broken: where a chain ends is where the next one
// begins, so nothing behind it makes sense.
var errEndless = errors.New("a chain has more descriptors than the driver has")

// packedUnusual are the flags of a packed descriptor that is not a chain by itself.
const packedUnusual = packedNext | packedIndirect

func (q *packed) Pop(b *Batch, limit int) (int, error) {
	if q.idle != nil {
		return 0, q.idle
	}
	n := max(min(q.size-q.out, limit, cap(b.Chains)-len(b.Chains)), 0)
	q.links = 0
	got := 0
	for got < n {
		if got += q.popPlain(b, n-got); got == n || q.out == q.size {
			break
		}
		more, err := q.walk(b)
		if err != nil && got == 0 {
			q.Break(err)
			return 0, q.broken
		}
		if !more {
			break // none, no room, or one that the next Pop meets first
		}
		got++
		if q.links >= max(q.size, maxLinks) {
			break
		}
	}
	return got, nil
}

// popPlain pops chains as long as they are one plain descriptor each, up to the end
// of the ring, for a buffer that lies in the region used last, and returns how many.
// Whatever else there is ends it and is left to walk: a call in this loop, taken or
// not, would cost all chains that do not need it.
func (q *packed) popPlain(b *Batch, n int) int {
	base, mem := q.cur.Region()
	size := uint64(len(mem))
	old, at := len(b.Chains), len(b.segs)
	segs := b.segs[at:cap(b.segs)]
	descs := q.desc[q.next:]
	descs = descs[:min(len(descs), n, q.size-q.out, len(segs))]
	chains := b.Chains[old : old+len(descs)]
	segs = segs[:len(descs)]
	want := q.avail
	i := 0
	for i < len(descs) {
		// Both words are read once; the driver may change them at any time. The
		// second one says that the first is there.
		d := &descs[i]
		rest := atomic.LoadUint64(&d[1])
		if rest&(packedLap|packedUnusual) != want {
			break
		}
		off, l := d[0]-base, uint64(uint32(rest))
		if l == 0 || off >= size || l > size-off {
			break
		}
		segs[i] = mem[off : off+l : off+l]
		c := &chains[i]
		c.ID, c.Count, c.Fault = uint16(rest>>32), 1, FaultNone
		c.start, c.end = uint32(at+i), uint32(at+i)+1
		if rest&packedWrite != 0 {
			c.ReadLen, c.WriteLen, c.mid = 0, l, uint32(at+i)
		} else {
			c.ReadLen, c.WriteLen, c.mid = l, 0, uint32(at+i)+1
		}
		i++
	}
	b.Chains, b.segs = b.Chains[:old+i], b.segs[:at+i]
	q.popped(i, i)
	return i
}

// walk pops the next chain, whatever it is, and reports whether it did: it does not
// if there is none, or no room in b; a chain for which an empty batch has no room is
// faulty. A faulty chain takes its place in the ring like any other.
func (q *packed) walk(b *Batch) (bool, error) {
	if atomic.LoadUint64(&q.desc[q.next][1])&packedLap != q.avail {
		return false, nil
	}
	base := uint32(len(b.segs))
	b.Chains = append(b.Chains, Chain{start: base, mid: base, end: base})
	c := &b.Chains[len(b.Chains)-1]
	fault, ended := q.follow(b, c)
	if !b.settle(fault) {
		return false, nil
	}
	if !ended {
		clear(b.segs[base:])
		b.segs, b.Chains = b.segs[:base], b.Chains[:len(b.Chains)-1]
		return false, errEndless
	}
	n := int(c.Count)
	last := q.next + n - 1
	if last >= q.size {
		last -= q.size
	}
	q.back[last] = uint16(n - 1)
	q.popped(n, 1)
	return true, nil
}

// follow appends the buffers of the next chain, and looks for its end behind a fault
// too. It reports whether there is one, or FaultSegments if it did not look, since
// the chain has to wait for an empty batch.
func (q *packed) follow(b *Batch, c *Chain) (fault Fault, ended bool) {
	at := q.next
	for range q.size - q.out {
		d := &q.desc[at]
		rest := atomic.LoadUint64(&d[1])
		flags := uint16(rest >> 48)
		c.Count++
		q.links++
		switch {
		case fault != FaultNone:
		case rest&packedIndirect != 0:
			fault = q.followList(b, c, d[0], uint32(rest), rest&packedNext != 0)
		default:
			fault = q.add(b, c, d[0], uint32(rest), flags)
		}
		if fault == FaultSegments && c.start > 0 {
			return fault, false
		}
		if rest&packedNext == 0 {
			c.ID = uint16(rest >> 32) // only the last one's counts
			return fault, true
		}
		if at++; at == q.size {
			at = 0
		}
	}
	return fault, false
}

// followList appends what is in an indirect table (virtio 1.4, "Indirect Flag:
// Scatter-Gather Support" of packed virtqueues): all of it, in order. Flags there
// other than the write flag mean nothing, nor does that of the descriptor that
// refers to it.
func (q *packed) followList(b *Batch, c *Chain, table uint64, length uint32, next bool) Fault {
	if !q.indirect || next || length == 0 || length%descSize != 0 {
		return FaultIndirect
	}
	if uint64(length)-1 > ^table {
		return FaultAddress
	}
	entries := int(length / descSize)
	if entries > max(q.size, maxTable) {
		return FaultLength
	}
	for i := range entries {
		var d [descSize]byte
		if !q.read(&d, table+descSize*uint64(i)) {
			return FaultAddress
		}
		q.links++
		f := q.add(b, c, binary.LittleEndian.Uint64(d[:]), binary.LittleEndian.Uint32(d[8:]), binary.LittleEndian.Uint16(d[14:]))
		if f != FaultNone {
			return f
		}
	}
	return FaultNone
}

func (q *packed) PopPlain(ids []uint16, bufs [][]byte, write bool) int {
	if q.idle != nil {
		return 0
	}
	n := min(q.size-q.out, len(ids), len(bufs))
	got := 0
	for sought := false; got < n; {
		run := min(n-got, q.size-q.next)
		k := q.plain(ids[got:got+run], bufs[got:got+run], write)
		if got += k; k == run {
			continue // the ring begins again
		}
		if got > 0 || sought || !q.seek() {
			break
		}
		sought = true
	}
	return got
}

// plain is popPlain without what an unusual chain would need. As there, a call in
// the loop would cost all chains that do not need it.
func (q *packed) plain(ids []uint16, bufs [][]byte, write bool) int {
	base, mem := q.cur.Region()
	size := uint64(len(mem))
	want := q.avail
	if write {
		want |= packedWrite
	}
	descs := q.desc[q.next:]
	descs = descs[:min(len(descs), len(ids), len(bufs))]
	ids, bufs = ids[:len(descs)], bufs[:len(descs)]
	i := 0
	for i < len(descs) {
		d := &descs[i]
		rest := atomic.LoadUint64(&d[1])
		if rest&(packedLap|packedUnusual|packedWrite) != want {
			break
		}
		off, l := d[0]-base, uint64(uint32(rest))
		if l == 0 || off >= size || l > size-off {
			break
		}
		ids[i] = uint16(rest >> 32)
		bufs[i] = mem[off : off+l : off+l]
		i++
	}
	q.popped(i, i)
	return i
}

// seek goes to the memory region of the next descriptor's buffer, and reports
// whether that is another one than before.
func (q *packed) seek() bool {
	d := &q.desc[q.next]
	if atomic.LoadUint64(&d[1])&packedLap != q.avail {
		return false
	}
	old, mem := q.cur.Region()
	if q.cur.Prefix(d[0], 1) == nil {
		return false
	}
	base, _ := q.cur.Region()
	return base != old || mem == nil
}

func (q *packed) CompletePlain(ids []uint16, lens []uint32) {
	if q.idle != nil || len(ids) > q.flight || len(ids) == 0 {
		return
	}
	if q.unpublished == 0 {
		used := uint64(ids[0])<<32 | q.mark
		if len(lens) > 0 {
			used |= wrote(lens[0])
			lens = lens[1:]
		}
		q.head = used
		q.completed(1, 1)
		ids = ids[1:]
	}
	for len(ids) > 0 {
		descs, mark := q.desc[q.done:], q.mark
		k := min(len(descs), len(ids))
		descs, now := descs[:k], ids[:k]
		if len(lens) < k {
			// Those that have none, if not all.
			for i := range descs {
				descs[i][1] = uint64(now[i])<<32 | mark
			}
			for i, l := range lens {
				descs[i][1] |= wrote(l)
			}
			lens = nil
		} else {
			with := lens[:k]
			for i := range descs {
				descs[i][1] = uint64(now[i])<<32 | mark | wrote(with[i])
			}
			lens = lens[k:]
		}
		q.completed(k, k)
		ids = ids[k:]
	}
}

// wrote is what a used descriptor says of l bytes that were written.
func wrote(l uint32) uint64 {
	if l == 0 {
		return 0
	}
	return uint64(l) | packedWrite
}
