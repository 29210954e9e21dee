package driver

import (
	"encoding/binary"
	"sync/atomic"

	"github.com/vhostnet/vhostnet/guestmem"
	"github.com/vhostnet/vhostnet/virtio"
)

// The second word of a packed descriptor has the length, the buffer ID (bit 32) and
// the flags (bit 48) (virtio 1.4, "Packed Virtqueues").
const (
	packedNext  = virtio.DescFNext << 48
	packedAvail = virtio.DescFAvail << 48
	packedUsed  = virtio.DescFUsed << 48
	packedLap   = packedAvail | packedUsed
	// eventSize is the size of an event suppression structure.
	eventSize = 4
)

// packed is the shared part of a packed virtqueue. The rest of the driver works on
// split rings of its own; publish puts what is new on the available ring there
// into the descriptor ring, and pull moves what is used to the used ring there. A
// chain's buffer ID is its head in the private descriptor table.
type packed struct {
	desc [][2]uint64
	// driver and device are the event suppression structures.
	driver, device guestmem.View
	// next is the next descriptor to make available and avail its flags then;
	// used is where the next used one is, and mark its flags then.
	next, used  int
	avail, mark uint64
	// out is how many descriptors the device has, counts how many each chain has
	// by its head, pulled the index of the private used ring.
	out    int
	counts []uint16
	pulled uint16
}

// newPackedQueue makes the areas of a packed virtqueue, and the private rings.
func (q *queue) newPackedQueue(m *memory) {
	n := 1
	for n < q.size {
		n *= 2
	}
	q.descArea, q.availArea, q.usedArea = m.alloc(descSize*q.size), m.alloc(eventSize), m.alloc(eventSize)
	q.desc, q.availRing, q.usedRing = make([]byte, descSize*q.size), make([]byte, availEntry*n), make([]byte, usedEntry*n)
	q.mask = uint16(n - 1)
	q.packed = &packed{
		desc:   guestmem.Pairs64(q.descArea.b),
		driver: guestmem.NewView(q.availArea.b), device: guestmem.NewView(q.usedArea.b),
		avail: packedAvail, mark: packedLap, counts: make([]uint16, q.size),
	}
	if q.eventIdx {
		q.packed.driver.Store32(0, q.packed.event(0))
	}
}

// firstBase is where a packed ring starts: at its first descriptor, with both wrap
// counters 1.
const firstBase = virtio.PackedWrap<<16 | virtio.PackedWrap

// event asks for a notification when a descriptor is used that is so many behind
// the next used one.
func (p *packed) event(ahead int) uint32 {
	at, counter := p.used+ahead, p.mark != 0
	if at >= len(p.desc) {
		at -= len(p.desc)
		counter = !counter
	}
	w := virtio.EventFDesc<<16 | uint32(at)
	if counter {
		w |= virtio.PackedWrap
	}
	return w
}

// write makes the chains of the private available ring from index on available,
// with one store, and returns how many descriptors they take.
func (q *queue) write(from, to uint16) (slots int) {
	p := q.packed
	first, head := p.next, uint64(0)
	desc, next, avail := p.desc, p.next, p.avail
	for i := from; i != to; i++ {
		id := binary.LittleEndian.Uint16(q.availRing[availEntry*int(i&q.mask):])
		at, count := int(id), uint16(0)
		for {
			d := q.desc[descSize*at:][:descSize]
			rest := binary.LittleEndian.Uint64(d[8:])
			// Flags move up by 16 bits, over what links a chain in a table.
			word := rest&0xffffffff | uint64(id)<<32 | rest>>32<<48 | avail
			desc[next][0] = binary.LittleEndian.Uint64(d)
			if next == first {
				head = word // the device looks at this one first
			} else {
				desc[next][1] = word
			}
			count++
			if next++; next == len(desc) {
				next = 0
				avail ^= packedLap
			}
			if word&packedNext == 0 {
				break
			}
			at = int(rest >> 48)
		}
		p.counts[id] = count
		slots += int(count)
	}
	p.next, p.avail = next, avail
	p.out += slots
	guestmem.StoreFence64(&desc[first][1], head)
	return slots
}

// wantsKick tells whether the device wants to be kicked for so many descriptors.
func (p *packed) wantsKick(slots int) bool {
	w := p.device.Load32(0)
	switch w >> 16 & 3 {
	case virtio.EventFDisable:
		return false
	case virtio.EventFDesc:
		n := len(p.desc)
		behind := p.next - 1 - int(w&^virtio.PackedWrap&0xffff)
		if (w&virtio.PackedWrap != 0) != (p.avail == packedAvail) {
			behind += n
		}
		if behind < 0 {
			behind += 2 * n
		}
		return behind < slots
	}
	return true
}

// pull moves what the device has used to the private used ring and returns how many
// entries wait there.
func (q *queue) pull() int {
	p := q.packed
	desc, used, mark, pulled := p.desc, p.used, p.mark, p.pulled
	for pulled != q.published {
		w := atomic.LoadUint64(&desc[used][1])
		if w&packedLap != mark {
			break
		}
		id := uint16(w >> 32)
		if int(id) >= len(q.inFlight) || !q.inFlight[id] {
			if pulled == q.last {
				q.fail("used descriptor %d names buffer %d, which is not in flight", used, id)
			}
			break
		}
		binary.LittleEndian.PutUint64(q.usedRing[usedEntry*int(pulled&q.mask):], uint64(id)|w<<32)
		pulled++
		n := int(p.counts[id])
		p.out -= n
		if used += n; used >= len(desc) {
			used -= len(desc)
			mark ^= packedLap
		}
	}
	p.used, p.mark, p.pulled = used, mark, pulled
	return int(pulled - q.last)
}

// arm asks for a notification once more than delay further chains are used, of which
// some may be already.
func (q *queue) arm(delay uint16) {
	p := q.packed
	if !q.eventIdx {
		p.driver.StoreFence32(0, virtio.EventFEnable<<16)
		return
	}
	ahead, chains := int(delay)-int(p.pulled-q.last), int(q.published-p.pulled)
	if ahead < 0 || chains == 0 {
		ahead = 0
	} else {
		// All chains of a queue have about the same length.
		ahead = min(ahead*p.out/chains, max(p.out-1, 0))
	}
	p.driver.StoreFence32(0, p.event(ahead))
}

// stoppedAt checks that a base lies between what the device has given back and what
// it was given.
func (p *packed) stoppedAt(base uint32) bool {
	n := len(p.desc)
	ahead := int(base&^virtio.PackedWrap&0xffff) - p.used
	if (base&virtio.PackedWrap != 0) != (p.mark != 0) {
		ahead += n
	}
	if ahead < 0 {
		ahead += 2 * n
	}
	return ahead <= p.out
}
