package qemutest

import (
	"errors"
	"fmt"
	"os"
	"os/exec"
	"runtime"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// Namespace is a network namespace without a name. It ends with the last program
// in it after Close.
type Namespace struct {
	handle netns.NsHandle
}

// NewNamespace makes a namespace whose loopback interface is up.
func NewNamespace() (*Namespace, error) {
	n := &Namespace{}
	err := inThread(func() (err error) {
		if n.handle, err = netns.New(); err != nil {
			return err
		}
		// Neighbour and router discovery would add packets that no test sent.
		for _, which := range []string{"all", "default"} {
			err := os.WriteFile("/proc/sys/net/ipv6/conf/"+which+"/disable_ipv6", []byte("1"), 0)
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
		}
		lo, err := netlink.LinkByName("lo")
		if err != nil {
			return err
		}
		return netlink.LinkSetUp(lo)
	})
	if err != nil {
		return nil, fmt.Errorf("qemutest: network namespace: %w", err)
	}
	return n, nil
}

// inThread runs fn in a thread that ends afterwards, so that fn may move it into
// a namespace.
func inThread(fn func() error) error {
	result := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked: the thread ends with the goroutine
		result <- fn()
	}()
	return <-result
}

// Do runs fn in the namespace.
func (n *Namespace) Do(fn func() error) error {
	return inThread(func() error {
		if err := n.enter(); err != nil {
			return err
		}
		return fn()
	})
}

func (n *Namespace) enter() error {
	if err := netns.Set(n.handle); err != nil {
		return fmt.Errorf("enter network namespace: %w", err)
	}
	return nil
}

// Start runs a program in the namespace.
func (n *Namespace) Start(name string, cmd *exec.Cmd) (*Process, error) {
	return start(name, cmd, n.enter)
}

// Run runs a program in the namespace to its end and returns its output.
func (n *Namespace) Run(name string, cmd *exec.Cmd) (string, error) {
	out := &Console{}
	cmd.Stdout, cmd.Stderr = out, out
	p, err := n.Start(name, cmd)
	if err != nil {
		return "", err
	}
	<-p.Done()
	if p.err != nil {
		return out.String(), fmt.Errorf("qemutest: %s: %w\n%s", name, p.err, out)
	}
	return out.String(), nil
}

// AddTAP makes a persistent TAP with an IPv4 address, as an administrator would.
// More than one queue makes a multi_queue TAP: the kernel refuses to open one
// kind as the other.
func (n *Namespace) AddTAP(name, address string, queues int) error {
	err := n.Do(func() error {
		tap := &netlink.Tuntap{
			LinkAttrs: netlink.LinkAttrs{Name: name},
			Mode:      netlink.TUNTAP_MODE_TAP,
			Flags:     netlink.TUNTAP_NO_PI | netlink.TUNTAP_VNET_HDR | unix.IFF_TUN_EXCL,
		}
		if queues > 1 {
			tap.Flags |= netlink.TUNTAP_MULTI_QUEUE
		}
		if err := netlink.LinkAdd(tap); err != nil {
			return err
		}
		for _, f := range tap.Fds {
			f.Close()
		}
		a, err := netlink.ParseAddr(address)
		if err != nil {
			return err
		}
		if err := netlink.AddrAdd(tap, a); err != nil {
			return err
		}
		return netlink.LinkSetUp(tap)
	})
	if err != nil {
		return fmt.Errorf("qemutest: TAP %s: %w", name, err)
	}
	return nil
}

// Close lets the namespace go.
func (n *Namespace) Close() error { return n.handle.Close() }
