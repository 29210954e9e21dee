package vring

import (
	"errors"

	"github.com/vhostnet/vhostnet/virtio"
)

// errIndex and errHead are why a driver's ring is broken.
var (
	errIndex = errors.New("the available index moved by more than the ring has")
	errHead  = errors.New("an available entry is not a descriptor of the ring")
)

// maxLinks is how many descriptors of unusual chains a burst follows before it
// ends, the chain at hand excepted: what a burst costs must not be the driver's
// choice. It is above what 64 chains of as many buffers as a GSO frame has need.
const maxLinks = 2048

func (q *split) Pop(b *Batch, limit int) (int, error) {
	if q.idle != nil {
		return 0, q.idle
	}
	n := int(q.avail.Load16(offIdx) - q.next)
	// A descriptor that the device has is not the driver's to make available.
	if n > q.size-q.flight-int(q.done-q.published) {
		q.Break(errIndex)
		return 0, q.broken
	}
	n = max(min(n, limit, cap(b.Chains)-len(b.Chains)), 0)
	q.links = 0
	got := 0
	for got < n {
		if got += q.popPlain(b, n-got); got == n {
			break
		}
		head := q.heads[q.next&q.mask]
		if int(head) >= q.size {
			// It can neither be followed nor given back. Chains before it are good.
			if got == 0 {
				q.Break(errHead)
				return 0, q.broken
			}
			break // the next Pop meets it first
		}
		if !q.walk(b, head) {
			break // no room
		}
		q.next++
		q.flight++
		got++
		if q.links >= max(q.size, maxLinks) {
			break
		}
	}
	return got, nil
}

// unusual are the flags of a descriptor that is not a chain by itself.
const unusual = (virtio.DescFNext | virtio.DescFIndirect) << 32

// popPlain pops chains as long as they are one plain descriptor each, for a
// buffer that lies in the region used last, and returns how many. Whatever else
// there is ends it and is left to walk: a call in this loop, taken or not, would
// cost all chains that do not need it.
func (q *split) popPlain(b *Batch, n int) int {
	base, mem := q.cur.Region()
	heads, desc, mask, next := q.heads, q.desc, q.mask, q.next
	size := uint64(len(mem))
	old, at := len(b.Chains), len(b.segs)
	chains, segs := b.Chains[old:old+n], b.segs[:cap(b.segs)]
	i := 0
	for ; i < len(chains) && at < len(segs); i++ {
		// Head, address and the rest are read once each; the driver may change
		// them at any time.
		head := heads[next&mask]
		d := 2 * uint(head)
		if d+1 >= uint(len(desc)) {
			break
		}
		off, rest := desc[d]-base, desc[d+1]
		l := uint64(uint32(rest))
		if rest&unusual != 0 || l == 0 || off >= size || l > size-off {
			break
		}
		segs[at] = mem[off : off+l : off+l]
		c := &chains[i]
		c.ID, c.Count, c.Fault = head, 1, FaultNone
		c.start, c.end = uint32(at), uint32(at)+1
		if rest&(virtio.DescFWrite<<32) != 0 {
			c.ReadLen, c.WriteLen, c.mid = 0, l, uint32(at)
		} else {
			c.ReadLen, c.WriteLen, c.mid = l, 0, uint32(at)+1
		}
		at++
		next++
	}
	b.Chains, b.segs, q.next = b.Chains[:old+i], segs[:at], next
	q.flight += i
	return i
}
