package driver

import (
	"encoding/binary"
	"errors"
	"time"

	"github.com/vhostnet/vhostnet/virtio"
)

var (
	// ErrFull means that the device has all transmit buffers. Wait for some.
	ErrFull = errors.New("driver: transmit queue is full")
	// ErrFrameSize means that a frame is longer than a transmit buffer.
	ErrFrameSize = errors.New("driver: frame does not fit the transmit buffer")
)

// TX is the transmit half of a queue pair. One goroutine uses it.
type TX struct {
	q *queue
	// Each slot is a buffer with its descriptors; slot i starts at descriptor
	// i*perSlot, and with indirect tables at entry i*segs of tables.
	slots, segs, perSlot int
	indirect             bool
	hdrLen               int
	buf                  area
	stride, size         int
	tables               area
	// lens is the length that each slot's descriptor says, if it has just one.
	lens []uint32
	// free is a queue of slots, so that a device that keeps the order meets the
	// buffers in the order of their addresses.
	free               []uint16
	heads              []uint16 // scratch
	freeHead, freeTail uint32
	freeMask           uint32
	// packets and bytes are not yet added to the counters.
	packets, bytes uint64
	w              *waiter
}

// txBytes is how much memory the buffers of a transmit queue take.
func txBytes(c *Config) int {
	return c.QueueSize*(stride(c.TXBufferSize)+descSize*c.TXSegments) + 2*cacheLine
}

func newTX(q *queue, c *Config, f virtio.Features, m *memory) *TX {
	t := &TX{q: q, segs: c.TXSegments, hdrLen: virtio.NetHeaderSize(f), stride: stride(c.TXBufferSize), size: c.TXBufferSize}
	t.indirect = c.Indirect && f.Has(virtio.FeatureIndirectDesc)
	t.perSlot = t.segs
	if t.indirect {
		t.perSlot = 1
	}
	t.slots = q.size / t.perSlot
	t.buf = m.alloc(t.slots * t.stride)
	if t.indirect {
		t.tables = m.alloc(t.slots * t.segs * descSize)
	}
	t.lens = make([]uint32, t.slots)
	t.freeMask = uint32(q.mask)
	t.free = make([]uint16, t.freeMask+1)
	t.heads = make([]uint16, 0, q.size)
	for s := range t.slots {
		t.put(uint16(s))
		if !t.indirect && t.segs == 1 {
			setDesc(q.desc, s, t.buf.guest()+uint64(s*t.stride), 0, 0, 0)
		}
	}
	return t
}

func (t *TX) put(slot uint16) {
	t.free[t.freeTail&t.freeMask] = slot
	t.freeTail++
}

// Free returns how many frames can be sent before the queue is full, not
// counting those that the device has given back since the last Reclaim.
func (t *TX) Free() int { return int(t.freeTail - t.freeHead) }

// Outstanding returns how many frames the device has, or will have after Flush.
func (t *TX) Outstanding() int { return t.slots - t.Free() }

// MaxFrame returns the length of the longest frame in bytes.
func (t *TX) MaxFrame() int { return t.size - t.hdrLen }

// Err returns what the device did wrong, wrapping ErrDevice, or nil.
func (t *TX) Err() error { return t.q.err }

// Counters returns the queue's counters. Any goroutine may call it.
func (t *TX) Counters() Counters { return t.q.c.snapshot() }

// Send copies a frame into a buffer behind a header that asks for nothing. The
// device sees it after Flush. Errors are ErrFull, ErrFrameSize and those of Err.
func (t *TX) Send(frame []byte) error {
	b, slot, err := t.next(len(frame))
	if err != nil {
		return err
	}
	clear(b[:t.hdrLen])
	copy(b[t.hdrLen:], frame)
	t.commit(slot, len(frame))
	return nil
}

// SendPacket is Send with a virtio-net header of the caller's choice, which may
// ask for offloads.
func (t *TX) SendPacket(h *virtio.NetHeader, frame []byte) error {
	b, slot, err := t.next(len(frame))
	if err != nil {
		return err
	}
	h.Encode(b[:t.hdrLen])
	copy(b[t.hdrLen:], frame)
	t.commit(slot, len(frame))
	return nil
}

// Reserve returns the whole of a free buffer for a virtio-net header and a frame
// behind it. Commit sends it; until then Reserve returns the same one. Errors are
// ErrFull and those of Err.
func (t *TX) Reserve() ([]byte, error) {
	b, _, err := t.next(0)
	if err == nil {
		t.freeHead--
	}
	return b, err
}

// Commit sends the buffer that Reserve has returned, with length bytes in it,
// header included. The device sees it after Flush.
func (t *TX) Commit(length int) error {
	if length < t.hdrLen {
		return ErrFrameSize
	}
	_, slot, err := t.next(length - t.hdrLen)
	if err != nil {
		return err
	}
	t.commit(slot, length-t.hdrLen)
	return nil
}

// Prepare copies a frame into all free buffers, for SendPrepared.
func (t *TX) Prepare(frame []byte) error {
	if len(frame) > t.MaxFrame() {
		return ErrFrameSize
	}
	for i := t.freeHead; i != t.freeTail; i++ {
		b := t.buffer(t.free[i&t.freeMask])
		clear(b[:t.hdrLen])
		copy(b[t.hdrLen:], frame)
	}
	return nil
}

// SendPrepared sends up to n frames of length bytes with what is in their buffers
// already, and returns how many it could. Nothing is copied: it is the fastest
// way to make load.
func (t *TX) SendPrepared(n, length int) int {
	if length > t.MaxFrame() || t.q.err != nil {
		return 0
	}
	if t.Free() < n {
		t.Reclaim()
	}
	n = min(n, t.Free())
	if t.segs == 1 && !t.indirect {
		t.sendSimple(n, length)
		return n
	}
	for range n {
		slot := t.free[t.freeHead&t.freeMask]
		t.freeHead++
		t.commit(slot, length)
	}
	return n
}

// sendSimple commits n free buffers of which each has one descriptor.
func (t *TX) sendSimple(n, length int) {
	t.packets += uint64(n)
	t.bytes += uint64(n) * uint64(length)
	total := uint32(t.hdrLen + length)
	heads := t.heads[:0]
	for range n {
		slot := t.free[t.freeHead&t.freeMask]
		t.freeHead++
		t.describe(slot, total)
		heads = append(heads, slot)
	}
	t.q.offerAll(heads)
}

// describe sets the length in a slot's only descriptor. It leaves a descriptor
// that is right alone, as the device has its line in the cache.
func (t *TX) describe(slot uint16, total uint32) {
	if t.lens[slot] != total {
		t.lens[slot] = total
		binary.LittleEndian.PutUint32(t.q.desc[int(slot)*descSize+8:], total)
	}
}

// next takes a free buffer for a frame.
func (t *TX) next(length int) (b []byte, slot uint16, err error) {
	if length > t.size-t.hdrLen {
		return nil, 0, ErrFrameSize
	}
	if t.freeHead == t.freeTail {
		if t.Reclaim(); t.freeHead == t.freeTail || t.q.err != nil {
			if t.q.err != nil {
				return nil, 0, t.q.err
			}
			return nil, 0, ErrFull
		}
	}
	slot = t.free[t.freeHead&t.freeMask]
	t.freeHead++
	return t.buffer(slot), slot, nil
}

func (t *TX) buffer(slot uint16) []byte {
	off := int(slot) * t.stride
	return t.buf.b[off : off+t.size : off+t.size]
}

// commit offers a filled buffer to the device.
func (t *TX) commit(slot uint16, length int) {
	t.packets++
	t.bytes += uint64(length)
	if t.segs > 1 || t.indirect {
		t.chain(slot, length)
		return
	}
	t.describe(slot, uint32(t.hdrLen+length))
	t.q.offer(slot)
}

// chain describes a frame with several descriptors, or with an indirect table:
// the header in the first and the frame evenly in the others.
func (t *TX) chain(slot uint16, length int) {
	table, first := t.q.desc, int(slot)*t.perSlot
	base := 0
	if t.indirect {
		table = t.tables.b[int(slot)*t.segs*descSize:]
	} else {
		base = first
	}
	addr := t.buf.guest() + uint64(int(slot)*t.stride)
	n := t.split(table, base, addr, length)
	if t.indirect {
		tableAddr := t.tables.guest() + uint64(int(slot)*t.segs*descSize)
		setDesc(t.q.desc, first, tableAddr, uint32(n*descSize), virtio.DescFIndirect, 0)
	}
	t.q.offer(uint16(first))
}

func (t *TX) split(table []byte, base int, addr uint64, length int) (n int) {
	if t.segs == 1 {
		setDesc(table, base, addr, uint32(t.hdrLen+length), 0, 0)
		return 1
	}
	part := max((length+t.segs-2)/(t.segs-1), 1)
	n = 1 + (length+part-1)/part
	off, size := 0, t.hdrLen
	for i := range n {
		flags, next := uint16(virtio.DescFNext), uint16(base+i+1)
		if i == n-1 {
			flags, next = 0, 0
		}
		if t.indirect && t.q.packed != nil {
			flags, next = 0, 0 // all of a table counts, in order
		}
		setDesc(table, base+i, addr+uint64(off), uint32(size), flags, next)
		off += size
		size = min(part, t.hdrLen+length-off)
	}
	return n
}

// Flush shows the device everything sent so far and kicks it if it wants that.
func (t *TX) Flush() {
	if t.packets > 0 {
		t.q.c.packets.add(t.packets)
		t.q.c.bytes.add(t.bytes)
		t.packets, t.bytes = 0, 0
	}
	t.q.publish()
}

// Reclaim takes back the buffers that the device is done with and returns how
// many there were.
func (t *TX) Reclaim() int {
	n := t.q.pending()
	if n == 0 {
		return 0
	}
	heads := t.q.takeSimple(t.heads[:0], n)
	for _, head := range heads {
		if t.perSlot > 1 {
			head /= uint16(t.perSlot)
		}
		t.put(head)
	}
	if len(heads) < n {
		t.q.take() // says what is wrong with the next one
	}
	t.q.c.completed.add(uint64(len(heads)))
	t.q.keepQuiet()
	return len(heads)
}

// Arm asks the device to notify when it has given back three quarters of the
// frames it has, without waiting for it: what a kernel's driver does after
// each transmission so that buffers are freed in time. Settle counts what comes.
func (t *TX) Arm() {
	if !t.q.polling {
		t.q.enableCalls(uint16(t.q.outstanding() * 3 / 4))
	}
}

// ArmNext is Arm for the next frame that the device gives back. It reports
// whether one has been given back already, in which case that is not certain.
func (t *TX) ArmNext() (ready bool) { return t.q.enableCalls(0) }

// ArmFull is Arm that reports whether three quarters have been given back
// already, in which case a notification is not certain.
func (t *TX) ArmFull() (ready bool) { return t.q.enableCalls(uint16(t.q.outstanding() * 3 / 4)) }

// Disarm asks the device for no notifications.
func (t *TX) Disarm() { t.q.disableCalls() }

// CallFD returns the descriptor that becomes readable when the device notifies;
// Settle reads it. It belongs to the queue.
func (t *TX) CallFD() int { return t.q.call }

// Settle adds to the counters the notifications that arrived while nobody waited
// and returns how many there were.
func (t *TX) Settle() uint64 { return t.q.settle() }

// Wait flushes and then sleeps until the device has given back three quarters
// of the frames it has, or timeout has passed; a negative timeout means for ever. It
// returns whether any frame can be reclaimed. With nothing outstanding it
// returns at once.
func (t *TX) Wait(timeout time.Duration) (bool, error) {
	t.Flush()
	return t.w.wait(timeout)
}
