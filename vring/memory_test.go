package vring_test

import (
	"errors"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/guestmem"
	"github.com/vhostnet/vhostnet/virtio"
	"github.com/vhostnet/vhostnet/vring"
)

// TestShrunkMemory: the front-end shrinks its file under a running ring. The
// fault becomes a broken ring, which then leaves the memory alone.
func TestShrunkMemory(t *testing.T) {
	m, fd := memfdFile(t)
	d := newModel(t, m, 16, split|virtio.FeatureEventIdx, 0)
	q := d.activate()
	for i := range uint16(6) {
		d.single(i, 72)
	}
	finish(q, pop(t, q, 2))
	b := pop(t, q, 2)
	q.Complete(&b.Chains[0], 0) // never published
	if err := unix.Ftruncate(fd, 0); err != nil {
		t.Fatal(err)
	}
	more := vring.NewBatch(4, 16)
	err := guestmem.CatchFaults(func() { _, _ = q.Pop(more, 4) })
	if !errors.Is(err, guestmem.ErrFault) {
		t.Fatalf("%v", err)
	}
	q.Break(err)
	q.Break(errors.New("another reason"))
	var broken *vring.BrokenError
	if _, err := q.Pop(more, 4); !errors.As(err, &broken) || !errors.Is(err, guestmem.ErrFault) || !errors.Is(err, vring.ErrBroken) {
		t.Errorf("%v", err)
	}
	if err := guestmem.CatchFaults(func() { useAll(t, q, b) }); err != nil {
		t.Errorf("a broken ring touches memory: %v", err)
	}
	// The driver was told of two.
	if s := q.Stop(); s.Base != 2 {
		t.Errorf("base %d, want 2", s.Base)
	}
}

// useAll calls what may do nothing on a ring without memory, or broken.
func useAll(t *testing.T, q vring.Queue, b *vring.Batch) {
	t.Helper()
	for i := range b.Chains {
		q.Complete(&b.Chains[i], 0)
	}
	q.Publish()
	q.DisableKicks()
	if q.NeedSignal() || q.EnableKicks() || q.AvailCount() != 0 {
		t.Error("there is something to do")
	}
	if idx, moved := q.DriverEvent(); idx != 0 || moved {
		t.Error("an event index")
	}
	if n, err := q.Pop(b, 1); n != 0 || err == nil {
		t.Errorf("popped %d, %v", n, err)
	}
}

func TestDetached(t *testing.T) {
	d := newModel(t, heap(t), 16, split|virtio.FeatureEventIdx, 7)
	q := d.activate()
	d.single(0, 72)
	empty := guestmem.Empty()
	defer empty.Release()
	if err := q.Rebind(empty); !errors.Is(err, vring.ErrConfig) {
		t.Fatal(err)
	}
	if err := q.SetAddr(d.cfg.Desc, d.cfg.Driver, d.cfg.Device); !errors.Is(err, vring.ErrConfig) {
		t.Error(err)
	}
	b := vring.NewBatch(1, 1)
	useAll(t, q, b)
	if _, err := q.Pop(b, 1); !errors.Is(err, vring.ErrDetached) || q.Broken() != nil {
		t.Errorf("%v", err)
	}
	if err := q.Rebind(d.m); err != nil {
		t.Fatal(err)
	}
	finish(q, pop(t, q, 1))
	if d.usedIdx() != 8 {
		t.Errorf("used index %d", d.usedIdx())
	}
	for range 2 {
		if s := q.Stop(); s.Base != 8 {
			t.Errorf("base %d", s.Base)
		}
		useAll(t, q, b)
	}
}

// TestMovedMemory covers the ring's half of reference case P09: the same file in
// another mapping, and at another front-end address.
func TestMovedMemory(t *testing.T) {
	first, fd := memfdFile(t)
	d := newModel(t, first, 16, split, 0)
	q := d.activate()
	const elsewhere = userBase + 1<<40
	for round := range 50 {
		d.single(d.idx%16, 72)
		whole := wholeRegion()
		if round%10 == 9 {
			whole[0].UserAddr = elsewhere
		}
		m, err := guestmem.New(whole, []int{fd})
		if err != nil {
			t.Fatal(err)
		}
		err = q.Rebind(m)
		m.Release() // the ring has its own reference
		if round%10 == 9 {
			if err == nil {
				t.Fatal("addresses of the old table were taken")
			}
			off := uint64(elsewhere - userBase)
			err = q.SetAddr(d.cfg.Desc+off, d.cfg.Driver+off, d.cfg.Device+off)
		} else if err != nil {
			// Back from elsewhere.
			err = q.SetAddr(d.cfg.Desc, d.cfg.Driver, d.cfg.Device)
		}
		if err != nil {
			t.Fatal(err)
		}
		b := pop(t, q, 4)
		if len(b.Chains) != 1 || b.Chains[0].ReadLen != 72 {
			t.Fatalf("round %d: %+v", round, b.Chains)
		}
		finish(q, b)
		if d.usedIdx() != d.idx {
			t.Fatalf("round %d: used index %d of %d", round, d.usedIdx(), d.idx)
		}
	}
}

// TestNeighbour: the half word behind the event index is the driver's.
func TestNeighbour(t *testing.T) {
	for _, n := range []int{1, 16, 256} {
		d := newModel(t, heap(t), n, split|virtio.FeatureEventIdx, 0)
		b, _ := d.m.Slice(usedAt, uint64(4+8*n+4))
		v := guestmem.NewView(b)
		v.Store16(4+8*n+2, 0xbeef)
		q := d.activate()
		d.single(0, 72)
		finish(q, pop(t, q, 1))
		q.EnableKicks()
		if got := v.Load32(4 + 8*n); got != 0xbeef0001 {
			t.Errorf("size %d: %#x", n, got)
		}
	}
}

// TestStaleBase covers S04: a base is believed, unless entries behind it have
// been used already.
func TestStaleBase(t *testing.T) {
	for _, tt := range []struct {
		name                    string
		size                    int
		base, used, avail, want uint16
	}{
		{"in step", 256, 40, 40, 60, 40},
		{"old front-ends say 0", 256, 0, 8, 70, 8},
		{"everything was used", 256, 0, 8, 8, 8},
		{"long ago", 256, 0, 1000, 1064, 1000},
		{"long ago, and idle", 256, 0, 1000, 1000, 1000},
		{"across the wrap", 256, 0xfff0, 2, 6, 2},
		{"in flight at the stop", 256, 48, 40, 60, 48},
		{"fresh memory", 64, 65500, 0, 0, 65500},
		{"fresh memory, work already", 64, 0xfffd, 0, 2, 0xfffd},
		{"neither makes sense", 16, 100, 3000, 9000, 100},
	} {
		t.Run(tt.name, func(t *testing.T) {
			d := newModel(t, heap(t), tt.size, split, 0)
			d.cfg.Base = uint32(tt.base)
			d.used.Store16(2, tt.used)
			d.avail.Store16(2, tt.avail)
			q := d.activate()
			if s := q.Stop(); s.Base != uint32(tt.want) {
				t.Errorf("starts at %d, want %d", s.Base, tt.want)
			}
			if d.usedIdx() != tt.used {
				t.Errorf("used index %d, want %d", d.usedIdx(), tt.used)
			}
		})
	}
}

// TestTooManyOut: descriptors that the device has cannot be offered again, even
// if the index moves by less than the ring's size.
func TestTooManyOut(t *testing.T) {
	d := newModel(t, heap(t), 8, split, 0)
	q := d.activate()
	for i := range uint16(8) {
		d.single(i, 72)
	}
	b := pop(t, q, 6)
	d.offer(0)
	if _, err := q.Pop(vring.NewBatch(8, 8), 8); !errors.Is(err, vring.ErrBroken) {
		t.Errorf("%v", err)
	}
	if q.InFlight() != len(b.Chains) {
		t.Errorf("in flight %d", q.InFlight())
	}
}

// TestWrittenIsClamped: what the driver is told was written is never more than
// there was room for, and never anything in a faulty chain.
func TestWrittenIsClamped(t *testing.T) {
	d := newModel(t, heap(t), 8, split, 0)
	q := d.activate()
	d.put(0, bufBase, 100, write, 0)
	d.put(1, bufBase, 100, write|next, 99)
	d.put(2, bufBase, 100, 0, 0)
	d.offer(0, 1, 2)
	b := pop(t, q, 3)
	for i := range b.Chains {
		q.Complete(&b.Chains[i], 5000)
	}
	q.Complete(&b.Chains[0], 1) // a fourth of three
	q.Publish()
	for i, want := range []uint32{100, 0, 0} {
		if id, n := d.usedElem(uint16(i)); id != uint32(i) || n != want {
			t.Errorf("element %d: id %d, len %d", i, id, n)
		}
	}
	if d.usedIdx() != 3 {
		t.Errorf("used index %d", d.usedIdx())
	}
}

// TestUnpop: chains go back across batches, and come again.
func TestUnpop(t *testing.T) {
	d := newModel(t, heap(t), 8, split|virtio.FeatureEventIdx, 65533)
	q := d.activate()
	d.put(0, bufBase, 10, next, 1)
	d.put(1, bufBase, 10, 0, 0)
	d.put(2, bufBase, 10, 0, 0)
	d.put(3, bufBase, 10, next, 99)
	d.put(4, bufBase, 10, 0, 0)
	d.offer(0, 2, 3, 4)
	first, second := pop(t, q, 2), pop(t, q, 2)
	q.Complete(&first.Chains[0], 0)
	q.Unpop(3)
	if q.InFlight() != 0 || q.AvailCount() != 3 || !q.EnableKicks() || d.availEvent() != 65534 {
		t.Errorf("in flight %d, available %d, event %d", q.InFlight(), q.AvailCount(), d.availEvent())
	}
	q.Unpop(1) // there is none
	again := pop(t, q, 8)
	want := append(first.Chains[1:], second.Chains...)
	if len(again.Chains) != len(want) {
		t.Fatalf("popped %d", len(again.Chains))
	}
	for i, c := range again.Chains {
		if c.ID != want[i].ID || c.Fault != want[i].Fault || c.ReadLen != want[i].ReadLen {
			t.Errorf("chain %d: %+v, was %+v", i, c, want[i])
		}
	}
}

// TestBoundedBurst: how long a burst takes is not for the driver to say.
func TestBoundedBurst(t *testing.T) {
	const n = 4096
	d := newModel(t, heap(t), n, split, 0)
	q := d.activate()
	d.put(0, bufBase, 0, next, 0) // a loop of nothing
	for range 64 {
		d.offer(0)
	}
	for done := 0; done < 64; {
		b := pop(t, q, 64)
		if len(b.Chains) != 1 || b.Chains[0].Fault != vring.FaultLength {
			t.Fatalf("%d chains in a burst, %+v", len(b.Chains), b.Chains)
		}
		done += len(b.Chains)
		finish(q, b)
	}
}

// TestDriverEvent: movement of the driver's index is what engines look at.
func TestDriverEvent(t *testing.T) {
	d := newModel(t, heap(t), 8, split|virtio.FeatureEventIdx, 0)
	q := d.activate()
	d.setUsedEvent(5)
	if idx, moved := q.DriverEvent(); idx != 5 || !moved {
		t.Errorf("%d, %t", idx, moved)
	}
	if idx, moved := q.DriverEvent(); idx != 5 || moved {
		t.Errorf("%d, %t", idx, moved)
	}
	// Linux puts the index half of its range away while it polls, which says
	// nothing, and back when it is idle again.
	for _, away := range []uint16{0x8000, 9, 0xFFF7} {
		d.setUsedEvent(away)
		if idx, moved := q.DriverEvent(); idx != 5 || moved {
			t.Errorf("%d is out of reach, and it is %d, %t", away, idx, moved)
		}
	}
	for _, back := range []uint16{6, 8, 0xFFF8} {
		d.setUsedEvent(back)
		if idx, moved := q.DriverEvent(); idx != back || !moved {
			t.Errorf("%d is within reach, and it is %d, %t", back, idx, moved)
		}
	}
	d = newModel(t, heap(t), 8, split, 0)
	d.setUsedEvent(5)
	if idx, moved := d.activate().DriverEvent(); idx != 0 || moved {
		t.Errorf("without the feature: %d, %t", idx, moved)
	}
}
