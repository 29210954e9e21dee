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

// opsChain is a chain on its way through runPackedOps.
type opsChain struct {
	c       vring.Chain
	id      uint16
	count   int
	plain   bool
	written uint32
}

// runPackedOps runs a sequence of the queue's and the driver's operations beside a
// model of their bookkeeping: what is where is a list of chains.
func runPackedOps(t testing.TB, m *guestmem.Map, ops []byte, n, pos int, event bool) {
	f := virtio.Features(0)
	if event {
		f = virtio.FeatureEventIdx
	}
	d := newPackedModel(t, m, n, f, pos)
	q := d.activate()
	var avail, open, completed, used []opsChain // oldest first
	b := vring.NewBatch(8, 64)
	serial := uint16(0)
	slots := func(l []opsChain) (n int) {
		for i := range l {
			n += l[i].count
		}
		return n
	}
	check := func(c opsChain, id uint16, count int, size int) {
		if c.id != id || c.count != count || size != 72*count {
			t.Fatalf("chain %d of %d descriptors with %d bytes, want %d of %d", id, count, size, c.id, c.count)
		}
	}
	for _, op := range ops {
		arg := int(op / 14)
		switch op % 14 {
		case 0, 13: // the driver offers one, if the ring has room
			k := min(1+arg%4, d.free())
			if op%14 == 13 {
				k = min(1, d.free())
			}
			if k > 0 {
				flags := uint16(0)
				if arg&1 == 1 {
					flags = write
				}
				d.offer(serial, slices.Repeat([]desc{{bufBase, 72, flags, 0}}, k)...)
				avail = append(avail, opsChain{id: serial, count: k, plain: k == 1 && flags == 0})
				serial += 257
			}
		case 1:
			b.Reset()
			got, err := q.Pop(b, 1+arg%4)
			if err != nil || got > len(avail) || got == 0 && len(avail) > 0 {
				t.Fatalf("popped %d of %d: %v", got, len(avail), err)
			}
			for i, c := range b.Chains {
				check(avail[i], c.ID, int(c.Count), int(c.ReadLen+c.WriteLen))
				avail[i].c = c
			}
			open, avail = append(open, avail[:got]...), avail[got:]
		case 2, 3:
			if len(open) > 0 {
				c := &open[0]
				c.written = min(uint32(arg), uint32(c.c.WriteLen))
				q.Complete(&c.c, uint32(arg))
				completed, open = append(completed, *c), open[1:]
			}
		case 4:
			q.Publish()
			used, completed = append(used, completed...), nil
		case 5:
			q.NeedSignal()
		case 6:
			if arg&1 == 0 {
				q.DisableKicks()
			} else if more := q.EnableKicks(); more != (len(avail) > 0) {
				t.Fatalf("more %t with %d", more, len(avail))
			}
		case 7:
			k := min(1+arg%3, len(open))
			q.Unpop(k)
			avail = append(slices.Clone(open[len(open)-k:]), avail...)
			open = open[:len(open)-k]
		case 8, 9:
			var ids [3]uint16
			var bufs [3][]byte
			got := q.PopPlain(ids[:1+arg%3], bufs[:], false)
			if got == 0 && len(avail) > 0 && avail[0].plain {
				t.Fatal("the next one is plain, and not popped")
			}
			for i := range got {
				if !avail[i].plain {
					t.Fatalf("%+v is not plain", avail[i])
				}
				check(avail[i], ids[i], 1, len(bufs[i]))
				avail[i].c = vring.Chain{ID: ids[i], Count: 1, ReadLen: 72}
			}
			open, avail = append(open, avail[:got]...), avail[got:]
		case 10: // the driver takes what is used
			for _, c := range used {
				if id, l, ok := d.take(); !ok || id != c.id || l != c.written {
					t.Fatalf("used %d with %d bytes, %t, want %+v", id, l, ok, c)
				}
			}
			if id, _, ok := d.take(); ok {
				t.Fatalf("used %d", id)
			}
			used = nil
		case 11:
			k := 0
			for k < len(open) && k < 1+arg%5 && open[k].plain {
				open[k].written = 0
				k++
			}
			ids := make([]uint16, k)
			for i := range ids {
				ids[i] = open[i].id
			}
			q.CompletePlain(ids, nil)
			completed, open = append(completed, open[:k]...), open[k:]
		case 12: // stop and start again, as a front-end's stop and cont do
			s := q.Stop()
			used, completed = append(used, completed...), nil
			avail, open = append(open, avail...), nil
			at := d.next - slots(avail)
			if want := d.base(at, at); s.Base != want {
				t.Fatalf("base %#x, want %#x", s.Base, want)
			}
			d.cfg.Base = s.Base
			q = d.activate()
		}
		if q.InFlight() != len(open) || q.Unpublished() != len(completed) || q.AvailCount() != len(avail) {
			t.Fatalf("in flight %d of %d, unpublished %d of %d, available %d of %d",
				q.InFlight(), len(open), q.Unpublished(), len(completed), q.AvailCount(), len(avail))
		}
	}
}

// TestPackedOps runs random sequences on rings of all kinds of sizes.
func TestPackedOps(t *testing.T) {
	m := heap(t)
	rapid.Check(t, func(r *rapid.T) {
		n := rapid.SampledFrom([]int{1, 2, 3, 5, 8, 100, 32767, 32768}).Draw(r, "size")
		pos := rapid.SampledFrom([]int{0, 1, n - 1, n, 2*n - 1, 2 * n, 3 * n}).Draw(r, "position")
		runPackedOps(t, m, rapid.SliceOfN(rapid.Byte(), 0, 200).Draw(r, "ops"), n, pos, rapid.Bool().Draw(r, "event"))
	})
}

// FuzzPackedOps is the same, found by the fuzzer.
func FuzzPackedOps(f *testing.F) {
	f.Add([]byte{0, 13, 1, 2, 4, 10, 5, 20}, uint16(7), uint8(0), true)
	f.Add([]byte{0, 14, 28, 1, 15, 7, 1, 3, 12, 1, 2, 4, 10}, uint16(2), uint8(5), false)
	f.Add([]byte{13, 13, 13, 36, 11, 7, 12, 8, 11, 4, 10}, uint16(0), uint8(1), true)
	f.Add([]byte{0, 13, 1, 1, 2, 12, 1, 2, 4, 10}, uint16(4), uint8(255), false)
	m := heap(f)
	f.Fuzz(func(t *testing.T, ops []byte, size uint16, pos uint8, event bool) {
		runPackedOps(t, m, ops, 1+int(size)%100, int(pos), event)
	})
}

// TestPackedSoak is TestSoak for packed rings: reference cases V09 and V11.
func TestPackedSoak(t *testing.T) {
	for _, f := range []virtio.Features{virtio.FeatureEventIdx, 0} {
		for _, mem := range []func(testing.TB) *guestmem.Map{heap, memfd} {
			for _, n := range []int{1, 7} {
				d := newPackedModel(t, mem(t), n, f, 3*n-1)
				q := d.activate()
				kick, call := make(chan struct{}, 1), make(chan struct{}, 1)
				var wg sync.WaitGroup
				wg.Go(func() { packedSoakDriver(d, *packets/6, kick, call) })
				wg.Go(func() { soakDevice(t, q, *packets/6, kick, call) })
				wg.Wait()
				if d.takeAll(); d.last != d.next {
					t.Errorf("features %s: used %d of %d", f, d.last, d.next)
				}
			}
		}
	}
}

// packedSoakDriver sends packets, kicks by the rules, and sleeps when the ring is
// full.
func packedSoakDriver(d *packedModel, packets int, kick, call chan struct{}) {
	rng := rand.New(rand.NewPCG(1, 2))
	for sent := 0; sent < packets; {
		old := d.next
		for range 1 + rng.IntN(3) {
			if sent == packets || d.free() == 0 {
				break
			}
			if rng.IntN(2) == 0 && d.free() > 1 {
				d.offer(uint16(sent), desc{bufBase, 12, 0, 0}, desc{bufBase, 60, 0, 0})
			} else {
				d.single(uint16(sent), 72)
			}
			sent++
		}
		if d.next != old {
			mode, at := d.kickEvent()
			want := mode == virtio.EventFEnable
			for pos := old; mode == virtio.EventFDesc && pos < d.next; pos++ {
				want = want || d.half(pos) == at
			}
			if want {
				ring(kick)
			}
		}
		for range rng.IntN(3) {
			runtime.Gosched()
		}
		d.takeAll()
		if d.free() > 0 {
			continue
		}
		if d.cfg.Features.Has(virtio.FeatureEventIdx) {
			d.setEventFence(virtio.EventFDesc, d.last+rng.IntN(d.n))
		} else {
			d.setEventFence(virtio.EventFEnable, 0)
		}
		if d.takeAll(); d.free() == 0 {
			<-call
		}
		d.setEventFence(virtio.EventFDisable, 0)
		d.takeAll()
	}
}

// setEventFence is setEvent before a look at the ring.
func (d *packedModel) setEventFence(mode, pos int) {
	d.driver.StoreFence32(0, uint32(d.half(pos))|uint32(mode)<<16)
}

// TestPackedMutation covers reference case V12: whatever a driver does to its
// descriptors meanwhile, what comes out lies in guest memory and is as long as it
// says. Such a driver can break its ring.
func TestPackedMutation(t *testing.T) {
	m := memfd(t)
	mem, _ := m.Slice(0, memSize)
	d := newPackedModel(t, m, 16, virtio.FeatureIndirectDesc, 0)
	var stop atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		rng := rand.New(rand.NewPCG(3, 4))
		lens := []uint32{72, 0xffffffff, 0, 32, 31, 8}
		addrs := []uint64{bufBase, 0x180000, 0xfffffffffffffff8, memSize - 8}
		for !stop.Load() {
			i := rng.IntN(16)
			d.desc.Store64(16*i, addrs[rng.IntN(len(addrs))])
			flags := uint64(rng.IntN(8)) | uint64(rng.IntN(2))<<7 | uint64(rng.IntN(2))<<15
			if rng.IntN(4) > 0 {
				flags &^= next
			}
			d.desc.Store64(16*i+8, uint64(lens[rng.IntN(len(lens))])|uint64(i)<<32|flags<<48)
		}
	})
	inside := func(s []byte) bool {
		switch &s[0] {
		case &mem[bufBase], &mem[0x180000]:
			return len(s) <= 72
		case &mem[memSize-8]:
			return len(s) <= 8
		}
		return false
	}
	b, ids, bufs := vring.NewBatch(16, 64), make([]uint16, 16), make([][]byte, 16)
	q := d.activate()
	for popped := 0; popped < 30_000; {
		n := q.PopPlain(ids, bufs, false)
		for _, s := range bufs[:n] {
			if !inside(s) {
				t.Fatalf("a buffer of %d bytes that was not offered", len(s))
			}
		}
		q.CompletePlain(ids[:n], nil)
		q.Publish()
		b.Reset()
		k, err := q.Pop(b, 16)
		if err != nil { // a chain without an end
			q.Stop()
			q = d.activate()
			continue
		}
		for i := range b.Chains {
			c := &b.Chains[i]
			var read, written uint64
			for _, s := range b.Readable(i) {
				read += uint64(len(s))
			}
			for _, s := range b.Writable(i) {
				written += uint64(len(s))
			}
			if read != c.ReadLen || written != c.WriteLen || c.Fault != 0 && read+written != 0 {
				t.Fatalf("chain %+v has %d and %d bytes", *c, read, written)
			}
		}
		finish(q, b)
		popped += n + k
	}
	stop.Store(true)
	wg.Wait()
}
