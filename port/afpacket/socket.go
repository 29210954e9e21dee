package afpacket

import (
	"encoding/binary"
	"errors"
	"fmt"
	"net"

	"golang.org/x/sys/unix"
)

// bufferSize is what a socket's buffers have, in bytes: frames of 64 KiB fill the
// kernel's default after three.
const bufferSize = 4 << 20

// lookUp returns the index of the interface of that name in the socket's namespace.
func lookUp(fd int, name string) (uint32, error) {
	ifr, err := unix.NewIfreq(name)
	if err != nil {
		return 0, err
	}
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFINDEX, ifr); errors.Is(err, unix.ENODEV) {
		return 0, ErrMissing
	} else if err != nil {
		return 0, err
	}
	index := ifr.Uint32()
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFHWADDR, ifr); err != nil {
		return 0, err
	}
	if ifr.Uint16() != unix.ARPHRD_ETHER {
		return 0, ErrNotEthernet
	}
	return index, nil
}

// prepare sets a socket up and binds it.
func (p *Port) prepare(fd int) (op string, err error) {
	for _, o := range []struct {
		name       string
		opt, value int
	}{
		{"PACKET_VNET_HDR", unix.PACKET_VNET_HDR, 1},
		{"PACKET_AUXDATA", unix.PACKET_AUXDATA, 1},
	} {
		if err := unix.SetsockoptInt(fd, unix.SOL_PACKET, o.opt, o.value); err != nil {
			return o.name, err
		}
	}
	// Since Linux 6.5 and 4.20; there are other ways without.
	p.sized = unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_VNET_HDR_SZ, 10) == nil
	_ = unix.SetsockoptInt(fd, unix.SOL_PACKET, unix.PACKET_IGNORE_OUTGOING, 1)
	for _, o := range [][2]int{{unix.SO_RCVBUFFORCE, unix.SO_RCVBUF}, {unix.SO_SNDBUFFORCE, unix.SO_SNDBUF}} {
		if unix.SetsockoptInt(fd, unix.SOL_SOCKET, o[0], bufferSize) != nil {
			// Without CAP_NET_ADMIN there is a limit.
			_ = unix.SetsockoptInt(fd, unix.SOL_SOCKET, o[1], bufferSize)
		}
	}
	if err := attach(fd, incoming); err != nil {
		return "SO_ATTACH_FILTER", err
	}
	proto := binary.NativeEndian.Uint16(binary.BigEndian.AppendUint16(nil, unix.ETH_P_ALL))
	if err := unix.Bind(fd, &unix.SockaddrLinklayer{Protocol: proto, Ifindex: int(p.index)}); err != nil {
		return "bind", err
	}
	// The driver has addresses that the interface does not know.
	m := unix.PacketMreq{Ifindex: int32(p.index), Type: unix.PACKET_MR_PROMISC}
	if err := unix.SetsockoptPacketMreq(fd, unix.SOL_PACKET, unix.PACKET_ADD_MEMBERSHIP, &m); err != nil {
		return "PACKET_ADD_MEMBERSHIP", err
	}
	return "", nil
}

// group makes a fanout group of the sockets, in their order.
func (p *Port) group() error {
	const how = unix.PACKET_FANOUT_CBPF | unix.PACKET_FANOUT_FLAG_IGNORE_OUTGOING
	first := p.queues[0].fd
	err := unix.SetsockoptInt(first, unix.SOL_PACKET, unix.PACKET_FANOUT, (how|unix.PACKET_FANOUT_FLAG_UNIQUEID)<<16)
	if err != nil {
		return err
	}
	id, err := unix.GetsockoptInt(first, unix.SOL_PACKET, unix.PACKET_FANOUT)
	if err != nil {
		return err
	}
	for _, q := range p.queues[1:] {
		if err := unix.SetsockoptInt(q.fd, unix.SOL_PACKET, unix.PACKET_FANOUT, id&0xffff|how<<16); err != nil {
			return err
		}
	}
	return p.spread()
}

// spread makes the fanout group use the queues that are in use.
func (p *Port) spread() error {
	var active []int
	for i, q := range p.queues {
		if q.active {
			active = append(active, i)
		}
	}
	if len(p.queues) == 1 || len(active) == 0 {
		return nil // each socket's filter lets nothing pass
	}
	prog := spread(active)
	f := unix.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]}
	return unix.SetsockoptSockFprog(p.queues[0].fd, unix.SOL_PACKET, unix.PACKET_FANOUT_DATA, &f)
}

func attach(fd int, prog []unix.SockFilter) error {
	f := unix.SockFprog{Len: uint16(len(prog)), Filter: &prog[0]}
	return unix.SetsockoptSockFprog(fd, unix.SOL_SOCKET, unix.SO_ATTACH_FILTER, &f)
}

// link asks for something of the interface, as it is called now.
func (p *Port) link(ask uint) (*unix.Ifreq, error) {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return nil, unix.EBADF
	}
	return p.ask(ask, nil)
}

func (p *Port) ask(ask uint, value *uint32) (*unix.Ifreq, error) {
	fd := p.queues[0].fd
	ifr, err := unix.NewIfreq("")
	if err != nil {
		return nil, err
	}
	ifr.SetUint32(p.index)
	if err := unix.IoctlIfreq(fd, unix.SIOCGIFNAME, ifr); errors.Is(err, unix.ENODEV) {
		return nil, ErrGone
	} else if err != nil {
		return nil, err
	}
	ifr.SetUint32(0)
	if value != nil {
		ifr.SetUint32(*value)
	}
	return ifr, unix.IoctlIfreq(fd, ask, ifr)
}

// Err tells why no frames will flow any more: [ErrGone]. An interface that is down comes
// back, for which see LinkUp. It asks the kernel and is not meant for the datapath.
func (p *Port) Err() error {
	if _, err := p.link(unix.SIOCGIFFLAGS); err != nil {
		return fmt.Errorf("afpacket: %s: %w", p.name, err)
	}
	return nil
}

// LinkUp tells whether the interface is up and has a carrier.
func (p *Port) LinkUp() bool {
	const both = unix.IFF_UP | unix.IFF_RUNNING
	ifr, err := p.link(unix.SIOCGIFFLAGS)
	return err == nil && ifr.Uint16()&both == both
}

// WatchLink implements [port.LinkState]. An interface that is moved to another
// namespace says nothing any more.
func (p *Port) WatchLink(changed func()) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	if p.closed {
		return net.ErrClosed
	}
	p.events.Watch(int(p.index), changed)
	return nil
}

// MTU returns the interface's MTU in bytes. Frames that are longer by more than an
// Ethernet header and a VLAN tag, and not to be segmented, are counted as tx_too_long.
func (p *Port) MTU() (int, error) {
	ifr, err := p.link(unix.SIOCGIFMTU)
	if err != nil {
		return 0, fmt.Errorf("afpacket: MTU of %s: %w", p.name, err)
	}
	return int(ifr.Uint32()), nil
}

// SetMTU raises the interface's MTU to that many bytes if it is less; it is the
// host's, and others may want more. Needs CAP_NET_ADMIN if there is something to do.
func (p *Port) SetMTU(mtu int) error {
	p.mu.Lock()
	defer p.mu.Unlock()
	var err error = unix.EBADF
	if !p.closed {
		var ifr *unix.Ifreq
		if ifr, err = p.ask(unix.SIOCGIFMTU, nil); err == nil && int(ifr.Uint32()) < mtu {
			value := uint32(mtu)
			_, err = p.ask(unix.SIOCSIFMTU, &value)
		}
	}
	if err != nil {
		return fmt.Errorf("afpacket: set MTU of %s to %d: %w", p.name, mtu, err)
	}
	return nil
}
