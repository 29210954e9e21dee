package pcap

import (
	"encoding/binary"
	"errors"
	"fmt"
	"io"
	"sync/atomic"

	"github.com/vhostnet/vhostnet/port"
)

// replayer reads a capture. Its worker uses it, but for era and err.
type replayer struct {
	name  string
	f     io.ReaderAt
	order binary.ByteOrder
	loop  bool
	c     *counts

	buf      []byte // what was read; from next on it is not used
	next     int
	at       int64 // of the end of buf, in the file
	ended    bool
	any      bool // this pass had a frame
	seen     uint32
	era      atomic.Uint32 // begins again when it changes
	stopped  atomic.Pointer[string]
	original []byte
}

func newReplayer(name string, f io.ReaderAt, loop bool, c *counts) (*replayer, error) {
	r := &replayer{name: name, f: f, loop: loop, c: c, original: make([]byte, 2*(recordHeader+maxSnap))}
	n, err := f.ReadAt(r.original[:fileHeader], 0)
	if err != nil && !errors.Is(err, io.EOF) {
		return nil, err
	}
	if r.order, err = order(r.original[:n]); err != nil {
		return nil, err
	}
	r.rewind()
	return r, nil
}

func (r *replayer) rewind() {
	r.buf, r.next, r.at, r.ended, r.any = r.original[:0], 0, fileHeader, false, false
}

// frame returns the next frame, valid until the next call.
func (r *replayer) frame() ([]byte, error) {
	if era := r.era.Load(); era != r.seen {
		r.seen = era
		r.rewind()
	}
	for !r.ended {
		if !r.fill(recordHeader) {
			r.end()
			continue
		}
		head := r.buf[r.next:]
		size, was := r.order.Uint32(head[8:]), r.order.Uint32(head[12:])
		if size > maxSnap {
			r.stop(fmt.Sprintf("a record of %d bytes before offset %d", size, r.at))
			break
		}
		if !r.fill(recordHeader + int(size)) {
			r.end()
			continue
		}
		f := r.buf[r.next+recordHeader:][:size]
		r.next += recordHeader + int(size)
		switch {
		case size < ethHeader || size > maxFrame:
			r.c[replayBad].add(1)
			return nil, errSize
		case size < was:
			r.c[replayCut].add(1)
			return nil, errCut
		}
		r.any = true
		r.c[replayed].add(1)
		return f, nil
	}
	return nil, port.ErrWouldBlock
}

// fill makes n bytes available. It returns false at the end of the file.
func (r *replayer) fill(n int) bool {
	if len(r.buf)-r.next >= n {
		return true
	}
	left := copy(r.original, r.buf[r.next:])
	r.next = 0
	got, err := r.f.ReadAt(r.original[left:], r.at)
	r.at += int64(got)
	r.buf = r.original[:left+got]
	if err != nil && !errors.Is(err, io.EOF) {
		r.stop(err.Error())
	}
	return len(r.buf) >= n
}

// end is the end of the file: of the replay, or of a pass.
func (r *replayer) end() {
	if r.ended {
		return
	}
	if len(r.buf) > r.next {
		r.c[replayTruncated].add(1)
	}
	if !r.loop || !r.any {
		// A pass without a frame would have no end.
		r.ended = true
		return
	}
	r.c[replayLoops].add(1)
	r.rewind()
}

// stop ends the replay for good: behind what cannot be read nothing is found.
func (r *replayer) stop(why string) {
	r.ended = true
	r.stopped.Store(&why)
}

func (r *replayer) err() error {
	if why := r.stopped.Load(); why != nil {
		return fmt.Errorf("pcap: replay %s: %s", r.name, *why)
	}
	return nil
}
