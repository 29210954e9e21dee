package offload

import (
	"encoding/binary"

	"github.com/vhostnet/vhostnet/virtio"
)

const (
	// MaxSegments bounds what becomes of one frame: 64 KiB in segments of 512 bytes.
	// Who asks for more wants to keep a worker busy.
	MaxSegments = 128

	ethHeader = 14
	etherIPv4 = 0x0800
	etherIPv6 = 0x86DD
	etherVLAN = 0x8100
	etherQinQ = 0x88A8

	fin, psh, cwr = 0x01, 0x08, 0x80
)

// Segmenter cuts one frame after the other into segments. One goroutine uses it.
type Segmenter struct {
	f             []byte
	l3, l4        int
	head          int // length of all headers
	mss, at, done int
	v6, udp       bool
	// field is where the checksum is, pseudo the sum of what it is over but not in
	// the frame, without the length.
	field  int
	pseudo uint64
	id     uint16
	seq    uint32
	flags  byte
}

// Start takes a TCP or UDP frame, without virtio-net header, that is to be segmented
// as h says. The frame must stay as it is until Next has returned nil, or the next
// Start. It returns false if the frame's headers are not what h says, or if there
// were more than [MaxSegments] segments.
func (s *Segmenter) Start(f []byte, h *virtio.NetHeader) bool {
	*s = Segmenter{f: f, l4: int(h.CSumStart), mss: int(h.GSOSize)}
	if !s.start(h) || (len(f)-s.head+s.mss-1)/s.mss > MaxSegments {
		s.f = nil
		return false
	}
	return true
}

func (s *Segmenter) start(h *virtio.NetHeader) bool {
	f := s.f
	ether, l3 := network(f)
	s.l3 = l3
	switch h.GSOType &^ virtio.GSOECN {
	case virtio.GSOTCPv4, virtio.GSOTCPv6:
		s.v6 = h.GSOType&^virtio.GSOECN == virtio.GSOTCPv6
		s.field = 16
	case virtio.GSOUDPL4:
		s.v6, s.udp, s.field = ether == etherIPv6, true, 6
	default:
		return false
	}
	if h.Flags&virtio.NetHdrFNeedsCSum == 0 || int(h.CSumOffset) != s.field || s.mss == 0 {
		return false
	}
	switch {
	case s.v6 && (ether != etherIPv6 || s.l4 < l3+40):
		return false
	case !s.v6 && (ether != etherIPv4 || s.l4 < l3+20 || len(f) < s.l4 || s.l4 != l3+int(f[l3]&15)*4):
		return false
	case s.udp:
		s.head = s.l4 + 8
	case len(f) < s.l4+20:
		return false
	default:
		s.head = s.l4 + int(f[s.l4+12]>>4)*4
		if s.head < s.l4+20 {
			return false
		}
		s.seq, s.flags = binary.BigEndian.Uint32(f[s.l4+4:]), f[s.l4+13]
	}
	if s.head > len(f) {
		return false
	}
	s.at = s.head
	s.id = binary.BigEndian.Uint16(f[l3+4:])
	// The field has the sum of the pseudo-header, with the length of all.
	s.pseudo = uint64(binary.BigEndian.Uint16(f[s.l4+s.field:])) + uint64(^uint16(len(f)-s.l4))
	return true
}

// Next writes the next segment, with all checksums complete, into dst, which has
// room for the whole frame, and returns it, nil if there is none.
func (s *Segmenter) Next(dst []byte) []byte {
	f := s.f
	if f == nil || s.done > 0 && s.at >= len(f) {
		s.f = nil
		return nil
	}
	l3, l4, at := s.l3, s.l4, s.at
	body := f[at:min(at+s.mss, len(f))]
	d := dst[:s.head+len(body)]
	copy(d, f[:s.head])
	copy(d[s.head:], body)
	if s.v6 {
		binary.BigEndian.PutUint16(d[l3+4:], uint16(len(d)-l3-40))
	} else {
		binary.BigEndian.PutUint16(d[l3+2:], uint16(len(d)-l3))
		binary.BigEndian.PutUint16(d[l3+4:], s.id+uint16(s.done))
		binary.BigEndian.PutUint16(d[l3+10:], 0)
		binary.BigEndian.PutUint16(d[l3+10:], ^fold(sum(0, d[l3:l4])))
	}
	if s.udp {
		binary.BigEndian.PutUint16(d[l4+4:], uint16(len(d)-l4))
	} else {
		binary.BigEndian.PutUint32(d[l4+4:], s.seq+uint32(at-s.head))
		now := s.flags
		if at+s.mss < len(f) {
			now &^= fin | psh
		}
		if s.done > 0 {
			now &^= cwr
		}
		d[l4+13] = now
	}
	binary.BigEndian.PutUint16(d[l4+s.field:], 0)
	// Sums of 32-bit words and of 16-bit ones are the same modulo 65535.
	c := ^fold(sum(s.pseudo+uint64(len(d)-l4), d[l4:]))
	if c == 0 && s.udp {
		c = 0xffff
	}
	binary.BigEndian.PutUint16(d[l4+s.field:], c)
	s.at, s.done = at+s.mss, s.done+1
	return d
}

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
