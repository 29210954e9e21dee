package tap

import (
	"bytes"
	"encoding/binary"
	"errors"
	"slices"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/port"
	"github.com/vhostnet/vhostnet/virtio"
)

// fakeBatch plays a script: one errno per request, 0 behind its end. What is read
// is in next, one frame a request.
type fakeBatch struct {
	script []syscall.Errno
	next   [][]byte
	reads  bool
	iovs   [][]unix.Iovec
	sent   []int // sizes of frames that were taken
	asked  []int // requests of each submission
	closed bool
}

func (f *fakeBatch) Entries() int                 { return 64 }
func (f *fakeBatch) Readv(_ int, i []unix.Iovec)  { f.reads, f.iovs = true, append(f.iovs, i) }
func (f *fakeBatch) Writev(_ int, i []unix.Iovec) { f.reads, f.iovs = false, append(f.iovs, i) }
func (f *fakeBatch) Close() error                 { f.closed = true; return nil }
func (f *fakeBatch) put(frames ...[]byte)         { f.next = append(f.next, frames...) }
func (f *fakeBatch) play(errnos ...syscall.Errno) { f.script = errnos }
func bytesOf(iov unix.Iovec) []byte               { return bytesAt(iov.Base, iov.Len) }
func numbered(n int, size int) (frames [][]byte) {
	for i := range n {
		frames = append(frames, withHeader(virtio.NetHeaderLen, frame(size, uint32(i))))
	}
	return frames
}

func (f *fakeBatch) Submit() (sizes []int, errs []syscall.Errno) {
	f.asked = append(f.asked, len(f.iovs))
	for _, iov := range f.iovs {
		var errno syscall.Errno
		if len(f.script) > 0 {
			errno, f.script = f.script[0], f.script[1:]
		}
		n := 0
		switch {
		case errno != 0:
		case !f.reads:
			for _, v := range iov {
				n += int(v.Len)
			}
			f.sent = append(f.sent, n)
		case len(f.next) == 0:
			errno = unix.EAGAIN
		default:
			n = copy(bytesOf(iov[0]), f.next[0])
			f.next = f.next[1:]
		}
		sizes, errs = append(sizes, n), append(errs, errno)
	}
	f.iovs = nil
	return sizes, errs
}

// What happens to each frame of a batch, and that none overtakes one that is to be
// sent again.
func TestSendBatch(t *testing.T) {
	const (
		ok      = syscall.Errno(0)
		blocked = unix.EAGAIN
	)
	for _, tt := range []struct {
		name   string
		batch  []syscall.Errno // of the batch
		single []result        // of frames that are tried again
		want   []error
		tries  int // how many were
	}{
		{"all", nil, nil, []error{nil, nil, nil, nil}, 0},
		{"refused", []syscall.Errno{ok, unix.EINVAL, ok, unix.EIO}, nil, []error{nil, unix.EINVAL, nil, unix.EIO}, 0},
		{"full at the end", []syscall.Errno{ok, ok, blocked, blocked}, []result{{errno: blocked}}, []error{nil, nil, port.ErrWouldBlock, port.ErrWouldBlock}, 1},
		{"full at once", []syscall.Errno{blocked, blocked, blocked, blocked}, []result{{errno: blocked}}, []error{port.ErrWouldBlock, port.ErrWouldBlock, port.ErrWouldBlock, port.ErrWouldBlock}, 1},
		{"room again", []syscall.Errno{ok, blocked, blocked, blocked}, nil, []error{nil, nil, nil, nil}, 3},
		{"overtaken", []syscall.Errno{ok, blocked, ok, ok}, []result{{errno: blocked}}, []error{nil, port.ErrDropped, nil, nil}, 1},
		{"overtaken, room again", []syscall.Errno{ok, blocked, ok, ok}, nil, []error{nil, nil, nil, nil}, 1},
		{"refused behind a full one", []syscall.Errno{ok, blocked, unix.EINVAL, blocked}, []result{{errno: blocked}}, []error{nil, port.ErrWouldBlock, port.ErrWouldBlock, port.ErrWouldBlock}, 1},
		{"not begun", []syscall.Errno{ok, unix.ECANCELED, unix.ECANCELED, unix.ECANCELED}, nil, []error{nil, nil, nil, nil}, 3},
		{"interrupted", []syscall.Errno{ok, unix.EINTR, ok, ok}, nil, []error{nil, nil, nil, nil}, 1},
	} {
		f, b := &fake{t: t}, &fakeBatch{}
		q := newQueue(f, b, -1)
		b.play(tt.batch...)
		f.script = tt.single
		var frames [][][]byte
		for i, whole := range numbered(len(tt.want), 60) {
			frames = append(frames, [][]byte{whole[:12+i], whole[12+i:]})
		}
		errs := make([]error, len(frames))
		q.SendBatch(frames, errs)
		for i, err := range errs {
			if !errors.Is(err, tt.want[i]) || err != nil && tt.want[i] == nil {
				t.Errorf("%s: frame %d: %v, want %v", tt.name, i, err, tt.want[i])
			}
		}
		if len(f.calls) != tt.tries {
			t.Errorf("%s: %d frames were tried again", tt.name, len(f.calls))
		}
		for _, v := range q.iov[:cap(q.iov)] {
			if v.Base != nil {
				t.Fatalf("%s: memory of the guest's is remembered", tt.name)
			}
		}
	}
}

// Frames that do not fit into a batch go out between others, in their place.
func TestSendBatchOddFrames(t *testing.T) {
	f, b := &fake{t: t}, &fakeBatch{}
	q := newQueue(f, b, -1)
	small, pieces, huge := make([]byte, 72), split(make([]byte, 5000), 4), make([]byte, frameRoom+1)
	frames := [][][]byte{{small}, {small, small}, pieces, {small}, {}, {huge}, {small}, {small}}
	for range 100 {
		frames = append(frames, [][]byte{small})
	}
	errs := make([]error, len(frames))
	q.SendBatch(frames, errs)
	for i, err := range errs {
		if odd := i == 4 || i == 5; odd != errors.Is(err, port.ErrDropped) || !odd && err != nil {
			t.Errorf("frame %d: %v", i, err)
		}
	}
	if len(b.sent)+len(f.sent) != len(frames)-2 || len(f.calls) > 3 {
		t.Errorf("%d sent in batches, %d alone, with %v", len(b.sent), len(f.sent), f.calls)
	}
}

// Long frames go in small batches: a system call must not take long.
func TestSendBatchOfLongFrames(t *testing.T) {
	b := &fakeBatch{}
	q := newQueue(&fake{t: t}, b, -1)
	var frames [][][]byte
	for range 20 {
		frames = append(frames, [][]byte{make([]byte, 60000)})
	}
	q.SendBatch(frames, make([]error, len(frames)))
	if len(b.sent) != len(frames) || slices.Max(b.asked)*60000 > maxBatchBytes+60000 {
		t.Errorf("%d frames were sent, %v in a batch", len(b.sent), b.asked)
	}
}

// A kernel that cannot tell that a TAP would block is not asked again.
func TestBatchesGivenUp(t *testing.T) {
	frames := [][][]byte{{make([]byte, 72)}, {make([]byte, 72)}}
	errs := make([]error, 2)
	f, b := &fake{t: t, next: make([]byte, 72)}, &fakeBatch{}
	q := newQueue(f, b, -1)
	b.play(unix.EOPNOTSUPP, unix.EOPNOTSUPP)
	q.SendBatch(frames, errs)
	if errors.Join(errs...) != nil || !b.closed || q.batch != nil || len(f.calls) != 2 {
		t.Errorf("%v, calls %v", errs, f.calls)
	}
	b = &fakeBatch{}
	q = newQueue(f, b, -1)
	b.play(unix.EOPNOTSUPP, unix.EOPNOTSUPP)
	if n, err := q.Recv([][]byte{make([]byte, frameRoom)}); err != nil || n != 72 || !b.closed {
		t.Errorf("%d, %v", n, err)
	}
	if err := q.close(); err != nil {
		t.Error(err)
	}
}

// Frames come in order and whole, and the queue looks no further behind the last
// one until something is reported.
func TestReadAhead(t *testing.T) {
	b := &fakeBatch{}
	q := newQueue(&fake{t: t}, b, -1)
	t.Cleanup(func() {
		if err := q.close(); err != nil {
			t.Error(err)
		}
	})
	const frames = 200
	b.put(numbered(frames, 100)...)
	buf := make([]byte, 2000)
	for i := range frames {
		n, err := q.Recv([][]byte{buf[:12], buf[12:50], buf[50:]})
		if err != nil || n != 112 || binary.BigEndian.Uint32(buf[26:]) != uint32(i) {
			t.Fatalf("frame %d: %d bytes, %v", i, n, err)
		}
	}
	if calls := len(b.asked); calls > 12 || slices.Max(b.asked) != maxAhead {
		t.Errorf("%d calls, with %v requests", calls, b.asked)
	}
	recv := func() error { _, err := q.Recv([][]byte{buf}); return err }
	calls := len(b.asked)
	if err := recv(); err != port.ErrWouldBlock {
		t.Fatal(err)
	}
	if len(b.asked) != calls {
		t.Error("it has looked again")
	}
	// A frame that comes now is reported, or looked for.
	b.put(numbered(1, 100)...)
	if err := recv(); err != nil {
		t.Error(err)
	}
	// Reported between the last look and the next Recv.
	b.put(numbered(1, 100)...)
	q.Readable()
	if err := recv(); err != nil {
		t.Error(err)
	}
	if err := recv(); err != port.ErrWouldBlock {
		t.Error(err)
	}
	// A few frames at a time need a few requests.
	if n := b.asked[len(b.asked)-1]; n > 4 {
		t.Errorf("%d requests for one frame", n)
	}
	// Losses in between hold up nothing.
	b.put(numbered(3, 100)...)
	q.Readable()
	b.play(0, unix.ENOMEM, 0, unix.EAGAIN)
	got := [2]int{}
	for range 10 {
		switch err := recv(); {
		case err == nil:
			got[0]++
		case errors.Is(err, port.ErrDropped):
			got[1]++
		case !errors.Is(err, port.ErrWouldBlock):
			t.Fatal(err)
		}
		q.Readable()
	}
	if got != [2]int{3, 1} {
		t.Errorf("%d received, %d lost", got[0], got[1])
	}
	// What was read for the last driver is not for the next one.
	b.put(numbered(5, 100)...)
	if err := recv(); err != nil {
		t.Error(err)
	}
	left := len(b.next)
	q.era.Add(1)
	b.put(numbered(1, 300)...)
	for range left + 1 {
		n, err := q.Recv([][]byte{buf})
		if err != nil || n == 112 && left == 0 {
			t.Fatal(n, err)
		}
	}
	if err := recv(); err != port.ErrWouldBlock {
		t.Error(err)
	}
}

// Long frames are read straight into the driver's memory, until there are none.
func TestReadAheadBulk(t *testing.T) {
	f, b := &fake{t: t, next: make([]byte, 72)}, &fakeBatch{}
	q := newQueue(f, b, -1)
	t.Cleanup(func() {
		if err := q.close(); err != nil {
			t.Error(err)
		}
	})
	long := withHeader(virtio.NetHeaderLen, bytes.Repeat([]byte{7}, 60000))
	b.put(long)
	buf := make([]byte, frameRoom)
	if n, err := q.Recv([][]byte{buf[:1500], buf[1500:]}); err != nil || n != len(long) || !bytes.Equal(buf[:n], long) {
		t.Fatal(n, err)
	}
	if n, err := q.Recv([][]byte{buf[:100]}); err != port.ErrWouldBlock {
		t.Fatal(n, err)
	}
	for range bulkFrames {
		if n, err := q.Recv([][]byte{buf}); err != nil || n != 72 {
			t.Fatal(n, err)
		}
	}
	if len(f.calls) != bulkFrames {
		t.Errorf("%d frames were read alone", len(f.calls))
	}
	b.put(numbered(1, 100)...)
	if n, err := q.Recv([][]byte{buf}); err != nil || n != 112 {
		t.Fatal(n, err)
	}
	// Too long for what is offered, and lost, but not its successor.
	b.put(long, numbered(1, 100)[0])
	q.Readable()
	if n, err := q.Recv([][]byte{buf[:1000]}); !errors.Is(err, port.ErrTruncated) || n != len(long) {
		t.Fatal(n, err)
	}
	if n, err := q.Recv([][]byte{buf[:1000]}); err != nil || n != 112 {
		t.Fatal(n, err)
	}
}

// A TAP with batches, while workers read and write and the port is configured.
func TestBatchesUnderChange(t *testing.T) {
	namespace(t)
	p := open(t, "vn0", Options{CreateIfMissing: true, IO: IOBatch})
	if p.IO() != "io_uring" {
		t.Fatal(p.IO())
	}
	h := packet(t, "vn0", etherType)
	configure(t, p, virtio.NetHeaderLen, 0)
	done := make(chan int)
	stop := time.Now().Add(300 * time.Millisecond)
	go func() {
		q, buf, got := polled(p, 0), make([]byte, frameRoom), 0
		for time.Now().Before(stop) {
			n, err := q.Recv([][]byte{buf})
			if err == nil && n == 112 {
				got++
			}
		}
		done <- got
	}()
	for i := 0; time.Now().Before(stop); i++ {
		h.send(frame(100, uint32(i)))
		if i%16 == 0 {
			configure(t, p, virtio.NetHeaderLen, virtio.FeatureGuestCSum*virtio.Features(i/16%2))
		}
	}
	if got := <-done; got == 0 {
		t.Error("nothing has arrived")
	}
}
