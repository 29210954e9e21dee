package toeplitz

import "encoding/binary"

// Hash types (VIRTIO_NET_HASH_TYPE). A type's number plus one is what is reported.
const (
	IPv4  = 1 << 0
	TCPv4 = 1 << 1
	UDPv4 = 1 << 2
	IPv6  = 1 << 3
	TCPv6 = 1 << 4
	UDPv6 = 1 << 5
	IPEx  = 1 << 6
	TCPEx = 1 << 7
	UDPEx = 1 << 8
	// All is every type there is.
	All = 1<<9 - 1
)

// Values of hash_report (VIRTIO_NET_HASH_REPORT).
const (
	ReportNone = iota
	ReportIPv4
	ReportTCPv4
	ReportUDPv4
	ReportIPv6
	ReportTCPv6
	ReportUDPv6
	ReportIPEx
	ReportTCPEx
	ReportUDPEx
)

// Look is how many bytes of a frame Parse looks at, at most. What a frame has
// behind them does not count: its ports are not found, or a home address.
const Look = 256

const (
	etherIPv4 = 0x0800
	etherIPv6 = 0x86dd
	etherVLAN = 0x8100
	etherQinQ = 0x88a8
	// maxTags and maxExtensions bound what a hostile frame can make Parse do.
	maxTags       = 2
	maxExtensions = 8

	protoHopByHop = 0
	protoTCP      = 6
	protoUDP      = 17
	protoRouting  = 43
	protoFragment = 44
	protoAuth     = 51
	protoDest     = 60
	protoMobility = 135

	optionPad1        = 0
	optionHomeAddress = 0xc9
	routingType2      = 2
)

// Flow is what of a frame is hashed.
type Flow struct {
	// Report says what it is, ReportNone if the frame has nothing to hash.
	Report uint16
	n      uint8
	input  [MaxInput]byte
}

// Input returns the bytes that are hashed.
func (f *Flow) Input() []byte { return f.input[:f.n] }

// Parse finds what of a frame, which starts at the destination address, is
// hashed when the given types are enabled. A fragment has no ports, not even the
// first one: all fragments of a packet get the same hash. Parse keeps nothing of
// frame and does not allocate.
func (f *Flow) Parse(frame []byte, types uint32) {
	f.Report, f.n = ReportNone, 0
	frame = frame[:min(len(frame), Look)]
	if len(frame) < 14 {
		return
	}
	proto, rest := binary.BigEndian.Uint16(frame[12:]), frame[14:]
	for range maxTags {
		if proto != etherVLAN && proto != etherQinQ || len(rest) < 4 {
			break
		}
		proto, rest = binary.BigEndian.Uint16(rest[2:]), rest[4:]
	}
	switch proto {
	case etherIPv4:
		f.parse4(rest, types)
	case etherIPv6:
		f.parse6(rest, types)
	}
}

func (f *Flow) parse4(b []byte, types uint32) {
	if len(b) < 20 || b[0]>>4 != 4 {
		return
	}
	head := int(b[0]&15) * 4
	if head < 20 {
		return
	}
	const fragmented = 0x3fff // more fragments, offset
	var ports []byte
	if binary.BigEndian.Uint16(b[6:])&fragmented == 0 && len(b) >= head+4 {
		ports = b[head : head+4]
	}
	f.choose(b[9], types, ReportIPv4, b[12:16], b[16:20], ports)
}

// choose fills in the flow of the best enabled type: ip and the two behind it are
// the reports without ports, for TCP, and for UDP.
func (f *Flow) choose(proto uint8, types uint32, ip uint16, src, dst, ports []byte) bool {
	enabled := func(report uint16) bool { return types>>(report-1)&1 != 0 }
	switch {
	case ports != nil && proto == protoTCP && enabled(ip+1):
		f.Report = ip + 1
	case ports != nil && proto == protoUDP && enabled(ip+2):
		f.Report = ip + 2
	case enabled(ip):
		f.Report, ports = ip, nil
	default:
		return false
	}
	n := copy(f.input[:], src)
	n += copy(f.input[n:], dst)
	n += copy(f.input[n:], ports)
	f.n = uint8(n)
	return true
}

func (f *Flow) parse6(b []byte, types uint32) {
	const head = 40
	if len(b) < head || b[0]>>4 != 6 {
		return
	}
	src, dst := b[8:24], b[24:40]
	x := walk(b[6], b[head:])
	if x.any {
		home, final := src, dst
		if x.home != nil {
			home = x.home
		}
		if x.final != nil {
			final = x.final
		}
		if f.choose(x.proto, types, ReportIPEx, home, final, x.ports) {
			return
		}
	}
	f.choose(x.proto, types, ReportIPv6, src, dst, x.ports)
}

// extensions is what the extension headers of an IPv6 packet say.
type extensions struct {
	any         bool
	proto       uint8
	home, final []byte // addresses that stand in for source and destination
	ports       []byte
}

// walk goes through the extension headers in b, of which next is the first.
func walk(next uint8, b []byte) (x extensions) {
	x.proto = next
	for range maxExtensions {
		n := 0
		switch x.proto {
		case protoHopByHop, protoDest, protoRouting, protoMobility:
			x.any = true
			if len(b) < 8 {
				return x
			}
			n = 8 + int(b[1])*8
		case protoAuth:
			x.any = true
			if len(b) < 8 {
				return x
			}
			n = 8 + int(b[1])*4
		case protoFragment:
			x.any = true
			if len(b) < 8 {
				return x
			}
			const offsetAndMore = 0xfff9
			if binary.BigEndian.Uint16(b[2:])&offsetAndMore != 0 {
				return x // no ports; what follows may be the middle of anything
			}
			n = 8
		default:
			if len(b) >= 4 {
				x.ports = b[:4]
			}
			return x
		}
		if n > len(b) {
			return x
		}
		switch x.proto {
		case protoDest:
			if a := homeAddress(b[2:n]); a != nil {
				x.home = a
			}
		case protoRouting:
			if b[2] == routingType2 && n == 24 && b[3] != 0 {
				x.final = b[8:24]
			}
		}
		x.proto, b = b[0], b[n:]
	}
	return x
}

// homeAddress finds the home address among destination options.
func homeAddress(b []byte) []byte {
	for len(b) >= 2 {
		if b[0] == optionPad1 {
			b = b[1:]
			continue
		}
		n := 2 + int(b[1])
		if n > len(b) {
			return nil
		}
		if b[0] == optionHomeAddress && n == 2+16 {
			return b[2:n]
		}
		b = b[n:]
	}
	return nil
}
