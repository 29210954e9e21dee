package vswitch

import (
	"bytes"
	"encoding/binary"
	"fmt"
	"testing"

	"github.com/vhostnet/vhostnet/port/offload"
	"github.com/vhostnet/vhostnet/virtio"
)

const tso = virtio.FeatureGuestCSum | virtio.FeatureGuestTSO4 | virtio.FeatureGuestTSO6 | virtio.FeatureGuestECN

// tcp makes a TCP frame with a partial checksum, as drivers send it, and the header
// for it.
func tcp(v6 bool, tags, payload, mss int) (virtio.NetHeader, []byte) {
	f := frame(0xb, 0xa, "")[:12]
	for range tags {
		f = append(f, 0x81, 0, 0, 5)
	}
	var pseudo []byte
	h := virtio.NetHeader{Flags: virtio.NetHdrFNeedsCSum, GSOSize: uint16(mss), CSumOffset: 16}
	if v6 {
		f = append(f, 0x86, 0xdd, 0x60, 0, 0, 0)
		f = binary.BigEndian.AppendUint16(f, uint16(24+payload))
		f = append(f, protoTCP, 64)
		pseudo = []byte("source-address-:dest-address---:")
		f = append(f, pseudo...)
		h.GSOType = virtio.GSOTCPv6
	} else {
		f = append(f, 8, 0, 0x46, 0)
		f = binary.BigEndian.AppendUint16(f, uint16(24+24+payload))
		f = append(f, 0xff, 0xfe, 0x40, 0, 64, protoTCP, 0, 0)
		pseudo = []byte{10, 0, 0, 1, 10, 0, 0, 2}
		f = append(f, pseudo...)
		f = append(f, 1, 1, 1, 0) // options
		ip := f[len(f)-24:]
		binary.BigEndian.PutUint16(ip[10:], ^plainSum(ip))
		h.GSOType = virtio.GSOTCPv4
	}
	h.CSumStart = uint16(len(f))
	pseudo = append(pseudo, 0, protoTCP)
	pseudo = binary.BigEndian.AppendUint16(pseudo, uint16(24+payload))
	f = append(f, 0x12, 0x34, 0, 80)
	f = binary.BigEndian.AppendUint32(f, 1<<32-1000) // the sequence number goes round
	f = append(f, 0, 0, 0, 9, 6<<4, 0x80|0x10|0x08|0x01, 1, 0)
	f = binary.BigEndian.AppendUint16(f, plainSum(pseudo))
	f = append(f, 0, 0, 1, 1, 1, 0)
	for i := range payload {
		f = append(f, byte(i*7))
	}
	if mss == 0 {
		h.GSOType = virtio.GSONone
	}
	return h, f
}

// plainSum is a ones' complement sum in the plainest way (RFC 1071).
func plainSum(b []byte) uint16 {
	s := uint32(0)
	for i := 0; i < len(b); i += 2 {
		s += uint32(b[i]) << 8
		if i+1 < len(b) {
			s += uint32(b[i+1])
		}
		s = s>>16 + s&0xffff
	}
	return uint16(s)
}

// verify checks the checksums of a TCP frame.
func verify(t *testing.T, f []byte, v6 bool, l3, l4 int) {
	t.Helper()
	pseudo := bytes.Clone(f[l3+8 : l3+40])
	if !v6 {
		if s := plainSum(f[l3:l4]); s != 0xffff {
			t.Errorf("IP checksum: %#x", s)
		}
		if n := int(binary.BigEndian.Uint16(f[l3+2:])); n != len(f)-l3 {
			t.Errorf("IP length %d of %d", n, len(f)-l3)
		}
		pseudo = bytes.Clone(f[l3+12 : l3+20])
	} else if n := int(binary.BigEndian.Uint16(f[l3+4:])); n != len(f)-l3-40 {
		t.Errorf("IPv6 payload length %d of %d", n, len(f)-l3-40)
	}
	pseudo = append(pseudo, 0, protoTCP)
	pseudo = binary.BigEndian.AppendUint16(pseudo, uint16(len(f)-l4))
	if s := plainSum(append(pseudo, f[l4:]...)); s != 0xffff {
		t.Errorf("TCP checksum: %#x", s)
	}
}

// sendWith sends a frame with a header, in two pieces.
func sendWith(t *testing.T, p *Port, h virtio.NetHeader, f []byte) {
	t.Helper()
	b := make([]byte, virtio.NetHeaderLen)
	h.Encode(b)
	if err := p.queues[0].Send([][]byte{append(b, f[:30]...), f[30:]}); err != nil {
		t.Fatal(err)
	}
}

// recv receives all frames with their headers.
func recv(t *testing.T, p *Port) (hs []virtio.NetHeader, fs [][]byte) {
	t.Helper()
	b := make([]byte, 12+maxFrame)
	for p.queues[0].Pending() {
		n, err := p.queues[0].Recv([][]byte{b})
		if err != nil {
			t.Fatal(err)
		}
		var h virtio.NetHeader
		h.Decode(b[:12])
		hs, fs = append(hs, h), append(fs, bytes.Clone(b[12:n]))
	}
	return hs, fs
}

// A frame reaches each receiver in a form that its driver has agreed to.
func TestOffloads(t *testing.T) {
	for _, v6 := range []bool{false, true} {
		for tags := range 3 {
			for _, payload := range []int{1, 999, 1000, 1001, 50_001} {
				t.Run(fmt.Sprintf("v6=%t tags=%d payload=%d", v6, tags, payload), func(t *testing.T) {
					s := newTestSwitch(t)
					a, all, sums, none := s.open(1, 0), s.open(1, tso), s.open(1, virtio.FeatureGuestCSum), s.open(1, 0)
					h, f := tcp(v6, tags, payload, 1000)
					h.GSOType |= virtio.GSOECN
					l4 := int(h.CSumStart)
					sendWith(t, a, h, f)
					hs, fs := recv(t, all)
					if len(fs) != 1 || !bytes.Equal(fs[0], f) || hs[0] != h {
						t.Fatalf("%d frames, header %+v, want %+v", len(fs), hs, h)
					}
					for _, p := range []*Port{sums, none} {
						hs, fs := recv(t, p)
						if want := (payload + 999) / 1000; len(fs) != want {
							t.Fatalf("%d segments, want %d", len(fs), want)
						}
						var data []byte
						for i, s := range fs {
							if hs[i] != (virtio.NetHeader{}) {
								t.Errorf("header %+v", hs[i])
							}
							verify(t, s, v6, 14+4*tags, l4)
							if seq := binary.BigEndian.Uint32(s[l4+4:]); seq != 1<<32-1000+uint32(1000*i) {
								t.Errorf("sequence number %d of segment %d", seq, i)
							}
							want := byte(0x10)
							if i == 0 {
								want |= 0x80
							}
							if i == len(fs)-1 {
								want |= 0x09
							}
							if s[l4+13] != want {
								t.Errorf("flags %#x of segment %d, want %#x", s[l4+13], i, want)
							}
							if id := binary.BigEndian.Uint16(s[14+4*tags+4:]); !v6 && id != uint16(0xfffe+i) {
								t.Errorf("identification %#x of segment %d", id, i)
							}
							data = append(data, s[l4+24:]...)
						}
						if !bytes.Equal(data, f[l4+24:]) {
							t.Error("other data")
						}
					}
					if counter(a, "segmented") != 2 || counter(a, "checksums") != 0 {
						t.Error(a.Counters())
					}
				})
			}
		}
	}
}

// The same for a frame whose checksum alone is missing.
func TestChecksums(t *testing.T) {
	s := newTestSwitch(t)
	a, sums, none, none2 := s.open(1, 0), s.open(1, virtio.FeatureGuestCSum), s.open(1, 0), s.open(1, 0)
	for payload := range 70 {
		h, f := tcp(payload%2 == 0, 0, payload, 0)
		h.GSOSize = 0
		sendWith(t, a, h, f)
		if hs, fs := recv(t, sums); len(fs) != 1 || hs[0] != h || !bytes.Equal(fs[0], f) {
			t.Fatalf("%+v", hs)
		}
		for _, p := range []*Port{none, none2} {
			hs, fs := recv(t, p)
			if len(fs) != 1 || hs[0] != (virtio.NetHeader{}) {
				t.Fatalf("%+v", hs)
			}
			verify(t, fs[0], payload%2 == 0, 14, int(h.CSumStart))
		}
	}
	if counter(a, "checksums") != 2*70 {
		t.Error(a.Counters())
	}
	// Nothing is written that means "no checksum" in UDP.
	f := make([]byte, 20)
	f[19] = 0xff
	f[18] = 0xff
	offload.Complete(f, 10, 2)
	if binary.BigEndian.Uint16(f[12:]) != 0xffff {
		t.Errorf("%x", f)
	}
}

// Headers that are not what the driver says they are, and segments without end.
func TestBadOffloads(t *testing.T) {
	for name, spoil := range map[string]func(h *virtio.NetHeader, f []byte){
		"one byte a segment": func(h *virtio.NetHeader, _ []byte) { h.GSOSize = 1 },
		"other protocol":     func(_ *virtio.NetHeader, f []byte) { f[12] = 0 },
		"IPv6 instead":       func(h *virtio.NetHeader, _ []byte) { h.GSOType = virtio.GSOTCPv6 },
		"start":              func(h *virtio.NetHeader, _ []byte) { h.CSumStart -= 4 },
		"start at the end":   func(h *virtio.NetHeader, f []byte) { h.CSumStart = uint16(len(f) - 18) },
		"offset":             func(h *virtio.NetHeader, _ []byte) { h.CSumOffset = 6 },
		"header length":      func(h *virtio.NetHeader, f []byte) { f[h.CSumStart+12] = 15 << 4; f[14] = 0x4f },
		"no TCP header":      func(h *virtio.NetHeader, f []byte) { f[h.CSumStart+12] = 0 },
	} {
		s := newTestSwitch(t)
		a, b, all := s.open(1, 0), s.open(1, 0), s.open(1, tso)
		h, f := tcp(false, 0, 3000, 1000)
		spoil(&h, f)
		sendWith(t, a, h, f)
		if _, fs := recv(t, b); len(fs) != 0 || counter(a, "bad_offload") != 1 {
			t.Errorf("%s: %d frames; %v", name, len(fs), a.Counters())
		}
		// Whoever takes it as it is gets it.
		if _, fs := recv(t, all); len(fs) != 1 {
			t.Errorf("%s: %d frames for one with offloads", name, len(fs))
		}
	}
}

// What waits for a driver that has switched an offload off is not given to it.
func TestOffloadSwitchedOff(t *testing.T) {
	s := newTestSwitch(t)
	a, b := s.open(1, 0), s.open(1, tso)
	h, f := tcp(false, 0, 3000, 1000)
	sendWith(t, a, h, f)
	if err := b.Configure(12, virtio.FeatureGuestCSum); err != nil {
		t.Fatal(err)
	}
	if _, fs := recv(t, b); len(fs) != 0 {
		t.Errorf("%d frames", len(fs))
	}
	sendWith(t, a, h, f)
	if _, fs := recv(t, b); len(fs) != 3 {
		t.Errorf("%d frames", len(fs))
	}
	if err := b.Reset(); err != nil {
		t.Fatal(err)
	}
	sendWith(t, a, h, f)
	if hs, fs := recv(t, b); len(fs) != 3 || hs[0].Flags != 0 {
		t.Errorf("%d frames", len(fs))
	}
}

// Whatever a driver puts into a frame, the switch stays inside of it, and what
// comes out needs nothing that was not agreed to.
func FuzzSend(f *testing.F) {
	for _, v6 := range []bool{false, true} {
		h, b := tcp(v6, 1, 300, 100)
		f.Add(h.GSOType, h.GSOSize, h.CSumStart, h.CSumOffset, b)
	}
	f.Add(uint8(0), uint16(0), uint16(14), uint16(0), make([]byte, 60))
	f.Fuzz(func(t *testing.T, gso uint8, size, start, offset uint16, b []byte) {
		h := virtio.NetHeader{Flags: virtio.NetHdrFNeedsCSum, GSOType: gso, GSOSize: size, CSumStart: start, CSumOffset: offset}
		if len(b) < 30 || len(b) > maxFrame || h.CheckTX(len(b), offloads) != 0 {
			return
		}
		s := newTestSwitch(t)
		a, none, all := s.open(1, 0), s.open(1, 0), s.open(2, tso)
		sendWith(t, a, h, b)
		hs, fs := recv(t, none)
		for i, h := range hs {
			if h != (virtio.NetHeader{}) || len(fs[i]) < ethHeader {
				t.Fatalf("%+v with %d bytes", h, len(fs[i]))
			}
		}
		out := make([]byte, 12+maxFrame)
		for _, q := range all.queues {
			for q.Pending() {
				if n, err := q.Recv([][]byte{out}); err != nil || n != 12+len(b) {
					t.Fatalf("%d bytes of %d, %v", n, 12+len(b), err)
				}
			}
		}
	})
}
