package tap

import (
	"errors"
	"fmt"
	"runtime"
	"slices"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/internal/linkwatch"
	"github.com/vhostnet/vhostnet/virtio"
)

// ErrNoHeader means that a queue was opened without IFF_VNET_HDR, which cannot be
// added later.
var ErrNoHeader = errors.New("the TAP was opened without IFF_VNET_HDR, or with packet information")

// Adopt makes a port of queues that somebody else has opened, one for each
// descriptor: all of the same TAP, with IFF_NO_PI and IFF_VNET_HDR, and attached. The
// port owns the descriptors from then on; if Adopt fails, they are left open. The TAP
// may be in another network namespace, and nothing but setting an MTU needs
// CAP_NET_ADMIN. Of the options, IO is looked at. The error is an [*Error].
func Adopt(fds []int, o Options) (*Port, error) {
	p := &Port{fresh: true}
	for _, fd := range fds {
		p.queues = append(p.queues, newQueue(kernel{}, nil, fd))
	}
	if err := p.adopt(fds, o.IO); err != nil {
		for _, q := range p.queues {
			q.single()
		}
		p.events.Close()
		if p.nl != nil {
			p.nl.Close()
		}
		return nil, failed("adopt", p.name, err)
	}
	return p, nil
}

func (p *Port) adopt(fds []int, how IO) error {
	if n := len(fds); n < 1 || n > MaxQueues {
		return fmt.Errorf("%d queues: want 1 to %d", n, MaxQueues)
	}
	for i, fd := range fds {
		if slices.Contains(fds[:i], fd) {
			return fmt.Errorf("descriptor %d is there twice", fd)
		}
		name, flags, err := adopted(fd)
		switch {
		case err != nil:
			return fmt.Errorf("descriptor %d: %w", fd, err)
		case i == 0:
			p.name = name
		case name != p.name:
			return fmt.Errorf("descriptor %d is of %s, another one of %s", fd, name, p.name)
		}
		p.multi = flags&unix.IFF_MULTI_QUEUE != 0
	}
	// The namespace of the handle is this thread's, whatever the TAP's is.
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	var st unix.Stat_t
	err := unix.Stat("/proc/thread-self/ns/net", &st)
	if err == nil {
		p.nl, err = netlink.NewHandle(unix.NETLINK_ROUTE)
	}
	if err == nil {
		p.events, err = linkwatch.Subscribe()
	}
	if err != nil {
		return err
	}
	p.namespace = st.Ino
	if err := p.startBatches(how); err != nil {
		return err
	}
	if p.offloads, err = probe(fds[0]); err != nil {
		return fmt.Errorf("probe offloads: %w", err)
	}
	return p.setHeader(fds[0], virtio.NetHeaderLen)
}

// adopted checks a descriptor and makes it what Open would have made it.
func adopted(fd int) (name string, flags uint16, err error) {
	ifr, err := unix.NewIfreq("")
	if err != nil {
		return "", 0, err
	}
	if err := unix.IoctlIfreq(fd, unix.TUNGETIFF, ifr); err != nil {
		if errors.Is(err, unix.ENOTTY) || errors.Is(err, unix.EINVAL) {
			err = fmt.Errorf("%w: %w", ErrNotTAP, err)
		}
		return "", 0, err
	}
	flags = ifr.Uint16()
	switch {
	case flags&unix.IFF_TAP == 0:
		return "", 0, ErrNotTAP
	case flags&unix.IFF_NO_PI == 0 || flags&unix.IFF_VNET_HDR == 0:
		return "", 0, ErrNoHeader
	}
	unix.CloseOnExec(fd)
	return ifr.Name(), flags, unix.SetNonblock(fd, true)
}
