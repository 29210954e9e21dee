package builtin

import (
	"fmt"

	"github.com/vhostnet/vhostnet/internal/prefetch"
	"github.com/vhostnet/vhostnet/port"
	"github.com/vhostnet/vhostnet/virtio"
)

const (
	// echoBytes is what a queue of an echo port holds: seven of the largest
	// frames, or as many small ones as echoFrames says. The kernel backs it when
	// it is first written to: an idle queue costs nothing.
	echoBytes = 512 << 10
	// echoFrames bounds the frames as well, to more than the usual ring has.
	echoFrames = 4096
	// maxFrame is the most bytes that one frame may have, header included.
	maxFrame = virtio.NetHeaderMax + 65535 + ethHeader + 2*4
)

var (
	errRunt = fmt.Errorf("builtin: echo: frame is shorter than its headers: %w", port.ErrDropped)
	errLong = fmt.Errorf("builtin: echo: frame is longer than %d bytes: %w", maxFrame, port.ErrDropped)
)

type echo struct {
	base
	header
	echoes []*echoQueue
}

var (
	_ port.Port       = (*echo)(nil)
	_ port.Configurer = (*echo)(nil)
)

// Echo returns a port that hands back what is sent, on the same queue, in order,
// with source and destination MAC exchanged and the virtio-net header as it
// came. When a queue is full, Send returns port.ErrWouldBlock: the frame is to
// be kept and sent again after the next Recv, so that none is lost. Frames that
// have no Ethernet header or are longer than any port's are dropped.
func Echo(queues int) (port.Port, error) {
	e := new(echo)
	e.size.Store(virtio.NetHeaderLen)
	var err error
	e.base, err = newBase("echo", "echo", queues, func(int) port.PortQueue {
		q := newEchoQueue(&e.header)
		e.echoes = append(e.echoes, q)
		return q
	})
	if err != nil {
		return nil, err
	}
	return e, nil
}

// Reset forgets the frames that were not fetched. No worker may be using the
// queues.
func (e *echo) Reset() error {
	for _, q := range e.echoes {
		q.reset()
	}
	return nil
}

// span is where in the buffer a frame lies, its header included. That of a plain
// frame is zero, and not written before Recv wants it.
type span struct {
	off, size uint32
	plain     bool
}

// echoQueue is a queue of frames in one buffer that is used round and round,
// each frame in one piece. It belongs to one worker.
type echoQueue struct {
	header *header
	buf    []byte
	spans  []span // a ring
	// first is the oldest frame in spans, count how many there are.
	first, count int
	// tail is where in buf the next frame goes.
	tail int
	_    [64]byte // another worker's queue may follow: keep off its cache line
}

var _ port.BurstQueue = (*echoQueue)(nil)

func newEchoQueue(h *header) *echoQueue {
	return &echoQueue{header: h, buf: make([]byte, echoBytes), spans: make([]span, echoFrames)}
}

func (q *echoQueue) reset() { q.first, q.count, q.tail = 0, 0, 0 }

func (q *echoQueue) FD() int { return -1 }

func (q *echoQueue) ReadsFrames() bool { return true }

// place finds room for a frame of n bytes, n <= maxFrame < len(buf).
func (q *echoQueue) place(n int) (off int, ok bool) {
	if q.count == 0 {
		// Start over: the memory that was used last is still in the cache.
		return 0, true
	}
	if q.count == len(q.spans) {
		return 0, false
	}
	head := int(q.spans[q.first].off)
	if q.tail > head {
		if n <= len(q.buf)-q.tail {
			return q.tail, true
		}
		return 0, n <= head
	}
	return q.tail, n <= head-q.tail
}

func (q *echoQueue) Send(bufs [][]byte) error {
	hdr := int(q.header.size.Load())
	n := 0
	for _, b := range bufs {
		if len(b) > maxFrame-n {
			return errLong
		}
		n += len(b)
	}
	if n < hdr+ethHeader {
		return errRunt
	}
	off, ok := q.place(n)
	if !ok {
		return port.ErrWouldBlock
	}
	f := q.buf[off : off+n]
	at := 0
	for _, b := range bufs {
		at += copy(f[at:], b)
	}
	answer(f[hdr:])
	q.push(span{off: uint32(off), size: uint32(n)})
	return nil
}

// answer exchanges a frame's addresses.
func answer(frame []byte) {
	macs := (*[12]byte)(frame)
	dst, src := [6]byte(macs[:6]), [6]byte(macs[6:])
	*(*[6]byte)(macs[:6]), *(*[6]byte)(macs[6:]) = src, dst
}

// push makes a frame that was placed the last one.
func (q *echoQueue) push(s span) {
	i := q.first + q.count
	if i >= len(q.spans) {
		i -= len(q.spans)
	}
	q.spans[i] = s
	q.count++
	q.tail = int(s.off + s.size)
}

// pop forgets the first frame.
func (q *echoQueue) pop() {
	if q.count--; q.count == 0 {
		q.reset()
		return
	}
	if q.first++; q.first == len(q.spans) {
		q.first = 0
	}
}

// SendBurst is Send for many plain frames.
func (q *echoQueue) SendBurst(frames [][]byte) int {
	hdr := int(q.header.size.Load())
	// Whoever called has asked for them already, but for more at once than a
	// processor keeps in mind.
	prefetch.Read(frames)
	for i, b := range frames {
		n := hdr + len(b)
		if len(b) < ethHeader || n > maxFrame {
			return i
		}
		off, ok := q.place(n)
		if !ok {
			return i
		}
		f := q.buf[off+hdr : off+n]
		CopyFrame(f, b)
		answer(f)
		q.push(span{uint32(off), uint32(n), true})
	}
	return len(frames)
}

// RecvBurst is Recv for many frames. It ends before one whose header is not zero.
func (q *echoQueue) RecvBurst(bufs [][]byte, hdr int, lens []uint32) (int, bool) {
	i := 0
	prefetch.Write(bufs[:min(len(bufs), q.count)])
	for ; i < len(bufs) && i < len(lens) && q.count > 0; i++ {
		s := q.spans[q.first]
		b := bufs[i]
		if !s.plain || int(s.size) > len(b) || hdr > int(s.size) {
			break
		}
		f := q.buf[s.off : s.off+s.size][hdr:]
		CopyFrame(b[hdr:s.size], f)
		lens[i] = s.size
		q.pop()
	}
	return i, q.count > 0
}

func (q *echoQueue) Recv(bufs [][]byte) (int, error) {
	if q.count == 0 {
		return 0, port.ErrWouldBlock
	}
	s := q.spans[q.first]
	f := q.buf[s.off : s.off+s.size]
	if s.plain {
		clear(f[:min(int(q.header.size.Load()), len(f))])
	}
	n, err := scatter(bufs, f)
	q.pop()
	return n, err
}
