package vring

import (
	"errors"
	"fmt"

	"github.com/vhostnet/vhostnet/guestmem"
	"github.com/vhostnet/vhostnet/virtio"
)

// Offsets in the rings, in bytes (virtio 1.4, "The Virtqueue Available Ring",
// "The Virtqueue Used Ring").
const (
	offFlags = 0
	offIdx   = 2
	offRing  = 4

	descSize     = 16
	usedElemSize = 8
)

// memory is the ring's three areas: those fields that both sides change at any
// time as views, what an index publishes as words. The zero memory is none.
type memory struct {
	avail, used guestmem.View
	// desc has two words a descriptor: the address, and from bit 0 on the length,
	// flags (bit 32) and next (bit 48).
	desc []uint64
	// heads are the entries of the available ring.
	heads []uint16
	// elems has two words for each element of the used ring: ID and length.
	elems []uint32
}

// split is a split virtqueue. Its fields belong to the goroutine that calls it.
type split struct {
	memory
	buffers
	ringLog
	mask uint16
	// next is the next available entry to pop; done is where the next used
	// element goes; published is the used index that the driver sees.
	next, done, published uint16
	// flags is the device's used.flags, which shares its word with the index.
	flags    uint16
	eventIdx bool
	first    bool // no decision about a notification was made yet
	// called is the used index at the last notification that the driver wanted,
	// lag how much had been published since at the last decision, and span how
	// much was after that.
	called uint16
	lag    uint32
	span   uint32
	event  uint16 // as last returned by DriverEvent
	flight int    // chains popped and not completed
	idle   error  // why there is nothing to do: broken, or ErrDetached

	m      *guestmem.Map
	cfg    Config
	broken error
}

func newSplit(m *guestmem.Map, c Config) (*split, error) {
	if c.Base > 0xffff {
		return nil, fmt.Errorf("%w: base %#x: want 16 bits", ErrConfig, c.Base)
	}
	mem, err := locate(m, c)
	if err != nil {
		return nil, err
	}
	used, avail := mem.used.Load16(offIdx), mem.avail.Load16(offIdx)
	return &split{
		m: m.Retain(), memory: mem, buffers: newBuffers(m, c), cfg: c, mask: uint16(c.Size - 1),
		eventIdx: c.Features.Has(virtio.FeatureEventIdx),
		next:     start(c, used, avail),
		done:     used, published: used, first: true,
	}, nil
}

// start returns the first available entry to process. It is the base, unless
// entries from there on have been used already: then the used index lies between
// the base and the available index, or the base is not possible at all and the
// used index is. A used index of 0 proves nothing, since it is what fresh memory
// has.
func start(c Config, used, avail uint16) uint16 {
	base := uint16(c.Base)
	waiting, behind := avail-base, used-base
	switch {
	case used == 0 || behind == 0:
	case int(waiting) <= c.Size && behind <= waiting,
		int(waiting) > c.Size && int(avail-used) <= c.Size:
		return used
	}
	return base
}

// locate finds a ring's areas in the front-end's memory.
func locate(m *guestmem.Map, c Config) (memory, error) {
	areas, err := c.Areas(m)
	if err != nil {
		return memory{}, err
	}
	desc, avail, used := areas[0], areas[1], areas[2]
	return memory{
		avail: guestmem.NewView(avail),
		used:  guestmem.NewView(used),
		desc:  guestmem.Words64(desc),
		heads: guestmem.Words16(avail[offRing:][:2*c.Size]),
		elems: guestmem.Words32(used[offRing:][:usedElemSize*c.Size]),
	}, nil
}

func (q *split) Size() int { return q.size }

func (q *split) Fresh() bool { return q.cfg.Base == 0 }

func (q *split) Unpop(n int) {
	n = min(n, q.flight)
	q.next -= uint16(n)
	q.flight -= n
}

func (q *split) Complete(c *Chain, written uint32) {
	if q.idle != nil || q.flight == 0 {
		return
	}
	at := 2 * int(q.done&q.mask)
	q.elems[at] = uint32(c.ID)
	q.elems[at+1] = uint32(min(uint64(written), c.WriteLen))
	q.done++
	q.flight--
}

func (q *split) CompletePlain(ids []uint16, lens []uint32) {
	if q.idle != nil || len(ids) > q.flight {
		return
	}
	elems, mask, done := q.elems, q.mask, q.done
	for i, id := range ids {
		at := 2 * uint(done&mask)
		if at+1 >= uint(len(elems)) {
			break
		}
		n := uint32(0)
		if i < len(lens) {
			n = lens[i]
		}
		elems[at], elems[at+1] = uint32(id), n
		done++
	}
	q.flight -= int(done - q.done)
	q.done = done
}

func (q *split) Publish() {
	if n := q.done - q.published; n != 0 && q.idle == nil {
		if q.ring != nil {
			q.logElems()
		}
		q.published = q.done
		q.storeUsed()
		q.span += uint32(n)
	}
}

// storeUsed stores flags and index of the used ring as the one word that they
// are. The store is ordered after the elements and before whatever is loaded
// next.
func (q *split) storeUsed() {
	q.used.StoreFence32(offFlags, uint32(q.flags)|uint32(q.published)<<16)
	if q.ring != nil {
		q.ring.Mark(q.addr, offRing)
	}
}

func (q *split) Unpublished() int { return int(q.done - q.published) }

func (q *split) NeedSignal() bool {
	if q.idle != nil {
		return false
	}
	span, since, first := q.span, q.lag+q.span, q.first
	q.span, q.first = 0, false
	switch {
	case span == 0 && !first:
		return false
	case !q.eventIdx:
		return q.avail.Load16(offFlags)&virtio.AvailFNoInterrupt == 0
	case first || since > 0xffff, // more than the indices can tell from a few
		q.published-q.usedEvent()-1 < q.published-q.called:
		q.called, q.lag = q.published, 0
		return true
	}
	// What was not announced stays so, up to a ring's worth: the driver has seen
	// the return of anything older, or it could not have made this available.
	q.lag = min(since, uint32(q.size))
	q.called = q.published - uint16(q.lag)
	return false
}

func (q *split) usedEvent() uint16 { return q.avail.Load16(offRing + 2*q.size) }

func (q *split) Unsignalled() int { return int(q.span) }

func (q *split) DriverEvent() (idx uint16, moved bool) {
	if !q.eventIdx || q.idle != nil {
		return 0, false
	}
	idx = q.usedEvent()
	if int(idx-(q.published-uint16(q.size))) > 2*q.size {
		return q.event, false
	}
	moved = idx != q.event
	q.event = idx
	return idx, moved
}

func (q *split) AvailCount() int {
	if q.idle != nil {
		return 0
	}
	return min(int(q.avail.Load16(offIdx)-q.next), q.size)
}

func (q *split) InFlight() int { return q.flight }

func (q *split) DisableKicks() {
	if !q.eventIdx && q.idle == nil && q.flags == 0 {
		q.flags = virtio.UsedFNoNotify
		q.storeUsed()
	}
	// With EVENT_IDX the event index stays where it is: the driver kicks once
	// when it passes it, and not again.
}

func (q *split) EnableKicks() bool {
	if q.idle != nil {
		return false
	}
	// Either store is ordered before the load behind it: of this side and the
	// driver, which stores its index and then looks here, one sees the other.
	if q.eventIdx {
		// The field's neighbour belongs to the driver.
		q.used.Store16(offRing+usedElemSize*q.size, q.next)
		if q.ring != nil {
			q.ring.Mark(q.addr+offRing+uint64(usedElemSize*q.size), 2)
		}
	} else {
		q.flags = 0
		q.storeUsed()
	}
	return q.avail.Load16(offIdx) != q.next
}

func (q *split) Rebind(m *guestmem.Map) error {
	m.Retain()
	q.m.Release()
	q.m = m
	q.move(m)
	mem, err := locate(m, q.cfg)
	q.setMemory(mem)
	return err
}

func (q *split) SetAddr(desc, driver, device uint64) error {
	c := q.cfg
	c.Desc, c.Driver, c.Device = desc, driver, device
	mem, err := locate(q.m, c)
	if err == nil {
		q.cfg = c
		q.setMemory(mem)
	}
	return err
}

func (q *split) setMemory(mem memory) {
	q.memory = mem
	q.idle = q.broken
	if q.idle == nil && mem.desc == nil {
		q.idle = ErrDetached
	}
}

func (q *split) Broken() error { return q.broken }

func (q *split) Break(reason error) {
	if q.broken == nil {
		if reason == nil {
			reason = errors.New("no reason given")
		}
		q.broken = &BrokenError{reason}
		q.idle = q.broken
	}
}

func (q *split) Stop() State {
	if q.ring != nil && q.done != q.published {
		quietly(q.logElems)
	}
	q.m.Release()
	q.m = guestmem.Empty()
	q.move(q.m)
	q.setMemory(memory{})
	return State{Base: uint32(q.next - uint16(q.flight) - (q.done - q.published))}
}
