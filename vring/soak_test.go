package vring_test

import (
	"flag"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/vhostnet/vhostnet/guestmem"
	"github.com/vhostnet/vhostnet/virtio"
	"github.com/vhostnet/vhostnet/vring"
)

// packets is how long the soak is; reference case V09 wants millions now and then.
var packets = flag.Int("packets", 60_000, "packets in each run of TestSoak")

// TestSoak runs a driver and a device against each other, both of which sleep
// whenever the protocol says that they will be woken: reference cases V09 and
// V11. A lost wake-up is a deadlock, which the test runner reports. A torn index
// breaks the ring or hands out a chain that was not offered.
func TestSoak(t *testing.T) {
	for _, f := range []virtio.Features{split | virtio.FeatureEventIdx, split} {
		for _, mem := range []func(testing.TB) *guestmem.Map{heap, memfd} {
			d := newModel(t, mem(t), 8, f, 65000)
			q := d.activate()
			kick, call := make(chan struct{}, 1), make(chan struct{}, 1)
			var wg sync.WaitGroup
			wg.Go(func() { soakDriver(d, *packets, kick, call) })
			wg.Go(func() { soakDevice(t, q, *packets, kick, call) })
			wg.Wait()
			if d.usedIdx() != d.idx {
				t.Errorf("features %s: used %d of %d", f, d.usedIdx(), d.idx)
			}
		}
	}
}

func ring(bell chan struct{}) {
	select {
	case bell <- struct{}{}:
	default:
	}
}

// soakDriver sends packets, kicks by the rules, and sleeps when the ring is full.
func soakDriver(d *model, packets int, kick, call chan struct{}) {
	event := d.cfg.Features.Has(virtio.FeatureEventIdx)
	seen := d.usedIdx()
	rng := rand.New(rand.NewPCG(1, 2))
	for sent := 0; sent < packets; {
		old := d.idx
		for range 1 + rng.IntN(3) {
			if sent == packets || int(d.idx-seen) == d.n {
				break
			}
			d.single(d.idx%uint16(d.n), 72)
			sent++
		}
		if d.idx != old {
			if event && d.availEvent()-old < d.idx-old || !event && d.used.Load16(0)&virtio.UsedFNoNotify == 0 {
				ring(kick)
			}
		}
		for range rng.IntN(3) {
			runtime.Gosched()
		}
		seen = d.usedIdx()
		if int(d.idx-seen) < d.n {
			continue
		}
		d.setUsedEvent(seen + uint16(rng.IntN(d.n)))
		d.avail.Store16(0, 0)
		if d.usedIdx() == seen {
			<-call
		}
		d.avail.Store16(0, virtio.AvailFNoInterrupt)
		seen = d.usedIdx()
	}
}

// soakDevice completes packets, signals by the rules, and sleeps when there are
// none.
func soakDevice(t *testing.T, q vring.Queue, packets int, kick, call chan struct{}) {
	b := vring.NewBatch(4, 16)
	for done := 0; done < packets; {
		b.Reset()
		n, err := q.Pop(b, 4)
		if err != nil {
			t.Error(err)
			close(call)
			return
		}
		if n == 0 {
			if !q.EnableKicks() {
				<-kick
			}
			q.DisableKicks()
			continue
		}
		for i := range b.Chains {
			if c := &b.Chains[i]; c.ReadLen != 72 || c.Fault != 0 {
				t.Errorf("chain %+v was not offered", *c)
			}
		}
		finish(q, b)
		done += n
		if q.NeedSignal() {
			ring(call)
		}
	}
}

// TestMutation covers reference case V12: a driver that rewrites descriptors and
// indirect tables while the device reads them gets faults or chains, and whatever
// it gets lies in guest memory and is as long as it says.
func TestMutation(t *testing.T) {
	m := memfd(t)
	d := newModel(t, m, 16, split|virtio.FeatureIndirectDesc, 0)
	q := d.activate()
	const table = 0x180000
	tb, _ := m.Slice(table, 32)
	tv := guestmem.NewView(tb)
	var stop atomic.Bool
	var wg sync.WaitGroup
	wg.Go(func() {
		rng := rand.New(rand.NewPCG(3, 4))
		lens := []uint32{72, 0xffffffff, 0, 32, 31}
		addrs := []uint64{bufBase, table, 0xfffffffffffffff8, memSize - 8}
		for !stop.Load() {
			v, i := d.desc, rng.IntN(16)
			if rng.IntN(3) == 0 {
				v, i = tv, rng.IntN(2)
			}
			v.Store64(16*i, addrs[rng.IntN(len(addrs))])
			v.Store64(16*i+8, uint64(lens[rng.IntN(len(lens))])|uint64(rng.IntN(8))<<32|uint64(rng.IntN(18))<<48)
		}
	})
	b := vring.NewBatch(16, 64)
	for range 30_000 {
		d.offer(0)
		b.Reset()
		if _, err := q.Pop(b, 16); err != nil {
			t.Fatal(err)
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
	}
	stop.Store(true)
	wg.Wait()
}
