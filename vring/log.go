package vring

import "github.com/vhostnet/vhostnet/guestmem"

// Logging says where the device notes what it writes to guest memory (vhost-user,
// "Migration"). The zero Logging is nowhere.
type Logging struct {
	// Log is the dirty log, of which the queue takes no reference.
	Log *guestmem.Log
	// Ring: what the device writes to the ring itself is noted as well
	// (VHOST_VRING_F_LOG).
	Ring bool
	// Addr is the guest address under which writes to the device's area are noted:
	// a split ring's used ring, a packed one's device event structure. A packed ring
	// has used descriptors elsewhere too, which are noted where the memory map has
	// them.
	Addr uint64
}

// ringLog is Logging as a queue uses it.
type ringLog struct {
	log  *guestmem.Log // nil: nothing is noted
	ring *guestmem.Log // log, or nil if nothing about the ring is noted
	addr uint64
}

func (r *ringLog) SetLog(l Logging) {
	*r = ringLog{log: l.Log, addr: l.Addr}
	if l.Ring {
		r.ring = l.Log
	}
}

// entries notes n entries, of size bytes each, of a ring of so many that begins at a
// guest address, from index at on.
func (r *ringLog) entries(begin uint64, at, n, size, ring int) {
	k := min(n, ring-at)
	r.ring.Mark(begin+uint64(size*at), uint64(size*k))
	r.ring.Mark(begin, uint64(size*(n-k)))
}

// logElems notes the elements that are completed and not published.
func (q *split) logElems() {
	q.entries(q.addr+offRing, int(q.published&q.mask), int(q.done-q.published), usedElemSize, q.size)
}

func (q *split) Dirty(b []byte) {
	if q.log != nil {
		q.log.MarkBytes(q.m, b)
	}
}

// logDescs notes the n descriptors from index at on.
func (q *packed) logDescs(at, n int) {
	if begin, ok := q.m.UserToGuest(q.cfg.Desc); ok {
		q.entries(begin, at, n, descSize, q.size)
	}
}

func (q *packed) Dirty(b []byte) {
	if q.log != nil {
		q.log.MarkBytes(q.m, b)
	}
}

// quietly notes what a ring that is stopped has written and never published. It is
// nothing to the driver, and the ring has no more use for a fault.
func quietly(mark func()) { _ = guestmem.CatchFaults(mark) }

// WritableOf returns the segments of c, a chain of the batch, that the device may
// fill.
func (b *Batch) WritableOf(c *Chain) [][]byte { return b.segs[c.mid:c.end:c.end] }
