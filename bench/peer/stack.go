package peer

import (
	"errors"
	"fmt"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"
)

// Join waits for an interface of a guest's stack and gives it GuestIP, with a route
// to the host. mtu is in bytes; 0 leaves it as it is.
func (n *Network) Join(name string, mtu int) error {
	l, err := n.link(name)
	if err == nil && mtu > 0 {
		err = n.h.LinkSetMTU(l, mtu)
	}
	if err == nil {
		err = errors.Join(n.h.LinkSetUp(l), n.address(l, GuestIP+"/"+prefixLength))
	}
	if err != nil {
		return fmt.Errorf("peer: network: %s: %w", name, err)
	}
	return nil
}

// SetMTU changes the MTU of an interface, in bytes.
func (n *Network) SetMTU(name string, mtu int) error {
	l, err := n.link(name)
	if err == nil {
		err = n.h.LinkSetMTU(l, mtu)
	}
	if err != nil {
		return fmt.Errorf("peer: network: MTU of %s: %w", name, err)
	}
	return nil
}

// SetCongestion gives the connections of all routes that there are now a congestion
// control. A namespace other than the first cannot have every one as its default.
func (n *Network) SetCongestion(algorithm string) error {
	routes, err := n.h.RouteListFiltered(unix.AF_INET, &netlink.Route{Table: unix.RT_TABLE_UNSPEC}, netlink.RT_FILTER_TABLE)
	if err != nil {
		return fmt.Errorf("peer: network: routes: %w", err)
	}
	for _, r := range routes {
		if r.Type != unix.RTN_UNICAST && r.Type != unix.RTN_LOCAL {
			continue
		}
		r.Congctl = algorithm
		if err := n.h.RouteReplace(&r); err != nil {
			return fmt.Errorf("peer: network: congestion control of %v: %w", r.Dst, err)
		}
	}
	return nil
}
