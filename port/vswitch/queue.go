package vswitch

import (
	"encoding/binary"
	"fmt"
	"sync/atomic"

	"github.com/vhostnet/vhostnet/internal/prefetch"
	"github.com/vhostnet/vhostnet/port"
	"github.com/vhostnet/vhostnet/port/offload"
	"github.com/vhostnet/vhostnet/virtio"
)

const (
	ethHeader = 14
	// maxFrame is the longest frame without its virtio-net header: a 64 KiB IP
	// packet in an Ethernet header with two VLAN tags.
	maxFrame = 65535 + ethHeader + 2*4
	// peekLen is how much of a frame is looked at to choose a queue.
	peekLen = 64
	// storedHeader is how much of the virtio-net header is kept: num_buffers is the
	// receiver's.
	storedHeader = virtio.NetHeaderLenLegacy
)

// What a queue counts of the frames that it sends.
const (
	countFlooded    = iota // to all other ports
	countLocal             // its destination is behind the port that it came from
	countBadSource         // from a group address, or none
	countReserved          // to an address that bridges keep to themselves
	countMoves             // its source was behind another port before
	countUnlearned         // there was no place for its source
	countChecksums         // the checksum was completed for the receiver
	countSegmented         // it was segmented for the receiver
	countBadOffload        // it could not be
	countNoReceiver        // nobody receives on the port where it was to go
	numCounts
)

var countNames = [numCounts]string{
	"flooded", "local", "bad_source", "reserved", "moves", "unlearned", "checksums", "segmented", "bad_offload", "no_receiver",
}

var (
	errRunt = fmt.Errorf("vswitch: frame is shorter than its headers: %w", port.ErrDropped)
	errLong = fmt.Errorf("vswitch: frame is longer than %d bytes: %w", maxFrame, port.ErrDropped)
)

// queue is a queue of a port. One worker sends and receives.
type queue struct {
	port *Port
	sw   *Switch
	bell *bell
	// in is nil while nobody receives.
	in atomic.Pointer[inbox]

	// The worker's. known is the last source that the table had at the time
	// knownAt.
	known   uint64
	knownAt uint32
	counts  [numCounts]atomic.Uint64
	pieces  [][]byte // of a frame, without its header
	framed  [][]byte // and with it
	one     [1][]byte
	header  [storedHeader]byte
	peek    [virtio.NetHeaderLen + peekLen]byte // the beginning of a frame
	// whole is a frame that something is done to, segment what comes of it.
	whole, segment []byte
	cut            offload.Segmenter
	_              [64]byte // another worker's queue may follow: keep off its cache line
}

var (
	_ port.BurstQueue  = (*queue)(nil)
	_ port.MemoryQueue = (*queue)(nil)
)

// count has one writer, the worker.
func (q *queue) count(what int) { q.counts[what].Store(q.counts[what].Load() + 1) }

// FD is readable after a frame has come for a receiver that slept.
func (q *queue) FD() int { return q.bell.fd }

// Pending implements [port.MemoryQueue].
func (q *queue) Pending() bool {
	in := q.in.Load()
	return in != nil && in.pending()
}

// Sleep implements [port.MemoryQueue].
func (q *queue) Sleep() bool {
	in := q.in.Load()
	if in == nil {
		return true
	}
	in.asleep.Store(1)
	if in.pending() {
		in.asleep.Store(0)
		return false
	}
	return true
}

// Awake implements [port.MemoryQueue].
func (q *queue) Awake() {
	if in := q.in.Load(); in != nil && in.asleep.Load() != 0 {
		in.asleep.Store(0)
	}
}

// ReadsFrames implements [port.BurstQueue].
func (q *queue) ReadsFrames() bool { return true }

// RecvBurst implements [port.BurstQueue].
func (q *queue) RecvBurst(bufs [][]byte, hdr int, lens []uint32) (int, bool) {
	in := q.in.Load()
	if in == nil {
		return 0, false
	}
	if in.pending() {
		prefetch.Write(bufs)
	}
	i := 0
	var e *entry
	for e = in.peek(); e != nil && i < len(bufs) && i < len(lens); e = in.peek() {
		b, n := bufs[i], hdr+int(e.size)
		if !e.plain || n > len(b) {
			break
		}
		copy(b[hdr:n], in.buf[e.off:e.off+e.size])
		lens[i] = uint32(n)
		in.take(e)
		i++
	}
	in.publish()
	return i, e != nil
}

// Recv implements [port.PortQueue].
func (q *queue) Recv(bufs [][]byte) (int, error) {
	in := q.in.Load()
	if in == nil {
		return 0, port.ErrWouldBlock
	}
	e := in.peek()
	if e == nil {
		in.publish()
		return 0, port.ErrWouldBlock
	}
	var header [virtio.NetHeaderLen]byte
	hdr := int(q.port.hdrLen.Load())
	frame := in.buf[e.off : e.off+e.size]
	if !e.plain {
		frame = frame[copy(header[:storedHeader], frame):]
	}
	rest := spread(bufs, 0, header[:hdr]) + spread(bufs, hdr, frame)
	n := hdr + len(frame)
	in.take(e)
	in.publish()
	if rest > 0 {
		return n, port.ErrTruncated
	}
	return n, nil
}

// spread copies src into bufs from byte off on, and returns how much does not fit.
func spread(bufs [][]byte, off int, src []byte) int {
	for _, b := range bufs {
		if len(src) == 0 {
			break
		}
		if off >= len(b) {
			off -= len(b)
			continue
		}
		src = src[copy(b[off:], src):]
		off = 0
	}
	return len(src)
}

// address reads the MAC address in the first six bytes of b.
func address(b []byte) uint64 {
	return uint64(binary.BigEndian.Uint32(b))<<16 | uint64(binary.BigEndian.Uint16(b[4:]))
}

// group is the bit that group addresses have.
const group = 1 << 40

// reservedFirst is the first of the sixteen addresses that bridges do not pass on.
const reservedFirst = 0x0180C2000000

// everybody stands for all other ports, nobody for none.
var everybody, nobody = new(Port), (*Port)(nil)

// route notes where a frame came from and finds out where it goes.
func (q *queue) route(dst, src uint64, now uint32) *Port {
	if src&group != 0 || src == 0 {
		q.count(countBadSource)
		return nobody
	}
	if src != q.known || now != q.knownAt {
		q.learn(src, now)
	}
	if dst&group != 0 {
		if dst&^15 == reservedFirst {
			q.count(countReserved)
			return nobody
		}
		return everybody
	}
	number := q.sw.table.lookup(dst, now)
	if number == q.port.number {
		q.count(countLocal)
		return nobody
	}
	if p := q.sw.port(number); p != nil {
		return p
	}
	return everybody
}

func (q *queue) learn(src uint64, now uint32) {
	if !q.sw.table.refresh(src, q.port.number, now) {
		l, done := q.sw.learn(q.port, src, now)
		switch {
		case !done:
			return
		case l == learnedNothing:
			q.count(countUnlearned)
			return
		case l == learnedMove:
			q.count(countMoves)
		}
	}
	q.known, q.knownAt = src, now
}

// SendBurst implements [port.BurstQueue]. It takes all frames: those for which there
// is no room are lost.
func (q *queue) SendBurst(frames [][]byte) int {
	now := q.sw.clock()
	// Frames for one inbox that follow each other are a run.
	var to *inbox
	var owner *Port
	start := 0
	var lastDst, lastSrc uint64
	var last *Port
	for i, f := range frames {
		// The driver may change them at any time.
		dst, src := address(f), address(f[6:])
		p := last
		if i == 0 || dst != lastDst || src != lastSrc || p == nobody {
			p = q.route(dst, src, now)
			last, lastDst, lastSrc = p, dst, src
		}
		var in *inbox
		if p != nobody && p != everybody {
			if in = p.pick(f); in == nil {
				q.count(countNoReceiver)
			}
		}
		if in != to || in == nil {
			put(to, owner, frames[start:i])
			to, owner, start = in, p, i
		}
		if p == everybody {
			q.count(countFlooded)
			for _, other := range *q.sw.ports.Load() {
				if other != nil && other != q.port {
					put(other.pick(f), other, frames[i:i+1])
				}
			}
		}
	}
	put(to, owner, frames[start:])
	return len(frames)
}

// put gives frames to an inbox of p's, if there is one.
func put(to *inbox, p *Port, frames [][]byte) {
	if to == nil || len(frames) == 0 {
		return
	}
	if n := to.put(frames); n < len(frames) {
		p.full.Add(uint64(len(frames) - n))
	}
}

// pick returns the inbox of the queue for a frame, nil if nobody receives.
func (p *Port) pick(frame []byte) *inbox {
	list := *p.active.Load()
	switch len(list) {
	case 0:
		return nil
	case 1:
		return list[0]
	}
	return list[flowHash(frame)%uint32(len(list))]
}

// Send implements [port.PortQueue]. A frame for which there is no room is lost, and
// that is no error: the port has taken it.
func (q *queue) Send(bufs [][]byte) error {
	hdr, n := int(q.port.hdrLen.Load()), 0
	for _, b := range bufs {
		if len(b) > hdr+maxFrame-n {
			return errLong
		}
		n += len(b)
	}
	if n < hdr+ethHeader {
		return errRunt
	}
	// What is looked at is read once: it may be the driver's memory.
	head := q.peek[:gather(q.peek[:], bufs)]
	var h virtio.NetHeader
	h.Decode(head[:hdr])
	frame := head[hdr:]
	to := q.route(address(frame), address(frame[6:]), q.sw.clock())
	q.pieces = q.pieces[:0]
	for _, b := range bufs {
		if hdr >= len(b) {
			hdr -= len(b)
			continue
		}
		q.pieces = append(q.pieces, b[hdr:])
		hdr = 0
	}
	size := n - int(q.port.hdrLen.Load())
	j := job{h: h, pieces: q.pieces, size: size, peek: frame}
	switch to {
	case nobody:
	case everybody:
		q.count(countFlooded)
		for _, p := range *q.sw.ports.Load() {
			if p != nil && p != q.port {
				q.deliver(p, &j)
			}
		}
	default:
		if !q.deliver(to, &j) {
			q.count(countNoReceiver)
		}
	}
	// They may outlive the memory that they point to.
	clear(q.pieces)
	clear(q.framed)
	q.framed = q.framed[:0]
	return nil
}

func gather(dst []byte, bufs [][]byte) (n int) {
	for _, b := range bufs {
		if n += copy(dst[n:], b); n == len(dst) {
			break
		}
	}
	return n
}
