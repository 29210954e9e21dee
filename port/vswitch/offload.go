package vswitch

import (
	"encoding/binary"

	"github.com/vhostnet/vhostnet/virtio"
)

// maxSegments bounds what becomes of one frame: 64 KiB in segments of 512 bytes.
// A driver that asks for more wants to keep its worker busy.
const maxSegments = 128

// job is a frame on its way to one port, or to several.
type job struct {
	h      virtio.NetHeader // checked by the device
	pieces [][]byte         // without the header
	size   int
	peek   []byte // its first bytes

	// whole is a copy of the frame once something had to be done to it, complete
	// tells that its checksum is.
	whole    []byte
	complete bool
}

// needs are the features without which a driver cannot take a frame as it is.
func needs(h *virtio.NetHeader) virtio.Features {
	var f virtio.Features
	if h.Flags&virtio.NetHdrFNeedsCSum != 0 {
		f |= virtio.FeatureGuestCSum
	}
	switch h.GSOType &^ virtio.GSOECN {
	case virtio.GSOTCPv4:
		f |= virtio.FeatureGuestTSO4
	case virtio.GSOTCPv6:
		f |= virtio.FeatureGuestTSO6
	}
	if h.GSOType&virtio.GSOECN != 0 {
		f |= virtio.FeatureGuestECN
	}
	return f
}

// deliver gives a frame to a port in a form that its driver can take. It returns
// false if nobody receives there.
func (q *queue) deliver(p *Port, j *job) bool {
	in := p.pick(j.peek)
	if in == nil {
		return false
	}
	need := needs(&j.h)
	switch missing := need &^ virtio.Features(p.guest.Load()); {
	case need == 0:
		lost(p, in.putWhole(j.pieces, j.size, true))
	case missing == 0:
		j.h.Encode(q.header[:])
		q.framed = append(append(q.framed[:0], q.header[:]), j.pieces...)
		lost(p, in.putWhole(q.framed, storedHeader+j.size, false))
	case j.h.GSOType == virtio.GSONone:
		q.take(j)
		if !j.complete {
			completeChecksum(j.whole, int(j.h.CSumStart), int(j.h.CSumOffset))
			j.complete = true
		}
		q.count(countChecksums)
		q.one[0] = j.whole
		lost(p, in.put(q.one[:]) == 1)
	default:
		q.take(j)
		q.segments(p, in, j)
	}
	return true
}

func lost(p *Port, taken bool) {
	if !taken {
		p.full.Add(1)
	}
}

// take makes a copy of the frame that the driver cannot change.
func (q *queue) take(j *job) {
	if j.whole != nil {
		return
	}
	if q.whole == nil {
		q.whole, q.segment = make([]byte, maxFrame), make([]byte, maxFrame)
	}
	j.whole = q.whole[:gather(q.whole[:j.size], j.pieces)]
}

// completeChecksum does what NEEDS_CSUM asks for (virtio 1.4, "Packet
// Transmission"): the field has the sum of what is not in the frame.
func completeChecksum(f []byte, start, offset int) {
	sum := ^fold(sum(0, f[start:]))
	if sum == 0 {
		sum = 0xffff // the same number, and no "there is none" of UDP
	}
	binary.BigEndian.PutUint16(f[start+offset:], sum)
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

// segmentable finds the headers of a TCP frame that is to be segmented; ok is false
// if they are not what the virtio-net header says.
func segmentable(j *job) (l3, l4, payload int, v6, ok bool) {
	f := j.whole
	ether, l3 := network(f)
	l4 = int(j.h.CSumStart)
	v6 = j.h.GSOType&^virtio.GSOECN == virtio.GSOTCPv6
	if j.h.CSumOffset != 16 || len(f) < l4+20 {
		return 0, 0, 0, false, false
	}
	switch {
	case v6:
		ok = ether == etherIPv6 && l4 >= l3+40
	default:
		ok = ether == etherIPv4 && l4 >= l3+20 && l4 == l3+int(f[l3]&15)*4
	}
	payload = l4 + int(f[l4+12]>>4)*4
	ok = ok && payload >= l4+20 && payload <= len(f)
	return l3, l4, payload, v6, ok
}

// segments sends a TCP frame as segments with all checksums complete.
func (q *queue) segments(p *Port, in *inbox, j *job) {
	l3, l4, head, v6, ok := segmentable(j)
	f, mss := j.whole, int(j.h.GSOSize)
	if !ok || (len(f)-head+mss-1)/mss > maxSegments {
		q.count(countBadOffload)
		return
	}
	q.count(countSegmented)
	const fin, psh, cwr = 0x01, 0x08, 0x80
	seq := binary.BigEndian.Uint32(f[l4+4:])
	flags := f[l4+13]
	id := binary.BigEndian.Uint16(f[l3+4:])
	// The field has the sum of the pseudo-header, with the length of all.
	pseudo := uint64(binary.BigEndian.Uint16(f[l4+16:])) + uint64(^uint16(len(f)-l4))
	for i, at := 0, head; i == 0 || at < len(f); i, at = i+1, at+mss {
		body := f[at:min(at+mss, len(f))]
		s := q.segment[:head+len(body)]
		copy(s, f[:head])
		copy(s[head:], body)
		if v6 {
			binary.BigEndian.PutUint16(s[l3+4:], uint16(len(s)-l3-40))
		} else {
			binary.BigEndian.PutUint16(s[l3+2:], uint16(len(s)-l3))
			binary.BigEndian.PutUint16(s[l3+4:], id+uint16(i))
			binary.BigEndian.PutUint16(s[l3+10:], 0)
			binary.BigEndian.PutUint16(s[l3+10:], ^fold(sum(0, s[l3:l4])))
		}
		binary.BigEndian.PutUint32(s[l4+4:], seq+uint32(at-head))
		now := flags
		if at+mss < len(f) {
			now &^= fin | psh
		}
		if i > 0 {
			now &^= cwr
		}
		s[l4+13] = now
		binary.BigEndian.PutUint16(s[l4+16:], 0)
		// Sums of 32-bit words and of 16-bit ones are the same modulo 65535.
		binary.BigEndian.PutUint16(s[l4+16:], ^fold(sum(pseudo+uint64(len(s)-l4), s[l4:])))
		q.one[0] = s
		lost(p, in.put(q.one[:]) == 1)
	}
}
