package virtio

import "encoding/binary"

// Sizes of the virtio-net header in bytes (struct virtio_net_hdr).
const (
	// NetHeaderLenLegacy is the size without num_buffers.
	NetHeaderLenLegacy = 10
	// NetHeaderLen is the size with VERSION_1 or MRG_RXBUF.
	NetHeaderLen = 12
	// NetHeaderLenHash is the size with HASH_REPORT.
	NetHeaderLenHash = 20
	// NetHeaderMax is the largest size that there is.
	NetHeaderMax = NetHeaderLenHash
)

// NetHeaderSize returns the size of the header with the features f negotiated:
// 20 bytes with HASH_REPORT, 10 without it, VERSION_1 and MRG_RXBUF, else 12.
func NetHeaderSize(f Features) int {
	if f.Has(FeatureHashReport) {
		return NetHeaderLenHash
	}
	if f&(FeatureVersion1|FeatureMrgRxBuf) == 0 {
		return NetHeaderLenLegacy
	}
	return NetHeaderLen
}

// Flags and GSO types of the header.
const (
	NetHdrFNeedsCSum = 1
	NetHdrFDataValid = 2
	NetHdrFRSCInfo   = 4

	GSONone  = 0
	GSOTCPv4 = 1
	GSOUDP   = 3 // fragmentation offload, historic
	GSOTCPv6 = 4
	GSOUDPL4 = 5
	GSOECN   = 0x80
)

// NetHeader is the virtio-net header (virtio 1.4, "Network Device / Device
// Operation"). It is little-endian.
type NetHeader struct {
	Flags, GSOType                                     uint8
	HdrLen, GSOSize, CSumStart, CSumOffset, NumBuffers uint16
}

// Decode reads the header from b, which has at least 10 bytes. NumBuffers is 0
// if it has fewer than 12.
func (h *NetHeader) Decode(b []byte) {
	w := binary.LittleEndian.Uint64(b)
	h.Flags, h.GSOType = uint8(w), uint8(w>>8)
	h.HdrLen, h.GSOSize, h.CSumStart = uint16(w>>16), uint16(w>>32), uint16(w>>48)
	h.CSumOffset = binary.LittleEndian.Uint16(b[8:])
	h.NumBuffers = 0
	if len(b) >= NetHeaderLen {
		h.NumBuffers = binary.LittleEndian.Uint16(b[10:])
	}
}

// Encode writes the header to b, which has at least 10 bytes; NumBuffers if it
// has at least 12.
func (h *NetHeader) Encode(b []byte) {
	binary.LittleEndian.PutUint64(b, uint64(h.Flags)|uint64(h.GSOType)<<8|
		uint64(h.HdrLen)<<16|uint64(h.GSOSize)<<32|uint64(h.CSumStart)<<48)
	binary.LittleEndian.PutUint16(b[8:], h.CSumOffset)
	if len(b) >= NetHeaderLen {
		binary.LittleEndian.PutUint16(b[10:], h.NumBuffers)
	}
}

// PutHash writes hash_value and hash_report behind the header in b, which has at
// least 20 bytes.
func PutHash(b []byte, value uint32, report uint16) {
	binary.LittleEndian.PutUint64(b[NetHeaderLen:], uint64(value)|uint64(report)<<32)
}

// Hash reads hash_value and hash_report, which are zero if b has less than 20 bytes.
func Hash(b []byte) (value uint32, report uint16) {
	if len(b) < NetHeaderLenHash {
		return 0, 0
	}
	w := binary.LittleEndian.Uint64(b[NetHeaderLen:])
	return uint32(w), uint16(w >> 32)
}

// HeaderFault is what is wrong with a header. The zero value is none.
type HeaderFault uint8

const (
	HeaderOK HeaderFault = iota
	HeaderCSumRange
	HeaderCSumNotNegotiated
	HeaderGSOType
	HeaderGSOSize
	HeaderGSONotNegotiated
	HeaderGSOWithoutCSum

	// NumHeaderFaults is the number of faults, HeaderOK included.
	NumHeaderFaults = int(HeaderGSOWithoutCSum) + 1
)

var headerFaultNames = [NumHeaderFaults]string{
	"ok", "csum_range", "csum_not_negotiated", "gso_type", "gso_size", "gso_not_negotiated", "gso_without_csum",
}

// String returns the fault's name as counters spell it.
func (f HeaderFault) String() string {
	if int(f) < len(headerFaultNames) {
		return headerFaultNames[f]
	}
	return "invalid"
}

// CheckTX judges the header of a frame that the driver transmits; frameLen is
// the frame's length in bytes without the header. What was not negotiated, or
// points outside the frame, is refused. What has no meaning is ignored, and
// cleared in h so that the port sees a clean header: num_buffers, other flags,
// and hdr_len where there is nothing to segment or it is longer than the frame
// (a hint only, but Linux refuses such a frame on a TAP) (virtio 1.4, "Packet
// Transmission").
func (h *NetHeader) CheckTX(frameLen int, f Features) HeaderFault {
	// Split in two so that the plain case is inlined.
	if h.Flags&NetHdrFNeedsCSum|h.GSOType == 0 {
		*h = NetHeader{}
		return HeaderOK
	}
	return h.checkTX(frameLen, f)
}

func (h *NetHeader) checkTX(frameLen int, f Features) HeaderFault {
	h.Flags &= NetHdrFNeedsCSum
	h.NumBuffers = 0
	if h.GSOType == GSONone || int(h.HdrLen) > frameLen {
		h.HdrLen = 0
	}
	if h.Flags != 0 {
		if !f.Has(FeatureCSum) {
			return HeaderCSumNotNegotiated
		}
		// The checksum field's two bytes must lie inside the frame.
		if int(h.CSumStart)+int(h.CSumOffset)+2 > frameLen {
			return HeaderCSumRange
		}
	} else {
		h.CSumStart, h.CSumOffset = 0, 0
	}
	if h.GSOType == GSONone {
		h.GSOSize = 0
		return HeaderOK
	}
	var need Features
	switch h.GSOType &^ GSOECN {
	case GSOTCPv4:
		need = FeatureHostTSO4
	case GSOTCPv6:
		need = FeatureHostTSO6
	case GSOUDP:
		need = FeatureHostUFO
	case GSOUDPL4:
		need = FeatureHostUSO
	default:
		return HeaderGSOType
	}
	if h.GSOType&GSOECN != 0 {
		if need&(FeatureHostTSO4|FeatureHostTSO6) == 0 {
			return HeaderGSOType
		}
		need |= FeatureHostECN
	}
	switch {
	case !f.Has(need):
		return HeaderGSONotNegotiated
	case h.GSOSize == 0:
		return HeaderGSOSize
	case h.Flags == 0:
		// Segments need a checksum each ("the driver MUST also set NEEDS_CSUM").
		return HeaderGSOWithoutCSum
	}
	return HeaderOK
}

// CheckRX judges the header of a frame for a driver that has negotiated f, and
// clears what has no meaning to it: flags other than NEEDS_CSUM and DATA_VALID,
// and the fields that no flag and no GSO type refers to. num_buffers stays
// (virtio 1.4, "Processing of Incoming Packets").
func (h *NetHeader) CheckRX(f Features) HeaderFault {
	if h.Flags|h.GSOType == 0 {
		*h = NetHeader{NumBuffers: h.NumBuffers}
		return HeaderOK
	}
	return h.checkRX(f)
}

func (h *NetHeader) checkRX(f Features) HeaderFault {
	h.Flags &= NetHdrFNeedsCSum | NetHdrFDataValid
	if !f.Has(FeatureGuestCSum) {
		if h.Flags&NetHdrFNeedsCSum != 0 {
			return HeaderCSumNotNegotiated
		}
		h.Flags = 0
	}
	if h.Flags&NetHdrFNeedsCSum == 0 {
		h.CSumStart, h.CSumOffset = 0, 0
	}
	var need Features
	switch h.GSOType &^ GSOECN {
	case GSONone:
		if h.GSOType != 0 {
			return HeaderGSOType
		}
		h.GSOSize, h.HdrLen = 0, 0
		return HeaderOK
	case GSOTCPv4:
		need = FeatureGuestTSO4
	case GSOTCPv6:
		need = FeatureGuestTSO6
	case GSOUDP:
		need = FeatureGuestUFO
	case GSOUDPL4:
		// Which of the two it takes depends on the frame's IP version, which
		// the header does not tell.
		if f&(FeatureGuestUSO4|FeatureGuestUSO6) == 0 {
			return HeaderGSONotNegotiated
		}
	default:
		return HeaderGSOType
	}
	if h.GSOType&GSOECN != 0 {
		if need&(FeatureGuestTSO4|FeatureGuestTSO6) == 0 {
			return HeaderGSOType
		}
		need |= FeatureGuestECN
	}
	switch {
	case !f.Has(need):
		return HeaderGSONotNegotiated
	case h.GSOSize == 0:
		return HeaderGSOSize
	}
	return HeaderOK
}
