package pcap

import (
	"encoding/binary"
	"errors"
	"fmt"
)

const (
	fileHeader   = 24
	recordHeader = 16
	magicMicro   = 0xa1b2c3d4
	magicNano    = 0xa1b23c4d
	linkEthernet = 1
	// maxSnap is the most that a record may have (libpcap's MAXIMUM_SNAPLEN): one that
	// says more is none.
	maxSnap   = 262144
	ethHeader = 14
	// maxFrame is the longest frame that a driver is given or gives: 65535 bytes behind
	// an Ethernet header and two VLAN tags.
	maxFrame = 65535 + ethHeader + 2*4
)

// ErrFormat is wrapped by errors about what is in a file.
var ErrFormat = errors.New("not a capture file that can be replayed")

// order reads the header of a classic file.
func order(b []byte) (binary.ByteOrder, error) {
	if len(b) < fileHeader {
		return nil, fmt.Errorf("%w: it has %d bytes", ErrFormat, len(b))
	}
	var o binary.ByteOrder = binary.LittleEndian
	if m := o.Uint32(b); m != magicMicro && m != magicNano {
		o = binary.BigEndian
		if m := o.Uint32(b); m != magicMicro && m != magicNano {
			return nil, fmt.Errorf("%w: magic number %#08x", ErrFormat, m)
		}
	}
	if major := o.Uint16(b[4:]); major != 2 {
		return nil, fmt.Errorf("%w: version %d", ErrFormat, major)
	}
	if link := o.Uint32(b[20:]) & 0xffff; link != linkEthernet {
		return nil, fmt.Errorf("%w: link type %d, want %d (Ethernet)", ErrFormat, link, linkEthernet)
	}
	return o, nil
}

// header is what a recorded file begins with.
func header() []byte {
	b := binary.LittleEndian.AppendUint32(nil, magicNano)
	b = binary.LittleEndian.AppendUint16(b, 2)
	b = binary.LittleEndian.AppendUint16(b, 4)
	b = append(b, make([]byte, 8)...)
	b = binary.LittleEndian.AppendUint32(b, maxSnap)
	return binary.LittleEndian.AppendUint32(b, linkEthernet)
}
