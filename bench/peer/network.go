package peer

import (
	"errors"
	"fmt"
	"net"
	"os"
	"runtime"
	"strconv"
	"strings"
	"time"

	"github.com/vishvananda/netlink"
	"github.com/vishvananda/netns"
	"golang.org/x/sys/unix"
)

// What a frame for the host has: UDP from the guest to a socket of the host.
const (
	GuestMAC     = "02:00:00:00:00:01"
	HostMAC      = "02:00:00:00:00:02"
	GuestIP      = "198.18.0.1" // the range for benchmarks (RFC 2544)
	HostIP       = "198.18.0.2"
	GuestPort    = 20001 // not below 1024: passt is not root when it opens its socket
	HostPort     = 20002
	prefixLength = "24"
	gatewayIP    = "198.18.0.254"
)

// Network is a network namespace with a socket that takes the guest's packets
// and drops them: its buffer is full, and nobody reads it.
type Network struct {
	handle netns.NsHandle
	socket *net.UDPConn
	h      *netlink.Handle
}

// NewNetwork makes a namespace in which HostIP is an address of the loopback
// interface. It needs root.
func NewNetwork() (*Network, error) {
	return makeNetwork(func(n *Network, lo netlink.Link) error {
		return errors.Join(n.listen(), n.address(lo, HostIP+"/32"))
	})
}

// NewStack makes a namespace with nothing but a loopback interface, for the stack
// of a guest. It needs root.
func NewStack() (*Network, error) {
	return makeNetwork(func(*Network, netlink.Link) error { return nil })
}

func makeNetwork(fill func(n *Network, lo netlink.Link) error) (n *Network, err error) {
	n = &Network{handle: -1}
	defer func() {
		if err != nil {
			err = errors.Join(fmt.Errorf("peer: network: %w", err), n.Close())
			n = nil
		}
	}()
	err = inThread(func() (err error) {
		if n.handle, err = netns.New(); err != nil {
			return err
		}
		// Discovery of neighbours and routers would add packets of its own.
		for _, which := range []string{"all", "default"} {
			err := os.WriteFile("/proc/sys/net/ipv6/conf/"+which+"/disable_ipv6", []byte("1"), 0)
			if err != nil && !errors.Is(err, os.ErrNotExist) {
				return err
			}
		}
		return nil
	})
	if err != nil {
		return n, err
	}
	if n.h, err = netlink.NewHandleAt(n.handle); err != nil {
		return n, err
	}
	lo, err := n.h.LinkByName("lo")
	if err != nil {
		return n, err
	}
	return n, errors.Join(n.h.LinkSetUp(lo), fill(n, lo))
}

// listen opens the socket that takes the guest's packets.
func (n *Network) listen() (err error) {
	err = n.Do(func() (err error) {
		n.socket, err = net.ListenUDP("udp4", &net.UDPAddr{IP: net.IPv4zero, Port: HostPort})
		return err
	})
	if err != nil {
		return err
	}
	return n.socket.SetReadBuffer(4096)
}

// Do runs f in a thread of the namespace.
func (n *Network) Do(f func() error) error {
	return inThread(func() error {
		if err := netns.Set(n.handle); err != nil {
			return err
		}
		return f()
	})
}

// inThread runs f in a thread that ends afterwards.
func inThread(f func() error) error {
	done := make(chan error, 1)
	go func() {
		runtime.LockOSThread() // never unlocked
		done <- f()
	}()
	return <-done
}

func (n *Network) address(l netlink.Link, s string) error {
	a, err := netlink.ParseAddr(s)
	if err != nil {
		return err
	}
	return n.h.AddrAdd(l, a)
}

// Guest makes a TAP the way to the guest: with HostMAC, up, and routed. With
// reflect every frame that comes out of the guest goes back into it.
func (n *Network) Guest(name string, reflect bool) error {
	l, err := n.link(name)
	if err == nil {
		err = n.guest(l, reflect)
	}
	if err != nil {
		return fmt.Errorf("peer: network: %s: %w", name, err)
	}
	return nil
}

// link waits for an interface.
func (n *Network) link(name string) (l netlink.Link, err error) {
	for end := time.Now().Add(patience); ; time.Sleep(5 * time.Millisecond) {
		l, err = n.h.LinkByName(name)
		if err == nil || !errors.As(err, &netlink.LinkNotFoundError{}) || time.Now().After(end) {
			return l, err
		}
	}
}

func (n *Network) guest(l netlink.Link, reflect bool) error {
	mac, err := net.ParseMAC(HostMAC)
	if err != nil {
		return err
	}
	err = errors.Join(n.h.LinkSetHardwareAddr(l, mac), n.h.LinkSetUp(l))
	if err != nil || !reflect {
		// The route is for the reverse path filter.
		return errors.Join(err, n.address(l, gatewayIP+"/"+prefixLength))
	}
	at := netlink.QdiscAttrs{LinkIndex: l.Attrs().Index, Handle: netlink.MakeHandle(0xffff, 0), Parent: netlink.HANDLE_INGRESS}
	if err := n.h.QdiscAdd(&netlink.Ingress{QdiscAttrs: at}); err != nil {
		return fmt.Errorf("ingress qdisc: %w", err)
	}
	// A selector that compares no bits takes every frame.
	all := &netlink.TcU32Sel{Flags: netlink.TC_U32_TERMINAL, Nkeys: 1, Keys: []netlink.TcU32Key{{}}}
	err = n.h.FilterAdd(&netlink.U32{
		FilterAttrs: netlink.FilterAttrs{
			LinkIndex: l.Attrs().Index, Parent: at.Handle, Priority: 1, Protocol: unix.ETH_P_ALL,
		},
		Sel: all, Actions: []netlink.Action{netlink.NewMirredAction(l.Attrs().Index)},
	})
	if err != nil {
		return fmt.Errorf("reflecting filter: %w", err)
	}
	return nil
}

// Datagrams returns how many of the guest's packets have come to the socket since
// the namespace was made, without the first few, which fill its buffer.
func (n *Network) Datagrams() (sum uint64, err error) {
	err = n.Do(func() error {
		b, err := os.ReadFile("/proc/thread-self/net/snmp")
		if err != nil {
			return err
		}
		sum, err = datagrams(string(b))
		return err
	})
	if err != nil {
		return 0, fmt.Errorf("peer: network: %w", err)
	}
	return sum, nil
}

// datagrams reads what the kernel's net/snmp says of UDP: a line with names, and one
// with numbers.
func datagrams(snmp string) (sum uint64, err error) {
	var names []string
	for line := range strings.Lines(snmp) {
		f := strings.Fields(line)
		switch {
		case len(f) == 0 || f[0] != "Udp:":
			continue
		case names == nil:
			names = f
			continue
		case len(f) != len(names):
			return 0, fmt.Errorf("snmp: %d names, %d numbers", len(names), len(f))
		}
		found := 0
		for i, name := range names {
			// Errors are the datagrams that a full socket did not take.
			if name != "InDatagrams" && name != "InErrors" {
				continue
			}
			v, err := strconv.ParseUint(f[i], 10, 64)
			if err != nil {
				return 0, fmt.Errorf("snmp: %s: %w", name, err)
			}
			sum += v
			found++
		}
		if found == 2 {
			return sum, nil
		}
	}
	return 0, errors.New("snmp: no counters of UDP")
}

// Close lets the namespace go; it ends with the last process in it.
func (n *Network) Close() error {
	if n == nil {
		return nil
	}
	var err error
	if n.h != nil {
		n.h.Close()
	}
	if n.socket != nil {
		err = n.socket.Close()
	}
	if n.handle >= 0 {
		err = errors.Join(err, n.handle.Close())
	}
	return err
}
