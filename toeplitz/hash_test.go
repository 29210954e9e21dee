package toeplitz

import (
	"bytes"
	"encoding/binary"
	"encoding/hex"
	"math/rand/v2"
	"net/netip"
	"testing"
)

// vectorKey is the key of the published verification suite.
var vectorKey, _ = hex.DecodeString("6d5a56da255b0ec24167253d43a38fb0d0ca2bcbae7b30b477cb2da38030f20c6a42b73bbeac01fa")

// vectors are Microsoft's "Verifying the RSS Hash Calculation".
var vectors = []struct {
	dst, src  string // address:port
	ip, ports uint32 // hash of the addresses, and with ports
}{
	{"161.142.100.80:1766", "66.9.149.187:2794", 0x323e8fc2, 0x51ccc178},
	{"65.69.140.83:4739", "199.92.111.2:14230", 0xd718262a, 0xc626b0ea},
	{"12.22.207.184:38024", "24.19.198.95:12898", 0xd2d0a5de, 0x5c2b394a},
	{"209.142.163.6:2217", "38.27.205.30:48228", 0x82989176, 0xafc7327f},
	{"202.188.127.2:1303", "153.39.163.191:44251", 0x5d1809c5, 0x10e828a2},
	{"[3ffe:2501:200:3::1]:1766", "[3ffe:2501:200:1fff::7]:2794", 0x2cc18cd5, 0x40207d3d},
	{"[ff02::1]:4739", "[3ffe:501:8::260:97ff:fe40:efab]:14230", 0x0f0c461c, 0xdde51bbf},
	{"[fe80::200:f8ff:fe21:67cf]:38024", "[3ffe:1900:4545:3:200:f8ff:fe21:67cf]:44251", 0x4b61e985, 0x02d1feef},
}

func input(src, dst netip.AddrPort, ports bool) []byte {
	b := append(src.Addr().AsSlice(), dst.Addr().AsSlice()...)
	if ports {
		b = binary.BigEndian.AppendUint16(b, src.Port())
		b = binary.BigEndian.AppendUint16(b, dst.Port())
	}
	return b
}

func TestVectors(t *testing.T) {
	h := New(vectorKey)
	for _, v := range vectors {
		src, dst := netip.MustParseAddrPort(v.src), netip.MustParseAddrPort(v.dst)
		if got := h.Sum(input(src, dst, false)); got != v.ip {
			t.Errorf("%s to %s: %#x, want %#x", v.src, v.dst, got, v.ip)
		}
		if got := h.Sum(input(src, dst, true)); got != v.ports {
			t.Errorf("%s to %s with ports: %#x, want %#x", v.src, v.dst, got, v.ports)
		}
	}
}

// reference is the definition, bit by bit: for each bit of the input that is set,
// the 32 bits of the key that begin there.
func reference(key, b []byte) (sum uint32) {
	bit := func(b []byte, i int) uint32 {
		if i/8 >= len(b) {
			return 0
		}
		return uint32(b[i/8]>>(7-i%8)) & 1
	}
	for i := range len(b) * 8 {
		if bit(b, i) == 0 {
			continue
		}
		var w uint32
		for k := range 32 {
			w = w<<1 | bit(key, i+k)
		}
		sum ^= w
	}
	return sum
}

func FuzzSum(f *testing.F) {
	f.Add(vectorKey, []byte{1, 2, 3, 4})
	f.Add([]byte{}, bytes.Repeat([]byte{0xff}, MaxInput))
	f.Add(bytes.Repeat([]byte{0x80, 1}, 64), bytes.Repeat([]byte{0x81}, 12))
	f.Fuzz(func(t *testing.T, key, b []byte) {
		b = b[:min(len(b), MaxInput)]
		if got, want := New(key).Sum(b), reference(key, b); got != want {
			t.Fatalf("key %x, input %x: %#x, want %#x", key, b, got, want)
		}
	})
}

func TestSumAgainstReference(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	fill := func(b []byte) []byte {
		for i := range b {
			b[i] = byte(r.Uint32())
		}
		return b
	}
	for range 300 {
		key, b := fill(make([]byte, r.IntN(80))), fill(make([]byte, r.IntN(MaxInput+1)))
		h := New(key)
		if got, want := h.Sum(b), reference(key, b); got != want {
			t.Fatalf("key %x, input %x: %#x, want %#x", key, b, got, want)
		}
		if len(b) > 0 && h.Table(0, b[0]) != reference(key, b[:1]) {
			t.Fatalf("key %x: table of byte %#x", key, b[0])
		}
	}
}

func TestDoesNotAllocate(t *testing.T) {
	h := New(vectorKey)
	frame := tcp6Frame()
	var f Flow
	if n := testing.AllocsPerRun(100, func() { f.Parse(frame, All); h.Sum(f.Input()) }); n != 0 {
		t.Errorf("%g allocations", n)
	}
}

func BenchmarkHash(b *testing.B) {
	h := New(vectorKey)
	for name, frame := range map[string][]byte{"TCPv4": tcp4Frame(), "TCPv6": tcp6Frame()} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			var f Flow
			var sum uint32
			for b.Loop() {
				f.Parse(frame, All)
				sum += h.Sum(f.Input())
			}
			_ = sum
		})
	}
}
