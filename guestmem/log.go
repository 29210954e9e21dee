package guestmem

import (
	"errors"
	"fmt"
	"math/bits"
	"sync/atomic"
)

// LogPage is how many bytes of guest memory a bit of a dirty log stands for
// (VHOST_LOG_PAGE).
const LogPage = 0x1000

// ErrLog: a dirty log cannot be used, or something was written that it has no bit
// for.
var ErrLog = errors.New("guestmem: bad dirty log")

// Log is the bitmap in which a back-end notes the pages of guest memory that it has
// written, while the front-end reads and clears it (vhost-user, "Migration"). Bit
// n%8 of byte n/8 stands for page n, counted from guest address 0. It is
// reference-counted like a [Map]; its methods may be called from any goroutine that
// holds a reference. They touch memory of the front-end's, so they may fault.
type Log struct {
	refs atomic.Int64
	m    *mapping
	// words begin lead bytes before the bitmap, which has size bytes.
	words      []uint32
	lead, size uint64
}

// NewLog maps a log of size bytes that begins at an offset in a file. The descriptor
// is the caller's to close, and may be closed at once. Errors wrap [ErrLog].
func NewLog(fd int, size, offset uint64) (*Log, error) {
	r := Region{Size: size, Offset: offset}
	if err := r.check(); err != nil {
		return nil, fmt.Errorf("%w: %w", ErrLog, err)
	}
	s, err := mapFile(r, fd)
	if err != nil {
		return nil, fmt.Errorf("%w: %w", ErrLog, err)
	}
	return newLog(s.m, s.mem), nil
}

// NewHeapLog makes a log of size bytes in the process's own memory, for tests.
func NewHeapLog(size int) *Log {
	b := heapBytes(size)
	m := &mapping{raw: b}
	m.refs.Store(1)
	return newLog(m, b)
}

func newLog(m *mapping, mem []byte) *Log {
	v, lead := logWords(mem)
	l := &Log{m: m, words: v, lead: lead, size: uint64(len(mem))}
	l.refs.Store(1)
	return l
}

// Retain takes a reference and returns l, which may be nil. The caller must hold
// one already.
func (l *Log) Retain() *Log {
	if l != nil && l.refs.Add(1) < 2 {
		l.refs.Add(-1)
		panic("guestmem: Log retained that was released")
	}
	return l
}

// Release gives a reference back; with the last one the log is unmapped. l may be
// nil.
func (l *Log) Release() {
	if l == nil {
		return
	}
	switch n := l.refs.Add(-1); {
	case n == 0:
		l.m.release()
	case n < 0:
		panic("guestmem: Log released more often than retained")
	}
}

// Covers tells whether the log has a bit for each of the n bytes at a guest address.
func (l *Log) Covers(gpa, n uint64) bool {
	return n == 0 || n-1 <= ^gpa && (gpa+n-1)/LogPage/8 < l.size
}

// Check fails with [ErrLog] if the map has memory that the log has no bit for.
func (l *Log) Check(m *Map) error {
	for i := range m.slots {
		if r := &m.slots[i]; !l.Covers(r.GuestAddr, r.Size) {
			return fmt.Errorf("%w: %d bytes do not reach up to %#x", ErrLog, l.size, r.GuestAddr+(r.Size-1))
		}
	}
	return nil
}

// beyondLog is what Mark panics with, for CatchFaults to return: what cannot be
// noted would be lost.
type beyondLog struct{ gpa uint64 }

// Mark notes that the n bytes at a guest address were written. It is called behind
// the writes and is ordered behind them: whoever takes a bit, and copies the page
// then, copies what was written. What the log has no bit for is a fault, see
// [CatchFaults].
func (l *Log) Mark(gpa, n uint64) {
	if n == 0 {
		return
	}
	if !l.Covers(gpa, n) {
		panic(beyondLog{gpa})
	}
	for p, last := gpa/LogPage, (gpa+n-1)/LogPage; p <= last; p++ {
		// A locked instruction even where the bit is set already: it also keeps the
		// load of the bit from passing the stores before it.
		b := l.lead + p/8
		atomic.OrUint32(&l.words[b/4], 1<<(b%4*8+p%8))
	}
}

// MarkBytes is Mark for a slice of memory from m. Other memory is nobody's to log.
func (l *Log) MarkBytes(m *Map, b []byte) {
	if len(b) == 0 {
		return
	}
	if gpa, ok := m.guestAddr(b); ok {
		l.Mark(gpa, uint64(len(b)))
	}
}

// Take clears the log and calls f with the guest address of each page that was
// noted, in ascending order. It is the front-end's half.
func (l *Log) Take(f func(gpa uint64)) {
	end := l.lead + l.size
	for i := range l.words {
		// What else is in the first and the last word is not the log's.
		mask := ^uint32(0)
		if i == 0 {
			mask <<= l.lead * 8
		}
		if i == len(l.words)-1 && end%4 != 0 {
			mask &= 1<<(end%4*8) - 1
		}
		if atomic.LoadUint32(&l.words[i])&mask == 0 {
			continue
		}
		for w := atomic.AndUint32(&l.words[i], ^mask) & mask; w != 0; w &= w - 1 {
			bit := uint64(i)*32 + uint64(bits.TrailingZeros32(w))
			f((bit - l.lead*8) * LogPage)
		}
	}
}
