package uring_test

import (
	"bytes"
	"errors"
	"fmt"
	"os"
	"slices"
	"syscall"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/internal/uring"
)

func newRing(t *testing.T, entries int) *uring.Ring {
	t.Helper()
	r, err := uring.New(entries)
	if errors.Is(err, unix.ENOSYS) || errors.Is(err, unix.EPERM) {
		const how = "nobody may use io_uring here: as root, sysctl kernel.io_uring_disabled=0 on Linux 5.18 or later, then go test ./internal/uring"
		if os.Getenv("CI") != "" {
			t.Fatal(how, ": ", err)
		}
		t.Skip(how, ": ", err)
	}
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := r.Close(); err != nil {
			t.Error(err)
		}
	})
	return r
}

// packets is a pair of sockets that keep the borders between messages.
func packets(t *testing.T) [2]int {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_SEQPACKET|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		for _, fd := range fds {
			if err := unix.Close(fd); err != nil {
				t.Error(err)
			}
		}
	})
	return fds
}

func vec(parts ...[]byte) (iov []unix.Iovec) {
	for _, p := range parts {
		v := unix.Iovec{Base: &p[0]}
		v.SetLen(len(p))
		iov = append(iov, v)
	}
	return iov
}

// Messages go out and come in as they were, in order, over many turns of the rings,
// and what would block says so at once.
func TestMessages(t *testing.T) {
	const entries = 8
	r, fds := newRing(t, entries-1), packets(t)
	if r.Entries() != entries {
		t.Fatalf("%d entries", r.Entries())
	}
	seq := 0
	for turn := range 1000 {
		n := turn%entries + 1
		for i := range n {
			m := fmt.Appendf(nil, "message %d", seq+i)
			r.Writev(fds[0], vec(m[:3], m[3:]))
		}
		sizes, errs := r.Submit()
		for i := range n {
			if want := len(fmt.Sprintf("message %d", seq+i)); errs[i] != 0 || sizes[i] != want {
				t.Fatalf("write %d of turn %d: %d bytes, %v", i, turn, sizes[i], errs[i])
			}
		}
		bufs := make([][]byte, entries)
		for i := range bufs {
			bufs[i] = make([]byte, 64)
			r.Readv(fds[1], vec(bufs[i][:1], bufs[i][1:]))
		}
		sizes, errs = r.Submit()
		if len(sizes) != entries || len(errs) != entries {
			t.Fatalf("%d sizes, %d errors", len(sizes), len(errs))
		}
		for i := range entries {
			switch {
			case i >= n:
				if errs[i] != unix.EAGAIN {
					t.Fatalf("read %d of turn %d: %d bytes, %v", i, turn, sizes[i], errs[i])
				}
			case errs[i] != 0 || !bytes.Equal(bufs[i][:sizes[i]], fmt.Appendf(nil, "message %d", seq+i)):
				t.Fatalf("read %d of turn %d: %q, %v", i, turn, bufs[i], errs[i])
			}
		}
		seq += n
	}
	if sizes, errs := r.Submit(); len(sizes) != 0 || len(errs) != 0 {
		t.Error("something came of nothing")
	}
}

// A request that fails says why and holds up none of the others.
func TestFailures(t *testing.T) {
	r, fds := newRing(t, 8), packets(t)
	good := []byte("good")
	bad := []unix.Iovec{{Base: nil, Len: 10}}
	r.Writev(fds[0], vec(good))
	r.Writev(-1, vec(good))
	r.Writev(fds[0], bad)
	r.Writev(fds[0], vec(good))
	_, errs := r.Submit()
	if want := []syscall.Errno{0, unix.EBADF, unix.EFAULT, 0}; !slices.Equal(errs, want) {
		t.Errorf("%v, want %v", errs, want)
	}
	var got int
	for {
		if _, err := unix.Read(fds[1], make([]byte, 10)); err != nil {
			break
		}
		got++
	}
	if got != 2 {
		t.Errorf("%d messages have arrived", got)
	}
}

// A full socket refuses what it has no room for, and everything else is there.
func TestFull(t *testing.T) {
	r, fds := newRing(t, 64), packets(t)
	sent := 0
	for full := false; !full; {
		m := make([]byte, 1000)
		for range 64 {
			r.Writev(fds[0], vec(m))
		}
		_, errs := r.Submit()
		for _, err := range errs {
			switch {
			case err == unix.EAGAIN:
				full = true
			case err != 0 || full:
				t.Fatalf("after %d: %v", sent, err)
			default:
				sent++
			}
		}
	}
	got := 0
	for ; ; got++ {
		if _, err := unix.Read(fds[1], make([]byte, 2000)); err != nil {
			break
		}
	}
	if sent == 0 || got != sent {
		t.Errorf("%d sent, %d received", sent, got)
	}
}

func TestNew(t *testing.T) {
	for _, n := range []int{-1, 0, uring.MaxEntries + 1} {
		if r, err := uring.New(n); err == nil {
			_ = r.Close()
			t.Errorf("%d entries", n)
		}
	}
	newRing(t, uring.MaxEntries)
}

func TestNoAllocations(t *testing.T) {
	r, fds := newRing(t, 4), packets(t)
	out, in := vec([]byte("message")), vec(make([]byte, 64))
	n := testing.AllocsPerRun(100, func() {
		r.Writev(fds[0], out)
		r.Readv(fds[1], in)
		r.Readv(fds[1], in)
		if _, errs := r.Submit(); errs[0] != 0 || errs[1] != 0 || errs[2] != unix.EAGAIN {
			t.Fatal(errs)
		}
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}
