package vswitch

import (
	"sync"
	"sync/atomic"

	"golang.org/x/sys/unix"
)

const (
	// inboxFrames and inboxBytes bound what waits for a queue: more frames than
	// four full bursts, and seven of the largest ones. Both are powers of two.
	inboxFrames = 1024
	inboxBytes  = 512 << 10
	// frameAlign keeps frames of different senders off each other's cache lines.
	frameAlign = 64
)

// entry describes a frame in an inbox. All but run is written by the sender before
// it stores run of the first frame of the run, and read by the receiver after it
// has loaded that.
type entry struct {
	// run is the entry's position plus one, in the upper half, and how many frames
	// begin here that are complete.
	run atomic.Uint64
	// off is where the frame is, size how long; 0 for one that was given up. end is
	// the position in bytes behind it.
	off, size, end uint32
	// plain: there is no virtio-net header in front of it.
	plain bool
}

// inbox is a bounded queue of frames with any number of senders and one receiver.
// Positions count frames and bytes and go round at 2^32; both are in one word,
// bytes in the upper half.
type inbox struct {
	tail atomic.Uint64 // senders reserve by moving it
	_    [56]byte
	// head is how far the receiver has come, written once a burst; asleep is 1 if
	// the bell is to be rung.
	head   atomic.Uint64
	asleep atomic.Uint32
	_      [52]byte

	bell    *bell
	entries []entry
	buf     []byte

	// The receiver's: its position, and how many frames of a run are left.
	next, bytes uint32
	left        int
	_           [40]byte
}

func newInbox(b *bell) *inbox {
	q := &inbox{bell: b, entries: make([]entry, inboxFrames), buf: make([]byte, inboxBytes)}
	q.asleep.Store(1) // the receiver does not know of it yet
	return q
}

func pack(frames, bytes uint32) uint64 { return uint64(bytes)<<32 | uint64(frames) }

// place says where a frame of n bytes goes whose room begins at pos, and where the
// next one's does. It lies in one piece.
func place(pos uint32, n int) (off, end uint32) {
	off = pos % inboxBytes
	if int(off)+n > inboxBytes {
		pos += inboxBytes - off
		off = 0
	}
	return off, pos + (uint32(n)+frameAlign-1)&^(frameAlign-1)
}

// put takes as many of the frames as there is room for, in order, and returns how
// many that is.
func (q *inbox) put(frames [][]byte) int {
	for {
		tail := q.tail.Load()
		head := q.head.Load()
		first, from := uint32(tail), uint32(tail>>32)
		// A tail that was overtaken makes nonsense of this, and the exchange fail.
		room := min(len(frames), int(inboxFrames-(first-uint32(head))))
		n, pos := 0, from
		for n < room {
			_, end := place(pos, len(frames[n]))
			if end-uint32(head>>32) > inboxBytes {
				break
			}
			pos = end
			n++
		}
		if n <= 0 {
			if q.tail.Load() != tail {
				continue
			}
			return 0
		}
		if q.tail.CompareAndSwap(tail, pack(first+uint32(n), pos)) {
			q.fill(first, from, frames[:n])
			return n
		}
	}
}

// fill copies plain frames to where room was reserved for them. If the memory of one
// is gone, which is a fault, that and those behind it are given up: the receiver
// must not wait for them.
func (q *inbox) fill(first, pos uint32, frames [][]byte) {
	at := pos
	for i, f := range frames {
		e := q.at(first + uint32(i))
		e.off, at = place(at, len(f))
		e.size, e.end, e.plain = 0, at, true
	}
	defer q.commit(first, len(frames))
	for i, f := range frames {
		e := q.at(first + uint32(i))
		copy(q.buf[e.off:], f)
		e.size = uint32(len(f))
	}
}

// putWhole takes one frame of n bytes in several pieces, its virtio-net header in
// front, or none if plain. It returns false if there is no room.
func (q *inbox) putWhole(pieces [][]byte, n int, plain bool) bool {
	for {
		tail := q.tail.Load()
		head := q.head.Load()
		first := uint32(tail)
		off, end := place(uint32(tail>>32), n)
		if first-uint32(head) >= inboxFrames || end-uint32(head>>32) > inboxBytes {
			if q.tail.Load() != tail {
				continue
			}
			return false
		}
		if !q.tail.CompareAndSwap(tail, pack(first+1, end)) {
			continue
		}
		e := q.at(first)
		e.off, e.size, e.end, e.plain = off, 0, end, plain
		q.gather(e, first, pieces, n)
		return true
	}
}

func (q *inbox) gather(e *entry, first uint32, pieces [][]byte, n int) {
	defer q.commit(first, 1)
	to := q.buf[e.off : int(e.off)+n]
	for _, b := range pieces {
		to = to[copy(to, b):]
	}
	e.size = uint32(n)
}

func (q *inbox) at(pos uint32) *entry { return &q.entries[pos%inboxFrames] }

// commit shows a run to the receiver and wakes it if it sleeps. Stores and loads of
// different words by both sides are in one order, so that one sees the other.
func (q *inbox) commit(first uint32, n int) {
	q.at(first).run.Store(uint64(first+1)<<32 | uint64(n))
	if q.asleep.Load() != 0 && q.asleep.Swap(0) != 0 {
		q.bell.ring()
	}
}

// pending tells whether there is something to receive.
func (q *inbox) pending() bool {
	return q.left > 0 || uint32(q.at(q.next).run.Load()>>32) == q.next+1
}

// peek returns the next frame, nil if there is none.
func (q *inbox) peek() *entry {
	for {
		e := q.at(q.next)
		if q.left == 0 {
			run := e.run.Load()
			if uint32(run>>32) != q.next+1 {
				return nil
			}
			q.left = int(uint32(run))
		}
		if e.size > 0 {
			return e
		}
		q.take(e)
	}
}

// take gives the frame that peek returned up; publish makes room of those.
func (q *inbox) take(e *entry) {
	q.bytes = e.end
	q.next++
	q.left--
}

func (q *inbox) publish() { q.head.Store(pack(q.next, q.bytes)) }

// bell is an eventfd that outlives whoever waits for it: senders may still hold an
// inbox whose port has closed, and must not write to what has its number then.
type bell struct {
	mu sync.Mutex
	fd int // -1 when it is closed
}

func newBell() (*bell, error) {
	fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
	if err != nil {
		return nil, err
	}
	return &bell{fd: fd}, nil
}

func (b *bell) ring() {
	b.mu.Lock()
	defer b.mu.Unlock()
	if b.fd >= 0 {
		one := [8]byte{1}
		_, _ = unix.Write(b.fd, one[:]) // EAGAIN: it rings
	}
}

func (b *bell) close() error {
	b.mu.Lock()
	defer b.mu.Unlock()
	fd := b.fd
	b.fd = -1
	if fd < 0 {
		return nil
	}
	return unix.Close(fd)
}
