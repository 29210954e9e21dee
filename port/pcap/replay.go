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
	start int64 // where records begin
	// ng: the file has blocks, not records. linkTypes are those of the interfaces of
	// this section, and snap is the first one's limit of bytes, 0 for none.
	ng        bool
	linkTypes []uint16
	snap      uint32

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
	head := r.original[:n]
	if r.ng = isNG(head); r.ng {
		r.linkTypes = make([]uint16, 0, maxInterfaces)
		r.order, err = orderNG(head)
	} else {
		r.start = fileHeader
		r.order, err = order(head)
	}
	if err != nil {
		return nil, err
	}
	r.rewind()
	return r, nil
}

func (r *replayer) rewind() {
	r.buf, r.next, r.at, r.ended, r.any = r.original[:0], 0, r.start, false, false
}

// frame returns the next frame, valid until the next call.
func (r *replayer) frame() ([]byte, error) {
	if era := r.era.Load(); era != r.seen {
		r.seen = era
		r.rewind()
	}
	for n := 0; !r.ended; n++ {
		if n == maxBlocks {
			return nil, errBlocks // for others to have their turn
		}
		read := r.record
		if r.ng {
			read = r.block
		}
		f, was, ok := read()
		switch {
		case !ok:
			continue
		case len(f) < ethHeader || len(f) > maxFrame:
			r.c[replayBad].add(1)
			return nil, errSize
		case uint64(len(f)) < uint64(was):
			r.c[replayCut].add(1)
			return nil, errCut
		}
		r.any = true
		r.c[replayed].add(1)
		return f, nil
	}
	return nil, port.ErrWouldBlock
}

// record reads a record of a classic file: a frame, and how long it was before it was
// cut. It returns false where there is none.
func (r *replayer) record() (f []byte, was uint32, ok bool) {
	if !r.fill(recordHeader) {
		r.end()
		return nil, 0, false
	}
	head := r.buf[r.next:]
	size, was := r.order.Uint32(head[8:]), r.order.Uint32(head[12:])
	return r.take(recordHeader, size, int64(recordHeader)+int64(size), was)
}

// take takes size bytes, off bytes from here, out of a record or block of so many
// bytes in all.
func (r *replayer) take(off int, size uint32, all int64, was uint32) ([]byte, uint32, bool) {
	if size > maxSnap {
		r.stop(fmt.Sprintf("a record of %d bytes before offset %d", size, r.at))
		return nil, 0, false
	}
	if !r.fill(off + int(size)) {
		r.end()
		return nil, 0, false
	}
	f := r.buf[r.next+off:][:size]
	r.skip(all)
	return f, was, true
}

// skip goes on behind so many bytes.
func (r *replayer) skip(n int64) {
	have := int64(len(r.buf) - r.next)
	r.next += int(min(n, have))
	r.at += max(n-have, 0)
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
