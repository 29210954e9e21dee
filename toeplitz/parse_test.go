package toeplitz

import (
	"bytes"
	"encoding/binary"
	"net/netip"
	"testing"
)

const protoICMP = 1

// packet is how the tests describe a frame.
type packet struct {
	src, dst string // address:port
	proto    uint8
	tags     []uint16 // ethertypes of VLAN tags
	frag     uint16   // IPv4: flags and offset
	options  int      // IPv4: bytes
	ext      [][]byte // IPv6: extension headers, next header first byte is filled in
	extTypes []uint8
	short    int // bytes that are missing at the end
}

func (p packet) frame() []byte {
	src, dst := netip.MustParseAddrPort(p.src), netip.MustParseAddrPort(p.dst)
	b := []byte{2, 0, 0, 0, 0, 1, 2, 0, 0, 0, 0, 2}
	for _, tag := range p.tags {
		b = binary.BigEndian.AppendUint16(b, tag)
		b = append(b, 0, 9)
	}
	if src.Addr().Is4() {
		b = append(b, 8, 0, byte(0x40+5+p.options/4), 0, 0, 60, 0, 1)
		b = binary.BigEndian.AppendUint16(b, p.frag)
		b = append(b, 64, p.proto, 0, 0)
		b = append(append(b, src.Addr().AsSlice()...), dst.Addr().AsSlice()...)
		b = append(b, make([]byte, p.options)...)
	} else {
		next := append(append([]uint8{}, p.extTypes...), p.proto)
		b = append(b, 0x86, 0xdd, 0x60, 0, 0, 0, 0, 20, next[0], 64)
		b = append(append(b, src.Addr().AsSlice()...), dst.Addr().AsSlice()...)
		for i, x := range p.ext {
			b = append(append(b, next[i+1]), x[1:]...)
		}
	}
	b = binary.BigEndian.AppendUint16(b, src.Port())
	b = binary.BigEndian.AppendUint16(b, dst.Port())
	b = append(b, make([]byte, 16)...)
	return b[:len(b)-p.short]
}

const (
	src4, dst4 = "66.9.149.187:2794", "161.142.100.80:1766"
	src6, dst6 = "[3ffe:2501:200:1fff::7]:2794", "[3ffe:2501:200:3::1]:1766"
	home6      = "[2001:db8::77]:2794"
	final6     = "[2001:db8::88]:1766"
)

func tcp4Frame() []byte { return packet{src: src4, dst: dst4, proto: protoTCP}.frame() }
func tcp6Frame() []byte { return packet{src: src6, dst: dst6, proto: protoTCP}.frame() }

func destOptions(home string) []byte {
	b := []byte{0, 2, 1, 2, 0, 0, optionHomeAddress, 16} // PadN of 2 in front
	return append(b, netip.MustParseAddrPort(home).Addr().AsSlice()...)
}

func routing2(final string) []byte {
	b := []byte{0, 2, routingType2, 1, 0, 0, 0, 0}
	return append(b, netip.MustParseAddrPort(final).Addr().AsSlice()...)
}

func TestParse(t *testing.T) {
	hop := []byte{0, 0, 1, 4, 0, 0, 0, 0}
	fragment := func(v uint16) []byte { return []byte{0, 0, byte(v >> 8), byte(v), 0, 0, 0, 1} }
	home := packet{src: src6, dst: dst6, ext: [][]byte{destOptions(home6)}, extTypes: []uint8{protoDest}}
	homeTCP, homeUDP := home, home
	homeTCP.proto, homeUDP.proto = protoTCP, protoUDP
	both := packet{
		src: src6, dst: dst6, proto: protoTCP,
		ext: [][]byte{hop, destOptions(home6), routing2(final6)}, extTypes: []uint8{protoHopByHop, protoDest, protoRouting},
	}
	for _, tt := range []struct {
		name     string
		p        packet
		types    uint32
		report   uint16
		src, dst string // "" if nothing is hashed
	}{
		{"TCPv4", packet{src: src4, dst: dst4, proto: protoTCP}, All, ReportTCPv4, src4, dst4},
		{"UDPv4", packet{src: src4, dst: dst4, proto: protoUDP}, All, ReportUDPv4, src4, dst4},
		{"ICMP", packet{src: src4, dst: dst4, proto: protoICMP}, All, ReportIPv4, src4, dst4},
		{"TCPv4 off", packet{src: src4, dst: dst4, proto: protoTCP}, All &^ TCPv4, ReportIPv4, src4, dst4},
		{"UDPv4 off", packet{src: src4, dst: dst4, proto: protoUDP}, All &^ UDPv4, ReportIPv4, src4, dst4},
		{"only UDPv4", packet{src: src4, dst: dst4, proto: protoTCP}, UDPv4, ReportNone, "", ""},
		{"only IPv6 types", packet{src: src4, dst: dst4, proto: protoTCP}, All &^ 7, ReportNone, "", ""},
		{"nothing enabled", packet{src: src4, dst: dst4, proto: protoTCP}, 0, ReportNone, "", ""},
		{"IPv4 options", packet{src: src4, dst: dst4, proto: protoTCP, options: 40}, All, ReportTCPv4, src4, dst4},
		{"one tag", packet{src: src4, dst: dst4, proto: protoTCP, tags: []uint16{etherVLAN}}, All, ReportTCPv4, src4, dst4},
		{"two tags", packet{src: src6, dst: dst6, proto: protoUDP, tags: []uint16{etherQinQ, etherVLAN}}, All, ReportUDPv6, src6, dst6},
		{"three tags", packet{src: src4, dst: dst4, proto: protoTCP, tags: []uint16{etherVLAN, etherVLAN, etherVLAN}}, All, ReportNone, "", ""},
		{"first fragment", packet{src: src4, dst: dst4, proto: protoTCP, frag: 0x2000}, All, ReportIPv4, src4, dst4},
		{"last fragment", packet{src: src4, dst: dst4, proto: protoUDP, frag: 0x0010}, All, ReportIPv4, src4, dst4},
		{"do not fragment", packet{src: src4, dst: dst4, proto: protoTCP, frag: 0x4000}, All, ReportTCPv4, src4, dst4},
		{"fragment, TCP only", packet{src: src4, dst: dst4, proto: protoTCP, frag: 0x2000}, TCPv4, ReportNone, "", ""},
		{"ports cut off", packet{src: src4, dst: dst4, proto: protoTCP, short: 17}, All, ReportIPv4, src4, dst4},
		{"addresses cut off", packet{src: src4, dst: dst4, proto: protoTCP, short: 21}, All, ReportNone, "", ""},
		{"TCPv6", packet{src: src6, dst: dst6, proto: protoTCP}, All, ReportTCPv6, src6, dst6},
		{"UDPv6", packet{src: src6, dst: dst6, proto: protoUDP}, All, ReportUDPv6, src6, dst6},
		{"IPv6", packet{src: src6, dst: dst6, proto: 58}, All, ReportIPv6, src6, dst6},
		{"TCPv6 without extension and only EX", packet{src: src6, dst: dst6, proto: protoTCP}, IPEx | TCPEx, ReportNone, "", ""},
		{"home address", homeTCP, All, ReportTCPEx, home6, dst6},
		{"home address, UDP", homeUDP, All, ReportUDPEx, home6, dst6},
		{"home address, IP only", homeTCP, IPEx | IPv6, ReportIPEx, home6, dst6},
		{"home address, EX off", homeTCP, IPv6 | TCPv6, ReportTCPv6, src6, dst6},
		{"home address and route", both, All, ReportTCPEx, home6, final6},
		{"hop by hop", packet{src: src6, dst: dst6, proto: protoTCP, ext: [][]byte{hop}, extTypes: []uint8{protoHopByHop}}, All, ReportTCPEx, src6, dst6},
		{"IPv6 fragment", packet{src: src6, dst: dst6, proto: protoTCP, ext: [][]byte{fragment(1)}, extTypes: []uint8{protoFragment}}, All, ReportIPEx, src6, dst6},
		{"atomic fragment", packet{src: src6, dst: dst6, proto: protoTCP, ext: [][]byte{fragment(0)}, extTypes: []uint8{protoFragment}}, All, ReportTCPEx, src6, dst6},
		{"extension cut off", packet{src: src6, dst: dst6, proto: protoTCP, ext: [][]byte{hop}, extTypes: []uint8{protoHopByHop}, short: 24}, All, ReportIPEx, src6, dst6},
	} {
		t.Run(tt.name, func(t *testing.T) {
			var f Flow
			f.Parse(tt.p.frame(), tt.types)
			if f.Report != tt.report {
				t.Fatalf("report %d, want %d", f.Report, tt.report)
			}
			var want []byte
			if tt.src != "" {
				want = input(netip.MustParseAddrPort(tt.src), netip.MustParseAddrPort(tt.dst), (tt.report-1)%3 != 0)
			}
			if !bytes.Equal(f.Input(), want) {
				t.Errorf("input %x, want %x", f.Input(), want)
			}
		})
	}
}

// Whatever a frame says, what is hashed comes of its first bytes, has the report's
// length and an enabled type.
func FuzzParse(f *testing.F) {
	f.Add(tcp4Frame(), uint32(All))
	f.Add(tcp6Frame(), uint32(TCPv6))
	f.Add(packet{src: src6, dst: dst6, proto: protoTCP, ext: [][]byte{destOptions(home6), routing2(final6)}, extTypes: []uint8{protoDest, protoRouting}}.frame(), uint32(All))
	f.Add([]byte{}, uint32(All))
	f.Fuzz(func(t *testing.T, frame []byte, types uint32) {
		var flow, again Flow
		flow.Parse(frame, types)
		if flow.Report > ReportUDPEx || flow.Report != ReportNone && types>>(flow.Report-1)&1 == 0 {
			t.Fatalf("report %d with types %#x", flow.Report, types)
		}
		want := 0
		if flow.Report != ReportNone {
			want = 8
			if flow.Report >= ReportIPv6 {
				want = 32
			}
			if (flow.Report-1)%3 != 0 {
				want += 4
			}
		}
		if len(flow.Input()) != want {
			t.Fatalf("report %d: %d bytes, want %d", flow.Report, len(flow.Input()), want)
		}
		again.Parse(append(bytes.Clone(frame[:min(len(frame), Look)]), 1), types)
		if len(frame) >= Look && !bytes.Equal(again.Input(), flow.Input()) {
			t.Fatal("what lies behind the first bytes matters")
		}
	})
}
