package vring

import (
	"errors"
	"fmt"
	"sync/atomic"

	"github.com/vhostnet/vhostnet/guestmem"
	"github.com/vhostnet/vhostnet/virtio"
)

// eventSize is the size of an event suppression structure: offset and wrap counter
// in 16 bits, flags in 16 (virtio 1.4, "Event Suppression Structure Format").
const eventSize = 4

// A packed descriptor is two words: the address, and from bit 0 on the length, the
// buffer ID (bit 32) and flags (bit 48). The second word says whose it is.
const (
	packedNext     = virtio.DescFNext << 48
	packedWrite    = virtio.DescFWrite << 48
	packedIndirect = virtio.DescFIndirect << 48
	packedAvail    = virtio.DescFAvail << 48
	packedUsed     = virtio.DescFUsed << 48
	// packedLap is what a wrap counter decides about.
	packedLap = packedAvail | packedUsed
)

// packedMemory is the ring's three areas. The zero one is none.
type packedMemory struct {
	desc           [][2]uint64
	driver, device guestmem.View
}

// packed is a packed virtqueue. Its fields belong to the goroutine that calls it.
//
// Chains are completed in the order in which they were popped, so the descriptors
// from the driver's oldest one on are first those completed and not published, then
// those of popped chains, then those that are available, and then those that the
// driver has to itself.
type packed struct {
	packedMemory
	buffers
	ringLog
	// next is the next descriptor to pop, of which avail says how it looks when it
	// is available. done is where the next used descriptor goes, of which mark is
	// the flags. published and lap are the same for the first that the driver does
	// not see.
	next, done, published int
	avail, mark, lap      uint64
	// head is the used descriptor that goes to published, held back until all
	// behind it are written.
	head uint64
	// out is how many descriptors of the ring are popped and not published; pending
	// of them belong to the chains that are completed and not published, of which
	// there are unpublished.
	out, pending, unpublished int
	flight                    int // chains popped and not completed
	// back has for the last descriptor of a chain of several how many are before
	// it, and 0 for all others.
	back []uint16
	// ahead is how many descriptors from next on were seen to be available, chains
	// how many chains end there.
	ahead, chains int

	eventIdx bool
	fresh    bool
	first    bool // no decision about a notification was made yet
	// span is how many descriptors, and spanChains how many chains, were published
	// since the last decision, lag how many before it since the last notification
	// that the driver wanted. total counts all.
	span, lag, spanChains int
	total                 uint16
	event                 uint16 // as last returned by DriverEvent

	idle   error // why there is nothing to do: broken, or ErrDetached
	m      *guestmem.Map
	cfg    Config
	broken error
}

func newPacked(m *guestmem.Map, c Config) (*packed, error) {
	avail, used := uint16(c.Base), uint16(c.Base>>16)
	mem, err := locatePacked(m, c)
	if err != nil {
		return nil, err
	}
	switch {
	case c.Base == 0 && atomic.LoadUint64(&mem.desc[0][1])&packedLap == 0:
		// At the beginning of a lap whose counter is 0 this would have been used,
		// or made available, with the counter 1.
		avail, used = virtio.PackedWrap, virtio.PackedWrap
	case used == 0:
		used = avail
	}
	q := &packed{
		m: m.Retain(), packedMemory: mem, buffers: newBuffers(m, c), cfg: c,
		back:     make([]uint16, c.Size),
		eventIdx: c.Features.Has(virtio.FeatureEventIdx), first: true,
		next: int(avail &^ virtio.PackedWrap), done: int(used &^ virtio.PackedWrap),
		avail: packedUsed,
	}
	if q.next >= c.Size || q.done >= c.Size {
		m.Release()
		return nil, fmt.Errorf("%w: base %#x: want two offsets in a ring of %d", ErrConfig, c.Base, c.Size)
	}
	if avail&virtio.PackedWrap != 0 {
		q.avail = packedAvail
	}
	if used&virtio.PackedWrap != 0 {
		q.mark = packedLap
	}
	q.published, q.lap = q.done, q.mark
	// A driver that has been around the ring has left something everywhere.
	last := &mem.desc[c.Size-1]
	q.fresh = avail == virtio.PackedWrap && used == avail && last[0] == 0 && atomic.LoadUint64(&last[1]) == 0
	return q, nil
}

func locatePacked(m *guestmem.Map, c Config) (packedMemory, error) {
	areas, err := c.Areas(m)
	if err != nil {
		return packedMemory{}, err
	}
	return packedMemory{
		desc: guestmem.Pairs64(areas[0]), driver: guestmem.NewView(areas[1]), device: guestmem.NewView(areas[2]),
	}, nil
}

// position is an offset in the ring with its wrap counter.
func position(at int, counter bool) uint16 {
	if counter {
		return uint16(at) | virtio.PackedWrap
	}
	return uint16(at)
}

func (q *packed) Size() int { return q.size }

func (q *packed) Fresh() bool { return q.fresh }

// popped moves the next descriptor to pop on by n, which belong to so many chains.
func (q *packed) popped(n, chains int) {
	q.next += n
	if q.next >= q.size {
		q.next -= q.size
		q.avail ^= packedLap
	}
	q.out += n
	q.flight += chains
	if q.ahead -= n; q.ahead > 0 {
		q.chains -= chains
	} else {
		q.ahead, q.chains = 0, 0
	}
}

// rewind takes back n descriptors of so many popped chains.
func (q *packed) rewind(n, chains int) {
	q.next -= n
	if q.next < 0 {
		q.next += q.size
		q.avail ^= packedLap
	}
	q.out -= n
	q.flight -= chains
	q.ahead += n
	q.chains += chains
}

func (q *packed) Unpop(n int) {
	n = min(n, q.flight)
	slots := n
	if q.out-q.pending != q.flight { // some have several descriptors
		at := q.next
		slots = 0
		for range n {
			if at == 0 {
				at = q.size
			}
			k := int(q.back[at-1])
			q.back[at-1] = 0
			slots += k + 1
			if at -= k + 1; at < 0 {
				at += q.size
			}
		}
	}
	q.rewind(slots, n)
}

func (q *packed) Complete(c *Chain, written uint32) {
	if q.idle != nil || q.flight == 0 {
		return
	}
	out := q.out - q.pending
	n := max(min(int(c.Count), out-(q.flight-1)), 1)
	if n > 1 {
		last := q.next - out + n - 1
		if last < 0 {
			last += q.size
		}
		q.back[last] = 0
	}
	used := uint64(c.ID)<<32 | q.mark
	if l := min(uint64(written), c.WriteLen); l > 0 {
		used |= l | packedWrite
	}
	if q.unpublished == 0 {
		q.head = used
	} else {
		q.desc[q.done][1] = used
	}
	q.completed(n, 1)
}

// completed moves the place of the next used descriptor on by n, which belong to so
// many chains.
func (q *packed) completed(n, chains int) {
	q.done += n
	if q.done >= q.size {
		q.done -= q.size
		q.mark ^= packedLap
	}
	q.pending += n
	q.unpublished += chains
	q.flight -= chains
}

func (q *packed) Publish() {
	if q.unpublished == 0 || q.idle != nil {
		return
	}
	if q.ring != nil {
		q.logDescs(q.published, q.pending)
	}
	// The driver looks at this one first, so it sees those behind it with it.
	guestmem.StoreFence64(&q.desc[q.published][1], q.head)
	if q.ring != nil {
		q.logDescs(q.published, 1)
	}
	q.published, q.lap = q.done, q.mark
	q.out -= q.pending
	q.span += q.pending
	q.spanChains += q.unpublished
	q.total += uint16(q.pending)
	q.pending, q.unpublished = 0, 0
}

func (q *packed) Unpublished() int { return q.unpublished }

func (q *packed) AvailCount() int {
	if q.idle != nil {
		return 0
	}
	at, avail := q.next+q.ahead, q.avail
	if at >= q.size {
		at -= q.size
		avail ^= packedLap
	}
	// Each is looked at once, however often this is called. A driver cannot take
	// back what it has made available.
	for q.ahead < q.size-q.out {
		w := atomic.LoadUint64(&q.desc[at][1])
		if w&packedLap != avail {
			break
		}
		q.ahead++
		if w&packedNext == 0 {
			q.chains++
		}
		if at++; at == q.size {
			at = 0
			avail ^= packedLap
		}
	}
	if q.ahead > 0 {
		return max(q.chains, 1)
	}
	return 0
}

func (q *packed) InFlight() int { return q.flight }

func (q *packed) DisableKicks() {
	if q.idle == nil {
		q.device.Store32(0, virtio.EventFDisable<<16)
		if q.ring != nil {
			q.ring.Mark(q.addr, eventSize)
		}
	}
}

func (q *packed) EnableKicks() bool {
	if q.idle != nil {
		return false
	}
	event := uint32(virtio.EventFEnable << 16)
	if q.eventIdx {
		event = virtio.EventFDesc<<16 | uint32(position(q.next, q.avail == packedAvail))
	}
	// Ordered before the load behind it: of this side and the driver, which makes a
	// descriptor available and then looks here, one sees the other.
	q.device.StoreFence32(0, event)
	if q.ring != nil {
		q.ring.Mark(q.addr, eventSize)
	}
	return q.out < q.size && atomic.LoadUint64(&q.desc[q.next][1])&packedLap == q.avail
}

func (q *packed) Rebind(m *guestmem.Map) error {
	m.Retain()
	q.m.Release()
	q.m = m
	q.move(m)
	mem, err := locatePacked(m, q.cfg)
	q.setMemory(mem)
	return err
}

func (q *packed) SetAddr(desc, driver, device uint64) error {
	c := q.cfg
	c.Desc, c.Driver, c.Device = desc, driver, device
	mem, err := locatePacked(q.m, c)
	if err == nil {
		q.cfg = c
		q.setMemory(mem)
	}
	return err
}

func (q *packed) setMemory(mem packedMemory) {
	q.packedMemory = mem
	q.idle = q.broken
	if q.idle == nil && mem.desc == nil {
		q.idle = ErrDetached
	}
}

func (q *packed) Broken() error { return q.broken }

func (q *packed) Break(reason error) {
	if q.broken == nil {
		if reason == nil {
			reason = errors.New("no reason given")
		}
		q.broken = &BrokenError{reason}
		q.idle = q.broken
	}
}

func (q *packed) Stop() State {
	q.Publish()
	if q.ring != nil && q.pending > 0 { // broken
		quietly(func() { q.logDescs(q.published, q.pending) })
	}
	q.m.Release()
	q.m = guestmem.Empty()
	q.move(q.m)
	q.setMemory(packedMemory{})
	// What the driver has not been told of begins at published.
	at, avail := q.next-q.out, q.avail
	if at < 0 {
		at += q.size
		avail ^= packedLap
	}
	return State{Base: uint32(position(at, avail == packedAvail)) | uint32(position(q.published, q.lap != 0))<<16}
}
