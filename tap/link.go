package tap

import (
	"errors"
	"fmt"
	"net"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// findTAP looks the interface up in the handle's namespace.
func findTAP(h *netlink.Handle, name string) (*netlink.Tuntap, error) {
	link, err := h.LinkByName(name)
	var missing netlink.LinkNotFoundError
	if errors.As(err, &missing) {
		return nil, ErrMissing
	} else if err != nil {
		return nil, err
	}
	t, ok := link.(*netlink.Tuntap)
	if !ok {
		return nil, fmt.Errorf("%w: it is a %s", ErrNotTAP, link.Type())
	}
	if t.Mode != netlink.TUNTAP_MODE_TAP {
		return nil, fmt.Errorf("%w: it is a TUN", ErrNotTAP)
	}
	return t, nil
}

func setUp(h *netlink.Handle, name string) error {
	link, err := h.LinkByName(name)
	if err != nil {
		return err
	}
	return h.LinkSetUp(link)
}

// namespaceOf returns the inode of the network namespace in which the
// interface behind fd is now, 0 if the process may not know.
func namespaceOf(fd int) uint64 {
	ns, err := unix.IoctlRetInt(fd, unix.TUNGETDEVNETNS)
	if err != nil {
		return 0
	}
	defer unix.Close(ns)
	var st unix.Stat_t
	if err := unix.Fstat(ns, &st); err != nil {
		return 0
	}
	return st.Ino
}

// withLink calls fn with the interface as it is called now, in the namespace in
// which it is now: others may rename and move it.
func (p *Port) withLink(fn func(*netlink.Handle, *netlink.Tuntap) error) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return net.ErrClosed
	}
	fd := p.queues[0].fd
	ifr, err := unix.NewIfreq("")
	if err != nil {
		return err
	}
	if err := unix.IoctlIfreq(fd, unix.TUNGETIFF, ifr); err != nil {
		return err
	}
	h := p.nl
	if now := namespaceOf(fd); now != 0 && p.namespace != 0 && now != p.namespace {
		ns, err := unix.IoctlRetInt(fd, unix.TUNGETDEVNETNS)
		if err != nil {
			return err
		}
		defer unix.Close(ns)
		if h, err = netlink.NewHandleAt(netns.NsHandle(ns), unix.NETLINK_ROUTE); err != nil {
			return err
		}
		defer h.Close()
	}
	link, err := findTAP(h, ifr.Name())
	if err != nil {
		return err
	}
	return fn(h, link)
}

// SetMTU sets the interface's MTU in bytes, 68 to 65521. Needs CAP_NET_ADMIN.
func (p *Port) SetMTU(mtu int) error {
	err := p.withLink(func(h *netlink.Handle, l *netlink.Tuntap) error { return h.LinkSetMTU(l, mtu) })
	if err != nil {
		return fmt.Errorf("tap: set MTU of %s to %d: %w", p.name, mtu, err)
	}
	return nil
}

// MTU returns the interface's MTU in bytes.
func (p *Port) MTU() (int, error) {
	var mtu int
	err := p.withLink(func(_ *netlink.Handle, l *netlink.Tuntap) error { mtu = l.MTU; return nil })
	if err != nil {
		return 0, fmt.Errorf("tap: MTU of %s: %w", p.name, err)
	}
	return mtu, nil
}

// WatchLink implements [port.LinkState]. An interface that is in another
// namespace, or is moved to one, says nothing.
func (p *Port) WatchLink(changed func()) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return net.ErrClosed
	}
	index := 0
	if now := namespaceOf(p.queues[0].fd); now == 0 || now == p.namespace {
		if l, err := findTAP(p.nl, p.name); err == nil {
			index = l.Index
		}
	}
	p.events.Watch(index, changed)
	return nil
}

// LinkUp tells whether the interface is set up (IFF_UP). It asks the kernel and
// is not meant for the datapath. An interface that is gone is down.
func (p *Port) LinkUp() bool {
	up := false
	err := p.withLink(func(_ *netlink.Handle, l *netlink.Tuntap) error {
		up = l.Attrs().RawFlags&unix.IFF_UP != 0
		return nil
	})
	return err == nil && up
}
