package ctrlq

import (
	"fmt"
	"slices"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/vhostnet/vhostnet/virtio"
)

var (
	own    = [6]byte{2, 0, 0, 0, 0, 1}
	other  = [6]byte{2, 0, 0, 0, 0, 2}
	third  = [6]byte{2, 0, 0, 0, 0, 3}
	group  = [6]byte{1, 0, 0x5e, 0, 0, 1}
	group6 = [6]byte{0x33, 0x33, 0, 0, 0, 1}
	bcast  = [6]byte{255, 255, 255, 255, 255, 255}
)

func untagged(dst [6]byte) []byte {
	return append(dst[:], 2, 9, 9, 9, 9, 9, 8, 0, 0x45, 0, 0, 0)
}

func tagged(dst [6]byte, tci uint16) []byte {
	return append(dst[:], 2, 9, 9, 9, 9, 9, 0x81, 0, byte(tci>>8), byte(tci), 8, 0)
}

// dsts are the destinations that the table tests try, in this order.
var dsts = [][6]byte{own, other, third, group, group6, bcast}

func passing(f *Filter) (names string) {
	for i, d := range dsts {
		if f.Match(untagged(d)) {
			names += string("othmMb"[i])
		}
	}
	return names
}

func TestFilterModes(t *testing.T) {
	base := NewFilter(own).WithTable([][6]byte{other}, [][6]byte{group})
	tests := []struct {
		modes []uint8
		want  string // o own, t in the table, h not; m in the table, M not; b broadcast
	}{
		{nil, "otmb"},
		{[]uint8{virtio.CtrlRXPromisc}, "othmMb"},
		{[]uint8{virtio.CtrlRXAllMulti}, "otmMb"},
		{[]uint8{virtio.CtrlRXAllUni}, "othmb"},
		{[]uint8{virtio.CtrlRXNoMulti}, "otb"},
		{[]uint8{virtio.CtrlRXNoUni}, "mb"},
		{[]uint8{virtio.CtrlRXNoBcast}, "otm"},
		{[]uint8{virtio.CtrlRXNoMulti, virtio.CtrlRXAllMulti}, "otb"},
		{[]uint8{virtio.CtrlRXNoUni, virtio.CtrlRXAllUni}, "mb"},
		{[]uint8{virtio.CtrlRXNoUni, virtio.CtrlRXNoMulti, virtio.CtrlRXNoBcast}, ""},
		{[]uint8{virtio.CtrlRXNoUni, virtio.CtrlRXNoMulti, virtio.CtrlRXNoBcast, virtio.CtrlRXPromisc}, "othmMb"},
		{[]uint8{77}, "otmb"},
	}
	for _, tt := range tests {
		t.Run(fmt.Sprint(tt.modes), func(t *testing.T) {
			f := base
			for _, m := range tt.modes {
				f = f.WithMode(m, true)
			}
			if got := passing(f); got != tt.want {
				t.Errorf("passing %q, want %q", got, tt.want)
			}
			for _, m := range tt.modes {
				f = f.WithMode(m, false)
			}
			if got := passing(f); got != "otmb" {
				t.Errorf("modes off again: passing %q", got)
			}
		})
	}
}

func TestFilterUnconfigured(t *testing.T) {
	f := NewFilter(own)
	for _, f := range []*Filter{f, f.WithVLANFiltering(true), f.WithMAC(other), f.WithMode(6, true), f.WithVLAN(4096, true)} {
		if f.Configured() || !f.PassesAll() || passing(f) != "othmMb" || !f.Match(tagged(own, 5)) || !f.Match(nil) {
			t.Errorf("%+v does not let everything pass", f)
		}
	}
	for _, f := range []*Filter{
		f.WithMode(virtio.CtrlRXPromisc, false), f.WithMode(virtio.CtrlRXNoUni, false), f.WithTable(nil, nil),
	} {
		if !f.Configured() || f.PassesAll() || passing(f) != "ob" {
			t.Errorf("%+v: passing %q", f, passing(f))
		}
	}
}

func TestFilterOwnAddress(t *testing.T) {
	f := NewFilter(own).WithTable(nil, nil).WithMAC(other)
	if got := passing(f); got != "tb" {
		t.Errorf("other address: passing %q", got)
	}
	if got := passing(f.WithMAC([6]byte{})); got != "othb" {
		t.Errorf("no address: passing %q", got)
	}
	if got := passing(f.WithMAC([6]byte{}).WithMode(virtio.CtrlRXNoUni, true)); got != "b" {
		t.Errorf("no address, no unicast: passing %q", got)
	}
}

func list(n int, first byte) [][6]byte {
	l := make([][6]byte, n)
	for i := range l {
		l[i] = [6]byte{first, 0, 0, 1, byte(i >> 8), byte(i)}
	}
	return l
}

func TestFilterOverflow(t *testing.T) {
	for _, n := range []int{0, 1, MaxTable, MaxTable + 1, 300} {
		over := n > MaxTable
		uni := NewFilter(own).WithTable(list(n, 2), nil)
		if uni.Match(untagged(third)) != over || uni.AllUnicast() != over || uni.Match(untagged(group)) || uni.AllMulticast() {
			t.Errorf("%d unicast addresses: %+v", n, uni)
		}
		multi := NewFilter(own).WithTable(nil, list(n, 3))
		if multi.Match(untagged(group)) != over || multi.AllMulticast() != over || multi.Match(untagged(third)) || multi.AllUnicast() {
			t.Errorf("%d multicast addresses: %+v", n, multi)
		}
		for _, a := range list(n, 2) {
			if !uni.Match(untagged(a)) {
				t.Errorf("%d unicast addresses: %x does not pass", n, a)
			}
		}
		if back := uni.WithTable(nil, nil); back.AllUnicast() || back.Match(untagged(third)) {
			t.Errorf("%d unicast addresses, then none: still open", n)
		}
	}
}

func TestFilterVLAN(t *testing.T) {
	f := NewFilter(own).WithMode(virtio.CtrlRXPromisc, true)
	if !f.PassesAll() || !f.Match(tagged(own, 5)) {
		t.Error("promiscuous without VLAN filtering does not pass everything")
	}
	if g := f.WithVLAN(5, true); !g.PassesAll() || !g.Match(tagged(own, 6)) {
		t.Error("a table without VLAN filtering filters")
	}
	f = f.WithVLANFiltering(true)
	if !f.PassesAll() || !f.Match(tagged(own, 5)) {
		t.Error("promiscuous with VLAN filtering does not pass everything")
	}
	f = f.WithMode(virtio.CtrlRXPromisc, false).WithMode(virtio.CtrlRXAllUni, true)
	if f.PassesAll() {
		t.Error("VLAN filtering passes everything")
	}
	f = f.WithVLAN(1, true).WithVLAN(63, true).WithVLAN(64, true).WithVLAN(4095, true).WithVLAN(64, false).WithVLAN(9, false)
	if diff := cmp.Diff([]uint16{1, 63, 4095}, f.VLANs()); diff != "" {
		t.Errorf("VLANs (-want +got):\n%s", diff)
	}
	for tci, want := range map[uint16]bool{
		0: true, 0xf000: true, 1: true, 0x2001: true, 63: true, 64: false, 65: false, 4095: true, 0xffff: true, 4094: false,
	} {
		if got := f.Match(tagged(own, tci)); got != want {
			t.Errorf("tag %#x: passes %t", tci, got)
		}
	}
	if !f.Match(untagged(own)) {
		t.Error("untagged does not pass")
	}
	if f.Match(tagged(own, 1)[:15]) || !f.Match(untagged(own)[:14]) || f.Match(untagged(own)[:13]) {
		t.Error("short frames misjudged")
	}
	// Both judgements apply to a tagged frame.
	g := f.WithMode(virtio.CtrlRXAllUni, false)
	if !g.Match(tagged(own, 1)) || g.Match(tagged(other, 1)) || g.Match(tagged(own, 2)) {
		t.Error("tag and address are not both judged")
	}
	// A driver without receive modes: tags are filtered, addresses are not.
	v := NewFilter(own).WithVLANFiltering(true).WithVLAN(1, true)
	if !v.Configured() || v.PassesAll() || passing(v) != "othmMb" || v.Match(tagged(own, 2)) || !v.Match(tagged(other, 1)) {
		t.Error("VLAN table alone misjudged")
	}
}

func TestFilterAccessors(t *testing.T) {
	f := NewFilter(own)
	if f.Unicast() == nil || f.Multicast() == nil || f.VLANs() == nil {
		t.Error("nil slice")
	}
	uni := [][6]byte{third, other}
	f = f.WithTable(uni, [][6]byte{group6, group})
	uni[0] = own // the caller's slice is his own again
	f.Unicast()[1] = own
	if diff := cmp.Diff([][6]byte{third, other}, f.Unicast()); diff != "" {
		t.Errorf("unicast (-want +got):\n%s", diff)
	}
	if diff := cmp.Diff([][6]byte{group6, group}, f.Multicast()); diff != "" {
		t.Errorf("multicast (-want +got):\n%s", diff)
	}
	if f.Promiscuous() || f.AllMulticast() || f.AllUnicast() {
		t.Error("modes on")
	}
	f = f.WithMode(virtio.CtrlRXPromisc, true).WithMode(virtio.CtrlRXAllMulti, true).WithMode(virtio.CtrlRXAllUni, true)
	if !f.Promiscuous() || !f.AllMulticast() || !f.AllUnicast() {
		t.Error("modes off")
	}
}

// A snapshot that a worker holds does not change.
func TestFilterIsImmutable(t *testing.T) {
	f := NewFilter(own).WithTable([][6]byte{other}, nil).WithVLANFiltering(true).WithVLAN(3, true)
	before := *f
	f.WithMAC(third)
	f.WithMode(virtio.CtrlRXNoUni, true)
	f.WithTable(nil, list(3, 3))
	f.WithVLAN(3, false)
	f.WithVLANFiltering(false)
	if diff := cmp.Diff(before, *f, cmp.AllowUnexported(Filter{}, table{})); diff != "" {
		t.Errorf("changed:\n%s", diff)
	}
}

func TestMatchDoesNotAllocate(t *testing.T) {
	f := NewFilter(own).WithTable(list(MaxTable, 2), list(MaxTable, 3)).WithVLANFiltering(true).WithVLAN(3, true)
	frames := [][]byte{untagged(own), untagged(bcast), untagged(group), tagged(own, 3), tagged(own, 4), untagged(list(64, 2)[63])}
	if n := testing.AllocsPerRun(100, func() {
		for _, frame := range frames {
			f.Match(frame)
		}
	}); n != 0 {
		t.Errorf("%g allocations", n)
	}
}

// model is the filter written down as the specification reads: sets and
// sentences, no bits.
type model struct {
	mac         [6]byte
	mode        map[uint8]bool
	uni, multi  [][6]byte
	vlans       map[uint16]bool
	filterVLANs bool
	moded       bool // a receive mode or table was set
	vlaned      bool
}

func (m *model) match(dst [6]byte, vlan int) bool {
	if !m.moded && !m.vlaned || m.mode[virtio.CtrlRXPromisc] {
		return true
	}
	if vlan > 0 && m.filterVLANs && !m.vlans[uint16(vlan)] {
		return false
	}
	if !m.moded {
		return true
	}
	if dst == bcast {
		return !m.mode[virtio.CtrlRXNoBcast]
	}
	if dst[0]&1 == 1 {
		if m.mode[virtio.CtrlRXNoMulti] {
			return false
		}
		return m.mode[virtio.CtrlRXAllMulti] || len(m.multi) > MaxTable || slices.Contains(m.multi, dst)
	}
	if m.mode[virtio.CtrlRXNoUni] {
		return false
	}
	return m.mode[virtio.CtrlRXAllUni] || len(m.uni) > MaxTable || m.mac == [6]byte{} || m.mac == dst || slices.Contains(m.uni, dst)
}

func TestFilterAgainstModel(t *testing.T) {
	pool := append(append(list(80, 2), list(80, 3)...), dsts...)
	addr := rapid.SampledFrom(append(slices.Clone(dsts), pool...))
	vlan := rapid.SampledFrom([]uint16{0, 1, 2, 63, 64, 4095})
	rapid.Check(t, func(t *rapid.T) {
		m := &model{mac: own, mode: map[uint8]bool{}, vlans: map[uint16]bool{}}
		f := NewFilter(own)
		on := rapid.Bool()
		t.Repeat(map[string]func(*rapid.T){
			"mac": func(t *rapid.T) {
				m.mac = rapid.SampledFrom([][6]byte{own, other, {}}).Draw(t, "mac")
				f = f.WithMAC(m.mac)
			},
			"mode": func(t *rapid.T) {
				cmd, on := rapid.Uint8Range(0, 5).Draw(t, "mode"), on.Draw(t, "on")
				m.mode[cmd], m.moded = on, true
				f = f.WithMode(cmd, on)
			},
			"table": func(t *rapid.T) {
				m.uni = rapid.SliceOfN(addr, 0, 70).Draw(t, "unicast")
				m.multi = rapid.SliceOfN(addr, 0, 70).Draw(t, "multicast")
				m.moded = true
				f = f.WithTable(m.uni, m.multi)
			},
			"vlan": func(t *rapid.T) {
				id, on := vlan.Draw(t, "id"), on.Draw(t, "on")
				m.vlans[id], m.vlaned = on, true
				f = f.WithVLAN(id, on)
			},
			"filtering": func(t *rapid.T) {
				m.filterVLANs = on.Draw(t, "on")
				f = f.WithVLANFiltering(m.filterVLANs)
			},
			"": func(t *rapid.T) {
				for _, d := range dsts {
					if got, want := f.Match(untagged(d)), m.match(d, -1); got != want {
						t.Fatalf("%x passes %t", d, got)
					}
					for _, id := range []uint16{0, 1, 2, 64, 4095} {
						got, want := f.Match(tagged(d, id|0x2000)), m.match(d, int(id))
						if got != want || !got && f.PassesAll() {
							t.Fatalf("%x vlan %d passes %t, want %t; all pass %t", d, id, got, want, f.PassesAll())
						}
					}
				}
			},
		})
	})
}

func BenchmarkMatch(b *testing.B) {
	f := NewFilter(own).WithTable(list(MaxTable, 2), list(MaxTable, 3)).WithVLANFiltering(true)
	for name, frame := range map[string][]byte{
		"own": untagged(own), "table": untagged(list(MaxTable, 2)[17]), "miss": untagged(group),
	} {
		b.Run(name, func(b *testing.B) {
			b.ReportAllocs()
			for b.Loop() {
				f.Match(frame)
			}
		})
	}
}
