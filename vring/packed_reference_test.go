package vring_test

import (
	"encoding/binary"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/vhostnet/vhostnet/virtio"
	"github.com/vhostnet/vhostnet/vring"
)

// packedChain is the rules of a chain in a packed ring (virtio 1.4, "Packed
// Virtqueues") written down a second time, slowly. room is how many descriptors it may
// have; ends is false if it has more.
func packedChain(mem []byte, n, at, room int) (id uint16, count int, read, written []piece, ok, ends bool) {
	ok = true
	buffer := func(b []byte) {
		addr, l := binary.LittleEndian.Uint64(b), uint64(binary.LittleEndian.Uint32(b[8:]))
		switch wr := binary.LittleEndian.Uint16(b[14:])&write != 0; {
		case l == 0:
		case l > memSize || addr > memSize-l, !wr && len(written) > 0:
			ok = false
		case wr:
			written = append(written, piece{addr, l})
		default:
			read = append(read, piece{addr, l})
		}
	}
	for count < room {
		b := mem[descAt+16*((at+count)%n):][:16]
		count++
		id = binary.LittleEndian.Uint16(b[12:])
		flags := binary.LittleEndian.Uint16(b[14:])
		if flags&indirect == 0 {
			buffer(b)
		} else {
			table, l := binary.LittleEndian.Uint64(b), uint64(binary.LittleEndian.Uint32(b[8:]))
			if flags&next != 0 || l == 0 || l%16 != 0 || l > 16*1024 || table > memSize-l {
				ok = false
			} else {
				for e := range l / 16 {
					buffer(mem[table+16*e:][:16])
				}
			}
		}
		if flags&next == 0 {
			return id, count, read, written, ok, true
		}
	}
	return 0, count, nil, nil, false, false
}

// comparePacked pops all that a ring of arbitrary content has, checks it against the
// rules, and returns how many chains there were.
func comparePacked(t rapid.TB, d *packedModel) (chains int) {
	mem, _ := d.m.Slice(0, memSize)
	before := slices.Clone(mem[descAt : descAt+16*d.n])
	q, err := vring.Activate(d.m, d.cfg)
	if err != nil {
		t.Fatal(err)
	}
	defer q.Stop()
	b := vring.NewBatch(d.n, 64*1024)
	for slots := 0; ; {
		had := len(b.Chains)
		got, err := q.Pop(b, d.n)
		if len(b.Chains) != had+got || err != nil && got != 0 {
			t.Fatalf("popped %d, %d chains, %v", got, len(b.Chains)-had, err)
		}
		for i := had; i < len(b.Chains); i++ {
			c := &b.Chains[i]
			id, count, read, written, ok, ends := packedChain(mem, d.n, (d.next+slots)%d.n, d.n-slots)
			if !ends || c.ID != id || int(c.Count) != count || ok != (c.Fault == vring.FaultNone) {
				t.Fatalf("chain %+v at %d: %d of %d descriptors, legal %t", *c, slots, id, count, ok)
			}
			if !ok {
				read, written = nil, nil
			}
			for _, side := range []struct {
				want  []piece
				got   [][]byte
				total uint64
			}{{read, b.Readable(i), c.ReadLen}, {written, b.Writable(i), c.WriteLen}} {
				if len(side.got) != len(side.want) {
					t.Fatalf("chain %+v: %d segments, want %d", *c, len(side.got), len(side.want))
				}
				for k, w := range side.want {
					if g := side.got[k]; uint64(len(g)) != w.n || &g[0] != &mem[w.at] {
						t.Fatalf("chain %+v: segment %d is not %+v", *c, k, w)
					}
					side.total -= w.n
				}
				if side.total != 0 {
					t.Fatalf("chain %+v: %d bytes too many", *c, side.total)
				}
			}
			slots += count
		}
		if got > 0 {
			continue
		}
		flags := uint64(0)
		if slots < d.n {
			flags = d.desc.Load64(16*((d.next+slots)%d.n)+8) & (1<<55 | 1<<63)
		}
		there := slots < d.n && flags == d.avail(d.next+slots)
		if there != (err != nil) {
			t.Fatalf("%d of %d descriptors popped, another is there: %t, %v", slots, d.n, there, err)
		}
		if there {
			if _, _, _, _, _, ends := packedChain(mem, d.n, (d.next+slots)%d.n, d.n-slots); ends {
				t.Fatalf("broken at a chain that ends: %v", err)
			}
		}
		if !slices.Equal(before, mem[descAt:descAt+16*d.n]) {
			t.Fatal("popping changed the ring")
		}
		return len(b.Chains)
	}
}

// TestPackedChainsModel compares random rings with the rules.
func TestPackedChainsModel(t *testing.T) {
	const table = 0x180000
	m := heap(t)
	popped := 0
	rapid.Check(t, func(r *rapid.T) {
		n := rapid.IntRange(1, 40).Draw(r, "size")
		d := newPackedModel(t, m, n, virtio.FeatureIndirectDesc, rapid.IntRange(0, 3*n).Draw(r, "position"))
		word := func(i int, flags uint64) [2]uint64 {
			addr := rapid.OneOf(
				rapid.Uint64Range(bufBase, bufBase+0x1000), rapid.Just(uint64(table)), rapid.Just(uint64(table)+1),
				rapid.SampledFrom([]uint64{memSize - 64, memSize, ^uint64(0) - 7}),
			).Draw(r, "addr")
			l := rapid.SampledFrom([]uint64{0, 1, 12, 16, 32, 64, 72, 160, 0x11000, 0xffffffff}).Draw(r, "len")
			return [2]uint64{addr, l | uint64(i)<<32 | flags<<48}
		}
		flags := []uint64{0, 0, write, write, next, next | write, indirect, indirect | write, indirect | next, 0x7f78}
		for i := range n {
			w := word(i, rapid.SampledFrom(flags).Draw(r, "flags"))
			if rapid.IntRange(0, 15).Draw(r, "not") > 0 {
				w[1] = w[1]&^(1<<55|1<<63) | d.avail(d.next+i)
			}
			at := 2 * ((d.next + i) % n)
			d.words[at], d.words[at+1] = w[0], w[1]
		}
		mem, _ := m.Slice(table, 1024)
		for i := range 10 {
			w := word(99, rapid.SampledFrom(flags).Draw(r, "flags"))
			binary.LittleEndian.PutUint64(mem[16*i:], w[0])
			binary.LittleEndian.PutUint64(mem[16*i+8:], w[1])
		}
		popped += comparePacked(r, d)
	})
	if popped == 0 {
		t.Error("no chain at all")
	}
}

// FuzzPackedChain is the same with bytes in place of rules for making them.
func FuzzPackedChain(f *testing.F) {
	one := make([]byte, 16)
	binary.LittleEndian.PutUint64(one, bufBase)
	one[8], one[14] = 72, 0x80
	chain := slices.Clone(one)
	chain[14] |= next
	table := slices.Clone(one)
	binary.LittleEndian.PutUint64(table, 0x180001)
	table[8], table[14] = 32, 0x80|indirect
	f.Add(one, one, uint8(0), uint8(0))
	f.Add(append(slices.Clone(chain), one...), one, uint8(2), uint8(0))
	f.Add(append(slices.Clone(chain), chain...), one, uint8(1), uint8(0))
	f.Add(append(slices.Clone(table), one...), append(slices.Clone(chain), one...), uint8(6), uint8(0))
	f.Add(append(slices.Clone(chain), table...), one, uint8(7), uint8(16))
	m := heap(f)
	f.Fuzz(func(t *testing.T, direct, list []byte, size, pos uint8) {
		n := 1 + int(size)%33
		d := newPackedModel(t, m, n, virtio.FeatureIndirectDesc, int(pos))
		for _, area := range []struct {
			at   uint64
			size int
			b    []byte
		}{{descAt, 16 * n, direct}, {0x180001, 1024, list}} {
			mem, _ := m.Slice(area.at, uint64(area.size))
			clear(mem[copy(mem, area.b):])
		}
		comparePacked(t, d)
	})
}

// TestPackedPlainModel compares PopPlain with Pop on the same random ring.
func TestPackedPlainModel(t *testing.T) {
	m := heap(t)
	rapid.Check(t, func(r *rapid.T) {
		n := rapid.IntRange(1, 20).Draw(r, "size")
		d := newPackedModel(t, m, n, virtio.FeatureIndirectDesc, rapid.IntRange(0, 2*n).Draw(r, "position"))
		for k := 0; d.free() > 0; k++ {
			c := desc{
				rapid.SampledFrom([]uint64{bufBase, bufBase + 4096, bufBase + 64, memSize - 8, memSize, ^uint64(0)}).Draw(r, "address"),
				rapid.SampledFrom([]uint32{1, 8, 9, 72, 2048, 0}).Draw(r, "length"),
				rapid.SampledFrom([]uint16{0, 0, 0, write, write, indirect}).Draw(r, "flags"), 0,
			}
			if k%7 == 6 && d.free() > 1 {
				d.offer(uint16(k), c, c)
			} else {
				d.offer(uint16(k), c)
			}
		}
		wr, limit := rapid.Bool().Draw(r, "write"), rapid.IntRange(1, n).Draw(r, "limit")
		q := d.activate()
		defer q.Stop()
		b := vring.NewBatch(n, 64)
		for {
			if got, err := q.Pop(b, n); err != nil {
				r.Fatal(err)
			} else if got == 0 {
				break
			}
		}
		var ids []uint16
		var bufs [][]byte
		for i := range b.Chains {
			segs, c := b.Readable(i), &b.Chains[i]
			if wr {
				segs = b.Writable(i)
			}
			w := d.words[2*((d.next-d.free()+i)%n)+1] >> 48
			if i == limit || len(segs) != 1 || c.Count != 1 || c.Fault != 0 || w&indirect != 0 || (w&write != 0) != wr {
				break
			}
			ids, bufs = append(ids, c.ID), append(bufs, segs[0])
		}
		chains := len(b.Chains)
		q.Unpop(chains + 1)
		gotIDs, gotBufs := make([]uint16, limit), make([][]byte, n)
		k := q.PopPlain(gotIDs, gotBufs, wr)
		if !slices.Equal(gotIDs[:k], ids) {
			r.Fatalf("chains %v, want %v", gotIDs[:k], ids)
		}
		for i, b := range bufs {
			if g := gotBufs[i]; &g[0] != &b[0] || len(g) != len(b) || cap(g) != len(b) {
				r.Fatalf("buffer %d is not the same", i)
			}
		}
		if q.InFlight() != k || q.AvailCount() != chains-k {
			r.Fatalf("%d in flight, %d available, %d popped of %d", q.InFlight(), q.AvailCount(), k, chains)
		}
	})
}

// TestPackedSuppressionModel covers reference case V08: decisions are compared with
// the rule in words, on positions that do not wrap.
func TestPackedSuppressionModel(t *testing.T) {
	m := heap(t)
	rapid.Check(t, func(r *rapid.T) {
		n := rapid.SampledFrom([]int{1, 3, 32, 33}).Draw(r, "size")
		d := newPackedModel(t, m, n, virtio.FeatureEventIdx, rapid.IntRange(0, 4*n).Draw(r, "position"))
		q, err := vring.Activate(m, d.cfg)
		if err != nil {
			r.Fatal(err)
		}
		defer q.Stop()
		called, decided, first := d.last, d.last, true
		origin, seen := d.last, uint16(0)
		for range 20 {
			for range rapid.IntRange(0, 3).Draw(r, "bursts") {
				chains := 0
				for d.free() > 0 && rapid.IntRange(0, 5).Draw(r, "more") > 0 {
					k := min(1+rapid.IntRange(0, 2).Draw(r, "length"), d.free())
					d.offer(uint16(d.next), slices.Repeat([]desc{{bufBase, 72, 0, 0}}, k)...)
					chains++
				}
				was := q.Unsignalled()
				finish(q, pop(t, q, n))
				if q.Unsignalled() != was+chains {
					r.Fatalf("%d unsignalled, want %d", q.Unsignalled(), was+chains)
				}
				d.takeAll()
			}
			// The driver may name what it has used in the last lap, and what it will in
			// the next.
			event := max(d.last+rapid.IntRange(-n, n-1).Draw(r, "event"), 0)
			mode := rapid.SampledFrom([]int{virtio.EventFDesc, virtio.EventFDesc, virtio.EventFDesc, virtio.EventFDisable, virtio.EventFEnable, 3}).Draw(r, "mode")
			d.setEvent(mode, event)
			idx, moved := q.DriverEvent()
			if mode == virtio.EventFDesc && idx != uint16(event-origin) || mode != virtio.EventFDesc && idx != seen || moved != (idx != seen) {
				r.Fatalf("event %d, moved %t; last time %d, named %d of %d on", idx, moved, seen, event, origin)
			}
			seen = idx
			want := first
			if decided != d.last {
				from := max(called, d.last-n)
				switch mode {
				case virtio.EventFEnable, 3:
					want = true
				case virtio.EventFDesc:
					want = want || event >= from && event < d.last
				}
			}
			if got := q.NeedSignal(); got != want {
				r.Fatalf("from %d to %d of %d with mode %d at %d: %t", called, d.last, n, mode, event, got)
			}
			if q.Unsignalled() != 0 || q.NeedSignal() {
				r.Fatal("a decision leaves something")
			}
			decided, first = d.last, false
			if want {
				called = decided
			}
		}
	})
}

// TestPackedEventModes: offsets outside of the ring, and modes without the feature,
// leave no driver without notifications.
func TestPackedEventModes(t *testing.T) {
	for _, tt := range []struct {
		name     string
		features virtio.Features
		event    uint32
		want     bool
	}{
		{"off", 0, virtio.EventFDisable << 16, false},
		{"on", 0, virtio.EventFEnable << 16, true},
		{"an offset without the feature", 0, virtio.EventFDesc<<16 | 3, true},
		{"off, with the feature", virtio.FeatureEventIdx, virtio.EventFDisable<<16 | 1 | 1<<15, false},
		{"an offset outside", virtio.FeatureEventIdx, virtio.EventFDesc<<16 | 5, true},
		{"flags that are none", virtio.FeatureEventIdx, 0xfffc<<16 | virtio.EventFDisable<<16, false},
	} {
		d := newPackedModel(t, heap(t), 5, tt.features, 0)
		q := d.activate()
		for i := range 2 {
			d.single(0, 72)
			finish(q, pop(t, q, 1))
			d.driver.Store32(0, tt.event)
			if got := q.NeedSignal(); got != (tt.want || i == 0) {
				t.Errorf("%s: decision %d is %t", tt.name, i, got)
			}
		}
		if idx, moved := q.DriverEvent(); idx != 0 || moved {
			t.Errorf("%s: event %d, %t", tt.name, idx, moved)
		}
	}
}
