package vring_test

import (
	"errors"
	"slices"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/guestmem"
	"github.com/vhostnet/vhostnet/virtio"
	"github.com/vhostnet/vhostnet/vring"
)

func TestPackedActivate(t *testing.T) {
	m := heap(t)
	good := newPackedModel(t, m, 200, 0, 0).cfg
	for name, change := range map[string]func(*vring.Config){
		"size 0":                    func(c *vring.Config) { c.Size = 0 },
		"size 32769":                func(c *vring.Config) { c.Size = 32769 },
		"available offset outside":  func(c *vring.Config) { c.Base = 0x8000_8000 | 200 },
		"used offset outside":       func(c *vring.Config) { c.Base = 0x8000_8000 | 200<<16 },
		"ring ends outside":         func(c *vring.Config) { c.Desc = userBase + memSize - 16 },
		"ring not aligned":          func(c *vring.Config) { c.Desc += 8 },
		"driver area not aligned":   func(c *vring.Config) { c.Driver += 2 },
		"device area not aligned":   func(c *vring.Config) { c.Device += 2 },
		"driver area ends outside":  func(c *vring.Config) { c.Driver = userBase + memSize - 2 },
		"device area at guest's":    func(c *vring.Config) { c.Device = usedAt },
		"device area wraps":         func(c *vring.Config) { c.Device = ^uint64(0) - 3 },
		"a base of a larger ring's": func(c *vring.Config) { c.Base = 0x7fff },
	} {
		c := good
		change(&c)
		if _, err := vring.Activate(m, c); !errors.Is(err, vring.ErrConfig) {
			t.Errorf("%s: %v", name, err)
		}
	}
	for _, n := range []int{1, 2, 3, 200, 32767, 32768} {
		c := newPackedModel(t, m, n, 0, 0).cfg
		q, err := vring.Activate(m, c)
		if err != nil {
			t.Fatal(err)
		}
		if !q.Fresh() || q.Size() != n {
			t.Errorf("size %d: %d, fresh %t", n, q.Size(), q.Fresh())
		}
		q.Stop()
	}
}

// TestPackedBase covers reference case S01: both positions come back, and go on.
func TestPackedBase(t *testing.T) {
	const n = 10
	for _, tt := range []struct {
		name        string
		pos         int // what the ring has used
		base        uint32
		avail, used int
		fresh       bool
	}{
		{"QEMU's first", 0, 0x8000_8000, 0, 0, true},
		{"DPDK's first", 0, 0x8000, 0, 0, true},
		{"0 is the first in fresh memory", 0, 0, 0, 0, true},
		{"0 is the second lap's first elsewhere", n, 0, n, n, false},
		{"two laps", 2 * n, 0x8000_8000, 2 * n, 2 * n, false},
		{"within the first", 7, 0x8007_8007, 7, 7, false},
		{"within the second", n + 3, 0x0003_0003, n + 3, n + 3, false},
		{"only the available half", n + 3, 3, n + 3, n + 3, false},
		{"some are lost", n - 2, 0x8008_0003, n + 3, n - 2, false},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := newPackedModel(t, heap(t), n, 0, tt.pos)
			d.next = tt.avail
			d.cfg.Base = tt.base
			q := d.activate()
			if q.Fresh() != tt.fresh {
				t.Errorf("fresh %t", q.Fresh())
			}
			for i := range 4 {
				d.single(uint16(i), 72)
			}
			b := pop(t, q, 3)
			if len(b.Chains) != 3 {
				t.Fatalf("popped %d", len(b.Chains))
			}
			q.Complete(&b.Chains[0], 0)
			q.Complete(&b.Chains[1], 0)
			q.Publish()
			d.counts[0], d.counts[1] = []int{1}, []int{1}
			if got := d.takeAll(); !slices.Equal(got, []uint16{0, 1}) {
				t.Errorf("used %v", got)
			}
			if s, want := q.Stop(), d.base(tt.avail+2, tt.used+2); s.Base != want {
				t.Errorf("stopped at %#x, want %#x", s.Base, want)
			}
		})
	}
}

// TestPackedLayout covers reference case V14: chains across the end of rings of any
// size, one used descriptor for each, at its first place, with the last one's ID.
func TestPackedLayout(t *testing.T) {
	for _, n := range []int{3, 4, 7, 200, 32768} {
		d := newPackedModel(t, heap(t), n, 0, n-1)
		q := d.activate()
		for round := range 50 {
			at := d.next
			id := uint16(round * 1000)
			d.offer(id, desc{bufBase, 12, 0, 0}, desc{bufBase + 64, 30, 0, 0}, desc{bufBase + 128, 30, write, 0})
			b := pop(t, q, 4)
			if len(b.Chains) != 1 {
				t.Fatalf("size %d: popped %d", n, len(b.Chains))
			}
			c := &b.Chains[0]
			if c.ID != id || c.Count != 3 || c.ReadLen != 42 || c.WriteLen != 30 || len(b.Readable(0)) != 2 || len(b.Writable(0)) != 1 {
				t.Fatalf("size %d: %+v", n, *c)
			}
			q.Complete(c, 1000)
			if _, _, ok := d.take(); ok {
				t.Fatal("used before it is published")
			}
			q.Publish()
			if w := d.desc.Load64(16*(at%n) + 8); w != 30|uint64(id)<<32|write<<48|d.used(at) {
				t.Fatalf("size %d: used descriptor %#x", n, w)
			}
			if got, l, ok := d.take(); got != id || l != 30 || !ok {
				t.Fatalf("size %d: used %d with %d bytes, %t", n, got, l, ok)
			}
			if d.last != d.next {
				t.Fatalf("the driver is at %d, not %d", d.last, d.next)
			}
		}
	}
}

// TestPackedOneStore: a burst is not seen before all of it is there, however it was
// completed, across the end of the ring too.
func TestPackedOneStore(t *testing.T) {
	for _, plain := range []bool{false, true} {
		d := newPackedModel(t, heap(t), 5, 0, 3)
		q := d.activate()
		for i := range 5 {
			d.single(uint16(i), 72)
		}
		if plain {
			ids, bufs := make([]uint16, 5), make([][]byte, 5)
			if n := q.PopPlain(ids, bufs, false); n != 5 {
				t.Fatal("popped", n)
			}
			q.CompletePlain(ids[:2], nil)
			q.CompletePlain(ids[2:], nil)
		} else {
			b := pop(t, q, 5)
			for i := range b.Chains {
				q.Complete(&b.Chains[i], 0)
			}
		}
		if _, _, ok := d.take(); ok || q.Unpublished() != 5 {
			t.Fatal("seen before it is published")
		}
		q.Publish()
		if got := d.takeAll(); !slices.Equal(got, []uint16{0, 1, 2, 3, 4}) {
			t.Errorf("used %v", got)
		}
	}
}

// TestPackedFaults covers reference cases V01 and V14: a chain that breaks the rules
// takes its place in the ring, with its ID, whatever that is.
func TestPackedFaults(t *testing.T) {
	const table = 0x180000
	good := desc{bufBase, 60, 0, 0}
	for _, tt := range []struct {
		name  string
		chain []desc
		want  vring.Fault
	}{
		{"unmapped", []desc{{memSize, 60, 0, 0}}, vring.FaultAddress},
		{"unmapped, in front", []desc{{memSize, 60, 0, 0}, good, good}, vring.FaultAddress},
		{"ends outside", []desc{{memSize - 8, 9, 0, 0}}, vring.FaultAddress},
		{"wraps", []desc{good, {0xfffffffffffffff8, 64, 0, 0}}, vring.FaultAddress},
		{"4 GiB", []desc{{bufBase, 0xffffffff, write, 0}}, vring.FaultAddress},
		{"readable behind writable", []desc{{bufBase, 8, write, 0}, good, good}, vring.FaultOrder},
		{"empty table", []desc{{table, 0, indirect, 0}}, vring.FaultIndirect},
		{"half an entry", []desc{{table, 24, indirect, 0}}, vring.FaultIndirect},
		{"a table in front", []desc{{table, 16, indirect, 0}, good}, vring.FaultIndirect},
		{"a table not in memory", []desc{{memSize - 8, 16, indirect, 0}}, vring.FaultAddress},
		{"a table that wraps", []desc{{0xfffffffffffffff8, 16, indirect, 0}}, vring.FaultAddress},
		{"a table of too many", []desc{{table, 16 * 1025, indirect, 0}}, vring.FaultLength},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := newPackedModel(t, heap(t), 7, virtio.FeatureIndirectDesc, 6)
			q := d.activate()
			for range 20 {
				d.offer(0xffff, tt.chain...)
				d.single(3, 72)
				b := pop(t, q, 8)
				if len(b.Chains) != 2 {
					t.Fatalf("popped %d chains", len(b.Chains))
				}
				c := b.Chains[0]
				if c.Fault != tt.want || c.ID != 0xffff || int(c.Count) != len(tt.chain) || c.ReadLen != 0 || c.WriteLen != 0 ||
					len(b.Readable(0)) != 0 || len(b.Writable(0)) != 0 {
					t.Fatalf("chain %+v, want fault %s", c, tt.want)
				}
				if c := b.Chains[1]; c.Fault != 0 || c.ReadLen != 72 || len(b.Readable(1)) != 1 {
					t.Fatalf("the chain behind it: %+v", c)
				}
				finish(q, b)
				if got := d.takeAll(); !slices.Equal(got, []uint16{0xffff, 3}) {
					t.Fatalf("used %x", got)
				}
			}
		})
	}
	t.Run("without the feature", func(t *testing.T) {
		d := newPackedModel(t, heap(t), 7, 0, 0)
		d.offer(1, desc{table, 16, indirect, 0})
		if c := pop(t, d.activate(), 1).Chains[0]; c.Fault != vring.FaultIndirect {
			t.Errorf("%+v", c)
		}
	})
	t.Run("no end", func(t *testing.T) {
		d := newPackedModel(t, heap(t), 7, 0, 0)
		q := d.activate()
		d.single(0, 72)
		for i := range 7 {
			at := d.next + i
			d.words[2*(at%7)] = bufBase
			if i < 6 {
				d.words[2*(at%7)+1] = 60 | next<<48 | d.avail(at)
			}
		}
		b := pop(t, q, 8)
		if len(b.Chains) != 1 || b.Chains[0].ReadLen != 72 {
			t.Fatalf("%+v", b.Chains)
		}
		if q.AvailCount() == 0 || !q.EnableKicks() {
			t.Error("nothing that Pop would break the ring for")
		}
		for _, b := range []*vring.Batch{vring.NewBatch(8, 64), vring.NewBatch(8, 2)} {
			if n, err := q.Pop(b, 8); n != 0 || !errors.Is(err, vring.ErrBroken) || len(b.Chains) != 0 {
				t.Fatalf("popped %d, %v", n, err)
			}
		}
		useAll(t, q, b)
	})
	t.Run("no end, and no room for it", func(t *testing.T) {
		d := newPackedModel(t, heap(t), 7, 0, 0)
		q := d.activate()
		for i := range 7 {
			d.words[2*i], d.words[2*i+1] = bufBase, 60|next<<48|d.avail(i)
		}
		if n, err := q.Pop(vring.NewBatch(8, 2), 8); n != 0 || !errors.Is(err, vring.ErrBroken) {
			t.Fatalf("popped %d, %v", n, err)
		}
	})
}

// TestPackedTail: a chain whose first descriptor is not available yet is not there.
func TestPackedTail(t *testing.T) {
	d := newPackedModel(t, heap(t), 7, 0, 5)
	q := d.activate()
	head := d.words[2*5+1]
	d.offer(1, desc{bufBase, 12, 0, 0}, desc{bufBase, 60, 0, 0}, desc{bufBase, 60, 0, 0})
	whole := d.words[2*5+1]
	d.desc.Store64(16*5+8, head)
	if b := pop(t, q, 4); len(b.Chains) != 0 || q.AvailCount() != 0 || q.EnableKicks() {
		t.Fatalf("popped %d", len(b.Chains))
	}
	d.desc.Store64(16*5+8, whole)
	if !q.EnableKicks() || q.AvailCount() != 1 {
		t.Error("not seen")
	}
	if b := pop(t, q, 4); len(b.Chains) != 1 || b.Chains[0].ReadLen != 132 {
		t.Fatalf("%+v", b.Chains)
	}
}

// TestPackedOverrun: what the device has is not the driver's to make available.
func TestPackedOverrun(t *testing.T) {
	d := newPackedModel(t, heap(t), 4, 0, 0)
	q := d.activate()
	for i := range 4 {
		d.single(uint16(i), 72)
	}
	b := pop(t, q, 4)
	d.single(9, 72) // a lap too early
	if more := pop(t, q, 4); len(more.Chains) != 0 || q.AvailCount() != 0 || q.EnableKicks() {
		t.Errorf("popped %d, %d available", len(more.Chains), q.AvailCount())
	}
	if n := q.PopPlain(make([]uint16, 4), make([][]byte, 4), false); n != 0 {
		t.Errorf("popped %d", n)
	}
	if q.InFlight() != len(b.Chains) {
		t.Errorf("in flight %d", q.InFlight())
	}
}

// TestPackedTable: of an indirect table everything counts, in order, and only the
// write flag. It may follow direct descriptors, and be anywhere.
func TestPackedTable(t *testing.T) {
	const table = 0x180001
	d := newPackedModel(t, heap(t), 4, virtio.FeatureIndirectDesc, 3)
	d.table(table,
		desc{bufBase, 12, 0, 99}, desc{bufBase + 64, 60, indirect | next, 0}, desc{bufBase + 128, 100, write | 0xfff8, 7})
	d.offer(5, desc{bufBase, 8, 0, 0}, desc{table, 48, indirect | write, 0})
	q := d.activate()
	b := pop(t, q, 4)
	if len(b.Chains) != 1 {
		t.Fatal("popped", len(b.Chains))
	}
	if c := b.Chains[0]; c.Fault != 0 || c.ReadLen != 80 || c.WriteLen != 100 || c.Count != 2 || c.ID != 5 ||
		len(b.Readable(0)) != 3 || len(b.Writable(0)) != 1 {
		t.Fatalf("%+v", c)
	}
}

// TestPackedSegments: a chain that does not fit beside others waits, one that fits no
// batch is faulty.
func TestPackedSegments(t *testing.T) {
	d := newPackedModel(t, heap(t), 16, 0, 0)
	q := d.activate()
	long := slices.Repeat([]desc{{bufBase, 1, 0, 0}}, 6)
	d.single(1, 72)
	d.offer(2, long...)
	d.single(3, 72)
	b := vring.NewBatch(8, 4)
	if n, err := q.Pop(b, 8); n != 1 || err != nil || b.Chains[0].ID != 1 {
		t.Fatalf("popped %d, %v", n, err)
	}
	b.Reset()
	if n, err := q.Pop(b, 8); n != 2 || err != nil || b.Chains[0].Fault != vring.FaultSegments || b.Chains[0].Count != 6 || b.Chains[1].Fault != 0 {
		t.Fatalf("popped %d, %v: %+v", n, err, b.Chains)
	}
}

// TestPackedKicks: what the device asks for, with and without event index.
func TestPackedKicks(t *testing.T) {
	for _, event := range []bool{false, true} {
		f := virtio.Features(0)
		if event {
			f = virtio.FeatureEventIdx
		}
		d := newPackedModel(t, heap(t), 5, f, 4)
		q := d.activate()
		q.DisableKicks()
		if mode, _ := d.kickEvent(); mode != virtio.EventFDisable {
			t.Errorf("mode %d", mode)
		}
		for range 12 {
			if q.EnableKicks() {
				t.Error("work in an empty ring")
			}
			mode, at := d.kickEvent()
			if event && (mode != virtio.EventFDesc || at != d.half(d.next)) || !event && mode != virtio.EventFEnable {
				t.Errorf("mode %d at %#x, want %#x", mode, at, d.half(d.next))
			}
			d.single(0, 72)
			if !q.EnableKicks() {
				t.Error("a chain that came first is not seen")
			}
			finish(q, pop(t, q, 1))
			d.takeAll()
		}
	}
}

// TestPackedStopPublishes: descriptors that were overwritten do not come again, so the
// driver is told of them.
func TestPackedStopPublishes(t *testing.T) {
	d := newPackedModel(t, heap(t), 5, 0, 3)
	q := d.activate()
	for i := range 4 {
		d.single(uint16(i), 72)
	}
	b := pop(t, q, 4)
	q.Complete(&b.Chains[0], 0)
	q.Complete(&b.Chains[1], 0)
	s := q.Stop()
	if got := d.takeAll(); !slices.Equal(got, []uint16{0, 1}) || s.Base != d.base(5, 5) {
		t.Fatalf("used %v, base %#x", got, s.Base)
	}
	d.cfg.Base = s.Base
	q = d.activate()
	if b = pop(t, q, 8); len(b.Chains) != 2 || b.Chains[0].ID != 2 {
		t.Fatalf("%+v", b.Chains)
	}
}

// TestPackedMemory: without memory there is nothing to do, with it back things go on;
// a fault leaves a ring that touches nothing.
func TestPackedMemory(t *testing.T) {
	m, fd := memfdFile(t)
	d := newPackedModel(t, m, 5, virtio.FeatureEventIdx, 4)
	q := d.activate()
	d.single(0, 72)
	empty := guestmem.Empty()
	defer empty.Release()
	if err := q.Rebind(empty); !errors.Is(err, vring.ErrConfig) {
		t.Fatal(err)
	}
	b := vring.NewBatch(4, 4)
	useAll(t, q, b)
	if _, err := q.Pop(b, 1); !errors.Is(err, vring.ErrDetached) || q.Broken() != nil {
		t.Error(err)
	}
	if err := q.SetAddr(d.cfg.Desc, d.cfg.Driver, d.cfg.Device); !errors.Is(err, vring.ErrConfig) {
		t.Error(err)
	}
	if err := q.Rebind(m); err != nil {
		t.Fatal(err)
	}
	if err := q.SetAddr(d.cfg.Desc, d.cfg.Driver+1, d.cfg.Device); !errors.Is(err, vring.ErrConfig) {
		t.Error(err)
	}
	if err := q.SetAddr(d.cfg.Desc, d.cfg.Driver, d.cfg.Device); err != nil {
		t.Error(err)
	}
	finish(q, pop(t, q, 1))
	if got := d.takeAll(); !slices.Equal(got, []uint16{0}) {
		t.Errorf("used %v", got)
	}
	d.single(1, 72)
	d.single(2, 72)
	out := pop(t, q, 2)
	q.Complete(&out.Chains[0], 0)
	if err := unix.Ftruncate(fd, 0); err != nil {
		t.Fatal(err)
	}
	err := guestmem.CatchFaults(func() { _, _ = q.Pop(b, 4) })
	if !errors.Is(err, guestmem.ErrFault) {
		t.Fatal(err)
	}
	q.Break(err)
	if err := guestmem.CatchFaults(func() {
		useAll(t, q, out)
		if s := q.Stop(); s.Base != d.base(5, 5) {
			t.Errorf("base %#x, want %#x", s.Base, d.base(5, 5))
		}
	}); err != nil {
		t.Errorf("a broken ring touches memory: %v", err)
	}
}

func TestPackedNoAllocations(t *testing.T) {
	d := newPackedModel(t, heap(t), 100, virtio.FeatureEventIdx, 0)
	for i := range 100 {
		d.counts[uint16(i)] = make([]int, 0, 1)
	}
	q, b := d.activate(), vring.NewBatch(64, 256)
	ids, bufs := make([]uint16, 64), make([][]byte, 64)
	got := testing.AllocsPerRun(100, func() {
		for i := range 60 {
			at := 2 * (d.next % 100)
			d.words[at], d.words[at+1] = bufBase, 72|uint64(i)<<32|d.avail(d.next)
			d.next++
		}
		b.Reset()
		if n, err := q.Pop(b, 30); n != 30 || err != nil {
			t.Fatal(n, err)
		}
		finish(q, b)
		if n := q.PopPlain(ids, bufs, false); n != 30 {
			t.Fatal(n)
		}
		q.Unpop(10)
		q.CompletePlain(ids[:20], nil)
		n := q.PopPlain(ids, bufs, false)
		q.CompletePlain(ids[:n], nil)
		q.Publish()
		q.NeedSignal()
		q.DisableKicks()
		q.EnableKicks()
		q.DriverEvent()
		q.AvailCount()
	})
	if got != 0 {
		t.Errorf("%v allocations a burst", got)
	}
}
