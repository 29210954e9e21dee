package pcap

import (
	"encoding/binary"
	"fmt"
	"io"
	"sync"
	"sync/atomic"
	"time"
)

// recordRoom is how many bytes of records a queue gathers before it writes.
const recordRoom = 256 << 10

// file is what a recorder writes to, an *os.File; tests have their own.
type file interface {
	io.WriterAt
	io.Closer
	Truncate(size int64) error
}

// recorder is a file to which all queues write.
type recorder struct {
	name string
	mu   sync.Mutex // taken once a burst
	f    file
	at   int64
	// failing is why the last burst is not in the file, nil if it is.
	failing atomic.Pointer[string]
}

// write appends whole records. If they do not all fit, none is kept: what follows
// later would not be found behind half of one.
func (r *recorder) write(b []byte) bool {
	r.mu.Lock()
	defer r.mu.Unlock()
	if _, err := r.f.WriteAt(b, r.at); err != nil {
		if r.failing.Load() == nil {
			why := err.Error()
			r.failing.Store(&why)
		}
		// If this fails too, the next that succeeds is written over it.
		_ = r.f.Truncate(r.at)
		return false
	}
	r.at += int64(len(b))
	if r.failing.Load() != nil {
		r.failing.Store(nil)
	}
	return true
}

func (r *recorder) err() error {
	if why := r.failing.Load(); why != nil {
		return fmt.Errorf("pcap: record %s: %s", r.name, *why)
	}
	return nil
}

// batch are the records of a queue that are not written yet.
type batch struct {
	r    *recorder
	buf  []byte
	n    uint64
	c    *counts
	when time.Time
}

// add takes a frame behind a header of hdr bytes.
func (b *batch) add(bufs [][]byte, hdr int) error {
	size := -hdr
	for _, s := range bufs {
		size += len(s)
	}
	if size < ethHeader || size > maxFrame {
		return errSize
	}
	if len(b.buf)+recordHeader+size > cap(b.buf) {
		b.flush()
	}
	to := b.buf[len(b.buf) : len(b.buf)+recordHeader+size]
	ns := b.when.UnixNano()
	binary.LittleEndian.PutUint32(to, uint32(ns/1e9))
	binary.LittleEndian.PutUint32(to[4:], uint32(ns%1e9))
	binary.LittleEndian.PutUint32(to[8:], uint32(size))
	binary.LittleEndian.PutUint32(to[12:], uint32(size))
	at := recordHeader
	for _, s := range bufs {
		skip := min(hdr, len(s))
		hdr -= skip
		at += copy(to[at:], s[skip:]) // may fault: the record does not count yet
	}
	b.buf = b.buf[:len(b.buf)+len(to)]
	b.n++
	return nil
}

func (b *batch) flush() {
	if b.n == 0 {
		return
	}
	if b.r.write(b.buf) {
		b.c[recorded].add(b.n)
	} else {
		b.c[recordLost].add(b.n)
	}
	b.buf, b.n = b.buf[:0], 0
}
