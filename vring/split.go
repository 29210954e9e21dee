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

// memory is the ring's three areas.
type memory struct {
	desc, avail, used guestmem.View
}

// split is a split virtqueue.
type split struct {
	m *guestmem.Map
	memory
	cfg      Config
	size     int
	mask     uint16
	eventIdx bool

	// next is the next available entry to pop; done is where the next used
	// element goes; published is the used index that the driver sees.
	next, done, published uint16
	// flags is the device's used.flags, which shares its word with the index.
	flags uint16
	// decided is the used index at the last decision about a notification,
	// span how much was published since; decided means nothing while first.
	decided uint16
	span    uint32
	first   bool
	event   uint16 // as last returned by DriverEvent
	flight  int
	broken  error

	pieces [guestmem.MaxSlots + 1][]byte // of an indirect descriptor across regions
}

func newSplit(m *guestmem.Map, c Config) (*split, error) {
	if c.Size < 1 || c.Size > MaxSize || c.Size&(c.Size-1) != 0 {
		return nil, fmt.Errorf("%w: size %d: want a power of two from 1 to %d", ErrConfig, c.Size, MaxSize)
	}
	if c.Base > 0xffff {
		return nil, fmt.Errorf("%w: base %#x: want 16 bits", ErrConfig, c.Base)
	}
	mem, err := locate(m, c)
	if err != nil {
		return nil, err
	}
	q := &split{
		m: m.Retain(), memory: mem, cfg: c, size: c.Size, mask: uint16(c.Size - 1),
		eventIdx: c.Features.Has(virtio.FeatureEventIdx),
		next:     uint16(c.Base), first: true,
	}
	used := q.used.Load16(offIdx)
	q.done, q.published = used, used
	behind, ahead := used-q.next, q.avail.Load16(offIdx)-q.next
	if behind != 0 && int(behind) <= q.size && behind <= ahead && int(ahead) <= q.size {
		q.next = used
	}
	return q, nil
}

// locate finds a ring's areas in the front-end's memory.
func locate(m *guestmem.Map, c Config) (memory, error) {
	var bytes [3][]byte
	for i, a := range [...]struct {
		name        string
		addr, align uint64
		size        int
	}{
		{"descriptor table", c.Desc, 16, descSize * c.Size},
		{"available ring", c.Driver, 2, offRing + 2*c.Size + 2},
		{"used ring", c.Device, 4, offRing + usedElemSize*c.Size + 2},
	} {
		b, ok := m.UserSlice(a.addr, uint64(a.size))
		switch {
		case !ok:
			return memory{}, fmt.Errorf("%w: %s of %d bytes at %#x is not in one memory region", ErrConfig, a.name, a.size, a.addr)
		case a.addr&(a.align-1) != 0 || !guestmem.Aligned(b, uintptr(a.align)):
			return memory{}, fmt.Errorf("%w: %s at %#x is not aligned to %d bytes", ErrConfig, a.name, a.addr, a.align)
		}
		bytes[i] = b
	}
	return memory{guestmem.NewView(bytes[0]), guestmem.NewView(bytes[1]), guestmem.NewView(bytes[2])}, nil
}

func (q *split) Size() int { return q.size }

// errIndex and errHead are why a driver's ring is broken.
var (
	errIndex = errors.New("the available index moved by more than the ring has")
	errHead  = errors.New("an available entry is not a descriptor of the ring")
)

func (q *split) Pop(b *Batch, limit int) (int, error) {
	if q.broken != nil {
		return 0, q.broken
	}
	n := int(q.avail.Load16(offIdx) - q.next)
	if n > q.size {
		q.Break(errIndex)
		return 0, q.broken
	}
	n = min(n, limit, cap(b.Chains)-len(b.Chains))
	for i := range n {
		head := q.avail.Load16(offRing + 2*int(q.next&q.mask))
		if int(head) >= q.size {
			if i == 0 {
				q.Break(errHead)
				return 0, q.broken
			}
			return i, nil // the next Pop meets it first
		}
		if !q.walk(b, head) {
			return i, nil
		}
		q.next++
		q.flight++
	}
	return n, nil
}

func (q *split) Unpop(n int) {
	q.next -= uint16(n)
	q.flight -= n
}

func (q *split) Complete(c *Chain, written uint32) {
	at := offRing + usedElemSize*int(q.done&q.mask)
	q.used.Put32(at, uint32(c.ID))
	q.used.Put32(at+4, written)
	q.done++
	q.flight--
}

func (q *split) Publish() {
	if n := q.done - q.published; n != 0 {
		q.span += uint32(n)
		q.published = q.done
		q.storeUsed()
	}
}

// storeUsed stores flags and index of the used ring as the one word that they
// are. The store is ordered after the elements and before whatever is loaded
// next, as sync/atomic promises.
func (q *split) storeUsed() {
	q.used.Store32(offFlags, uint32(q.flags)|uint32(q.published)<<16)
}

func (q *split) Unpublished() int { return int(q.done - q.published) }

func (q *split) NeedSignal() bool {
	last, span, first := q.decided, q.span, q.first
	q.decided, q.span, q.first = q.published, 0, false
	if !q.eventIdx {
		return q.avail.Load16(offFlags)&virtio.AvailFNoInterrupt == 0
	}
	event := q.usedEvent()
	if first || span > 0xffff {
		return true
	}
	return q.published-event-1 < q.published-last
}

func (q *split) usedEvent() uint16 { return q.avail.Load16(offRing + 2*q.size) }

func (q *split) Unsignalled() int { return int(q.span) }

func (q *split) DriverEvent() (idx uint16, moved bool) {
	if !q.eventIdx {
		return 0, false
	}
	idx = q.usedEvent()
	moved = idx != q.event
	q.event = idx
	return idx, moved
}

func (q *split) AvailCount() int { return min(int(q.avail.Load16(offIdx)-q.next), q.size) }

func (q *split) InFlight() int { return q.flight }

func (q *split) DisableKicks() {
	if !q.eventIdx {
		q.flags = virtio.UsedFNoNotify
		q.storeUsed()
	}
	// With EVENT_IDX the event index stays where it is: the driver kicks once
	// when it passes it, and not again.
}

func (q *split) EnableKicks() bool {
	if q.eventIdx {
		q.used.Store16(offRing+usedElemSize*q.size, q.next)
	} else {
		q.flags = 0
		q.storeUsed()
	}
	return q.avail.Load16(offIdx) != q.next
}

func (q *split) Rebind(m *guestmem.Map) error {
	old := q.m
	q.m = m.Retain()
	old.Release()
	mem, err := locate(m, q.cfg)
	q.memory = mem
	return err
}

func (q *split) SetAddr(desc, driver, device uint64) error {
	c := q.cfg
	c.Desc, c.Driver, c.Device = desc, driver, device
	mem, err := locate(q.m, c)
	if err != nil {
		return err
	}
	q.cfg, q.memory = c, mem
	return nil
}

func (q *split) Broken() error { return q.broken }

func (q *split) Break(reason error) {
	if q.broken == nil {
		q.broken = &BrokenError{reason}
	}
}

func (q *split) Stop() State {
	q.m.Release()
	q.m, q.memory = guestmem.Empty(), memory{}
	return State{Base: uint32(q.next - uint16(q.flight))}
}
