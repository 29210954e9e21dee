package afpacket

import (
	"bytes"
	"encoding/binary"
	"errors"
	"os"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/port"
	"github.com/vhostnet/vhostnet/virtio"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience bounds what a test waits for; nothing is measured against it.
const patience = 10 * time.Second

const etherType = 0x88B5

// namespace moves the test's thread to a network namespace of its own with a veth
// pair, near and far, in which the kernel sends nothing by itself.
func namespace(t testing.TB) {
	t.Helper()
	if os.Geteuid() != 0 {
		t.Fatal("needs root: go test -exec sudo ./port/afpacket")
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
	err = os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("1"), 0)
	if err != nil && !errors.Is(err, os.ErrNotExist) {
		t.Fatal(err)
	}
	a := netlink.NewLinkAttrs()
	a.Name = "near"
	if err := netlink.LinkAdd(&netlink.Veth{LinkAttrs: a, PeerName: "far"}); err != nil {
		t.Fatal(err)
	}
	set(t, "near", true)
	set(t, "far", true)
	carrier(t)
}

// carrier waits until both ends of the pair transmit. The kernel activates their
// queues some time after the carrier has come, in one go with the state that it shows;
// another change has to wait until it is done with that.
func carrier(t testing.TB) {
	t.Helper()
	for _, name := range []string{"near", "far"} {
		for end := time.Now().Add(patience); link(t, name).Attrs().OperState != netlink.OperUp; {
			if time.Now().After(end) {
				t.Fatal(name, "has no carrier")
			}
			runtime.Gosched()
		}
		set(t, name, true)
	}
}

func link(t testing.TB, name string) netlink.Link {
	t.Helper()
	l, err := netlink.LinkByName(name)
	if err != nil {
		t.Fatal(err)
	}
	return l
}

func set(t testing.TB, name string, up bool) {
	t.Helper()
	f := netlink.LinkSetDown
	if up {
		f = netlink.LinkSetUp
	}
	if err := f(link(t, name)); err != nil {
		t.Fatal(err)
	}
}

func open(t testing.TB, name string, queues int, guest virtio.Features) *Port {
	t.Helper()
	p, err := Open(name, Options{Queues: queues})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	if err := p.Configure(virtio.NetHeaderLen, guest); err != nil {
		t.Fatal(err)
	}
	return p
}

// readable waits until fd is readable, or has an error, or time is up.
func readable(fd int) bool {
	n, err := unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}, int(patience/time.Millisecond))
	return err == nil && n == 1
}

// receive returns the next frame of a queue, with its header.
func receive(t testing.TB, q port.PortQueue) (virtio.NetHeader, []byte) {
	t.Helper()
	b := bytes.Repeat([]byte{0xEE}, 70000)
	for range 100 {
		n, err := q.Recv([][]byte{b[:5], b[5:20], b[20:]})
		if err == nil {
			var h virtio.NetHeader
			h.Decode(b[:12])
			return h, b[12:n]
		}
		if !errors.Is(err, port.ErrWouldBlock) {
			t.Fatal(err)
		}
		if !readable(q.FD()) {
			break
		}
	}
	t.Fatal("no frame")
	return virtio.NetHeader{}, nil
}

// settle lets what a sender has given to the veth arrive: its frames go through the
// processor's backlog. A frame that is sent last is seen last.
func settle(t testing.TB, send, recv port.PortQueue) {
	t.Helper()
	if err := send.Send(withHeader(frame(60, 0xFFFF))); err != nil {
		t.Fatal(err)
	}
	for {
		if _, f := receive(t, recv); len(f) == 60 && binary.BigEndian.Uint32(f[14:]) == 0xFFFF {
			return
		} else {
			t.Errorf("unexpected frame % x", f[:min(len(f), 40)])
		}
	}
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

func withHeader(f []byte) [][]byte { return [][]byte{make([]byte, 12), f} }

// udp makes a UDP frame of IPv4 with a complete IP header.
func udp(src, dst byte, sport, dport uint16, n int) []byte {
	f := make([]byte, 14+20+8+n)
	copy(f, []byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1, 8, 0, 0x45})
	binary.BigEndian.PutUint16(f[16:], uint16(28+n))
	f[22], f[23] = 64, unix.IPPROTO_UDP
	copy(f[26:], []byte{10, 0, 0, src, 10, 0, 0, dst})
	binary.BigEndian.PutUint16(f[34:], sport)
	binary.BigEndian.PutUint16(f[36:], dport)
	binary.BigEndian.PutUint16(f[38:], uint16(8+n))
	return f
}
