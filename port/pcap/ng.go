package pcap

import (
	"encoding/binary"
	"fmt"
)

// What a pcapng file is made of (draft-ietf-opsawg-pcapng, "Block Definitions"): each
// block has its type and its length in front, and the length once more at its end.
const (
	blockSection   = 0x0a0d0d0a
	blockInterface = 1
	blockPacket    = 2 // obsolete
	blockSimple    = 3
	blockEnhanced  = 6

	// orderMagic is behind a section's length, in the section's byte order.
	orderMagic = 0x1a2b3c4d

	blockHeader    = 8
	blockMin       = 12
	sectionHeader  = 28
	interfaceFixed = 16
	simpleFixed    = 12
	packetFixed    = 28

	// maxInterfaces bounds the interfaces of a section; captures have a few.
	maxInterfaces = 256
	// maxBlocks is how many blocks without a frame are read before others have their
	// turn.
	maxBlocks = 256
)

// isNG tells whether a file begins as pcapng does. Its first word reads the same in
// both byte orders.
func isNG(b []byte) bool { return len(b) >= 4 && binary.LittleEndian.Uint32(b) == blockSection }

// orderNG reads the beginning of a section.
func orderNG(b []byte) (binary.ByteOrder, error) {
	if len(b) < 16 {
		return nil, fmt.Errorf("%w: it has %d bytes", ErrFormat, len(b))
	}
	var o binary.ByteOrder = binary.LittleEndian
	if o.Uint32(b[8:]) != orderMagic {
		o = binary.BigEndian
		if m := o.Uint32(b[8:]); m != orderMagic {
			return nil, fmt.Errorf("%w: byte-order magic %#08x", ErrFormat, m)
		}
	}
	if major := o.Uint16(b[12:]); major != 1 {
		return nil, fmt.Errorf("%w: pcapng version %d", ErrFormat, major)
	}
	return o, nil
}

// block reads one block of a pcapng file. It returns false if that has no frame.
func (r *replayer) block() (f []byte, was uint32, ok bool) {
	if !r.fill(blockHeader) {
		r.end()
		return nil, 0, false
	}
	kind := r.order.Uint32(r.buf[r.next:])
	least := blockMin
	switch kind {
	case blockSection:
		least = sectionHeader
	case blockInterface:
		least = interfaceFixed + 4
	case blockSimple:
		least = simpleFixed + 4
	case blockPacket, blockEnhanced:
		least = packetFixed + 4
	}
	if !r.fill(least) {
		r.end()
		return nil, 0, false
	}
	b := r.buf[r.next:]
	if kind == blockSection {
		// Its length is in an order of its own.
		o, err := orderNG(b)
		if err != nil {
			r.stop(fmt.Sprintf("a section before offset %d: %v", r.at, err))
			return nil, 0, false
		}
		r.order, r.linkTypes = o, r.linkTypes[:0]
	}
	size := r.order.Uint32(b[4:])
	if size < uint32(least) || size%4 != 0 {
		r.stop(fmt.Sprintf("a block of %d bytes before offset %d", size, r.at))
		return nil, 0, false
	}
	switch kind {
	case blockInterface:
		if len(r.linkTypes) == maxInterfaces {
			r.stop(fmt.Sprintf("more than %d interfaces before offset %d", maxInterfaces, r.at))
			return nil, 0, false
		}
		if len(r.linkTypes) == 0 {
			r.snap = r.order.Uint32(b[12:])
		}
		r.linkTypes = append(r.linkTypes, r.order.Uint16(b[8:]))
	case blockSimple:
		was = r.order.Uint32(b[8:])
		captured := min(was, size-simpleFixed-4)
		if r.snap != 0 {
			captured = min(captured, r.snap)
		}
		return r.packet(0, simpleFixed, captured, size, was)
	case blockPacket:
		return r.packet(uint32(r.order.Uint16(b[8:])), packetFixed, r.order.Uint32(b[20:]), size, r.order.Uint32(b[24:]))
	case blockEnhanced:
		return r.packet(r.order.Uint32(b[8:]), packetFixed, r.order.Uint32(b[20:]), size, r.order.Uint32(b[24:]))
	}
	r.skip(int64(size))
	return nil, 0, false
}

// packet takes a packet of captured bytes, off bytes from the beginning of its block,
// which has size bytes. What is of no Ethernet interface is passed over.
func (r *replayer) packet(iface uint32, off int, captured, size, was uint32) ([]byte, uint32, bool) {
	switch {
	case captured > size-uint32(off)-4:
		r.stop(fmt.Sprintf("a packet of %d bytes in a block of %d before offset %d", captured, size, r.at))
		return nil, 0, false
	case iface >= uint32(len(r.linkTypes)):
		r.stop(fmt.Sprintf("a packet of interface %d, of %d, before offset %d", iface, len(r.linkTypes), r.at))
		return nil, 0, false
	case r.linkTypes[iface] != linkEthernet:
		r.c[replayBad].add(1)
		r.skip(int64(size))
		return nil, 0, false
	}
	return r.take(off, captured, int64(size), was)
}
