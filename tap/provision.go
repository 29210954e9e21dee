package tap

import (
	"errors"
	"fmt"
	"os"
	"runtime"
	"strings"
	"syscall"

	"github.com/songgao/water"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// CreateOptions says what [Create] makes.
type CreateOptions struct {
	// SingleQueue makes a TAP that takes one queue only. Otherwise it is
	// multi_queue, which [Open] can use with any number of queues, but programs
	// that do not ask for multi_queue cannot use at all.
	SingleQueue bool
	// Owner and Group may attach to it, beside processes with CAP_NET_ADMIN;
	// while both are nil, all may that can open /dev/net/tun.
	Owner, Group *uint32
	// MTU in bytes, 68 to 65521; 0 leaves the kernel's default of 1500.
	MTU int
	// Down leaves the link down.
	Down bool
}

// Create makes a persistent TAP in the calling thread's network namespace and
// sets it up. It stays when the process ends. The error is an [*Error].
func Create(name string, o CreateOptions) error {
	return provision("create", name, func(nl *netlink.Handle) (err error) {
		// water would attach to what is there, and make it persistent.
		if _, err := nl.LinkByName(name); err == nil {
			return ErrExists
		}
		t, err := openWater(name, true, !o.SingleQueue)
		if err != nil {
			return err
		}
		// The interface stays; a queue that is left open would take frames.
		defer func() { err = errors.Join(err, t.Close()) }()
		if err := finish(nl, t, name, o); err != nil {
			// Half an interface is of no use to anybody.
			return errors.Join(err, onFD(t, func(fd int) error {
				return unix.IoctlSetInt(fd, unix.TUNSETPERSIST, 0)
			}))
		}
		return nil
	})
}

func finish(nl *netlink.Handle, t *water.Interface, name string, o CreateOptions) error {
	// water sets owner and group together or not at all.
	if err := onFD(t, func(fd int) error { return setOwner(fd, o.Owner, o.Group) }); err != nil {
		return fmt.Errorf("set owner: %w", err)
	}
	link, err := nl.LinkByName(name)
	if err != nil {
		return err
	}
	if o.MTU != 0 {
		if err := nl.LinkSetMTU(link, o.MTU); err != nil {
			return fmt.Errorf("set MTU to %d: %w", o.MTU, err)
		}
	}
	if o.Down {
		return nil
	}
	if err := nl.LinkSetUp(link); err != nil {
		return fmt.Errorf("set up: %w", err)
	}
	return nil
}

// Delete removes a persistent TAP on which nobody has a queue. Its owner may do
// that without CAP_NET_ADMIN. The error is an [*Error].
func Delete(name string) error {
	return provision("delete", name, func(nl *netlink.Handle) error {
		link, err := findTAP(nl, name)
		if err != nil {
			return err
		}
		if link.Queues+link.DisabledQueues > 0 {
			return ErrBusy
		}
		// Attaching without persistence ends it: the interface goes with the
		// last queue.
		t, err := openWater(name, false, link.Flags&netlink.TUNTAP_MULTI_QUEUE != 0)
		if err != nil {
			return err
		}
		return t.Close()
	})
}

// provision runs fn on a thread that stays in one network namespace.
func provision(op, name string, fn func(*netlink.Handle) error) error {
	err := checkName(name)
	if err == nil && strings.Contains(name, "%") {
		err = ErrName // a pattern to the kernel: the name would be another
	}
	if err != nil {
		return failed(op, name, err)
	}
	runtime.LockOSThread()
	defer runtime.UnlockOSThread()
	nl, err := netlink.NewHandle(unix.NETLINK_ROUTE)
	if err != nil {
		return failed("open netlink socket for", name, err)
	}
	defer nl.Close()
	if err := fn(nl); err != nil {
		return failed(op, name, err)
	}
	return nil
}

// openWater attaches through water, whose descriptor is not close-on-exec: no
// child may be started before it is made so.
func openWater(name string, persist, multi bool) (*water.Interface, error) {
	c := water.Config{DeviceType: water.TAP}
	c.Name, c.Persist, c.MultiQueue = name, persist, multi
	syscall.ForkLock.RLock()
	defer syscall.ForkLock.RUnlock()
	t, err := water.New(c)
	var ioctl *os.SyscallError
	switch {
	case err == nil:
	case errors.As(err, &ioctl):
		return nil, err
	default: // the only other thing that water does is to open the device
		return nil, failed("open "+device, "", err)
	}
	if err := onFD(t, func(fd int) error { syscall.CloseOnExec(fd); return nil }); err != nil {
		return nil, errors.Join(err, t.Close())
	}
	return t, nil
}

// onFD calls fn with the descriptor behind water's interface.
func onFD(t *water.Interface, fn func(fd int) error) error {
	f, ok := t.ReadWriteCloser.(*os.File)
	if !ok {
		return fmt.Errorf("descriptor of %s: %w", t.Name(), unix.EBADF)
	}
	c, err := f.SyscallConn()
	if err != nil {
		return err
	}
	var inner error
	return errors.Join(c.Control(func(fd uintptr) { inner = fn(int(fd)) }), inner)
}
