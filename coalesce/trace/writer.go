package trace

import (
	"encoding/json"
	"fmt"
	"io"
	"sync"
)

// chunk is how many bytes of whole lines are written at once: a process that is
// killed leaves no half of a line that it had begun earlier.
const chunk = 64 << 10

// Writer writes records to an io.Writer, which a goroutine of its own does. All
// methods may be called by several goroutines.
type Writer struct {
	out  io.Writer
	wake chan struct{} // holds one when there is something to do
	done chan struct{}

	mu sync.Mutex
	// waiting are records that nobody has begun to write, in memory that was
	// made once; spare is the same for those that are being written.
	waiting, spare   []Record
	closed           bool
	err              error
	written, dropped uint64
}

// NewWriter returns a writer to w that holds up to buffered records, 1 or more,
// that wait to be written, and as many again while they are. End it with Close.
func NewWriter(w io.Writer, buffered int) *Writer {
	buffered = max(buffered, 1)
	t := &Writer{
		out: w, wake: make(chan struct{}, 1), done: make(chan struct{}),
		waiting: make([]Record, 0, buffered), spare: make([]Record, 0, buffered),
	}
	go t.run()
	return t
}

// Add puts a record into the queue. It neither waits nor allocates: if there is
// no room, after an error, and after Close, the record is dropped and counted.
func (t *Writer) Add(r Record) {
	t.mu.Lock()
	if t.closed || t.err != nil || len(t.waiting) == cap(t.waiting) {
		t.dropped++
		t.mu.Unlock()
		return
	}
	t.waiting = append(t.waiting, r)
	first := len(t.waiting) == 1
	t.mu.Unlock()
	if first {
		t.signal()
	}
}

// Dropped returns how many records are not in the output.
func (t *Writer) Dropped() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.dropped
}

// Written returns how many records are in the output.
func (t *Writer) Written() uint64 {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.written
}

// Close writes what waits and returns the first error of writing. It does not
// close the io.Writer.
func (t *Writer) Close() error {
	t.mu.Lock()
	t.closed = true
	t.mu.Unlock()
	t.signal()
	<-t.done
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.err
}

func (t *Writer) signal() {
	select {
	case t.wake <- struct{}{}:
	default:
	}
}

func (t *Writer) run() {
	defer close(t.done)
	buf, lines := make([]byte, 0, chunk+1024), 0
	for {
		batch, closed := t.swap()
		for i := range batch {
			line, err := json.Marshal(&batch[i])
			if err != nil {
				// Nothing in a record can fail.
				t.wrote(lines+1, err)
				continue
			}
			buf = append(append(buf, line...), '\n')
			if lines++; len(buf) >= chunk {
				buf, lines = t.write(buf, lines), 0
			}
		}
		switch {
		case len(batch) > 0:
		case closed:
			t.write(buf, lines)
			return
		default:
			<-t.wake
		}
	}
}

// swap takes what waits.
func (t *Writer) swap() (batch []Record, closed bool) {
	t.mu.Lock()
	defer t.mu.Unlock()
	t.waiting, t.spare = t.spare[:0], t.waiting
	return t.spare, t.closed
}

// write puts lines out and returns the buffer, empty.
func (t *Writer) write(buf []byte, lines int) []byte {
	if lines > 0 {
		var err error
		if t.failed() == nil {
			_, err = t.out.Write(buf)
		}
		t.wrote(lines, err)
	}
	return buf[:0]
}

func (t *Writer) failed() error {
	t.mu.Lock()
	defer t.mu.Unlock()
	return t.err
}

// wrote counts lines, and keeps the first error.
func (t *Writer) wrote(lines int, err error) {
	t.mu.Lock()
	defer t.mu.Unlock()
	if t.err == nil && err != nil {
		t.err = fmt.Errorf("trace: write: %w", err)
	}
	if t.err != nil {
		t.dropped += uint64(lines)
		return
	}
	t.written += uint64(lines)
}
