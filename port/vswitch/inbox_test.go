package vswitch

import (
	"encoding/binary"
	"fmt"
	"runtime"
	"runtime/debug"
	"sync"
	"testing"

	"golang.org/x/sys/unix"
)

func testInbox(t *testing.T) *inbox {
	t.Helper()
	b, err := newBell()
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = b.close() })
	return newInbox(b)
}

// Senders at once: what each of them got in arrives, whole and in its order.
func TestInboxManySenders(t *testing.T) {
	const senders, each = 4, 20_000
	q := testInbox(t)
	var wg sync.WaitGroup
	taken := make([]int, senders)
	for s := range senders {
		wg.Go(func() {
			var run [][]byte
			for n := 0; n < each; {
				run = run[:0]
				for k := range 1 + (n+s)%64 {
					f := make([]byte, 16+(n+k)*37%1500)
					for i := range f {
						f[i] = byte(s)
					}
					binary.BigEndian.PutUint32(f[4:], uint32(n+k))
					run = append(run, f)
				}
				got := 0
				if n%5 == 0 {
					if q.putWhole([][]byte{run[0][:7], run[0][7:]}, len(run[0]), n%2 == 0) {
						got = 1
					}
				} else {
					got = q.put(run)
				}
				n += got
				taken[s] += got
				if got == 0 {
					runtime.Gosched()
				}
			}
		})
	}
	done := make(chan struct{})
	go func() { wg.Wait(); close(done) }()
	next := make([]uint32, senders)
	total := 0
	receive := func() bool {
		e := q.peek()
		if e == nil {
			q.publish()
			runtime.Gosched()
			return false
		}
		f := q.buf[e.off : e.off+e.size]
		s := f[0]
		n := binary.BigEndian.Uint32(f[4:])
		if n != next[s] || int(e.size) != 16+int(n)*37%1500 || f[len(f)-1] != s || f[8] != s {
			t.Fatalf("frame %d of sender %d has %d bytes; %d was next", n, s, e.size, next[s])
		}
		next[s]++
		total++
		q.take(e)
		if total%17 == 0 {
			q.publish()
		}
		return true
	}
	for {
		select {
		case <-done:
			for receive() {
			}
			for s, n := range next {
				if int(n) != taken[s] || n < each {
					t.Errorf("%d frames of sender %d, which sent %d", n, s, taken[s])
				}
			}
			return
		default:
			receive()
		}
	}
}

// Positions go round at 2^32 without a frame being lost.
func TestInboxGoesRound(t *testing.T) {
	q := testInbox(t)
	start := pack(1<<32-500, 1<<32-inboxBytes)
	q.tail.Store(start)
	q.head.Store(start)
	q.next, q.bytes = 1<<32-500, 1<<32-inboxBytes
	f := make([]byte, 1000)
	for i := range 2000 {
		binary.BigEndian.PutUint32(f, uint32(i))
		if q.put([][]byte{f}) != 1 {
			t.Fatal(i)
		}
		e := q.peek()
		if e == nil || binary.BigEndian.Uint32(q.buf[e.off:]) != uint32(i) {
			t.Fatal(i, e)
		}
		q.take(e)
		q.publish()
	}
}

func TestInboxIsBounded(t *testing.T) {
	small := make([][]byte, 2*inboxFrames)
	for i := range small {
		small[i] = make([]byte, 60)
	}
	q := testInbox(t)
	if n := q.put(small); n != inboxFrames {
		t.Errorf("%d small frames", n)
	}
	if q.putWhole(small[:1], 60, true) {
		t.Error("one more")
	}
	q = testInbox(t)
	large := [][]byte{make([]byte, maxFrame)}
	n := 0
	for ; q.put(large) == 1; n++ {
	}
	if n != inboxBytes/(maxFrame+frameAlign) {
		t.Errorf("%d large frames", n)
	}
	if q.putWhole(large, maxFrame, true) {
		t.Error("one more")
	}
}

// A sender whose memory goes away gives up its place: the receiver gets what came
// before and what comes later.
func TestInboxSenderFaults(t *testing.T) {
	gone, err := unix.Mmap(-1, 0, 4096, unix.PROT_NONE, unix.MAP_PRIVATE|unix.MAP_ANON)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Munmap(gone) }()
	q := testInbox(t)
	faults := func(f func()) (caught bool) {
		defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
		defer func() { caught = recover() != nil }()
		f()
		return
	}
	good := []byte("a good frame of some bytes")
	if !faults(func() { q.put([][]byte{good, gone, good}) }) ||
		!faults(func() { q.putWhole([][]byte{good, gone}, len(good)+len(gone), true) }) {
		t.Fatal("no fault: the test tests nothing")
	}
	q.put([][]byte{[]byte("another good frame")})
	var got []string
	for e := q.peek(); e != nil; e = q.peek() {
		got = append(got, string(q.buf[e.off:e.off+e.size]))
		q.take(e)
	}
	if want := "[a good frame of some bytes another good frame]"; fmt.Sprint(got) != want {
		t.Errorf("%q", got)
	}
}

// A bell rings when the receiver sleeps, once, and never for a descriptor that is
// somebody else's.
func TestBell(t *testing.T) {
	q := testInbox(t)
	rung := func() uint64 {
		var b [8]byte
		if _, err := unix.Read(q.bell.fd, b[:]); err != nil {
			return 0
		}
		return binary.NativeEndian.Uint64(b[:])
	}
	f := [][]byte{make([]byte, 60)}
	q.put(f) // nobody has said that he is awake
	q.put(f)
	if n := rung(); n != 1 {
		t.Errorf("it rang %d times", n)
	}
	q.asleep.Store(1)
	q.put(f)
	q.put(f)
	if n := rung(); n != 1 {
		t.Errorf("it rang %d times", n)
	}
	if err := q.bell.close(); err != nil {
		t.Fatal(err)
	}
	other, err := unix.Eventfd(0, unix.EFD_NONBLOCK|unix.EFD_CLOEXEC) // the same number
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(other) }()
	q.asleep.Store(1)
	q.put(f)
	var b [8]byte
	if n, err := unix.Read(other, b[:]); err != unix.EAGAIN {
		t.Errorf("%d bytes, %v in a stranger's eventfd", n, err)
	}
}
