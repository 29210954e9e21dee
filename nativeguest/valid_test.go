package nativeguest

import (
	"encoding/binary"
	"testing"

	"github.com/vhostnet/vhostnet/virtio"
)

// ipv4 is a frame of that protocol, with options of so many bytes.
func ipv4(protocol byte, options, payload int) []byte {
	f := make([]byte, 14+20+options+payload)
	binary.BigEndian.PutUint16(f[12:], 0x0800)
	f[14], f[14+9] = 0x45+byte(options/4), protocol
	return f
}

func TestBelieve(t *testing.T) {
	fragment := ipv4(17, 0, 8)
	fragment[14+7] = 1
	ipv6 := ipv4(6, 0, 20)
	binary.BigEndian.PutUint16(ipv6[12:], 0x86dd)
	version := ipv4(6, 0, 20)
	version[14] = 0x65
	const valid, needs = virtio.NetHdrFDataValid, virtio.NetHdrFNeedsCSum
	for _, c := range []struct {
		name  string
		flags uint8
		frame []byte
		want  virtio.NetHeader
	}{
		{"TCP", valid, ipv4(6, 0, 20), virtio.NetHeader{Flags: needs, CSumStart: 34, CSumOffset: 16}},
		{"UDP with options", valid, ipv4(17, 8, 8), virtio.NetHeader{Flags: needs, CSumStart: 42, CSumOffset: 6}},
		{"not said to be valid", 0, ipv4(6, 0, 20), virtio.NetHeader{}},
		{"to be computed", valid | needs, ipv4(6, 0, 20), virtio.NetHeader{Flags: valid | needs}},
		{"ICMP", valid, ipv4(1, 0, 20), virtio.NetHeader{Flags: valid}},
		{"fragment", valid, fragment, virtio.NetHeader{Flags: valid}},
		{"IPv6", valid, ipv6, virtio.NetHeader{Flags: valid}},
		{"other version", valid, version, virtio.NetHeader{Flags: valid}},
		{"short TCP", valid, ipv4(6, 0, 19), virtio.NetHeader{Flags: valid}},
		{"short IP", valid, ipv4(6, 0, 0)[:33], virtio.NetHeader{Flags: valid}},
	} {
		hdr := make([]byte, virtio.NetHeaderLen)
		(&virtio.NetHeader{Flags: c.flags, NumBuffers: 1}).Encode(hdr)
		believe(hdr, c.frame)
		var got virtio.NetHeader
		got.Decode(hdr)
		if c.want.NumBuffers = 1; got != c.want {
			t.Errorf("%s: %+v, want %+v", c.name, got, c.want)
		}
	}
}
