package offload

import (
	"encoding/binary"
	"testing"

	"github.com/vhostnet/vhostnet/virtio"
)

// Whatever a header says, segments are made of whole frames only and lie inside of
// the room for one, and those that are made carry all of the payload.
func FuzzSegments(f *testing.F) {
	tcp := make([]byte, 14+20+20+3000)
	tcp[12], tcp[14], tcp[23], tcp[46] = 8, 0x45, 6, 0x50
	v6 := make([]byte, 14+40+8+3000)
	v6[12], v6[13], v6[14], v6[20] = 0x86, 0xdd, 0x60, 17
	f.Add(tcp, uint8(virtio.GSOTCPv4), uint16(34), uint16(16), uint16(1000))
	f.Add(tcp[:40], uint8(virtio.GSOTCPv4|virtio.GSOECN), uint16(34), uint16(16), uint16(1))
	f.Add(v6, uint8(virtio.GSOUDPL4), uint16(54), uint16(6), uint16(700))
	f.Add(v6, uint8(virtio.GSOTCPv6), uint16(0xffff), uint16(0xffff), uint16(0))
	f.Add([]byte{}, uint8(virtio.GSOUDP), uint16(0), uint16(0), uint16(1))
	f.Fuzz(func(t *testing.T, frame []byte, gso uint8, start, offset, mss uint16) {
		frame = frame[:min(len(frame), 65535)]
		h := virtio.NetHeader{Flags: virtio.NetHdrFNeedsCSum, GSOType: gso, GSOSize: mss, CSumStart: start, CSumOffset: offset}
		_ = Needs(&h)
		copied := append([]byte(nil), frame...)
		if Complete(copied, int(start), int(offset)) != (int(start)+int(offset)+2 <= len(frame)) {
			t.Error("a sum outside of the frame, or none inside")
		}
		var s Segmenter
		if !s.Start(frame, &h) {
			if s.Next(copied) != nil {
				t.Error("segments of a frame that has none")
			}
			return
		}
		room, payload, n := make([]byte, len(frame)), 0, 0
		for d := s.Next(room); d != nil; d = s.Next(room) {
			payload += len(d) - s.head
			n++
			if len(d)-s.head > int(mss) {
				t.Errorf("a segment of %d bytes", len(d))
			}
		}
		if payload != len(frame)-s.head || n > MaxSegments {
			t.Errorf("%d bytes of payload in %d segments, of %d", payload, n, len(frame)-s.head)
		}
	})
}

func TestSegmentsOfUDP(t *testing.T) {
	f := make([]byte, 14+40+8+2500)
	f[12], f[13], f[14], f[20], f[21] = 0x86, 0xdd, 0x60, 17, 64
	for i := 62; i < len(f); i++ {
		f[i] = byte(i)
	}
	binary.BigEndian.PutUint16(f[60:], fold(uint64(17+8+2500))) // all addresses are zero
	var s Segmenter
	h := virtio.NetHeader{Flags: virtio.NetHdrFNeedsCSum, GSOType: virtio.GSOUDPL4, GSOSize: 1000, CSumStart: 54, CSumOffset: 6}
	if !s.Start(f, &h) {
		t.Fatal("refused")
	}
	room := make([]byte, len(f))
	for _, n := range []int{1000, 1000, 500} {
		d := s.Next(room)
		if len(d) != 62+n || int(binary.BigEndian.Uint16(d[18:])) != 8+n || int(binary.BigEndian.Uint16(d[58:])) != 8+n {
			t.Fatalf("% x", d[:62])
		}
		if got := fold(sum(uint64(17+8+n), d[54:])); got != 0xffff {
			t.Errorf("sum %#x", got)
		}
	}
	if s.Next(room) != nil {
		t.Error("one more")
	}
}
