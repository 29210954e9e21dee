package offload

import (
	"encoding/binary"

	"github.com/vhostnet/vhostnet/virtio"
)

// Needs are the features without which a driver cannot take a frame as it is.
func Needs(h *virtio.NetHeader) virtio.Features {
	var f virtio.Features
	if h.Flags&virtio.NetHdrFNeedsCSum != 0 {
		f |= virtio.FeatureGuestCSum
	}
	switch h.GSOType &^ virtio.GSOECN {
	case virtio.GSOTCPv4:
		f |= virtio.FeatureGuestTSO4
	case virtio.GSOTCPv6:
		f |= virtio.FeatureGuestTSO6
	case virtio.GSOUDP:
		f |= virtio.FeatureGuestUFO
	case virtio.GSOUDPL4:
		f |= virtio.FeatureGuestUSO4 | virtio.FeatureGuestUSO6
	}
	if h.GSOType&virtio.GSOECN != 0 {
		f |= virtio.FeatureGuestECN
	}
	return f
}

// Complete does what NEEDS_CSUM asks for (virtio 1.4, "Packet Transmission") in a
// frame without virtio-net header: the field has the sum of what is not in the
// frame. It returns false if start and offset point outside of it.
func Complete(f []byte, start, offset int) bool {
	if start > len(f) || start+offset+2 > len(f) {
		return false
	}
	sum := ^fold(sum(0, f[start:]))
	if sum == 0 {
		sum = 0xffff // the same number, and no "there is none" of UDP
	}
	binary.BigEndian.PutUint16(f[start+offset:], sum)
	return true
}

// sum adds b to a ones' complement sum.
func sum(s uint64, b []byte) uint64 {
	for ; len(b) >= 4; b = b[4:] {
		s += uint64(binary.BigEndian.Uint32(b))
	}
	switch len(b) {
	case 3:
		s += uint64(b[0])<<24 | uint64(b[1])<<16 | uint64(b[2])<<8
	case 2:
		s += uint64(b[0])<<24 | uint64(b[1])<<16
	case 1:
		s += uint64(b[0]) << 24
	}
	return s
}

func fold(s uint64) uint16 {
	s = s>>32 + s&0xffffffff
	s = s>>32 + s&0xffffffff
	s = s>>16 + s&0xffff
	s = s>>16 + s&0xffff
	return uint16(s>>16 + s&0xffff)
}
