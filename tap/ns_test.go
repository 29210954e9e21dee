package tap

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"runtime"
	"runtime/debug"
	"testing"
	"time"

	"github.com/safchain/ethtool"
	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/guestmem"
	"github.com/vhostnet/vhostnet/port"
	"github.com/vhostnet/vhostnet/virtio"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds what a test waits for; nothing is measured against it.
const patience = 10 * time.Second

const etherType = 0x88B5

// namespace moves the test's thread to a network namespace of its own, in which
// the kernel sends nothing by itself.
func namespace(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("needs root: go test -exec sudo ./tap")
	}
	runtime.LockOSThread()
	before, err := netns.Get()
	if err != nil {
		t.Fatal(err)
	}
	fresh, err := netns.New()
	if err != nil {
		t.Fatal(err)
	}
	fresh.Close()
	t.Cleanup(func() {
		if err := netns.Set(before); err != nil {
			t.Fatal(err) // the thread stays locked, and ends with the goroutine
		}
		before.Close()
		runtime.UnlockOSThread()
	})
	// Below /proc/sys/net it is the opener's namespace that counts. A kernel
	// without IPv6 has nothing to silence.
	err = os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("1"), 0)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
}

func open(t testing.TB, name string, o Options) *Port {
	t.Helper()
	p, err := Open(name, o)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

func create(t testing.TB, name string, o CreateOptions) {
	t.Helper()
	if err := Create(name, o); err != nil {
		t.Fatal(err)
	}
}

func configure(t testing.TB, p *Port, hdrLen int, guest virtio.Features) {
	t.Helper()
	if err := p.Configure(hdrLen, guest); err != nil {
		t.Fatal(err)
	}
}

func linkOf(t testing.TB, name string) *netlink.Tuntap {
	t.Helper()
	link, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	return link.(*netlink.Tuntap)
}

// features reads the offloads back from the interface.
func features(t testing.TB, name string) map[string]bool {
	t.Helper()
	e, err := ethtool.NewEthtool()
	if err != nil {
		t.Fatal(err)
	}
	defer e.Close()
	all, err := e.Features(name)
	if err != nil {
		t.Fatal(err)
	}
	got := map[string]bool{}
	for _, f := range []string{csum, tso4, tso6, ecn, uso} {
		if all[f] {
			got[f] = true
		}
	}
	return got
}

const (
	csum = "tx-checksum-ip-generic"
	tso4 = "tx-tcp-segmentation"
	tso6 = "tx-tcp6-segmentation"
	ecn  = "tx-tcp-ecn-segmentation"
	uso  = "tx-udp-segmentation"
)

// host is a packet socket on the host's side of a TAP.
type host struct {
	t  testing.TB
	fd int
}

func htons(v uint16) uint16 {
	return binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, v))
}

func packet(t testing.TB, name string, proto uint16) *host {
	t.Helper()
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_NONBLOCK|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { unix.Close(fd) })
	err = unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: htons(proto), Ifindex: linkOf(t, name).Index})
	if err != nil {
		t.Fatal(err)
	}
	return &host{t, fd}
}

func (h *host) send(frame []byte) {
	h.t.Helper()
	if _, err := unix.Write(h.fd, frame); err != nil {
		h.t.Fatalf("packet socket: write of %d bytes: %v", len(frame), err)
	}
}

// recv returns the next frame that came out of the TAP.
func (h *host) recv() []byte {
	h.t.Helper()
	b := make([]byte, 70000)
	for end := time.Now().Add(patience); ; {
		n, err := unix.Read(h.fd, b)
		switch {
		case err == nil:
			return b[:n]
		case !errors.Is(err, unix.EAGAIN) && !errors.Is(err, unix.EINTR):
			h.t.Fatal(err)
		case time.Now().After(end):
			h.t.Fatal("no frame came out of the TAP")
		}
		readable(h.fd)
	}
}

// bothWays runs a test with single frames and with batches.
func bothWays(t *testing.T, test func(t *testing.T, how IO)) {
	t.Run("readv", func(t *testing.T) { test(t, IOSingle) })
	t.Run("io_uring", func(t *testing.T) { test(t, IOBatch) })
}

// polledQueue is a queue whose descriptor is looked at before each Recv, and that
// makes an error of a fault.
type polledQueue struct {
	*queue
	fds [1]unix.PollFd
}

func polled(p *Port, i int) port.PortQueue {
	q := &polledQueue{queue: p.queues[i]}
	q.fds[0] = unix.PollFd{Fd: int32(q.fd), Events: unix.POLLIN}
	return q
}

func (q *polledQueue) Recv(bufs [][]byte) (n int, err error) {
	defer debug.SetPanicOnFault(debug.SetPanicOnFault(true))
	defer func() {
		if recover() != nil {
			n, err = 0, guestmem.ErrFault
		}
	}()
	if n, _ := unix.Poll(q.fds[:], 0); n == 1 {
		q.Readable()
	}
	return q.queue.Recv(bufs)
}

// readable waits until fd is readable, or has an error, or time is up.
func readable(fd int) bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(patience/time.Millisecond))
	return err == nil && n == 1
}

// frame makes a frame of n bytes with a number in it.
func frame(n int, seq uint32) []byte {
	f := make([]byte, n)
	copy(f, []byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, etherType >> 8, etherType & 0xFF})
	for i := 18; i < n; i++ {
		f[i] = byte(i)
	}
	binary.BigEndian.PutUint32(f[14:], seq)
	return f
}

// withHeader puts a zero header before a frame.
func withHeader(n int, f []byte) []byte { return append(make([]byte, n), f...) }

// receive returns the next frame that the port has for the driver, with its
// header.
func receive(t testing.TB, q port.PortQueue) []byte {
	t.Helper()
	b := bytes.Repeat([]byte{0xEE}, frameRoom+1)
	for range 100 {
		n, err := q.Recv([][]byte{b})
		if err == nil {
			return b[:n]
		}
		if !errors.Is(err, port.ErrWouldBlock) {
			t.Fatal(err)
		}
		if !readable(q.FD()) {
			break
		}
	}
	t.Fatal("the TAP has no frame for the driver")
	return nil
}

// empty checks that there is nothing to receive. What the host's side sent
// before has arrived: the packet socket and the TAP work in the sender's context.
func empty(t testing.TB, q port.PortQueue) {
	t.Helper()
	b := make([]byte, frameRoom+1)
	if n, err := q.Recv([][]byte{b}); !errors.Is(err, port.ErrWouldBlock) {
		t.Fatalf("Recv: %d bytes, %v; want would block\n% x", n, err, b[:min(n, 64)])
	}
}
