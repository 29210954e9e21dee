package vring_test

import (
	"encoding/binary"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/vhostnet/vhostnet/virtio"
	"github.com/vhostnet/vhostnet/vring"
)

// piece is a segment by its guest address.
type piece struct{ at, n uint64 }

// follow is the rules of a chain (virtio 1.4, "The Virtqueue Descriptor Table")
// written down a second time, slowly: it collects the descriptors first, and
// judges them afterwards. Memory is one region from 0 on.
func follow(mem []byte, n int, head uint16) (read, written []piece, ok bool) {
	type link struct {
		addr        uint64
		len         uint32
		flags, next uint16
	}
	at := func(off uint64) link {
		b := mem[off : off+16]
		return link{
			binary.LittleEndian.Uint64(b), binary.LittleEndian.Uint32(b[8:]),
			binary.LittleEndian.Uint16(b[12:]), binary.LittleEndian.Uint16(b[14:]),
		}
	}
	inside := func(addr, n uint64) bool { return n <= memSize && addr <= memSize-n }
	list := func(table uint64, entries, limit int, first uint16) (links []link, ok bool) {
		for i := first; len(links) < limit; {
			if int(i) >= entries || !inside(table+16*uint64(i), 16) {
				return links, false
			}
			l := at(table + 16*uint64(i))
			links = append(links, l)
			if l.flags&indirect != 0 || l.flags&next == 0 {
				return links, true
			}
			i = l.next
		}
		return links, false
	}
	links, ok := list(descAt, n, n, head)
	if !ok {
		return nil, nil, false
	}
	if last := links[len(links)-1]; last.flags&indirect != 0 {
		if last.flags&next != 0 || last.len == 0 || last.len%16 != 0 || last.addr > ^uint64(0)-uint64(last.len) {
			return nil, nil, false
		}
		table, ok := list(last.addr, int(last.len/16), 1024, 0)
		if !ok || table[len(table)-1].flags&indirect != 0 {
			return nil, nil, false
		}
		links = append(links[:len(links)-1], table...)
	}
	for _, l := range links {
		switch {
		case l.len == 0:
		case !inside(l.addr, uint64(l.len)):
			return nil, nil, false
		case l.flags&write != 0:
			written = append(written, piece{l.addr, uint64(l.len)})
		case len(written) > 0:
			return nil, nil, false
		default:
			read = append(read, piece{l.addr, uint64(l.len)})
		}
	}
	return read, written, true
}

// compare checks chain i of a batch against the rules.
func compare(t rapid.TB, d *model, b *vring.Batch, i int) {
	mem, _ := d.m.Slice(0, memSize)
	c := b.Chains[i]
	read, written, ok := follow(mem, d.n, c.ID)
	if ok != (c.Fault == vring.FaultNone) {
		t.Fatalf("chain %+v: legal is %t", c, ok)
	}
	for what, side := range map[string]struct {
		want  []piece
		got   [][]byte
		total uint64
	}{"readable": {read, b.Readable(i), c.ReadLen}, "writable": {written, b.Writable(i), c.WriteLen}} {
		total := uint64(0)
		if len(side.got) != len(side.want) {
			t.Fatalf("chain %+v: %d %s segments, want %d", c, len(side.got), what, len(side.want))
		}
		for k, w := range side.want {
			total += w.n
			if g := side.got[k]; uint64(len(g)) != w.n || &g[0] != &mem[w.at] {
				t.Fatalf("chain %+v: %s segment %d is not %+v", c, what, k, w)
			}
		}
		if total != side.total {
			t.Fatalf("chain %+v: %s bytes, want %d", c, what, total)
		}
	}
}

// popAll pops n chains, in as many bursts as their lengths make of them.
func popAll(t rapid.TB, q vring.Queue, n int) *vring.Batch {
	b := vring.NewBatch(n, 64*1024)
	for len(b.Chains) < n {
		had := len(b.Chains)
		got, err := q.Pop(b, n)
		if err != nil || got == 0 || len(b.Chains) != had+got {
			t.Fatalf("popped %d after %d of %d: %v", got, had, n, err)
		}
	}
	return b
}

// TestChainsModel compares random rings, most of whose chains are legal, with the
// rules.
func TestChainsModel(t *testing.T) {
	const table = 0x180000
	m := heap(t)
	rapid.Check(t, func(r *rapid.T) {
		n := 1 << rapid.IntRange(0, 5).Draw(r, "order")
		d := newModel(t, m, n, split|virtio.FeatureIndirectDesc, rapid.Uint16().Draw(r, "base"))
		link := func(i, entries int) desc {
			return desc{
				addr: rapid.OneOf(
					rapid.Uint64Range(bufBase, bufBase+0x1000), rapid.Just(uint64(table)), rapid.Just(uint64(table)+1),
					rapid.SampledFrom([]uint64{memSize - 64, memSize, ^uint64(0) - 7}),
				).Draw(r, "addr"),
				n: rapid.SampledFrom([]uint32{0, 1, 12, 16, 32, 64, 72, 160, 0x11000, 0xffffffff}).Draw(r, "len"),
				flags: rapid.SampledFrom([]uint16{
					0, 0, write, write, next, next, next | write, indirect, indirect | write, indirect | next, 0xfff8,
				}).Draw(r, "flags"),
				next: uint16(rapid.OneOf(rapid.Just(i+1), rapid.IntRange(0, entries)).Draw(r, "next")),
			}
		}
		for i := range n {
			l := link(i, n)
			d.put(i, l.addr, l.n, l.flags, l.next)
		}
		for i := range 10 {
			d.table(table+uint64(16*i), link(i, 10))
		}
		q, err := vring.Activate(m, d.cfg)
		if err != nil {
			r.Fatal(err)
		}
		defer q.Stop()
		for range n {
			d.offer(uint16(rapid.IntRange(0, n-1).Draw(r, "head")))
		}
		b := popAll(r, q, n)
		for i := range b.Chains {
			if want := d.heads[(int(d.cfg.Base)+i)%n]; b.Chains[i].ID != want {
				r.Fatalf("chain %d is %d, want %d", i, b.Chains[i].ID, want)
			}
			compare(r, d, b, i)
		}
	})
}

// FuzzChain is the same with bytes in place of rules for making them.
func FuzzChain(f *testing.F) {
	one := make([]byte, 16)
	binary.LittleEndian.PutUint64(one, bufBase)
	one[8] = 72
	chain := slices.Clone(one)
	chain[12], chain[14] = next, 1
	table := slices.Clone(one)
	binary.LittleEndian.PutUint64(table, 0x180001)
	table[8], table[12] = 32, indirect
	f.Add(one, one, uint8(0))
	f.Add(append(slices.Clone(chain), one...), one, uint8(4))
	f.Add(table, append(slices.Clone(chain), one...), uint8(1))
	f.Add(append(slices.Clone(chain), table...), append(slices.Clone(chain), chain...), uint8(3))
	m := heap(f)
	f.Fuzz(func(t *testing.T, direct, indirect []byte, order uint8) {
		n := 1 << (order % 6)
		d := newModel(t, m, n, split|virtio.FeatureIndirectDesc, 0)
		for _, area := range []struct {
			at   uint64
			size int
			b    []byte
		}{{descAt, 16 * n, direct}, {0x180001, 1024, indirect}} {
			mem, _ := m.Slice(area.at, uint64(area.size))
			clear(mem[copy(mem, area.b):])
		}
		q, err := vring.Activate(m, d.cfg)
		if err != nil {
			t.Fatal(err)
		}
		defer q.Stop()
		for i := range n {
			d.offer(uint16(i))
		}
		b := popAll(t, q, n)
		for i := range b.Chains {
			compare(t, d, b, i)
		}
	})
}

// TestSuppressionModel compares decisions with the rule in words: notify if one
// of the entries since the last notification, of which a ring's worth counts, is
// the one that the driver named, and there was anything since the last decision.
func TestSuppressionModel(t *testing.T) {
	m := heap(t)
	rapid.Check(t, func(r *rapid.T) {
		const n = 32
		d := newModel(t, m, n, split|virtio.FeatureEventIdx, rapid.Uint16().Draw(r, "base"))
		q, err := vring.Activate(m, d.cfg)
		if err != nil {
			r.Fatal(err)
		}
		defer q.Stop()
		called, decided, first := d.idx, d.idx, true
		for range 20 {
			for range rapid.IntRange(0, 3).Draw(r, "bursts") {
				for range rapid.IntRange(0, n).Draw(r, "packets") {
					d.single(d.idx%n, 72)
				}
				finish(q, pop(t, q, n))
			}
			event := d.idx + uint16(rapid.IntRange(-100, 40).Draw(r, "event"))
			d.setUsedEvent(event)
			want := first
			for i := called; i != d.usedIdx(); i++ {
				want = want || i == event && decided != d.usedIdx()
			}
			if got := q.NeedSignal(); got != want {
				r.Fatalf("from %d to %d with event %d: %t", called, d.usedIdx(), event, got)
			}
			decided, first = d.usedIdx(), false
			for want && called != decided || decided-called > n {
				called++
			}
		}
	})
}
