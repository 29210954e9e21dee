package scripted

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"
	"testing"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// TAP is the name of the interface that [NewHost] makes.
const TAP = "vn0"

// Host is the host's side of a TAP: a packet socket that sees the frames of type
// [EtherType] that come out of it, and sends into it.
type Host struct {
	fd   int
	addr unix.SockaddrLinklayer
}

// NewHost moves the test, and the processes that it starts, to a network
// namespace of its own until it ends, and makes a persistent TAP with so many
// queues there. It needs root.
func NewHost(tb testing.TB, queues int) *Host {
	tb.Helper()
	isolate(tb)
	// The kernel would send neighbour discovery of its own.
	if err := os.WriteFile("/proc/sys/net/ipv6/conf/default/disable_ipv6", []byte("1"), 0); err != nil && !errors.Is(err, os.ErrNotExist) {
		tb.Fatal(err)
	}
	out, err := exec.Command(program, "tap", "create", TAP, fmt.Sprint("--queues=", queues)).CombinedOutput()
	if err != nil {
		tb.Fatalf("tap create: %v: %s", err, out)
	}
	link, err := netlink.LinkByName(TAP)
	if err != nil {
		tb.Fatal(err)
	}
	proto := uint16(EtherType>>8 | EtherType&0xff<<8) // in network order
	fd, err := unix.Socket(unix.AF_PACKET, unix.SOCK_RAW|unix.SOCK_CLOEXEC, int(proto))
	if err != nil {
		tb.Fatal("packet socket:", err)
	}
	tb.Cleanup(func() { _ = unix.Close(fd) })
	h := &Host{fd: fd, addr: unix.SockaddrLinklayer{Protocol: proto, Ifindex: link.Attrs().Index}}
	for _, err := range []error{
		unix.Bind(fd, &h.addr),
		unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1),
		// Not through the queueing discipline, which wakes up some time after the
		// interface has got its carrier.
		unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_QDISC_BYPASS, 1),
		unix.SetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_RCVBUFFORCE, 16<<20),
	} {
		if err != nil {
			tb.Fatal("packet socket:", err)
		}
	}
	return h
}

// ServeTAP starts vhostnet on the host's TAP.
func (h *Host) ServeTAP(tb testing.TB, args ...string) *Child {
	tb.Helper()
	c := Serve(tb, "tap:"+TAP, args...)
	c.Host = h
	return c
}

// Send sends a frame into the TAP. What the TAP's queue has no room for is lost
// without an error.
func (h *Host) Send(frame []byte) error {
	if err := unix.Sendto(h.fd, frame, 0, &h.addr); err != nil && !errors.Is(err, unix.ENOBUFS) {
		return fmt.Errorf("into the TAP: %w", err)
	}
	return nil
}

// Receive waits for the next frame out of the TAP.
func (h *Host) Receive() ([]byte, error) { return h.ReceiveWithin(Hang) }

// ReceiveWithin waits for the next frame for so long; the error is ErrHang if
// there is none.
func (h *Host) ReceiveWithin(d time.Duration) ([]byte, error) {
	if err := wait(h.fd, d); err != nil {
		return nil, err
	}
	b := make([]byte, 1<<17)
	n, _, err := unix.Recvfrom(h.fd, b, unix.MSG_DONTWAIT)
	if err != nil {
		return nil, fmt.Errorf("out of the TAP: %w", err)
	}
	return b[:n], nil
}

// isolate gives the test a network namespace.
func isolate(tb testing.TB) {
	tb.Helper()
	if os.Geteuid() != 0 {
		const how = "needs root for a network namespace: sudo -E go test ./faults"
		if os.Getenv("CI") != "" {
			tb.Fatal(how)
		}
		tb.Skip(how)
	}
	runtime.LockOSThread()
	home, err := netns.Get()
	if err != nil {
		tb.Fatal(err)
	}
	ns, err := netns.New()
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() {
		// A thread that cannot go back stays locked and ends with the test.
		if err := netns.Set(home); err != nil {
			tb.Error(err)
			return
		}
		_ = ns.Close()
		_ = home.Close()
		runtime.UnlockOSThread()
	})
}
