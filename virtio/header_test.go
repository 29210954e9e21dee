package virtio

import (
	"bytes"
	"math/rand/v2"
	"testing"
)

const (
	allFeatures = Features(1<<64 - 1)
	hostAll     = FeatureCSum | FeatureHostTSO4 | FeatureHostTSO6 | FeatureHostECN | FeatureHostUFO | FeatureHostUSO
	guestAll    = FeatureGuestCSum | FeatureGuestTSO4 | FeatureGuestTSO6 | FeatureGuestECN |
		FeatureGuestUFO | FeatureGuestUSO4 | FeatureGuestUSO6
)

func TestNetHeaderSize(t *testing.T) {
	for f, want := range map[Features]int{
		0: 10, FeatureCSum: 10, FeatureVersion1: 12, FeatureMrgRxBuf: 12, FeatureVersion1 | FeatureMrgRxBuf: 12,
		allFeatures &^ (FeatureVersion1 | FeatureMrgRxBuf | FeatureHashReport): 10,
		FeatureHashReport: 20, FeatureHashReport | FeatureVersion1 | FeatureMrgRxBuf: 20,
	} {
		if got := NetHeaderSize(f); got != want {
			t.Errorf("%s: %d bytes", f, got)
		}
	}
}

func TestNetHeaderLayout(t *testing.T) {
	h := NetHeader{
		Flags: 0x11, GSOType: 0x22, HdrLen: 0x4433, GSOSize: 0x6655,
		CSumStart: 0x8877, CSumOffset: 0xaa99, NumBuffers: 0xccbb,
	}
	want := []byte{0x11, 0x22, 0x33, 0x44, 0x55, 0x66, 0x77, 0x88, 0x99, 0xaa, 0xbb, 0xcc, 0xee}
	for n := NetHeaderLenLegacy; n <= len(want); n++ {
		end := NetHeaderLenLegacy
		if n >= NetHeaderLen {
			end = NetHeaderLen
		}
		b := bytes.Repeat([]byte{0xee}, n)
		h.Encode(b)
		if !bytes.Equal(b[:end], want[:end]) || len(bytes.Trim(b[end:], "\xee")) != 0 {
			t.Errorf("%d bytes: % x", n, b)
		}
		got := NetHeader{NumBuffers: 9}
		got.Decode(b)
		back := h
		if n < NetHeaderLen {
			back.NumBuffers = 0
		}
		if got != back {
			t.Errorf("%d bytes: decoded %+v", n, got)
		}
	}
}

// hash_value at 12, hash_report at 16, padding at 18.
func TestHashLayout(t *testing.T) {
	b := bytes.Repeat([]byte{0xee}, NetHeaderLenHash+1)
	PutHash(b, 0x44332211, 9)
	if want := []byte{0x11, 0x22, 0x33, 0x44, 9, 0, 0, 0, 0xee}; !bytes.Equal(b[12:], want) || b[11] != 0xee {
		t.Errorf("% x", b)
	}
	if v, r := Hash(b); v != 0x44332211 || r != 9 {
		t.Errorf("%#x, %d", v, r)
	}
	if v, r := Hash(b[:19]); v != 0 || r != 0 {
		t.Errorf("of a short header: %#x, %d", v, r)
	}
}

// The triggers of hostile and odd headers.
func TestCheckTX(t *testing.T) {
	const frame = 100
	tso := func(h NetHeader) NetHeader {
		h.Flags, h.GSOSize, h.CSumStart, h.CSumOffset = NetHdrFNeedsCSum, 1448, 34, 16
		return h
	}
	tests := []struct {
		name string
		h    NetHeader
		f    Features
		want HeaderFault
	}{
		{"empty", NetHeader{}, 0, HeaderOK},
		{"checksum", NetHeader{Flags: 1, CSumStart: 34, CSumOffset: 16}, hostAll, HeaderOK},
		{"checksum not negotiated", NetHeader{Flags: 1, CSumStart: 34, CSumOffset: 16}, hostAll &^ FeatureCSum, HeaderCSumNotNegotiated},
		{"checksum at the end", NetHeader{Flags: 1, CSumStart: 82, CSumOffset: 16}, hostAll, HeaderOK},
		{"start+offset+2 = len+1", NetHeader{Flags: 1, CSumStart: 83, CSumOffset: 16}, hostAll, HeaderCSumRange},
		{"start = len", NetHeader{Flags: 1, CSumStart: frame}, hostAll, HeaderCSumRange},
		{"start and offset 0xffff", NetHeader{Flags: 1, CSumStart: 0xffff, CSumOffset: 0xffff}, hostAll, HeaderCSumRange},
		{"start+offset wraps 16 bits", NetHeader{Flags: 1, CSumStart: 0xffff, CSumOffset: 2}, hostAll, HeaderCSumRange},
		{"offset 0xfffe", NetHeader{Flags: 1, CSumStart: 4, CSumOffset: 0xfffe}, hostAll, HeaderCSumRange},
		{"range without the flag", NetHeader{CSumStart: 0xffff, CSumOffset: 0xffff}, hostAll, HeaderOK},
		{"TSO4", tso(NetHeader{GSOType: GSOTCPv4}), hostAll, HeaderOK},
		{"TSO6", tso(NetHeader{GSOType: GSOTCPv6}), hostAll, HeaderOK},
		{"UFO", tso(NetHeader{GSOType: GSOUDP}), hostAll, HeaderOK},
		{"USO", tso(NetHeader{GSOType: GSOUDPL4}), hostAll, HeaderOK},
		{"TSO4 with ECN", tso(NetHeader{GSOType: 0x81}), hostAll, HeaderOK},
		{"TSO4 not negotiated", tso(NetHeader{GSOType: GSOTCPv4}), hostAll &^ FeatureHostTSO4, HeaderGSONotNegotiated},
		{"TSO6 not negotiated", tso(NetHeader{GSOType: GSOTCPv6}), hostAll &^ FeatureHostTSO6, HeaderGSONotNegotiated},
		{"UFO not negotiated", tso(NetHeader{GSOType: GSOUDP}), hostAll &^ FeatureHostUFO, HeaderGSONotNegotiated},
		{"USO not negotiated", tso(NetHeader{GSOType: GSOUDPL4}), hostAll &^ FeatureHostUSO, HeaderGSONotNegotiated},
		{"ECN not negotiated", tso(NetHeader{GSOType: 0x81}), hostAll &^ FeatureHostECN, HeaderGSONotNegotiated},
		{"only receive offloads", tso(NetHeader{GSOType: GSOTCPv4}), FeatureCSum | guestAll, HeaderGSONotNegotiated},
		{"TSO with gso_size 0", NetHeader{Flags: 1, GSOType: GSOTCPv4}, hostAll, HeaderGSOSize},
		{"TSO without checksum", NetHeader{GSOType: GSOTCPv4, GSOSize: 1448}, hostAll, HeaderGSOWithoutCSum},
		{"type 2", tso(NetHeader{GSOType: 2}), hostAll, HeaderGSOType},
		{"type 0x7f", tso(NetHeader{GSOType: 0x7f}), hostAll, HeaderGSOType},
		{"UDP tunnel bit", tso(NetHeader{GSOType: 0x20 | GSOTCPv4}), hostAll, HeaderGSOType},
		{"ECN alone", tso(NetHeader{GSOType: 0x80}), hostAll, HeaderGSOType},
		{"ECN with UDP", tso(NetHeader{GSOType: 0x85}), hostAll, HeaderGSOType},
		{"hdr_len of the whole frame", tso(NetHeader{GSOType: GSOTCPv4, HdrLen: frame}), hostAll, HeaderOK},
		{"hdr_len beyond the frame", tso(NetHeader{GSOType: GSOTCPv4, HdrLen: frame + 1}), hostAll, HeaderOK},
		{"hdr_len without an offload", NetHeader{HdrLen: 0xffff, GSOSize: 9}, 0, HeaderOK},
		{"hdr_len with a checksum", NetHeader{Flags: 1, HdrLen: 54, CSumStart: 34, CSumOffset: 16}, hostAll, HeaderOK},
		{"hdr_len 0xffff", tso(NetHeader{GSOType: GSOTCPv4, HdrLen: 0xffff}), hostAll, HeaderOK},
		{"num_buffers 7", NetHeader{NumBuffers: 7}, hostAll, HeaderOK},
		{"DATA_VALID", NetHeader{Flags: NetHdrFDataValid}, 0, HeaderOK},
		{"unknown flags", NetHeader{Flags: 0xfe}, 0, HeaderOK},
		{"all ones", NetHeader{0xff, 0xff, 0xffff, 0xffff, 0xffff, 0xffff, 0xffff}, hostAll, HeaderCSumRange},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := tt.h
			if got := h.CheckTX(frame, tt.f); got != tt.want {
				t.Fatalf("%s, want %s", got, tt.want)
			}
			if tt.want == HeaderOK {
				checkClean(t, h, tt.h, frame)
			}
		})
	}
}

// checkClean: what a port gets has no field that means nothing, and the others
// are as the driver set them.
func checkClean(t *testing.T, got, was NetHeader, frameLen int) {
	t.Helper()
	want := NetHeader{GSOType: was.GSOType, Flags: was.Flags & NetHdrFNeedsCSum}
	if want.Flags != 0 {
		want.CSumStart, want.CSumOffset = was.CSumStart, was.CSumOffset
	}
	if want.GSOType != GSONone {
		want.GSOSize = was.GSOSize
		if int(was.HdrLen) <= frameLen {
			want.HdrLen = was.HdrLen
		}
	}
	if got != want {
		t.Errorf("header %+v is passed on as %+v, want %+v", was, got, want)
	}
}

func TestCheckRX(t *testing.T) {
	tests := []struct {
		name string
		h    NetHeader
		f    Features
		want HeaderFault
		left NetHeader // after the check, if it is OK
	}{
		{"empty", NetHeader{}, 0, HeaderOK, NetHeader{}},
		{"fields that nothing refers to", NetHeader{HdrLen: 9, GSOSize: 9, CSumStart: 9, CSumOffset: 9, NumBuffers: 3}, guestAll, HeaderOK, NetHeader{NumBuffers: 3}},
		{"num_buffers stays", NetHeader{NumBuffers: 3}, 0, HeaderOK, NetHeader{NumBuffers: 3}},
		{"checksum", NetHeader{Flags: 1, CSumStart: 34, CSumOffset: 16}, guestAll, HeaderOK, NetHeader{Flags: 1, CSumStart: 34, CSumOffset: 16}},
		{"checksum not negotiated", NetHeader{Flags: 1, CSumStart: 34, CSumOffset: 16}, hostAll, HeaderCSumNotNegotiated, NetHeader{}},
		{"DATA_VALID", NetHeader{Flags: 2}, guestAll, HeaderOK, NetHeader{Flags: 2}},
		{"DATA_VALID not negotiated", NetHeader{Flags: 2}, hostAll, HeaderOK, NetHeader{}},
		{"RSC_INFO and unknown flags", NetHeader{Flags: 0xfc, CSumStart: 9, CSumOffset: 9, HdrLen: 9, GSOSize: 9}, guestAll, HeaderOK, NetHeader{}},
		{"TSO4", NetHeader{Flags: 1, GSOType: GSOTCPv4, GSOSize: 9, HdrLen: 54}, guestAll, HeaderOK, NetHeader{Flags: 1, GSOType: GSOTCPv4, GSOSize: 9, HdrLen: 54}},
		{"TSO6", NetHeader{Flags: 1, GSOType: GSOTCPv6, GSOSize: 9}, guestAll, HeaderOK, NetHeader{Flags: 1, GSOType: GSOTCPv6, GSOSize: 9}},
		{"UFO", NetHeader{Flags: 1, GSOType: GSOUDP, GSOSize: 9}, guestAll, HeaderOK, NetHeader{Flags: 1, GSOType: GSOUDP, GSOSize: 9}},
		{"ECN", NetHeader{Flags: 1, GSOType: 0x84, GSOSize: 9}, guestAll, HeaderOK, NetHeader{Flags: 1, GSOType: 0x84, GSOSize: 9}},
		{"USO for IPv4 alone", NetHeader{Flags: 1, GSOType: GSOUDPL4, GSOSize: 9}, FeatureGuestCSum | FeatureGuestUSO4, HeaderOK, NetHeader{Flags: 1, GSOType: GSOUDPL4, GSOSize: 9}},
		{"USO not negotiated", NetHeader{Flags: 1, GSOType: GSOUDPL4, GSOSize: 9}, guestAll &^ (FeatureGuestUSO4 | FeatureGuestUSO6), HeaderGSONotNegotiated, NetHeader{}},
		{"TSO4 not negotiated", NetHeader{Flags: 1, GSOType: GSOTCPv4, GSOSize: 9}, guestAll &^ FeatureGuestTSO4, HeaderGSONotNegotiated, NetHeader{}},
		{"TSO6 not negotiated", NetHeader{Flags: 1, GSOType: GSOTCPv6, GSOSize: 9}, guestAll &^ FeatureGuestTSO6, HeaderGSONotNegotiated, NetHeader{}},
		{"UFO not negotiated", NetHeader{Flags: 1, GSOType: GSOUDP, GSOSize: 9}, guestAll &^ FeatureGuestUFO, HeaderGSONotNegotiated, NetHeader{}},
		{"ECN not negotiated", NetHeader{Flags: 1, GSOType: 0x81, GSOSize: 9}, guestAll &^ FeatureGuestECN, HeaderGSONotNegotiated, NetHeader{}},
		{"ECN alone", NetHeader{GSOType: 0x80, GSOSize: 9}, guestAll, HeaderGSOType, NetHeader{}},
		{"ECN with UDP", NetHeader{Flags: 1, GSOType: 0x83, GSOSize: 9}, guestAll, HeaderGSOType, NetHeader{}},
		{"ECN with USO", NetHeader{Flags: 1, GSOType: 0x85, GSOSize: 9}, guestAll, HeaderGSOType, NetHeader{}},
		{"type 2", NetHeader{GSOType: 2, GSOSize: 9}, guestAll, HeaderGSOType, NetHeader{}},
		{"gso_size 0", NetHeader{Flags: 1, GSOType: GSOTCPv4}, guestAll, HeaderGSOSize, NetHeader{}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			h := tt.h
			if got := h.CheckRX(tt.f); got != tt.want {
				t.Fatalf("%s, want %s", got, tt.want)
			}
			if tt.want == HeaderOK && h != tt.left {
				t.Errorf("header %+v is passed on as %+v, want %+v", tt.h, h, tt.left)
			}
		})
	}
}

// gsoFeature is what a GSO type without ECN takes on transmission.
var gsoFeature = map[uint8]Features{
	GSOTCPv4: FeatureHostTSO4, GSOTCPv6: FeatureHostTSO6, GSOUDP: FeatureHostUFO, GSOUDPL4: FeatureHostUSO,
}

// acceptable says the same as CheckTX in fewer words and without saying why.
func acceptable(h NetHeader, frameLen int, f Features) bool {
	if h.Flags&1 != 0 && (!f.Has(FeatureCSum) || uint64(h.CSumStart)+uint64(h.CSumOffset)+2 > uint64(frameLen)) {
		return false
	}
	if h.GSOType == 0 {
		return true
	}
	need, known := gsoFeature[h.GSOType&0x7f]
	if h.GSOType&0x80 != 0 {
		known = known && (h.GSOType&0x7f == GSOTCPv4 || h.GSOType&0x7f == GSOTCPv6)
		need |= FeatureHostECN
	}
	return known && f.Has(need) && h.GSOSize != 0 && h.Flags&1 != 0
}

// randomHeader makes headers of which a good part is acceptable.
func randomHeader(r *rand.Rand) NetHeader {
	var b [NetHeaderLen]byte
	for i := range b {
		b[i] = byte(r.Uint32())
	}
	var h NetHeader
	h.Decode(b[:])
	if r.IntN(4) != 0 {
		h.GSOType = []uint8{0, 1, 3, 4, 5, 0x81, 0x84}[r.IntN(7)]
	}
	if r.IntN(4) != 0 {
		h.CSumStart, h.CSumOffset = h.CSumStart%1600, h.CSumOffset%20
	}
	if r.IntN(16) == 0 {
		h.GSOSize = 0
	}
	return h
}

func TestRandomHeaders(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	good := 0
	const n = 100_000
	for range n {
		h, frameLen := randomHeader(r), r.IntN(2000)
		f := Features(r.Uint64())
		f |= Features(r.Uint64()) // three bits of four
		was := h
		fault := h.CheckTX(frameLen, f)
		if want := acceptable(was, frameLen, f); (fault == HeaderOK) != want {
			t.Fatalf("%+v, frame of %d, %s: %s", was, frameLen, f, fault)
		}
		if fault == HeaderOK {
			good++
			checkClean(t, h, was, frameLen)
			if again := h; again.CheckTX(frameLen, f) != HeaderOK || again != h {
				t.Fatalf("%+v does not pass a second time: %+v", h, again)
			}
		}
		rx := was
		if rx.CheckRX(f) == HeaderOK {
			if again := rx; again.CheckRX(f) != HeaderOK || again != rx {
				t.Fatalf("%+v does not pass a second time: %+v", rx, again)
			}
			if rx.CheckRX(0) == HeaderOK && (rx.Flags != 0 || rx.GSOType != 0) {
				t.Fatalf("%+v for a driver without offloads", rx)
			}
		}
	}
	if good < n/20 || good > n*19/20 {
		t.Errorf("%d of %d headers are good: the test tries too few of one kind", good, n)
	}
}

func TestHeaderFaultNames(t *testing.T) {
	seen := map[string]bool{}
	for f := range HeaderFault(NumHeaderFaults) {
		if s := f.String(); s == "" || s == "invalid" || seen[s] {
			t.Errorf("fault %d is called %q", f, s)
		} else {
			seen[s] = true
		}
	}
	if s := HeaderFault(NumHeaderFaults).String(); s != "invalid" {
		t.Errorf("a fault that is none is called %q", s)
	}
}

func FuzzHeader(f *testing.F) {
	f.Add(make([]byte, 10), uint16(60), uint64(0))
	f.Add([]byte{1, 1, 54, 0, 0xa8, 5, 34, 0, 16, 0, 0, 0}, uint16(1514), uint64(hostAll))
	f.Add(bytes.Repeat([]byte{0xff}, 12), uint16(65535), uint64(allFeatures))
	f.Add([]byte{1, 0x81, 0, 0, 0, 0, 0xff, 0xff, 3, 0, 7, 0}, uint16(0), uint64(hostAll|guestAll))
	f.Fuzz(func(t *testing.T, b []byte, frameLen uint16, features uint64) {
		if len(b) < NetHeaderLenLegacy {
			return
		}
		var h NetHeader
		h.Decode(b)
		out := bytes.Clone(b)
		h.Encode(out)
		if !bytes.Equal(out, b) {
			t.Fatalf("% x is encoded as % x", b, out)
		}
		tx, rx, nf := h, h, Features(features)
		fault := tx.CheckTX(int(frameLen), nf)
		if (fault == HeaderOK) != acceptable(h, int(frameLen), nf) {
			t.Fatalf("%+v, frame of %d, %s: %s", h, frameLen, nf, fault)
		}
		if fault == HeaderOK {
			checkClean(t, tx, h, int(frameLen))
		}
		if rx.CheckRX(nf) == HeaderOK && rx.Flags != 0 && !nf.Has(FeatureGuestCSum) {
			t.Fatalf("%+v for %s", rx, nf)
		}
	})
}

func TestHeaderDoesNotAllocate(t *testing.T) {
	b := []byte{1, 1, 54, 0, 0xa8, 5, 34, 0, 16, 0, 0, 0}
	var h NetHeader
	for name, fn := range map[string]func(){
		"Decode":  func() { h.Decode(b) },
		"Encode":  func() { h.Encode(b) },
		"CheckTX": func() { h.CheckTX(1514, hostAll) },
		"CheckRX": func() { h.CheckRX(guestAll) },
		"plain":   func() { h = NetHeader{HdrLen: 1}; h.CheckTX(60, 0); h.CheckRX(0) },
		"String":  func() { _ = HeaderGSOSize.String() },
	} {
		if n := testing.AllocsPerRun(100, fn); n != 0 {
			t.Errorf("%s: %g allocations", name, n)
		}
	}
}

func BenchmarkCheckTX(b *testing.B) {
	for name, raw := range map[string][]byte{
		"plain": make([]byte, NetHeaderLen),
		"TSO":   {1, 1, 54, 0, 0xa8, 5, 34, 0, 16, 0, 0, 0},
	} {
		b.Run(name, func(b *testing.B) {
			var h NetHeader
			b.ReportAllocs()
			for b.Loop() {
				h.Decode(raw)
				if h.CheckTX(1514, hostAll) != HeaderOK {
					b.Fatal("refused")
				}
			}
		})
	}
}
