package ctrlq

import (
	"bytes"
	"encoding/binary"
	"errors"
	"fmt"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vhostnet/vhostnet/virtio"
)

// recorder is a device that writes down what it was told.
type recorder struct {
	calls []string
	err   error
}

func (r *recorder) add(format string, args ...any) error {
	r.calls = append(r.calls, fmt.Sprintf(format, args...))
	return r.err
}

func (r *recorder) SetPromisc(on bool) error        { return r.add("promisc %t", on) }
func (r *recorder) SetAllMulti(on bool) error       { return r.add("allmulti %t", on) }
func (r *recorder) SetAllUni(on bool) error         { return r.add("alluni %t", on) }
func (r *recorder) SetNoMulti(on bool) error        { return r.add("nomulti %t", on) }
func (r *recorder) SetNoUni(on bool) error          { return r.add("nouni %t", on) }
func (r *recorder) SetNoBcast(on bool) error        { return r.add("nobcast %t", on) }
func (r *recorder) SetMAC(mac [6]byte) error        { return r.add("mac %x", mac) }
func (r *recorder) AddVLAN(id uint16) error         { return r.add("vlan+ %d", id) }
func (r *recorder) DelVLAN(id uint16) error         { return r.add("vlan- %d", id) }
func (r *recorder) AckAnnounce() error              { return r.add("announced") }
func (r *recorder) SetQueuePairs(n uint16) error    { return r.add("pairs %d", n) }
func (r *recorder) SetGuestOffloads(b uint64) error { return r.add("offloads %#x", b) }

func (r *recorder) SetRSS(c RSSConfig) error {
	return r.add("rss %#x %v %d %d %x", c.Types, c.Table, c.Unclassified, c.MaxTX, c.Key)
}

func (r *recorder) SetHash(c HashConfig) error { return r.add("hash %#x %x", c.Types, c.Key) }

func (r *recorder) SetMACTable(unicast, multicast [][6]byte) error {
	return r.add("table %d %d", len(unicast), len(multicast))
}

func (r *recorder) SetTXCoalesce(usecs, packets uint32) error {
	return r.add("tx %dus %dp", usecs, packets)
}

func (r *recorder) SetRXCoalesce(usecs, packets uint32) error {
	return r.add("rx %dus %dp", usecs, packets)
}

func (r *recorder) SetVQCoalesce(vq uint16, usecs, packets uint32) error {
	return r.add("vq%d %dus %dp", vq, usecs, packets)
}

func (r *recorder) VQCoalesce(vq uint16) (usecs, packets uint32, err error) {
	return 0x11223344, 0x55667788, r.add("vq%d?", vq)
}

func (r *recorder) StatsTypes() uint64 { return 1<<32 | 3 }

func (r *recorder) Stats(vq uint16, kind uint8) ([]uint64, error) {
	return []uint64{uint64(vq), uint64(kind)}, r.add("stats %d %d", vq, kind)
}

const all = virtio.Features(1<<64 - 1)

// request builds a command from numbers: int is a byte, the others are
// little-endian.
func request(parts ...any) []byte {
	var b []byte
	for _, p := range parts {
		switch v := p.(type) {
		case int:
			b = append(b, byte(v))
		case []byte:
			b = append(b, v...)
		case uint16:
			b = binary.LittleEndian.AppendUint16(b, v)
		case uint32:
			b = binary.LittleEndian.AppendUint32(b, v)
		case uint64:
			b = binary.LittleEndian.AppendUint64(b, v)
		default:
			panic(p)
		}
	}
	return b
}

func macs(n int) []byte {
	b := make([]byte, 0, 6*n)
	for i := range n {
		b = append(b, 2, 0, 0, 0, byte(i>>8), byte(i))
	}
	return b
}

// command is a well-formed command, with the feature that it needs and what the
// device is told.
type command struct {
	name string
	req  []byte
	need virtio.Features
	call string
}

var commands = []command{
	{"promisc on", request(0, 0, 1), virtio.FeatureCtrlRX, "promisc true"},
	{"promisc off", request(0, 0, 0), virtio.FeatureCtrlRX, "promisc false"},
	{"promisc 2", request(0, 0, 2), virtio.FeatureCtrlRX, "promisc true"},
	{"allmulti", request(0, 1, 1), virtio.FeatureCtrlRX, "allmulti true"},
	{"alluni", request(0, 2, 1), virtio.FeatureCtrlRXExtra, "alluni true"},
	{"nomulti", request(0, 3, 1), virtio.FeatureCtrlRXExtra, "nomulti true"},
	{"nouni", request(0, 4, 1), virtio.FeatureCtrlRXExtra, "nouni true"},
	{"nobcast", request(0, 5, 1), virtio.FeatureCtrlRXExtra, "nobcast true"},
	{"empty tables", request(1, 0, uint32(0), uint32(0)), virtio.FeatureCtrlRX, "table 0 0"},
	{"unicast table", request(1, 0, uint32(2), macs(2), uint32(0)), virtio.FeatureCtrlRX, "table 2 0"},
	{"multicast table", request(1, 0, uint32(0), uint32(1), macs(1)), virtio.FeatureCtrlRX, "table 0 1"},
	{"65 addresses", request(1, 0, uint32(65), macs(65), uint32(0)), virtio.FeatureCtrlRX, "table 65 0"},
	{"long tables", request(1, 0, uint32(300), macs(300), uint32(300), macs(300)), virtio.FeatureCtrlRX, "table 300 300"},
	{"address", request(1, 1, []byte{2, 1, 2, 3, 4, 5}), virtio.FeatureCtrlMACAddr, "mac 020102030405"},
	{"vlan add 0", request(2, 0, uint16(0)), virtio.FeatureCtrlVLAN, "vlan+ 0"},
	{"vlan add 4094", request(2, 0, uint16(4094)), virtio.FeatureCtrlVLAN, "vlan+ 4094"},
	{"vlan add 4095", request(2, 0, uint16(4095)), virtio.FeatureCtrlVLAN, "vlan+ 4095"},
	{"vlan del", request(2, 1, uint16(7)), virtio.FeatureCtrlVLAN, "vlan- 7"},
	{"announce", request(3, 0), virtio.FeatureGuestAnnounce, "announced"},
	{"pairs", request(4, 0, uint16(2)), virtio.FeatureMQ, "pairs 2"},
	{"most pairs", request(4, 0, uint16(0x8000)), virtio.FeatureMQ, "pairs 32768"},
	{"rss", request(4, 1, uint32(3), uint16(1), uint16(7), uint16(0x8000), uint16(2), uint16(4), 2, 0xab, 0xcd), virtio.FeatureRSS, "rss 0x3 [32768 2] 7 4 abcd"},
	{"rss of one entry, no key", request(4, 1, uint32(0), uint16(0), uint16(0), uint16(1), uint16(1), 0), virtio.FeatureRSS, "rss 0x0 [1] 0 1 "},
	{"hash", request(4, 2, uint32(1<<31), uint64(1<<63), 1, 9), virtio.FeatureHashReport, "hash 0x80000000 09"},
	{"offloads off", request(5, 0, uint64(0)), virtio.FeatureCtrlGuestOffloads, "offloads 0x0"},
	{"tx", request(6, 0, uint32(3), uint32(50)), virtio.FeatureNotfCoal, "tx 50us 3p"},
	{"rx", request(6, 1, uint32(1<<32-1), uint32(1<<32-1)), virtio.FeatureNotfCoal, "rx 4294967295us 4294967295p"},
	{"vq set", request(6, 2, uint16(1), uint16(0), uint32(3), uint32(50)), virtio.FeatureVQNotfCoal, "vq1 50us 3p"},
	{"vq set, reserved", request(6, 2, uint16(65535), uint16(65535), uint32(0), uint32(1)), virtio.FeatureVQNotfCoal, "vq65535 1us 0p"},
	{"vq get", request(6, 3, uint16(2), uint16(0)), virtio.FeatureVQNotfCoal, "vq2?"},
	{"vq get, reserved", request(6, 3, uint16(2), uint16(65535)), virtio.FeatureVQNotfCoal, "vq2?"},
	{"vq get, short index", request(6, 3, uint16(258)), virtio.FeatureVQNotfCoal, "vq258?"},
}

func reply(sizes ...int) [][]byte {
	s := make([][]byte, len(sizes))
	for i, n := range sizes {
		s[i] = bytes.Repeat([]byte{0xee}, n)
	}
	return s
}

func isGet(req []byte) bool {
	return req[0] == virtio.CtrlNotfCoal && req[1] == virtio.CtrlNotfCoalVQGet
}

// run dispatches one command with exactly the room that it needs.
func run(f virtio.Features, h Handler, req []byte) (Result, byte) {
	out := reply(1)
	if len(req) >= 2 && isGet(req) {
		out = reply(8, 1)
	}
	r := Dispatch(f, h, req, out)
	return r, out[len(out)-1][0]
}

func TestCommands(t *testing.T) {
	for _, c := range commands {
		t.Run(c.name, func(t *testing.T) {
			var h recorder
			r, ack := run(c.need|virtio.FeatureCtrlVQ, &h, c.req)
			want := Result{Written: 1, Class: c.req[0], Command: c.req[1]}
			if isGet(c.req) {
				want.Written = 9
			}
			if diff := cmp.Diff(want, r); diff != "" || ack != virtio.CtrlOK {
				t.Errorf("ack %d, result (-want +got):\n%s", ack, diff)
			}
			if diff := cmp.Diff([]string{c.call}, h.calls); diff != "" {
				t.Errorf("calls (-want +got):\n%s", diff)
			}
		})
	}
}

func TestRefusedByHandler(t *testing.T) {
	for _, c := range commands {
		t.Run(c.name, func(t *testing.T) {
			h := recorder{err: errors.New("no")}
			r, ack := run(all, &h, c.req)
			if r.Ack != virtio.CtrlErr || ack != virtio.CtrlErr || r.Written != 1 || !errors.Is(r.Err, h.err) || len(h.calls) != 1 {
				t.Errorf("ack %d, result %+v, calls %q", ack, r, h.calls)
			}
			if want := virtio.CtrlName(c.req[0], c.req[1]); !strings.Contains(r.Err.Error(), want) {
				t.Errorf("error %q does not name %s", r.Err, want)
			}
		})
	}
}

// Without its feature a command never reaches the device, whatever else was
// negotiated.
func TestNotNegotiated(t *testing.T) {
	for _, c := range commands {
		for _, f := range []virtio.Features{0, all &^ c.need, c.need, virtio.FeatureCtrlVQ} {
			t.Run(fmt.Sprintf("%s/%x", c.name, uint64(f)), func(t *testing.T) {
				var h recorder
				r, ack := run(f, &h, c.req)
				const want = uint8(virtio.CtrlErr)
				if r.Ack != want || ack != want || r.Written != 1 || !errors.Is(r.Err, ErrNotNegotiated) || h.calls != nil {
					t.Errorf("ack %d, want %d; result %+v, calls %q", ack, want, r, h.calls)
				}
			})
		}
	}
}

// Every command has one length (VQ_GET two); all others are refused, negotiated
// or not.
func TestLengths(t *testing.T) {
	for _, c := range commands {
		for n := range len(c.req) + 4 {
			padded := n == len(c.req)+1 && c.req[0] == virtio.CtrlMQ && c.req[1] != virtio.CtrlMQVQPairsSet
			if n == len(c.req) || padded || isGet(c.req) && (n == 4 || n == 6) {
				continue
			}
			req := append(slices.Clone(c.req), 0, 0, 0, 0)[:n]
			for _, f := range []virtio.Features{all, virtio.FeatureCtrlVQ} {
				var h recorder
				r, _ := run(f, &h, req)
				if r.Ack != virtio.CtrlErr || r.Written != 1 || !errors.Is(r.Err, ErrMalformed) || h.calls != nil {
					t.Fatalf("%s cut to %d of %d bytes: result %+v, calls %q", c.name, n, len(c.req), r, h.calls)
				}
			}
		}
	}
}

func TestMalformed(t *testing.T) {
	tests := []struct {
		name string
		req  []byte
		want error
	}{
		{"nothing", nil, ErrMalformed},
		{"class only", request(6), ErrMalformed},
		{"table count 2^32-1", request(1, 0, uint32(1<<32-1), macs(1)), ErrMalformed},
		{"table count that wraps to 4", request(1, 0, uint32(0x2aaaaaab), macs(1), uint32(0)), ErrMalformed},
		{"unicast table only", request(1, 0, uint32(1), macs(1)), ErrMalformed},
		{"second count 2^32-1", request(1, 0, uint32(0), uint32(1<<32-1), macs(2)), ErrMalformed},
		{"bytes behind the tables", request(1, 0, uint32(0), uint32(0), 0, 0), ErrMalformed},
		{"longer than any request", request(1, 0, uint32(12000), macs(12000), uint32(0)), ErrMalformed},
		{"multicast address", request(1, 1, []byte{3, 0, 0, 0, 0, 1}), ErrMalformed},
		{"zero address", request(1, 1, make([]byte, 6)), ErrMalformed},
		{"vlan 4096", request(2, 0, uint16(4096)), ErrMalformed},
		{"vlan 65535", request(2, 1, uint16(65535)), ErrMalformed},
		{"0 pairs", request(4, 0, uint16(0)), ErrMalformed},
		{"32769 pairs", request(4, 0, uint16(0x8001)), ErrMalformed},
		{"unknown offload", request(5, 0, uint64(1)<<46), ErrNotNegotiated},
		{"RX 6", request(0, 6, 1), ErrUnknown},
		{"MAC 2", request(1, 2), ErrUnknown},
		{"VLAN 2", request(2, 2, uint16(1)), ErrUnknown},
		{"ANNOUNCE 1", request(3, 1), ErrUnknown},
		{"RSS table of 3", request(4, 1, uint32(0), uint16(2), uint16(0), make([]byte, 6), uint16(1), 0), ErrMalformed},
		{"RSS table of 129", request(4, 1, uint32(0), uint16(128), uint16(0), make([]byte, 2*129), uint16(1), 0), ErrMalformed},
		{"RSS table of 65536, two of them there", request(4, 1, uint32(0), uint16(65535), uint16(0), uint32(0), uint16(1), 0), ErrMalformed},
		{"RSS without the key's length", request(4, 1, uint32(0), uint16(0), uint16(0), uint16(0), uint16(1)), ErrMalformed},
		{"RSS key of 41 bytes, 40 of them there", request(4, 1, uint32(1), uint16(0), uint16(0), uint16(0), uint16(1), 41, make([]byte, 40)), ErrMalformed},
		{"RSS types without a key", request(4, 1, uint32(1), uint16(0), uint16(0), uint16(0), uint16(1), 0), ErrMalformed},
		{"hash types without a key", request(4, 2, uint32(1), uint64(0), 0), ErrMalformed},
		{"hash key cut off", request(4, 2, uint32(1), uint64(0), 2, 1), ErrMalformed},
		{"MQ 3", request(4, 3), ErrUnknown},
		{"GUEST_OFFLOADS 1", request(5, 1, uint64(0)), ErrUnknown},
		{"NOTF_COAL 4", request(6, 4), ErrUnknown},
		{"HASH_TUNNEL", request(7, 0, uint32(0)), ErrUnknown},
		{"STATS 2", request(8, 2), ErrUnknown},
		{"STATS_QUERY with data", request(8, 0, 0), ErrMalformed},
		{"STATS_GET of nothing", request(8, 1), ErrMalformed},
		{"STATS_GET cut off", request(8, 1, uint64(0), uint32(1)), ErrMalformed},
		{"STATS_GET of a type that is not there", request(8, 1, uint64(0), uint64(1<<3)), ErrMalformed},
		{"class 255", request(255, 255), ErrUnknown},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var h recorder
			r, ack := run(all, &h, tt.req)
			if r.Ack != virtio.CtrlErr || ack != virtio.CtrlErr || r.Written != 1 || !errors.Is(r.Err, tt.want) || h.calls != nil {
				t.Errorf("ack %d, result %+v, calls %q; want error %v", ack, r, h.calls, tt.want)
			}
		})
	}
}

// A byte of padding behind the key is not part of it.
func TestPaddedKey(t *testing.T) {
	for _, req := range [][]byte{
		request(4, 1, uint32(1), uint16(0), uint16(0), uint16(0), uint16(1), 2, 7, 8, 9),
		request(4, 2, uint32(1), uint64(0), 2, 7, 8, 9),
	} {
		var h recorder
		if r, _ := run(all, &h, req); r.Err != nil || !strings.HasSuffix(h.calls[0], " 0708") {
			t.Errorf("%+v, calls %q", r, h.calls)
		}
	}
}

// 53 without 52 has the commands for all queues only, and the reverse.
func TestCoalescingFeaturesApart(t *testing.T) {
	for cmd, need := range []virtio.Features{
		virtio.FeatureNotfCoal, virtio.FeatureNotfCoal, virtio.FeatureVQNotfCoal, virtio.FeatureVQNotfCoal,
	} {
		for _, has := range []virtio.Features{virtio.FeatureNotfCoal, virtio.FeatureVQNotfCoal} {
			i := slices.IndexFunc(commands, func(c command) bool {
				return c.req[0] == virtio.CtrlNotfCoal && int(c.req[1]) == cmd
			})
			r, _ := run(has|virtio.FeatureCtrlVQ, &recorder{}, commands[i].req)
			if ok := r.Ack == virtio.CtrlOK; ok != (has == need) {
				t.Errorf("command %d with %s: %+v", cmd, has, r)
			}
		}
	}
}

func TestGuestOffloads(t *testing.T) {
	const negotiated = virtio.FeatureGuestCSum | virtio.FeatureGuestTSO4
	f := negotiated | virtio.FeatureCtrlVQ | virtio.FeatureCtrlGuestOffloads
	for offloads, want := range map[virtio.Features]uint8{
		0:                       virtio.CtrlOK,
		virtio.FeatureGuestCSum: virtio.CtrlOK,
		negotiated:              virtio.CtrlOK,
		virtio.FeatureGuestTSO6: virtio.CtrlErr,
		f:                       virtio.CtrlErr,
		negotiated | 1<<63:      virtio.CtrlErr,
		virtio.FeatureCtrlVQ:    virtio.CtrlErr,
		all:                     virtio.CtrlErr,
	} {
		var h recorder
		r, _ := run(f, &h, request(5, 0, uint64(offloads)))
		if r.Ack != want || (want == virtio.CtrlOK) != (len(h.calls) == 1) {
			t.Errorf("offloads %s: result %+v, calls %q", offloads, r, h.calls)
		}
	}
}

// Linux has GUEST_HDRLEN among its offloads. It is not the device's business, but
// only where it was negotiated.
func TestHdrLenIsNoOffload(t *testing.T) {
	const f = virtio.FeatureGuestCSum | virtio.FeatureCtrlVQ | virtio.FeatureCtrlGuestOffloads
	req := request(5, 0, uint64(virtio.FeatureGuestCSum|virtio.FeatureGuestHdrLen))
	var h recorder
	if r, _ := run(f|virtio.FeatureGuestHdrLen, &h, req); r.Err != nil || h.calls[0] != "offloads 0x2" {
		t.Errorf("%+v, calls %q", r, h.calls)
	}
	if r, _ := run(f, &h, req); !errors.Is(r.Err, ErrNotNegotiated) || len(h.calls) != 1 {
		t.Errorf("%+v, calls %q", r, h.calls)
	}
}

func TestManyVLANs(t *testing.T) {
	var h recorder
	for id := range uint16(4096) {
		if r, ack := run(all, &h, request(2, 0, id)); ack != virtio.CtrlOK {
			t.Fatalf("id %d: %+v", id, r)
		}
	}
	if len(h.calls) != 4096 {
		t.Errorf("%d calls", len(h.calls))
	}
}
