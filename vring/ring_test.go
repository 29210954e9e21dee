package vring_test

import (
	"errors"
	"testing"

	"github.com/vhostnet/vhostnet/guestmem"
	"github.com/vhostnet/vhostnet/virtio"
	"github.com/vhostnet/vhostnet/vring"
)

func TestActivate(t *testing.T) {
	good := newModel(t, heap(t), 256, split, 0).cfg
	tests := []struct {
		name   string
		change func(*vring.Config)
	}{
		{"size 0", func(c *vring.Config) { c.Size = 0 }},
		{"size 3", func(c *vring.Config) { c.Size = 3 }},
		{"size 200", func(c *vring.Config) { c.Size = 200 }},
		{"size 65536", func(c *vring.Config) { c.Size = 65536 }},
		{"base 65536", func(c *vring.Config) { c.Base = 65536 }},
		{"table ends outside", func(c *vring.Config) { c.Desc = userBase + memSize - 16 }},
		{"table not aligned", func(c *vring.Config) { c.Desc += 8 }},
		{"available ring odd", func(c *vring.Config) { c.Driver++ }},
		{"used ring not aligned", func(c *vring.Config) { c.Device += 2 }},
		{"used ring ends outside", func(c *vring.Config) { c.Device = userBase + memSize - 256*8 }},
		{"guest addresses", func(c *vring.Config) { c.Desc, c.Driver, c.Device = descAt, availAt, usedAt }},
		{"wraps", func(c *vring.Config) { c.Driver = ^uint64(0) - 1 }},
	}
	m := heap(t)
	for _, tt := range tests {
		c := good
		tt.change(&c)
		if _, err := vring.Activate(m, c); err == nil {
			t.Errorf("%s: accepted", tt.name)
		} else if !errors.Is(err, vring.ErrConfig) {
			t.Errorf("%s: %v", tt.name, err)
		}
	}
	q, err := vring.Activate(m, good)
	if err != nil {
		t.Fatal(err)
	}
	q.Stop()
	// An available ring needs no more than two bytes' alignment.
	good.Driver += 2
	if q, err = vring.Activate(m, good); err != nil {
		t.Fatal(err)
	}
	q.Stop()
}

// TestAvailJumps covers reference case V05.
func TestAvailJumps(t *testing.T) {
	for _, to := range []uint16{10 + 5000, 3, 10 + 257} {
		d := newModel(t, heap(t), 256, split, 0)
		q := d.activate()
		for i := range 10 {
			d.single(uint16(i), 72)
		}
		finish(q, pop(t, q, 64))
		d.avail.Store16(2, to)
		b := vring.NewBatch(64, 64)
		for range 2 {
			if n, err := q.Pop(b, 64); n != 0 || !errors.Is(err, vring.ErrBroken) {
				t.Fatalf("to %d: popped %d, %v", to, n, err)
			}
		}
		if d.usedIdx() != 10 {
			t.Fatalf("used index %d", d.usedIdx())
		}
		// A restart on a clean ring works.
		q.Stop()
		d = newModel(t, d.m, 256, split, 0)
		q = d.activate()
		d.single(7, 72)
		if b := pop(t, q, 64); len(b.Chains) != 1 {
			t.Fatal("dead after a restart")
		}
	}
	// Exactly the ring's size is legal.
	d := newModel(t, heap(t), 16, split, 65530)
	q := d.activate()
	for i := range 16 {
		d.single(uint16(i), 72)
	}
	if b := pop(t, q, 64); len(b.Chains) != 16 {
		t.Fatalf("popped %d of a full ring", len(b.Chains))
	}
}

// TestUsedElements covers reference case V06: the head comes back, with the
// bytes that were written.
func TestUsedElements(t *testing.T) {
	d := newModel(t, heap(t), 16, split, 0)
	q := d.activate()
	d.put(7, bufBase, 12, next, 3)
	d.put(3, bufBase, 30, next, 5)
	d.put(5, bufBase, 30, 0, 0)
	d.put(8, bufBase, 100, next|write, 9)
	d.put(9, bufBase, 100, next|write, 10)
	d.put(10, bufBase, 100, write, 0)
	d.offer(7, 8)
	b := pop(t, q, 8)
	if b.Chains[0].Count != 3 || b.Chains[0].ReadLen != 72 || b.Chains[1].WriteLen != 300 {
		t.Fatalf("%+v", b.Chains)
	}
	q.Complete(&b.Chains[0], 0)
	q.Complete(&b.Chains[1], 172)
	if d.usedIdx() != 0 || q.Unpublished() != 2 {
		t.Fatal("visible before it is published")
	}
	q.Publish()
	if id, n := d.usedElem(0); id != 7 || n != 0 {
		t.Errorf("transmitted: id %d, len %d", id, n)
	}
	if id, n := d.usedElem(1); id != 8 || n != 172 {
		t.Errorf("received: id %d, len %d", id, n)
	}
	if d.usedIdx() != 2 || q.Unpublished() != 0 || q.InFlight() != 0 {
		t.Errorf("used index %d", d.usedIdx())
	}
}

// TestWrap covers reference case V07: indices run free, in rings of any size.
func TestWrap(t *testing.T) {
	for _, n := range []int{1, 2, 64} {
		const base = 65500
		d := newModel(t, heap(t), n, split|virtio.FeatureEventIdx, base)
		q := d.activate()
		at := uint16(base)
		for range 200 {
			d.single(at%uint16(n), 72)
			b := pop(t, q, 8)
			if len(b.Chains) != 1 {
				t.Fatalf("size %d, index %d: popped %d", n, at, len(b.Chains))
			}
			finish(q, b)
			if id, _ := d.usedElem(at); d.usedIdx() != at+1 || id != uint32(at%uint16(n)) {
				t.Fatalf("size %d, index %d: used index %d, id %d", n, at, d.usedIdx(), id)
			}
			if q.EnableKicks() || d.availEvent() != at+1 {
				t.Fatalf("size %d: avail event %d after %d", n, d.availEvent(), at)
			}
			at++
		}
		if s := q.Stop(); s.Base != uint32(at) {
			t.Fatalf("base %d, want %d", s.Base, at)
		}
	}
}

// TestSuppression covers reference case V08.
func TestSuppression(t *testing.T) {
	const event = virtio.FeatureEventIdx
	tests := []struct {
		name     string
		features virtio.Features
		from, to uint16 // used index at the last decision and now
		event    uint16
		flags    uint16
		want     bool
	}{
		{"batch passes the event", event, 3, 9, 5, 0, true},
		{"event at the first of the batch", event, 3, 9, 3, 0, true},
		{"event at the last of the batch", event, 3, 9, 8, 0, true},
		{"event behind the batch", event, 3, 9, 9, 0, false},
		{"event before the batch", event, 3, 9, 2, 0, false},
		{"wrap", event, 0xfffd, 2, 0xffff, 0, true},
		{"wrap, event ahead", event, 0xfffd, 2, 2, 0, false},
		{"flags mean nothing with the event index", event, 3, 9, 5, 1, true},
		{"nor when it says no", event, 3, 9, 100, 0, false},
		{"no event index, wanted", 0, 3, 9, 0, 0, true},
		{"no event index, not wanted", 0, 3, 9, 5, 1, false},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			d := newModel(t, heap(t), 16, split|tt.features, tt.from-1)
			q := d.activate()
			used := func(n uint16) {
				for range n {
					d.single(d.idx%16, 72)
				}
				finish(q, pop(t, q, 64))
			}
			used(1)
			if !q.NeedSignal() && tt.flags == 0 {
				t.Fatal("the first decision says no")
			}
			d.avail.Store16(0, tt.flags)
			d.setUsedEvent(tt.event)
			used(tt.to - tt.from)
			if q.Unsignalled() != int(tt.to-tt.from) {
				t.Errorf("unsignalled %d", q.Unsignalled())
			}
			if got := q.NeedSignal(); got != tt.want {
				t.Errorf("decided %t", got)
			}
			if q.Unsignalled() != 0 {
				t.Error("the decision left something")
			}
		})
	}
	t.Run("what was suppressed is announced when the driver asks for it", func(t *testing.T) {
		d := newModel(t, heap(t), 16, split|event, 0)
		q := d.activate()
		send := func(n int) {
			for range n {
				d.single(d.idx%16, 72)
			}
			finish(q, pop(t, q, 64))
		}
		send(1)
		q.NeedSignal()
		d.setUsedEvent(0x7000)
		send(3)
		if q.NeedSignal() {
			t.Fatal("suppressed, and announced")
		}
		d.setUsedEvent(d.usedIdx() - 1)
		if q.NeedSignal() {
			t.Error("nothing new, and announced")
		}
		send(1)
		if !q.NeedSignal() {
			t.Error("the driver asks for an entry that was not announced, and is not told")
		}
		d.setUsedEvent(d.usedIdx() - 2)
		send(1)
		if q.NeedSignal() {
			t.Error("announced twice")
		}
	})
	t.Run("restart at 40000", func(t *testing.T) {
		d := newModel(t, heap(t), 16, split|event, 40000)
		d.setUsedEvent(40000)
		q := d.activate()
		d.single(0, 72)
		finish(q, pop(t, q, 1))
		if !q.NeedSignal() {
			t.Error("the first completion is not announced")
		}
	})
	t.Run("a span of a whole turn is never 'seen already'", func(t *testing.T) {
		d := newModel(t, heap(t), 256, split|event, 0)
		q := d.activate()
		d.setUsedEvent(0xfff0)
		q.NeedSignal()
		for range 65536 / 256 {
			for range 256 {
				d.single(d.idx%256, 72)
			}
			for range 4 {
				finish(q, pop(t, q, 64))
			}
		}
		if !q.NeedSignal() {
			t.Error("65536 entries and no notification")
		}
	})
}

// TestKicks covers the decisions of reference case V09; TestSoak its races.
func TestKicks(t *testing.T) {
	d := newModel(t, heap(t), 16, split|virtio.FeatureEventIdx, 0)
	q := d.activate()
	if q.EnableKicks() {
		t.Error("work in an empty ring")
	}
	d.single(0, 72)
	if !q.EnableKicks() || d.availEvent() != 0 {
		t.Error("a chain that came first is not seen")
	}
	pop(t, q, 1)
	if q.EnableKicks() || d.availEvent() != 1 {
		t.Errorf("avail event %d", d.availEvent())
	}

	d = newModel(t, heap(t), 16, split, 0)
	q = d.activate()
	q.DisableKicks()
	if d.used.Load16(0) != virtio.UsedFNoNotify || d.usedIdx() != 0 {
		t.Error("kicks are not disabled")
	}
	d.single(0, 72)
	finish(q, pop(t, q, 1))
	if d.used.Load16(0) != virtio.UsedFNoNotify || d.usedIdx() != 1 {
		t.Error("publishing changed the flags")
	}
	if q.EnableKicks() || d.used.Load16(0) != 0 || d.usedIdx() != 1 {
		t.Error("kicks are not enabled")
	}
}

// TestBase covers the ring's half of reference case S01, and S04's stale base.
func TestBase(t *testing.T) {
	d := newModel(t, heap(t), 256, split, 0xfffd)
	q := d.activate()
	for i := range 5 {
		d.single(uint16(i), 72)
	}
	finish(q, pop(t, q, 64))
	if s := q.Stop(); s.Base != 2 {
		t.Errorf("base %#x, want 2", s.Base)
	}

	d = newModel(t, heap(t), 256, split, 0)
	q = d.activate()
	for i := range 10 {
		d.single(uint16(i), 72)
	}
	b := pop(t, q, 64)
	for i := range 4 {
		q.Complete(&b.Chains[i], 100)
	}
	q.Publish()
	q.Unpop(6)
	if q.AvailCount() != 6 || q.InFlight() != 0 {
		t.Errorf("available %d, in flight %d", q.AvailCount(), q.InFlight())
	}
	if s := q.Stop(); s.Base != 4 {
		t.Errorf("base %d, want 4", s.Base)
	}
	// A back-end that comes back with a base that lags behind goes on where the
	// used ring says.
	d.cfg.Base = 0
	q = d.activate()
	b = pop(t, q, 64)
	if len(b.Chains) != 6 || b.Chains[0].ID != 4 {
		t.Fatalf("popped %d from %d on", len(b.Chains), b.Chains[0].ID)
	}
	finish(q, b)
	if d.usedIdx() != 10 {
		t.Errorf("used index %d", d.usedIdx())
	}
}

func TestRebind(t *testing.T) {
	d := newModel(t, heap(t), 16, split, 0)
	q := d.activate()
	d.single(0, 72)
	finish(q, pop(t, q, 1))

	empty := guestmem.Empty()
	if q.Rebind(empty) == nil {
		t.Fatal("rebound to nothing")
	}
	if q.Broken() != nil {
		t.Error("a ring without memory is not broken")
	}
	if err := q.Rebind(d.m); err != nil {
		t.Fatal(err)
	}
	d.single(1, 72)
	finish(q, pop(t, q, 1))
	if d.usedIdx() != 2 {
		t.Errorf("used index %d", d.usedIdx())
	}
	if q.SetAddr(d.cfg.Desc, d.cfg.Driver+1, d.cfg.Device) == nil {
		t.Error("an odd address was taken")
	}
	if err := q.SetAddr(d.cfg.Desc, d.cfg.Driver, d.cfg.Device); err != nil {
		t.Error(err)
	}
	d.single(2, 72)
	if b := pop(t, q, 1); len(b.Chains) != 1 {
		t.Error("dead after SetAddr")
	}
}

func TestNoAllocations(t *testing.T) {
	d := newModel(t, heap(t), 256, split|virtio.FeatureEventIdx|virtio.FeatureIndirectDesc, 0)
	q := d.activate()
	d.table(0x180000, desc{bufBase, 12, next, 1}, desc{bufBase, 60, 0, 0})
	b := vring.NewBatch(64, 256)
	got := testing.AllocsPerRun(100, func() {
		for i := range uint16(32) {
			d.single(i, 72)
			d.put(int(i)+32, 0x180000, 32, indirect, 0)
			d.offer(i + 32)
		}
		b.Reset()
		n, err := q.Pop(b, 64)
		if n != 64 || err != nil {
			t.Fatal(n, err)
		}
		q.Unpop(1)
		b.Reset()
		q.Unpop(63)
		_, _ = q.Pop(b, 64)
		finish(q, b)
		q.NeedSignal()
		q.DisableKicks()
		q.EnableKicks()
		q.DriverEvent()
	})
	if got != 0 {
		t.Errorf("%v allocations a burst", got)
	}
}
