package tap

import (
	"bytes"
	"errors"
	"os"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/virtio"
)

// attached opens queues as a supervisor does: blocking, and inherited.
func attached(t *testing.T, name string, flags uint16) int {
	t.Helper()
	fd, err := unix.Open(device, unix.O_RDWR, 0)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = unix.Close(fd) }) // of those that nobody has adopted
	ifr, err := unix.NewIfreq(name)
	if err != nil {
		t.Fatal(err)
	}
	ifr.SetUint16(flags)
	if err := unix.IoctlIfreq(fd, unix.TUNSETIFF, ifr); err != nil {
		t.Fatal(err)
	}
	return fd
}

const good = unix.IFF_TAP | unix.IFF_NO_PI | unix.IFF_VNET_HDR

func TestAdopt(t *testing.T) { bothWays(t, testAdopt) }

func testAdopt(t *testing.T, how IO) {
	namespace(t)
	fds := []int{attached(t, "vn0", good|unix.IFF_MULTI_QUEUE), attached(t, "vn0", good|unix.IFF_MULTI_QUEUE)}
	if err := setUp(&netlink.Handle{}, "vn0"); err != nil {
		t.Fatal(err)
	}
	p, err := Adopt(fds, Options{IO: how})
	if err != nil {
		t.Fatal(err)
	}
	if p.String() != "tap:vn0" || p.Queues() != 2 || !p.LinkUp() || !p.Offloads().Has(virtio.FeatureCSum|virtio.FeatureGuestTSO4) {
		t.Errorf("%v, %d queues, up %t, %s", p, p.Queues(), p.LinkUp(), p.Offloads())
	}
	for _, fd := range fds {
		flags, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0)
		status, err2 := unix.FcntlInt(uintptr(fd), unix.F_GETFL, 0)
		if err := errors.Join(err, err2); err != nil || flags&unix.FD_CLOEXEC == 0 || status&unix.O_NONBLOCK == 0 {
			t.Errorf("descriptor flags %#x, %#x, %v", flags, status, err)
		}
	}
	if err := p.SetMTU(1400); err != nil {
		t.Error(err)
	}
	if err := p.SetActive(1, false); err != nil {
		t.Error(err)
	}
	h, q := packet(t, "vn0", etherType), polled(p, 0)
	for _, hdr := range []int{12, 10} {
		configure(t, p, hdr, 0)
		if err := q.Send([][]byte{withHeader(hdr, frame(100, 1))}); err != nil {
			t.Fatal(err)
		}
		if got := h.recv(); !bytes.Equal(got, frame(100, 1)) {
			t.Errorf("the host has % x", got)
		}
		h.send(frame(100, 2))
		if got := receive(t, q); !bytes.Equal(got[hdr:], frame(100, 2)) {
			t.Errorf("the driver has % x", got)
		}
	}
	if err := p.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := netlink.LinkByName("vn0"); err == nil {
		t.Error("a descriptor is open after Close")
	}
}

// A TAP of another namespace, as a supervisor hands it to a process that has none.
func TestAdoptElsewhere(t *testing.T) {
	namespace(t)
	fd := attached(t, "vn0", good)
	if err := setUp(&netlink.Handle{}, "vn0"); err != nil {
		t.Fatal(err)
	}
	namespace(t)
	p, err := Adopt([]int{fd}, Options{})
	if err != nil {
		t.Fatal(err)
	}
	mtu, err := p.MTU()
	if err != nil || mtu != 1500 || !p.LinkUp() {
		t.Errorf("MTU %d, %v, up %t", mtu, err, p.LinkUp())
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

// What is no TAP is refused, and left open: it may be anything.
func TestAdoptRefuses(t *testing.T) {
	namespace(t)
	null, err := os.Open(os.DevNull)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = null.Close() }()
	event, err := unix.Eventfd(0, unix.EFD_CLOEXEC)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(event) }()
	fresh, err := unix.Open(device, unix.O_RDWR|unix.O_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = unix.Close(fresh) }()
	a, b := attached(t, "vn0", good|unix.IFF_MULTI_QUEUE), attached(t, "vn1", good)
	tun := attached(t, "tun0", unix.IFF_TUN|unix.IFF_NO_PI|unix.IFF_VNET_HDR)
	plain := attached(t, "vn2", unix.IFF_TAP|unix.IFF_NO_PI)
	for name, c := range map[string]struct {
		fds  []int
		want error // nil for any
	}{
		"none":         {nil, nil},
		"closed":       {[]int{1 << 20}, unix.EBADF},
		"null":         {[]int{int(null.Fd())}, ErrNotTAP},
		"eventfd":      {[]int{event}, ErrNotTAP},
		"not attached": {[]int{fresh}, nil},
		"TUN":          {[]int{tun}, ErrNotTAP},
		"no header":    {[]int{plain}, ErrNoHeader},
		"two TAPs":     {[]int{a, b}, nil},
		"twice":        {[]int{a, a}, nil},
	} {
		_, err := Adopt(c.fds, Options{})
		var e *Error
		if !errors.As(err, &e) || c.want != nil && !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
		for _, fd := range c.fds {
			if _, err := unix.FcntlInt(uintptr(fd), unix.F_GETFD, 0); err != nil && fd != 1<<20 {
				t.Errorf("%s: descriptor %d was closed", name, fd)
			}
		}
	}
}
