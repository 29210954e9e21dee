package vring_test

import (
	"encoding/binary"
	"slices"
	"testing"

	"github.com/vhostnet/vhostnet/virtio"
	"github.com/vhostnet/vhostnet/vring"
)

// FuzzWalk lays arbitrary bytes over the descriptor table, the available ring
// and an indirect table. Whatever they say, the chains that come out lie in guest
// memory, add up, and end.
func FuzzWalk(f *testing.F) {
	one := make([]byte, 16)
	binary.LittleEndian.PutUint64(one, bufBase)
	one[8], one[12] = 72, 0
	f.Add([]byte{1, 0, 0, 0}, one, one)
	loop := slices.Clone(one)
	loop[12] = next
	f.Add([]byte{2, 0, 0, 0, 1, 0}, append(loop, loop...), one)
	ind := slices.Clone(one)
	binary.LittleEndian.PutUint64(ind, 0x180000)
	ind[8], ind[12] = 32, indirect
	f.Add([]byte{1, 0, 0, 0}, ind, append(slices.Clone(loop), one...))
	f.Add([]byte{255, 255, 255, 255}, one, one)
	f.Fuzz(func(t *testing.T, avail, table, ind []byte) {
		const n = 16
		d := newModel(t, heap(t), n, split|virtio.FeatureIndirectDesc, 0)
		q := d.activate()
		lay := func(at uint64, size int, b []byte) {
			mem, _ := d.m.Slice(at, uint64(size))
			copy(mem, b)
		}
		lay(descAt, 16*n, table)
		lay(availAt+2, 2+2*n, avail)
		lay(0x180000, 4096, ind)
		b := vring.NewBatch(8, 32)
		for total := 0; ; {
			b.Reset()
			popped, err := q.Pop(b, 8)
			if err != nil && popped != 0 {
				t.Fatal("chains and an error")
			}
			if popped == 0 {
				break
			}
			for i := range b.Chains {
				check(t, b, i)
			}
			finish(q, b)
			if total += popped; total > n {
				t.Fatalf("%d chains of a ring of %d", total, n)
			}
		}
	})
}

func check(t *testing.T, b *vring.Batch, i int) {
	c := &b.Chains[i]
	var read, written uint64
	for _, s := range b.Readable(i) {
		read += uint64(len(s))
	}
	for _, s := range b.Writable(i) {
		written += uint64(len(s))
	}
	if read != c.ReadLen || written != c.WriteLen || c.Count < 1 || c.Count > 16 || c.Fault != 0 && read+written != 0 {
		t.Fatalf("chain %+v has %d and %d bytes", *c, read, written)
	}
}

// FuzzOps runs a sequence of the queue's operations beside a model of its
// bookkeeping.
func FuzzOps(f *testing.F) {
	f.Add([]byte{0, 0, 1, 2, 3, 4, 5, 6}, uint16(0), true)
	f.Add([]byte{0, 0, 0, 1, 1, 2, 2, 3, 4, 7, 8, 0, 1, 2, 3, 4}, uint16(65534), false)
	f.Add([]byte{0, 1, 9, 0, 1, 6, 1, 2, 3, 9, 0, 1}, uint16(32767), true)
	f.Add([]byte{0, 0, 0, 10, 22, 11, 2, 3, 9, 0, 34, 7, 1, 11, 3, 4}, uint16(65533), true)
	f.Fuzz(func(t *testing.T, ops []byte, base uint16, event bool) {
		const n = 8
		feat := split
		if event {
			feat |= virtio.FeatureEventIdx
		}
		d := newModel(t, heap(t), n, feat, base)
		q := d.activate()
		avail, popped, completed, published := base, base, base, base
		b := vring.NewBatch(n, 4*n)
		var open []vring.Chain
		for _, op := range ops {
			switch op % 12 {
			case 0: // the driver offers one, if the ring has room
				if avail-published < n {
					d.single(avail%n, 72)
					avail++
				}
			case 1:
				b.Reset()
				got, err := q.Pop(b, 1+int(op/10)%3)
				if err != nil || got > int(avail-popped) || got == 0 && avail != popped {
					t.Fatalf("popped %d of %d: %v", got, avail-popped, err)
				}
				for i, c := range b.Chains {
					if c.ID != (popped+uint16(i))%n {
						t.Fatalf("chain %d at %d", c.ID, popped+uint16(i))
					}
				}
				open = append(open, b.Chains...)
				popped += uint16(got)
			case 2:
				if len(open) > 0 {
					q.Complete(&open[0], uint32(op))
					open = open[1:]
					completed++
				}
			case 3:
				q.Publish()
				published = completed
			case 4:
				q.NeedSignal()
				if q.Unsignalled() != 0 {
					t.Fatal("a decision leaves something")
				}
			case 5:
				q.DisableKicks()
			case 6:
				if more := q.EnableKicks(); more != (avail != popped) {
					t.Fatalf("more %t with %d", more, avail-popped)
				}
			case 7:
				if len(open) > 0 {
					q.Unpop(1)
					open = open[:len(open)-1]
					popped--
				}
			case 8:
				d.setUsedEvent(published + uint16(op/10))
				q.DriverEvent()
			case 10:
				var ids [3]uint16
				var bufs [3][]byte
				got := q.PopPlain(ids[:1+int(op/10)%3], bufs[:], false)
				if got > int(avail-popped) || got == 0 && avail != popped {
					t.Fatalf("popped %d of %d", got, avail-popped)
				}
				for i := range got {
					if ids[i] != popped%n || len(bufs[i]) != 72 {
						t.Fatalf("chain %d of %d bytes at %d", ids[i], len(bufs[i]), popped)
					}
					open = append(open, vring.Chain{ID: ids[i]})
					popped++
				}
			case 11:
				if len(open) > 0 {
					q.CompletePlain([]uint16{open[0].ID}, nil)
					open = open[1:]
					completed++
				}
			case 9: // stop and start again, as a front-end's stop and cont do
				q.Unpop(len(open))
				popped -= uint16(len(open))
				open = open[:0]
				q.Publish()
				published = completed
				s := q.Stop()
				if s.Base != uint32(popped) {
					t.Fatalf("base %d, want %d", s.Base, popped)
				}
				d.cfg.Base = s.Base
				q = d.activate()
			}
			if q.InFlight() != len(open) || q.Unpublished() != int(completed-published) ||
				d.usedIdx() != published || q.AvailCount() != int(avail-popped) {
				t.Fatalf("in flight %d of %d, unpublished %d of %d, used %d of %d, available %d of %d",
					q.InFlight(), len(open), q.Unpublished(), completed-published, d.usedIdx(), published, q.AvailCount(), avail-popped)
			}
		}
	})
}
