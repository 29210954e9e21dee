package nativeguest

import (
	"encoding/binary"

	"github.com/vhostnet/vhostnet/virtio"
)

// believe makes a stack take a frame that the device says to be valid, without a
// checksum in it (VIRTIO_NET_HDR_F_DATA_VALID). The Linux driver marks such a frame
// as verified; a TAP has no way to say so, but what it does not verify either is a
// frame whose checksum is still to be computed. hdr is the header, which is changed
// in place; frames other than TCP and UDP over IPv4 are left alone.
func believe(hdr, frame []byte) {
	var h virtio.NetHeader
	h.Decode(hdr)
	if h.Flags&(virtio.NetHdrFDataValid|virtio.NetHdrFNeedsCSum) != virtio.NetHdrFDataValid {
		return
	}
	const ether, least, fragments = 14, 20, 0x3fff
	if len(frame) < ether+least || binary.BigEndian.Uint16(frame[12:]) != 0x0800 {
		return
	}
	ip := frame[ether:]
	length := int(ip[0]&15) * 4
	if ip[0]>>4 != 4 || length < least || binary.BigEndian.Uint16(ip[6:])&fragments != 0 {
		return
	}
	var offset, size int
	switch ip[9] {
	case 6:
		offset, size = 16, 20
	case 17:
		offset, size = 6, 8
	default:
		return
	}
	if len(ip) < length+size {
		return
	}
	h.Flags = virtio.NetHdrFNeedsCSum
	h.CSumStart, h.CSumOffset = uint16(ether+length), uint16(offset)
	h.Encode(hdr)
}
