package tap

import (
	"bytes"
	"errors"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/guestmem"
	"github.com/vhostnet/vhostnet/port"
)

// fake is a layer that plays a script and records what reached the kernel.
type fake struct {
	t      *testing.T
	script []result // one per call; an empty script takes or gives everything
	next   []byte   // the frame to be read
	sent   [][]byte
	calls  []string
	iovs   int // segments of the last vector call
}

type result struct {
	n     int // 0: everything
	errno syscall.Errno
}

func (f *fake) play(size int) (int, syscall.Errno) {
	if len(f.script) == 0 {
		return size, 0
	}
	r := f.script[0]
	f.script = f.script[1:]
	if r.n == 0 && r.errno == 0 {
		r.n = size
	}
	return r.n, r.errno
}

func (f *fake) read(_ int, b []byte) (int, syscall.Errno) {
	f.calls = append(f.calls, "read")
	n, errno := f.play(min(len(b), len(f.next)))
	if errno == 0 {
		copy(b[:n], f.next)
	}
	return n, errno
}

func (f *fake) write(_ int, b []byte) (int, syscall.Errno) {
	f.calls = append(f.calls, "write")
	n, errno := f.play(len(b))
	if errno == 0 {
		f.sent = append(f.sent, bytes.Clone(b[:n]))
	}
	return n, errno
}

func (f *fake) readv(_ int, iov []unix.Iovec) (int, syscall.Errno) {
	f.calls = append(f.calls, "readv")
	f.iovs = len(iov)
	room := 0
	for _, v := range iov {
		room += int(v.Len)
	}
	n, errno := f.play(min(room, len(f.next)))
	return n, errno
}

func (f *fake) writev(_ int, iov []unix.Iovec) (int, syscall.Errno) {
	f.calls = append(f.calls, "writev")
	f.iovs = len(iov)
	size := 0
	for _, v := range iov {
		size += int(v.Len)
	}
	n, errno := f.play(size)
	if errno == 0 {
		f.sent = append(f.sent, make([]byte, n))
	}
	return n, errno
}

// split cuts b into pieces of n bytes.
func split(b []byte, n int) (list [][]byte) {
	for p := range slices.Chunk(b, n) {
		list = append(list, p)
	}
	return list
}

func TestSendErrors(t *testing.T) {
	f := &fake{t: t}
	q := newQueue(f, nil, -1)
	for _, tt := range []struct {
		name   string
		script []result
		want   error
		sent   int
		calls  int
	}{
		{"taken", nil, nil, 1, 1},
		{"interrupted", []result{{errno: unix.EINTR}, {errno: unix.EINTR}}, nil, 1, 3},
		{"full", []result{{errno: unix.EAGAIN}}, port.ErrWouldBlock, 0, 1},
		{"no buffers", []result{{errno: unix.ENOBUFS}}, port.ErrDropped, 0, 1},
		{"bad header", []result{{errno: unix.EINVAL}}, unix.EINVAL, 0, 1},
		{"link down", []result{{errno: unix.EIO}}, unix.EIO, 0, 1},
		{"too large", []result{{errno: unix.EMSGSIZE}}, port.ErrDropped, 0, 1},
		{"no memory", []result{{errno: unix.ENOMEM}}, port.ErrDropped, 0, 1},
		{"deleted", []result{{errno: unix.EBADFD}}, port.ErrDropped, 0, 1},
		{"unheard of", []result{{errno: 4000}}, port.ErrDropped, 0, 1},
		{"guest memory", []result{{errno: unix.EFAULT}}, guestmem.ErrFault, 0, 1},
		{"short", []result{{n: 20}}, port.ErrDropped, 1, 1},
	} {
		for _, bufs := range [][][]byte{{make([]byte, 72)}, {make([]byte, 12), make([]byte, 60)}} {
			f.script, f.sent, f.calls = tt.script, nil, nil
			if err := q.Send(bufs); !errors.Is(err, tt.want) {
				t.Errorf("%s, %d buffers: %v, want %v", tt.name, len(bufs), err, tt.want)
			}
			if len(f.sent) != tt.sent || len(f.calls) != tt.calls {
				t.Errorf("%s, %d buffers: %d sent in %d calls", tt.name, len(bufs), len(f.sent), len(f.calls))
			}
		}
	}
}

// Every third write finds no room, every fifth is interrupted, every seventh
// frame is refused: each frame must go out at most once, and none be lost that
// the kernel did not refuse.
func TestSendNeitherLosesNorRepeats(t *testing.T) {
	f := &fake{t: t}
	q := newQueue(f, nil, -1)
	var want [][]byte
	call := 0
	for seq := range 1000 {
		b := frame(60, uint32(seq))
		for done := false; !done; {
			call++
			f.script = nil
			if call%5 == 0 {
				f.script = append(f.script, result{errno: unix.EINTR})
			}
			refuse := seq%7 == 6
			switch {
			case call%3 == 0:
				f.script = append(f.script, result{errno: unix.EAGAIN})
			case refuse:
				f.script = append(f.script, result{errno: unix.ENOBUFS})
			default:
				f.script = append(f.script, result{})
			}
			err := q.Send([][]byte{b})
			switch done = true; {
			case err == nil:
				want = append(want, b)
			case errors.Is(err, port.ErrWouldBlock):
				done = false
			case !refuse || !errors.Is(err, port.ErrDropped):
				t.Fatalf("frame %d: %v", seq, err)
			}
		}
	}
	if !slices.EqualFunc(f.sent, want, bytes.Equal) {
		t.Errorf("%d frames were sent, want %d, in order", len(f.sent), len(want))
	}
}

func TestSendSegments(t *testing.T) {
	f := &fake{t: t}
	q := newQueue(f, nil, -1)
	data := frame(4096, 7)
	for _, tt := range []struct {
		bufs [][]byte
		call string
		iovs int
		size int
	}{
		{[][]byte{data}, "write", 0, 4096},
		{[][]byte{nil, data, {}}, "write", 0, 4096},
		{split(data, 2048), "writev", 2, 4096},
		{split(data, 4), "writev", 1024, 4096},
		{append([][]byte{{}, nil}, split(data, 4)...), "writev", 1024, 4096},
		{append(split(data[:4092], 4), split(data[4092:], 2)...), "write", 0, 4096},
		{split(data, 1), "write", 0, 4096},
	} {
		f.sent, f.calls, f.iovs = nil, nil, 0
		if err := q.Send(tt.bufs); err != nil {
			t.Fatal(err)
		}
		if !slices.Equal(f.calls, []string{tt.call}) || f.iovs != tt.iovs {
			t.Errorf("%d buffers: calls %v with %d segments, want %s with %d", len(tt.bufs), f.calls, f.iovs, tt.call, tt.iovs)
		}
		if len(f.sent[0]) != tt.size || tt.call == "write" && !bytes.Equal(f.sent[0], data) {
			t.Errorf("%d buffers: the frame is not what was to be sent", len(tt.bufs))
		}
	}

	f.calls = nil
	for _, bufs := range [][][]byte{nil, {}, {nil}, {{}, {}}, {make([]byte, frameRoom+1)}, split(make([]byte, frameRoom+1), 13)} {
		if err := q.Send(bufs); !errors.Is(err, port.ErrDropped) {
			t.Errorf("%d buffers: %v, want dropped", len(bufs), err)
		}
	}
	if len(f.calls) != 0 {
		t.Errorf("%v for frames that cannot be sent", f.calls)
	}
}

func TestRecvErrors(t *testing.T) {
	f := &fake{t: t, next: make([]byte, 72)}
	q := newQueue(f, nil, -1)
	for _, tt := range []struct {
		name   string
		script []result
		want   error
	}{
		{"frame", nil, nil},
		{"interrupted", []result{{errno: unix.EINTR}}, nil},
		{"empty", []result{{errno: unix.EAGAIN}}, port.ErrWouldBlock},
		{"guest memory", []result{{errno: unix.EFAULT}}, guestmem.ErrFault},
		{"no memory", []result{{errno: unix.ENOMEM}}, port.ErrDropped},
		{"deleted", []result{{errno: unix.EBADFD}}, ErrGone},
	} {
		for _, bufs := range [][][]byte{
			{make([]byte, 2000)},
			{make([]byte, frameRoom)},
			split(make([]byte, frameRoom), 4096),
			split(make([]byte, 2048), 1),
		} {
			f.script = tt.script
			n, err := q.Recv(bufs)
			if !errors.Is(err, tt.want) || err == nil && n != 72 {
				t.Errorf("%s, %d buffers: %d, %v; want %v", tt.name, len(bufs), n, err, tt.want)
			}
		}
	}
}

func TestRecvRoom(t *testing.T) {
	f := &fake{t: t}
	q := newQueue(f, nil, -1)
	for _, tt := range []struct {
		size, room, piece int
		call              string
		iovs              int
		cut               bool
	}{
		{72, frameRoom, frameRoom, "read", 0, false},
		{frameRoom - 1, frameRoom, frameRoom, "read", 0, false},
		{frameRoom, frameRoom, frameRoom, "read", 0, true}, // may have been longer
		{72, 72, 72, "readv", 2, false},
		{73, 72, 72, "readv", 2, true},
		{1526, 112, 112, "readv", 2, true},
		{72, 0, 1, "readv", 1, true},
		{1526, 1530, 512, "readv", 4, false},
		{65562, frameRoom + 2, 32790, "readv", 2, false},
		{1023, 1023, 1, "readv", 1024, false},
		{1024, 1023, 1, "readv", 1024, true},
		{1024, 1024, 1, "read", 0, false},
		{1025, 1024, 1, "read", 0, true},
		{2000, 2000, 1, "read", 0, false},
	} {
		f.next, f.calls, f.iovs = frame(max(tt.size, 18), 9)[:tt.size], nil, 0
		f.next[0] = 0
		buf := make([]byte, tt.room)
		n, err := q.Recv(split(buf, tt.piece))
		if tt.cut != errors.Is(err, port.ErrTruncated) || !tt.cut && err != nil || n != tt.size {
			t.Errorf("%d bytes into %d: %d, %v", tt.size, tt.room, n, err)
		}
		if !slices.Equal(f.calls, []string{tt.call}) || f.iovs != tt.iovs {
			t.Errorf("%d bytes into %d: calls %v with %d segments", tt.size, tt.room, f.calls, f.iovs)
		}
		if tt.call == "read" && !tt.cut && !bytes.Equal(buf[:n], f.next) {
			t.Errorf("%d bytes into %d: other bytes than those read", tt.size, tt.room)
		}
	}
}

// Nothing of the guest's memory may stay in the segment array: it can be
// unmapped at any time, and its addresses be used for something else.
func TestSegmentsAreForgotten(t *testing.T) {
	q := newQueue(&fake{t: t, next: make([]byte, 72)}, nil, -1)
	if err := q.Send(split(make([]byte, 4096), 64)); err != nil {
		t.Fatal(err)
	}
	if _, err := q.Recv(split(make([]byte, 4096), 32)); err != nil {
		t.Fatal(err)
	}
	for i, v := range q.iov[:cap(q.iov)] {
		if v != (unix.Iovec{}) {
			t.Fatalf("segment %d still points somewhere", i)
		}
	}
}

type quiet struct{ errno syscall.Errno }

func (s quiet) read(int, []byte) (int, syscall.Errno)        { return 72, s.errno }
func (s quiet) write(int, []byte) (int, syscall.Errno)       { return 72, s.errno }
func (s quiet) readv(int, []unix.Iovec) (int, syscall.Errno) { return 72, s.errno }
func (s quiet) writev(_ int, v []unix.Iovec) (int, syscall.Errno) {
	return len(v) * int(v[0].Len), s.errno
}

func TestNoAllocations(t *testing.T) {
	whole := [][]byte{make([]byte, 2048)}
	parts := split(make([]byte, 2048), 64)
	many := split(make([]byte, 2048), 1)
	out := [][]byte{make([]byte, 72)}
	for _, errno := range []syscall.Errno{0, unix.EAGAIN, unix.EINVAL, unix.EIO, unix.EFAULT, 4000} {
		q := newQueue(quiet{errno}, nil, -1)
		n := testing.AllocsPerRun(100, func() {
			for _, bufs := range [][][]byte{whole, parts, many} {
				_, err := q.Recv(bufs)
				_ = errors.Is(err, port.ErrWouldBlock) || errors.Is(err, guestmem.ErrFault)
			}
			for _, bufs := range [][][]byte{out, parts, many} {
				err := q.Send(bufs)
				_ = errors.Is(err, port.ErrWouldBlock) || errors.Is(err, port.ErrDropped)
			}
		})
		if n != 0 {
			t.Errorf("%v: %v allocations", errno, n)
		}
	}
}

// The kernel marks frames DATA_VALID whatever was asked of it: a driver without
// GUEST_CSUM must not see that.
func TestHeaderFlags(t *testing.T) {
	f := &fake{t: t, next: append([]byte{2, 0}, make([]byte, 70)...)}
	q := newQueue(f, nil, -1)
	for _, plain := range []bool{true, false} {
		q.plain.Store(plain)
		for _, pieces := range []int{1, frameRoom} {
			buf := make([]byte, frameRoom)
			bufs := append([][]byte{nil}, split(buf[:min(frameRoom, pieces*2000)], pieces)...)
			if n, err := q.Recv(bufs); err != nil || n != 72 {
				t.Fatal(n, err)
			}
			if buf[0] != 0 && plain || buf[0] != 2 && !plain {
				t.Errorf("plain %t, pieces of %d: flags %d", plain, pieces, buf[0])
			}
		}
	}
}
