package vring_test

import (
	"math/rand/v2"
	"runtime"
	"slices"
	"sync"
	"sync/atomic"
	"testing"

	"pgregory.net/rapid"

	"github.com/vhostnet/vhostnet/guestmem"
	"github.com/vhostnet/vhostnet/virtio"
	"github.com/vhostnet/vhostnet/vring"
)

// TestPlainModel compares PopPlain on random rings with Pop on the same: it takes
// the longest run of chains that are one buffer in the wanted direction each, and
// the same buffers.
func TestPlainModel(t *testing.T) {
	m := heap(t)
	rapid.Check(t, func(rt *rapid.T) {
		const n = 16
		d := newModel(t, m, n, split|virtio.FeatureIndirectDesc, rapid.Uint16().Draw(rt, "base"))
		for i := range n {
			flags := rapid.SampledFrom([]uint16{0, 0, 0, write, write, next, indirect, write | next}).Draw(rt, "flags")
			at := rapid.SampledFrom([]uint64{bufBase, memSize - 8, memSize, ^uint64(0)}).Draw(rt, "address")
			if rapid.IntRange(0, 9).Draw(rt, "usual") > 0 {
				at = bufBase + 4096*uint64(i)
			}
			d.put(i, at, rapid.SampledFrom([]uint32{0, 1, 8, 9, 72, 2048, 0xffffffff}).Draw(rt, "length"), flags, uint16(n-1-i))
			d.offer(uint16(i))
		}
		wr := rapid.Bool().Draw(rt, "write")
		limit := rapid.IntRange(1, n).Draw(rt, "limit")
		q := d.activate()
		defer q.Stop()
		b := popAll(rt, q, n)
		var ids []uint16
		var bufs [][]byte
		for i := range b.Chains {
			segs := b.Readable(i)
			if wr {
				segs = b.Writable(i)
			}
			flags := uint16(d.desc.Load64(16*i+8) >> 32)
			if i == limit || len(segs) != 1 || flags&^write != 0 || (flags&write != 0) != wr {
				break
			}
			ids, bufs = append(ids, b.Chains[i].ID), append(bufs, segs[0])
		}
		q.Unpop(n)
		gotIDs, gotBufs := make([]uint16, limit), make([][]byte, n)
		k := q.PopPlain(gotIDs, gotBufs, wr)
		if !slices.Equal(gotIDs[:k], ids) {
			rt.Fatalf("chains %v, want %v", gotIDs[:k], ids)
		}
		for i, b := range bufs {
			if g := gotBufs[i]; &g[0] != &b[0] || len(g) != len(b) || cap(g) != len(b) {
				rt.Fatalf("buffer %d is not the same", i)
			}
		}
		if q.InFlight() != k || q.AvailCount() != n-k {
			rt.Fatalf("%d in flight, %d available, %d popped", q.InFlight(), q.AvailCount(), k)
		}
	})
}

// Buffers of several memory regions do not stop it for good, and none reaches
// from one into another.
func TestPlainRegions(t *testing.T) {
	m, err := guestmem.NewHeap([]guestmem.Region{
		{Size: memSize, UserAddr: userBase},
		{GuestAddr: memSize, Size: 1 << 16, UserAddr: userBase + 1<<32},
	})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(m.Release)
	d := newModel(t, m, 8, split, 0)
	for i, at := range []uint64{bufBase, memSize, memSize + 64, bufBase + 64, memSize - 8} {
		d.put(i, at, 64, 0, 0)
		d.offer(uint16(i))
	}
	q := d.activate()
	ids, bufs := make([]uint16, 8), make([][]byte, 8)
	var got []int
	for range 5 {
		got = append(got, q.PopPlain(ids, bufs, false))
	}
	if want := []int{1, 2, 1, 0, 0}; !slices.Equal(got, want) {
		t.Errorf("popped %v, want %v", got, want)
	}
	if b := pop(t, q, 8); len(b.Chains) != 1 || len(b.Readable(0)) != 2 {
		t.Errorf("the last one: %+v", b.Chains)
	}
}

// What is completed is seen as with Complete, also in a ring that wraps; more
// than is out is not taken.
func TestPlainCompletion(t *testing.T) {
	d := newModel(t, heap(t), 4, split, 65534)
	for i := range 4 {
		d.put(i, bufBase+64*uint64(i), 64, write, 0)
	}
	d.offer(3, 2, 1)
	q := d.activate()
	ids, bufs := make([]uint16, 4), make([][]byte, 4)
	if n := q.PopPlain(ids, bufs, true); n != 3 {
		t.Fatal("popped", n)
	}
	q.CompletePlain(ids, []uint32{1, 2, 3, 4})
	if q.Unpublished() != 0 || q.InFlight() != 3 {
		t.Error("one that the device did not have was completed")
	}
	q.CompletePlain(ids[:2], []uint32{7, 64})
	q.CompletePlain(ids[2:3], nil)
	q.Publish()
	for i, want := range [][2]uint32{{3, 7}, {2, 64}, {1, 0}} {
		if id, n := d.usedElem(65534 + uint16(i)); id != want[0] || n != want[1] {
			t.Errorf("element %d: %d with %d bytes, want %v", i, id, n, want)
		}
	}
	if d.usedIdx() != 1 || q.InFlight() != 0 {
		t.Errorf("used index %d, %d in flight", d.usedIdx(), q.InFlight())
	}
}

// A ring that is broken, or about to be, gives nothing.
func TestPlainBroken(t *testing.T) {
	ids, bufs := make([]uint16, 4), make([][]byte, 4)
	d := newModel(t, heap(t), 4, split, 0)
	d.single(0, 72)
	d.avail.Store16(2, 5)
	q := d.activate()
	if n := q.PopPlain(ids, bufs, false); n != 0 || q.Broken() != nil {
		t.Error("popped", n, q.Broken())
	}
	if _, err := q.Pop(vring.NewBatch(4, 4), 4); err == nil {
		t.Error("an index that jumps is no error")
	}
	d.avail.Store16(2, 1)
	if n := q.PopPlain(ids, bufs, false); n != 0 {
		t.Error("popped", n)
	}
	bad := newModel(t, heap(t), 4, split, 0)
	bad.offer(4)
	if n := bad.activate().PopPlain(ids, bufs, false); n != 0 {
		t.Error("popped", n)
	}
}

// TestPlainMutation covers reference case V12 here: whatever a driver does to its
// descriptors meanwhile, buffers lie in guest memory.
func TestPlainMutation(t *testing.T) {
	m := memfd(t)
	mem, _ := m.Slice(0, memSize)
	d := newModel(t, m, 16, split, 0)
	for i := range 16 {
		d.put(i, bufBase, 72, 0, 0)
	}
	q := d.activate()
	var stop atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		rng := rand.New(rand.NewPCG(5, 6))
		lens := []uint32{72, 0xffffffff, 0, 8, 9}
		addrs := []uint64{bufBase, 0xfffffffffffffff8, memSize - 8}
		for !stop.Load() {
			i := rng.IntN(16)
			d.desc.Store64(16*i, addrs[rng.IntN(len(addrs))])
			d.desc.Store64(16*i+8, uint64(lens[rng.IntN(len(lens))])|uint64(rng.IntN(8))<<32)
		}
	})
	ids, bufs, b := make([]uint16, 16), make([][]byte, 16), vring.NewBatch(16, 64)
	plain := 0
	// The other side may not have had the processor in all that time, and left only
	// bad descriptors when it last had it.
	for k := 0; k < 30_000 || plain == 0; k++ {
		if k%64 == 0 {
			runtime.Gosched()
		}
		d.offer(uint16(k) % 16)
		n := q.PopPlain(ids, bufs, false)
		for _, buf := range bufs[:n] {
			first, last := &buf[0] == &mem[bufBase], &buf[0] == &mem[memSize-8]
			if !(first && len(buf) <= 72) && !(last && len(buf) <= 8) {
				t.Fatalf("a buffer of %d bytes that was not offered", len(buf))
			}
		}
		plain += n
		q.CompletePlain(ids[:n], nil)
		q.Publish()
		b.Reset()
		if _, err := q.Pop(b, 16); err != nil {
			t.Fatal(err)
		}
		finish(q, b)
	}
	stop.Store(true)
	wg.Wait()
}
