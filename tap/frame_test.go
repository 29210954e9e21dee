package tap

import (
	"bytes"
	"errors"
	"os"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/guestmem"
	"github.com/vhostnet/vhostnet/port"
	"github.com/vhostnet/vhostnet/virtio"
)

func TestFrames(t *testing.T) { bothWays(t, testFrames) }

func testFrames(t *testing.T, how IO) {
	namespace(t)
	p := open(t, "vn0", Options{CreateIfMissing: true, IO: how})
	h := packet(t, "vn0", etherType)
	q := polled(p, 0)
	for _, hdr := range []int{12, 10, 12} {
		configure(t, p, hdr, 0)
		for _, n := range []int{60, 61, 514, 1513, 1514} {
			want := frame(n, uint32(n))
			for _, piece := range []int{n + hdr, hdr, 7, 1} {
				if piece == 1 && n+hdr > 1200 {
					continue
				}
				if err := q.Send(split(withHeader(hdr, want), piece)); err != nil {
					t.Fatal(err)
				}
				if got := h.recv(); !bytes.Equal(got, want) {
					t.Fatalf("header %d, frame %d in pieces of %d: the host has\n% x", hdr, n, piece, got)
				}
			}

			h.send(want)
			got := receive(t, q)
			if len(got) != hdr+n || !bytes.Equal(got[hdr:], want) || !bytes.Equal(got[:10], make([]byte, 10)) {
				t.Fatalf("header %d, frame %d: the driver has\n% x", hdr, n, got)
			}
			for _, piece := range []int{200, 1} {
				h.send(want)
				buf := make([]byte, 1600)
				got, err := q.Recv(split(buf, piece))
				if err != nil || got != hdr+n || !bytes.Equal(buf[hdr:got], want) {
					t.Fatalf("header %d, frame %d in pieces of %d: %d, %v", hdr, n, piece, got, err)
				}
			}
		}
	}
	if err := p.Configure(16, 0); err == nil {
		t.Error("a header of 16 bytes is taken")
	}
}

// Fault case N03: a frame that does not fit is never taken for a whole one.
func TestTruncation(t *testing.T) { bothWays(t, testTruncation) }

func testTruncation(t *testing.T, how IO) {
	namespace(t)
	p := open(t, "vn0", Options{CreateIfMissing: true, IO: how})
	h, q := packet(t, "vn0", etherType), polled(p, 0)
	configure(t, p, 12, 0)
	for _, room := range []int{0, 1, 11, 12, 100, 525, 526, 527} {
		for _, piece := range []int{1, 13, 527} {
			h.send(frame(514, 1))
			n, err := q.Recv(split(make([]byte, room), piece))
			if n != 526 || errors.Is(err, port.ErrTruncated) != (room < 526) {
				t.Errorf("526 bytes into %d: %d, %v", room, n, err)
			}
			h.send(frame(60, 2))
			if got := receive(t, q); !bytes.Equal(got[12:], frame(60, 2)) {
				t.Errorf("after 526 bytes into %d: % x", room, got)
			}
		}
	}
	empty(t, q)
}

func TestKernelRefuses(t *testing.T) { bothWays(t, testKernelRefuses) }

func testKernelRefuses(t *testing.T, how IO) {
	namespace(t)
	p := open(t, "vn0", Options{CreateIfMissing: true, IO: how})
	h, q := packet(t, "vn0", etherType), polled(p, 0)
	configure(t, p, 12, p.Offloads())
	good := withHeader(12, frame(60, 3))
	bad := func(set func(b []byte)) []byte {
		b := bytes.Clone(good)
		set(b)
		return b
	}
	gone := truncated(t)
	for _, tt := range []struct {
		name string
		bufs [][]byte
		want error
	}{
		{"header only", [][]byte{good[:12]}, port.ErrDropped},
		{"half a header", [][]byte{good[:5]}, port.ErrDropped},
		{"runt", [][]byte{good[:12+13]}, port.ErrDropped},
		{"GSO type", [][]byte{bad(func(b []byte) { b[1], b[4] = 0x7F, 100 })}, port.ErrDropped},
		{"GSO size 0", [][]byte{bad(func(b []byte) { b[0], b[1] = 1, virtio.GSOTCPv4 })}, port.ErrDropped},
		{"checksum outside", [][]byte{bad(func(b []byte) { b[0], b[6], b[7] = 1, 0xFF, 0xFF })}, port.ErrDropped},
		{"everything", [][]byte{bad(func(b []byte) { copy(b, bytes.Repeat([]byte{0xFF}, 12)) })}, port.ErrDropped},
		{"memory is gone", [][]byte{good[:12], gone}, guestmem.ErrFault},
		{"memory is gone, one piece", [][]byte{gone}, guestmem.ErrFault},
	} {
		if err := q.Send(tt.bufs); !errors.Is(err, tt.want) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	h.send(frame(60, 4))
	if _, err := q.Recv([][]byte{gone, make([]byte, 100)}); !errors.Is(err, guestmem.ErrFault) {
		t.Errorf("read into memory that is gone: %v", err)
	}
	// The kernel tells of a fault in the header only. That loses the frame, and
	// nobody but the guest that took its memory away misses it.
	h.send(frame(60, 4))
	if n, err := q.Recv([][]byte{make([]byte, 12), gone}); err == nil && n != 72 {
		t.Errorf("read into memory that is gone behind the header: %d bytes", n)
	}
	if err := q.Send([][]byte{good}); err != nil {
		t.Error(err)
	}
	if got := h.recv(); !bytes.Equal(got, good[12:]) {
		t.Errorf("the host has % x", got)
	}
	if err := netlink.LinkSetDown(linkOf(t, "vn0")); err != nil {
		t.Fatal(err)
	}
	if err := q.Send([][]byte{good}); !errors.Is(err, unix.EIO) || !errors.Is(err, port.ErrDropped) {
		t.Errorf("link is down: %v", err)
	}
	if p.LinkUp() {
		t.Error("LinkUp, with a link that is down")
	}
	empty(t, q)
	if err := netlink.LinkDel(linkOf(t, "vn0")); err != nil {
		t.Fatal(err)
	}
	if err := q.Send([][]byte{good}); !errors.Is(err, port.ErrDropped) {
		t.Errorf("interface was deleted: %v", err)
	}
	if _, err := q.Recv([][]byte{make([]byte, 100)}); !errors.Is(err, ErrGone) {
		t.Errorf("interface was deleted: %v", err)
	}
	if p.LinkUp() {
		t.Error("LinkUp, with an interface that was deleted")
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

// truncated returns memory behind the end of a file that was cut short.
func truncated(t *testing.T) []byte {
	t.Helper()
	fd, err := unix.MemfdCreate("guest", unix.MFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer unix.Close(fd)
	page := os.Getpagesize()
	if err := unix.Ftruncate(fd, int64(page)); err != nil {
		t.Fatal(err)
	}
	b, err := unix.Mmap(fd, 0, page, unix.PROT_READ|unix.PROT_WRITE, unix.MAP_SHARED)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Munmap(b) })
	if err := unix.Ftruncate(fd, 0); err != nil {
		t.Fatal(err)
	}
	return b
}
