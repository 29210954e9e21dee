package driver

import (
	"encoding/binary"
	"errors"
	"fmt"
	"sync/atomic"

	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/guestmem"
	"github.com/vhostnet/vhostnet/virtio"
)

// ErrDevice is wrapped by the errors of a virtqueue on which the device broke
// the rules. The virtqueue is not used any more.
var ErrDevice = errors.New("driver: device error")

const (
	descSize = 16
	// Offsets in the available and the used ring (virtio 1.4, "Split
	// Virtqueues"): flags, index, entries, and the event index behind them.
	ringHeader    = 4
	availEntry    = 2
	usedEntry     = 8
	eventLen      = 4 // two bytes, and padding so that the word is ours
	suppressAhead = 0x8000
)

// queue is the driver's half of a virtqueue. It belongs to the goroutine that uses
// the virtqueue. Of a packed one, the rings here are the driver's own; see packed.
type queue struct {
	index    int
	size     int
	mask     uint16
	eventIdx bool
	polling  bool

	descArea, availArea, usedArea area

	avail, used guestmem.View
	desc        []byte
	availRing   []byte
	usedRing    []byte
	usedEvent   int // offset in avail
	availEvent  int // offset in used

	// next is the available index including entries that are filled but not yet
	// published, and published the index as the device sees it.
	next, published uint16
	// last is how far used entries have been consumed.
	last uint16
	// inFlight marks the heads that the device has.
	inFlight []bool
	// callsOn is true while the device is asked for notifications; event is what
	// used_event says and flags what the available ring's flags say.
	callsOn bool
	event   uint16
	flags   uint16

	packed *packed // nil if the virtqueue is split

	kick, call int
	word       [8]byte // for eventfd I/O, so that nothing escapes
	err        error
	c          queueCounters
	// broken mirrors err for other goroutines.
	broken atomic.Bool
}

// ringBytes is how much memory the areas of a virtqueue take.
func ringBytes(size int) int {
	return roundUp(descSize*size, cacheLine) +
		roundUp(ringHeader+availEntry*size+eventLen, cacheLine) +
		roundUp(ringHeader+usedEntry*size+eventLen, cacheLine) + 3*cacheLine
}

func newQueue(index, size int, f virtio.Features, polling bool, m *memory) (*queue, error) {
	q := &queue{
		index: index, size: size, eventIdx: f.Has(virtio.FeatureEventIdx), polling: polling,
		inFlight: make([]bool, size), callsOn: true,
		kick: -1, call: -1,
	}
	if f.Has(virtio.FeatureRingPacked) {
		q.newPackedQueue(m)
	} else {
		q.newSplitQueue(m)
	}
	var err error
	if q.kick, err = eventfd(); err != nil {
		return nil, err
	}
	if q.call, err = eventfd(); err != nil {
		q.close()
		return nil, err
	}
	if polling {
		q.disableCalls()
	}
	return q, nil
}

// newSplitQueue makes the areas of a split virtqueue.
func (q *queue) newSplitQueue(m *memory) {
	q.descArea = m.alloc(descSize * q.size)
	q.availArea = m.alloc(ringHeader + availEntry*q.size + eventLen)
	q.usedArea = m.alloc(ringHeader + usedEntry*q.size + eventLen)
	q.mask = uint16(q.size - 1)
	q.usedEvent = ringHeader + availEntry*q.size
	q.availEvent = ringHeader + usedEntry*q.size
	q.avail = guestmem.NewView(q.availArea.b)
	q.used = guestmem.NewView(q.usedArea.b)
	q.desc = q.descArea.b
	q.availRing = q.availArea.b[ringHeader:q.usedEvent]
	q.usedRing = q.usedArea.b[ringHeader:q.availEvent]
}

func eventfd() (int, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return -1, fmt.Errorf("driver: eventfd: %w", err)
	}
	return fd, nil
}

func (q *queue) close() {
	for _, fd := range [...]*int{&q.kick, &q.call} {
		if *fd >= 0 {
			_ = unix.Close(*fd)
			*fd = -1
		}
	}
}

// setDesc writes a descriptor into a table.
func setDesc(table []byte, i int, addr uint64, length uint32, flags, next uint16) {
	d := table[i*descSize : i*descSize+descSize : i*descSize+descSize]
	binary.LittleEndian.PutUint64(d, addr)
	binary.LittleEndian.PutUint64(d[8:], uint64(length)|uint64(flags)<<32|uint64(next)<<48)
}

// offer makes the chain at head the next available entry. It is visible only
// after publish.
func (q *queue) offer(head uint16) {
	q.inFlight[head] = true
	binary.LittleEndian.PutUint16(q.availRing[availEntry*int(q.next&q.mask):], head)
	q.next++
}

// publish shows the device everything that was offered, with one store, and
// kicks it unless it asked not to be kicked.
func (q *queue) publish() {
	if q.next == q.published {
		return
	}
	old := q.published
	q.published = q.next
	if q.show(old) {
		q.c.kicks.add(1)
		binary.NativeEndian.PutUint64(q.word[:], 1)
		// EAGAIN means that the device has not taken an earlier kick yet.
		_, _ = unix.Write(q.kick, q.word[:])
	} else {
		q.c.kicksSuppressed.add(1)
	}
}

// show shows the device what was published since old, and reports whether it wants
// to be kicked for it.
func (q *queue) show(old uint16) bool {
	if q.packed != nil {
		return q.packed.wantsKick(q.write(old, q.next))
	}
	// The store is a full barrier between the index and reading the event index.
	q.avail.StoreFence32(0, uint32(q.flags)|uint32(q.next)<<16)
	if q.eventIdx {
		return needEvent(uint16(q.used.Load32(q.availEvent)), q.published, old)
	}
	return uint16(q.used.Load32(0))&virtio.UsedFNoNotify == 0
}

// needEvent tells whether the index moved past event on its way from old to now.
func needEvent(event, now, old uint16) bool { return now-event-1 < now-old }

// pending returns how many used entries wait to be consumed. A device that
// reports more than it was given breaks the queue.
func (q *queue) pending() int {
	if q.packed != nil {
		return q.pull()
	}
	n := uint16(q.used.Load32(0)>>16) - q.last
	if n == 0 {
		return 0
	}
	if n > q.published-q.last {
		q.fail("used index is %d entries ahead of %d, with %d in flight", n, q.last, q.published-q.last)
		return 0
	}
	return int(n)
}

// take consumes the next used entry. pending must have reported it.
func (q *queue) take() (head uint16, written uint32, ok bool) {
	e := binary.LittleEndian.Uint64(q.usedRing[usedEntry*int(q.last&q.mask):])
	id := uint32(e)
	if id >= uint32(len(q.inFlight)) || !q.inFlight[id] {
		q.fail("used entry %d names descriptor %d, which is not in flight", q.last, id)
		return 0, 0, false
	}
	q.inFlight[id] = false
	q.last++
	return uint16(id), uint32(e >> 32), true
}

// takeSimple consumes up to n used entries whose length does not matter and
// appends their heads to heads, which has room. It is take in a loop without a
// call, as the processor likes it.
func (q *queue) takeSimple(heads []uint16, n int) []uint16 {
	used, inFlight, mask, last := q.usedRing, q.inFlight, q.mask, q.last
	for range n {
		id := binary.LittleEndian.Uint32(used[usedEntry*int(last&mask):])
		if id >= uint32(len(inFlight)) || !inFlight[id] {
			break
		}
		inFlight[id] = false
		heads = append(heads, uint16(id))
		last++
	}
	q.last = last
	return heads
}

// offerAll is offer for several heads.
func (q *queue) offerAll(heads []uint16) {
	ring, inFlight, mask, next := q.availRing, q.inFlight, q.mask, q.next
	for _, head := range heads {
		inFlight[head] = true
		binary.LittleEndian.PutUint16(ring[availEntry*int(next&mask):], head)
		next++
	}
	q.next = next
}

// outstanding is how many published chains have not been consumed back.
func (q *queue) outstanding() int { return int(q.published - q.last) }

func (q *queue) fail(format string, args ...any) {
	if q.err == nil {
		q.err = fmt.Errorf("%w: virtqueue %d: %s", ErrDevice, q.index, fmt.Sprintf(format, args...))
		q.broken.Store(true)
	}
}

// disableCalls asks the device for no notifications. With EVENT_IDX that is
// said with an index far ahead, which has to be moved on now and then.
func (q *queue) disableCalls() {
	switch {
	case q.packed != nil:
		if q.callsOn {
			q.packed.driver.Store32(0, virtio.EventFDisable<<16)
		}
	case q.eventIdx && (q.callsOn || q.event-q.last < suppressAhead/2):
		q.setEvent(q.last + suppressAhead)
	case !q.eventIdx && q.callsOn:
		q.setFlags(virtio.AvailFNoInterrupt)
	}
	q.callsOn = false
}

// keepQuiet moves the event index on while notifications are unwanted. It is
// called with each batch of used entries.
func (q *queue) keepQuiet() {
	if !q.callsOn {
		q.disableCalls()
	}
}

// enableCalls asks for a notification once more than delay further entries are
// used, and reports whether that many are used already. Without EVENT_IDX the
// delay cannot be said, so each entry notifies.
func (q *queue) enableCalls(delay uint16) (more bool) {
	if !q.eventIdx {
		delay = 0
	}
	switch {
	case q.packed != nil:
		q.arm(delay)
	case q.eventIdx:
		// Stored even when it would not change: it is the barrier between the
		// event index and the used index.
		q.setEvent(q.last + delay)
	default:
		q.setFlags(0)
	}
	q.callsOn = true
	return uint16(q.pending()) > delay
}

func (q *queue) setEvent(event uint16) {
	q.event = event
	q.avail.StoreFence32(q.usedEvent, uint32(event))
}

func (q *queue) setFlags(flags uint16) {
	q.flags = flags
	q.avail.StoreFence32(0, uint32(flags)|uint32(q.published)<<16)
}

// stoppedAt fails if the base that a device has stopped at does not lie between
// what it has given back and what it was given.
func (q *queue) stoppedAt(base uint32) error {
	if p := q.packed; p != nil {
		if q.pull(); !p.stoppedAt(base) {
			return fmt.Errorf("%w: virtqueue %d stopped at %#x, with %d descriptors from %d on", ErrDevice, q.index, base, p.out, p.used)
		}
		return nil
	}
	used := uint16(q.used.Load32(0) >> 16)
	if ahead := uint16(base) - used; ahead > q.published-used {
		return fmt.Errorf("%w: virtqueue %d stopped at %d, outside of %d to %d", ErrDevice, q.index, base, used, q.published)
	}
	return nil
}

// drain reads the call eventfd and returns how many notifications it held.
func (q *queue) drain() uint64 {
	n, err := unix.Read(q.call, q.word[:])
	if err != nil || n != len(q.word) {
		return 0
	}
	return binary.NativeEndian.Uint64(q.word[:])
}

// settle counts what is left in the call eventfd.
func (q *queue) settle() uint64 {
	n := q.drain()
	if n > 0 {
		q.c.notifications.add(n)
	}
	return n
}
