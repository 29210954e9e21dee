package driver

import (
	"encoding/binary"
	"time"

	"github.com/vhostnet/vhostnet/virtio"
)

// Packet is a received frame. It is valid until the next call of the RX that
// delivered it.
type Packet struct {
	hdr, frame []byte
	// whole is hdr and frame in one piece, if they adjoin.
	whole []byte
	// Buffers is how many receive buffers the frame took.
	Buffers int
}

// Frame returns the frame, in one piece. It may be changed.
func (p *Packet) Frame() []byte { return p.frame }

// Segments appends the packet, its virtio-net header first, to dst: in one piece
// if it arrived in one buffer, else in two.
func (p *Packet) Segments(dst [][]byte) [][]byte {
	if p.whole != nil {
		return append(dst, p.whole)
	}
	return append(dst, p.hdr, p.frame)
}

// Header decodes the virtio-net header.
func (p *Packet) Header() (h virtio.NetHeader) {
	h.Decode(p.hdr)
	return h
}

// Hash returns what the device says of the frame's flow: a hash and its type, 0 for
// none, with VIRTIO_NET_F_HASH_REPORT; else zeros.
func (p *Packet) Hash() (value uint32, report uint16) { return virtio.Hash(p.hdr) }

// RX is the receive half of a queue pair. One goroutine uses it.
type RX struct {
	q            *queue
	hdrLen       int
	mrg          bool
	buf          area
	stride, size int
	// held are the buffers of the packets that Receive has delivered.
	held []uint16
	// scratch is where frames over several buffers are put together; room is
	// how much of it the last call of Receive has left.
	scratch []byte
	room    []byte
	w       *waiter
}

// numBuffersOffset is where struct virtio_net_hdr has num_buffers.
const numBuffersOffset = 10

// scratchBytes holds a budget of a few 64 KiB frames; Receive stops when it is
// full.
const scratchBytes = 4 * maxBufferSize

func rxBytes(c *Config) int { return c.QueueSize*stride(c.RXBufferSize) + cacheLine }

func newRX(q *queue, c *Config, f virtio.Features, m *memory) *RX {
	r := &RX{
		q: q, hdrLen: virtio.NetHeaderSize(f), mrg: f.Has(virtio.FeatureMrgRxBuf),
		stride: stride(c.RXBufferSize), size: c.RXBufferSize,
		held: make([]uint16, 0, q.size),
	}
	r.buf = m.alloc(q.size * r.stride)
	for i := range q.size {
		setDesc(q.desc, i, r.buf.guest()+uint64(i*r.stride), uint32(r.size), virtio.DescFWrite, 0)
		q.offer(uint16(i))
	}
	return r
}

// Err returns what the device did wrong, wrapping ErrDevice, or nil.
func (r *RX) Err() error { return r.q.err }

// Counters returns the queue's counters. Any goroutine may call it.
func (r *RX) Counters() Counters { return r.q.c.snapshot() }

// Receive fills packets with frames that have arrived and returns how many. The
// packets of the previous call end with it: their buffers go back to the device.
func (r *RX) Receive(packets []Packet) int {
	r.Recycle()
	r.room = r.scratch
	n, used := 0, r.q.pending()
	bytes, taken := uint64(0), 0
	for n < len(packets) && taken < used {
		head, written, ok := r.take()
		if !ok {
			break
		}
		taken++
		r.held = append(r.held, head)
		if int(written) < r.hdrLen {
			r.q.c.short.add(1)
			continue
		}
		p := &packets[n]
		b := r.buffer(head, written)
		p.hdr, p.frame, p.whole, p.Buffers = b[:r.hdrLen], b[r.hdrLen:], b, 1
		if k := r.buffers(head); k != 1 {
			if !r.complete(k, used-taken) || !r.gather(p, k) {
				break
			}
			taken += k - 1
		}
		bytes += uint64(len(p.frame))
		n++
	}
	r.count(n, taken, bytes)
	return n
}

// Drop takes up to budget frames, looks at their headers only, and gives the
// buffers back at once. A driver that polls gives them back a few at a time.
func (r *RX) Drop(budget int) int {
	r.recycleForWait()
	n, used := 0, r.q.pending()
	bytes, taken := uint64(0), 0
	for n < budget && taken < used {
		k, b := r.dropSimple(min(budget-n, used-taken))
		n, taken, bytes = n+k, taken+k, bytes+b
		if n == budget || taken == used {
			break
		}
		frames, buffers, b := r.dropOne(used - taken)
		if buffers == 0 {
			break
		}
		n, taken, bytes = n+frames, taken+buffers, bytes+b
	}
	r.count(n, taken, bytes)
	r.recycleForWait()
	return n
}

// dropSimple takes up to limit frames that are as most of them are: in one
// buffer. It leaves the first one that is not to dropOne, so that nothing is
// called in the loop.
func (r *RX) dropSimple(limit int) (n int, bytes uint64) {
	q := r.q
	used, inFlight, mask, last := q.usedRing, q.inFlight, q.mask, q.last
	memory, stride, held := r.buf.b, r.stride, r.held
	if r.size < r.hdrLen {
		return 0, 0
	}
	least, spread := uint32(r.hdrLen), uint32(r.size-r.hdrLen)
	for n < limit {
		e := binary.LittleEndian.Uint64(used[usedEntry*int(last&mask):])
		id, length := uint32(e), uint32(e>>32)-least
		if id >= uint32(len(inFlight)) || !inFlight[id] || length > spread {
			break
		}
		if r.mrg && binary.LittleEndian.Uint16(memory[int(id)*stride+numBuffersOffset:]) != 1 {
			break
		}
		inFlight[id] = false
		held = append(held, uint16(id))
		bytes += uint64(length)
		last++
		n++
	}
	q.last, r.held = last, held
	return n, bytes
}

// dropOne takes one frame of any kind, which is among the next limit used
// entries, or an unused buffer. It returns no buffers if the device broke the rules.
func (r *RX) dropOne(limit int) (frames, buffers int, bytes uint64) {
	head, written, ok := r.take()
	if !ok {
		return 0, 0, 0
	}
	r.held = append(r.held, head)
	if int(written) < r.hdrLen {
		r.q.c.short.add(1)
		return 0, 1, 0
	}
	bytes = uint64(int(written) - r.hdrLen)
	n := r.buffers(head)
	if n != 1 && !r.complete(n, limit-1) {
		return 0, 0, 0
	}
	for range n - 1 {
		if head, written, ok = r.take(); !ok {
			return 0, 0, 0
		}
		r.held = append(r.held, head)
		bytes += uint64(written)
	}
	return 1, n, bytes
}

func (r *RX) count(packets, buffers int, bytes uint64) {
	if buffers > 0 {
		r.q.c.packets.add(uint64(packets))
		r.q.c.completed.add(uint64(buffers))
		r.q.c.bytes.add(bytes)
		r.q.keepQuiet()
	}
}

// Recycle gives the buffers of the delivered packets back to the device.
// Receive, Drop and Wait do it by themselves.
func (r *RX) Recycle() {
	if len(r.held) == 0 {
		return
	}
	r.q.offerAll(r.held)
	r.held = r.held[:0]
	r.q.publish()
}

// recycleForWait is Recycle before a wait. A driver that polls waits so often
// that it would give back buffers one by one; it keeps a few, of which the
// device has enough.
func (r *RX) recycleForWait() {
	if !r.q.polling || len(r.held) >= r.q.size/8 {
		r.Recycle()
	}
}

// Settle adds to the counters the notifications that arrived while nobody waited
// and returns how many there were.
func (r *RX) Settle() uint64 { return r.q.settle() }

// CallFD returns the descriptor that becomes readable when the device notifies;
// Settle reads it. It belongs to the queue.
func (r *RX) CallFD() int { return r.q.call }

// Disarm asks the device for no notifications, as a driver does that has begun to
// poll.
func (r *RX) Disarm() { r.q.disableCalls() }

// Arm asks the device to notify when the next frame has arrived, and reports
// whether one has arrived already, in which case that is not certain.
func (r *RX) Arm() (ready bool) { return r.q.enableCalls(0) }

// WaitCall recycles and then sleeps until the device notifies or timeout has
// passed (negative: never), without a look at the ring, as a driver does that
// learns of frames by interrupt only. It returns whether the device has notified.
// Arm before sending what is to be answered.
func (r *RX) WaitCall(timeout time.Duration) (bool, error) {
	r.Recycle()
	return r.w.waitCall(timeout)
}

// Wait recycles and then sleeps until a frame has arrived or timeout has passed;
// a negative timeout means for ever. It returns whether a frame has arrived.
func (r *RX) Wait(timeout time.Duration) (bool, error) {
	r.recycleForWait()
	return r.w.wait(timeout)
}

func (r *RX) buffer(head uint16, n uint32) []byte {
	off := int(head) * r.stride
	return r.buf.b[off : off+int(n) : off+int(n)]
}

// take consumes a used entry and checks that the device kept to the buffer.
func (r *RX) take() (head uint16, written uint32, ok bool) {
	if head, written, ok = r.q.take(); ok && int(written) > r.size {
		r.q.fail("device wrote %d bytes into a buffer of %d", written, r.size)
		return 0, 0, false
	}
	return head, written, ok
}

// buffers returns the header's num_buffers, which says how many buffers the
// frame takes. Without MRG_RXBUF it is always one.
func (r *RX) buffers(head uint16) int {
	if !r.mrg {
		return 1
	}
	b := r.buffer(head, uint32(r.hdrLen))
	return int(binary.LittleEndian.Uint16(b[numBuffersOffset:]))
}

// complete checks that the n-1 further buffers of a frame are among the rest of
// the used entries: a device publishes all buffers of a frame at once.
func (r *RX) complete(n, rest int) bool {
	switch {
	case n == 0:
		r.q.fail("num_buffers is 0")
	case n-1 > rest:
		r.q.fail("frame over %d buffers was published with %d of them", n, rest+1)
	default:
		return true
	}
	return false
}

// gather appends the frame's further buffers to the first in the scratch space.
func (r *RX) gather(p *Packet, n int) bool {
	need := n * r.size
	if len(r.room) < need {
		// Packets of this call point into the old space, which stays theirs. In
		// the long run the space is large enough and is used again and again.
		r.scratch = make([]byte, max(scratchBytes, 2*len(r.scratch), need))
		r.room = r.scratch
	}
	length := copy(r.room, p.frame)
	for range n - 1 {
		head, written, ok := r.take()
		if !ok {
			return false
		}
		r.held = append(r.held, head)
		length += copy(r.room[length:], r.buffer(head, written))
	}
	p.frame, p.whole, p.Buffers = r.room[:length:length], nil, n
	r.room = r.room[length:]
	return true
}
