package vswitch

import "encoding/binary"

// EtherTypes and protocols that flows are told apart by.
const (
	etherIPv4 = 0x0800
	etherIPv6 = 0x86DD
	etherVLAN = 0x8100
	etherQinQ = 0x88A8
	protoTCP  = 6
	protoUDP  = 17
)

// network returns a frame's EtherType and where its network header begins, behind up
// to two VLAN tags.
func network(f []byte) (ether uint16, off int) {
	off = ethHeader
	if len(f) < off {
		return 0, off
	}
	ether = binary.BigEndian.Uint16(f[12:])
	for range 2 {
		if ether != etherVLAN && ether != etherQinQ || len(f) < off+4 {
			break
		}
		ether = binary.BigEndian.Uint16(f[off+2:])
		off += 4
	}
	return ether, off
}

// flowHash is the same for all frames of a flow, from the first 64 bytes: of
// addresses and ports where there are any, of MAC addresses elsewhere. Fragments have
// no ports.
func flowHash(f []byte) uint32 {
	f = f[:min(len(f), peekLen)]
	h := binary.BigEndian.Uint64(f)*31 + uint64(binary.BigEndian.Uint32(f[8:]))
	ether, off := network(f)
	ports := 0
	switch {
	case ether == etherIPv4 && len(f) >= off+20:
		h = h*31 + binary.BigEndian.Uint64(f[off+12:])
		p, fragment := f[off+9], binary.BigEndian.Uint16(f[off+6:])&0x3fff
		if (p == protoTCP || p == protoUDP) && fragment == 0 {
			ports = off + int(f[off]&15)*4
		}
	case ether == etherIPv6 && len(f) >= off+40:
		for i := 8; i < 40; i += 8 {
			h = h*31 + binary.BigEndian.Uint64(f[off+i:])
		}
		if p := f[off+6]; p == protoTCP || p == protoUDP {
			ports = off + 40
		}
	}
	if ports > 0 && len(f) >= ports+4 {
		h = h*31 + uint64(binary.BigEndian.Uint32(f[ports:]))
	}
	h ^= h >> 33
	h *= 0xff51afd7ed558ccd
	return uint32(h >> 32)
}
