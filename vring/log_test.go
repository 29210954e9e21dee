package vring_test

import (
	"bytes"
	"errors"
	"testing"

	"pgregory.net/rapid"

	"github.com/vhostnet/vhostnet/guestmem"
	"github.com/vhostnet/vhostnet/virtio"
	"github.com/vhostnet/vhostnet/vring"
)

// logAt is where the device's area of a ring is logged, which need not be where it
// is, nor in memory at all.
const logAt = memSize + 0x3ff0

// logBuf is where the buffers are, behind all that the models of both formats have.
const logBuf = 0x200000

// logRig is a ring of either format whose writes are logged.
type logRig struct {
	mem    []byte
	q      vring.Queue
	log    *guestmem.Log
	device uint64 // where the device's area is
	size   int    // and its size
	before []byte
	offer  func(id uint16, n uint32)
	take   func()
}

func newLogRig(t testing.TB, m *guestmem.Map, packed bool, n int, f virtio.Features, ring bool) *logRig {
	r := &logRig{log: guestmem.NewHeapLog(2 * memSize / guestmem.LogPage / 8), device: usedAt, size: 6 + 8*n}
	var cfg vring.Config
	buffer := func(id uint16) uint64 { return logBuf + 0x300*uint64(id) }
	if packed {
		r.device, r.size = usedAt+0x80000, 4
		d := newPackedModel(t, m, n, f, 0)
		cfg = d.cfg
		r.offer = func(id uint16, l uint32) { d.offer(id, desc{buffer(id), l, write, 0}) }
		r.take = func() { d.takeAll() }
	} else {
		d := newModel(t, m, n, f, 0)
		cfg = d.cfg
		r.offer = func(id uint16, l uint32) {
			d.put(int(id), buffer(id), l, write, 0)
			d.offer(id)
		}
		r.take = func() {}
	}
	q, err := vring.Activate(m, cfg)
	if err != nil {
		t.Fatal(err)
	}
	r.q = q
	q.SetLog(vring.Logging{Log: r.log, Ring: ring, Addr: logAt})
	r.mem, _ = m.Slice(0, memSize)
	r.before = make([]byte, memSize)
	return r
}

// pages returns where what has changed since the last call is to be noted, and what
// is noted.
func (r *logRig) pages() (changed, noted map[uint64]bool) {
	changed, noted = map[uint64]bool{}, map[uint64]bool{}
	for p := uint64(0); p < memSize; p += guestmem.LogPage {
		was, is := r.before[p:p+guestmem.LogPage], r.mem[p:p+guestmem.LogPage]
		if bytes.Equal(was, is) {
			continue
		}
		for i := range was {
			at := p + uint64(i)
			if was[i] == is[i] {
				continue
			}
			if off := at - r.device; off < uint64(r.size) {
				at = logAt + off
			}
			changed[at&^(guestmem.LogPage-1)] = true
		}
	}
	r.log.Take(func(gpa uint64) { noted[gpa] = true })
	return changed, noted
}

// TestLogComplete compares all of memory before and after with what was noted, in
// rings of several pages: whatever has changed is. Nothing else is but what was
// written with what was there, so what the device does not touch is not.
func TestLogComplete(t *testing.T) {
	m := heap(t)
	rapid.Check(t, func(r *rapid.T) {
		packed := rapid.Bool().Draw(r, "packed")
		n := 1 << rapid.IntRange(0, 10).Draw(r, "order")
		f := split
		if rapid.Bool().Draw(r, "event index") {
			f |= virtio.FeatureEventIdx
		}
		plain := rapid.Bool().Draw(r, "plain")
		x := newLogRig(t, m, packed, n, f, true)
		stopped := false
		defer func() {
			if !stopped {
				x.q.Stop()
			}
		}()
		next := 0
		written := byte(0)
		fill := func(b []byte, l int) int {
			l = min(l, len(b))
			written++
			for i := range b[:l] {
				b[i] = written
			}
			x.q.Dirty(b[:l])
			return l
		}
		for range rapid.IntRange(1, 6).Draw(r, "bursts") {
			k := rapid.IntRange(0, n).Draw(r, "chains")
			for range k {
				x.offer(uint16(next%n), 700)
				next++
			}
			copy(x.before, x.mem)
			length := rapid.IntRange(0, 800).Draw(r, "bytes")
			if plain {
				ids, bufs, lens := make([]uint16, k), make([][]byte, k), make([]uint32, k)
				if got := x.q.PopPlain(ids, bufs, true); got != k {
					r.Fatalf("popped %d of %d", got, k)
				}
				for i := range k {
					lens[i] = uint32(fill(bufs[i], length))
				}
				x.q.CompletePlain(ids, lens)
			} else {
				b := pop(t, x.q, k)
				for i := range b.Chains {
					c := &b.Chains[i]
					x.q.Complete(c, uint32(fill(b.WritableOf(c)[0], length)))
				}
			}
			switch rapid.IntRange(0, 5).Draw(r, "then") {
			case 0:
				x.q.DisableKicks()
			case 1:
				x.q.EnableKicks()
			case 2:
				if rapid.Bool().Draw(r, "breaks") {
					x.q.Break(errors.New("for a test"))
				}
				x.q.Stop()
				stopped = true
			}
			x.q.Publish()
			changed, noted := x.pages()
			for p := range changed {
				if !noted[p] {
					r.Fatalf("page %#x has changed and is not noted; noted are %v", p, noted)
				}
			}
			if k == 0 && len(noted) > 2 {
				r.Fatalf("nothing was used; noted are %v", noted)
			}
			if stopped {
				return
			}
			x.take()
		}
	})
}

// TestLogWithoutRing: only buffers are noted if the front-end has not asked for more,
// and nothing without a log.
func TestLogWithoutRing(t *testing.T) {
	for _, packed := range []bool{false, true} {
		r := newLogRig(t, heap(t), packed, 8, split, false)
		burst := func() map[uint64]bool {
			r.offer(0, 100)
			b := pop(t, r.q, 1)
			r.q.Dirty(b.WritableOf(&b.Chains[0])[0])
			r.q.Complete(&b.Chains[0], 1)
			r.q.Publish()
			r.q.DisableKicks()
			r.q.EnableKicks()
			r.take()
			_, noted := r.pages()
			return noted
		}
		if noted := burst(); len(noted) != 1 || !noted[logBuf] {
			t.Errorf("packed %t: noted %v", packed, noted)
		}
		r.q.SetLog(vring.Logging{Ring: true})
		if noted := burst(); len(noted) != 0 {
			t.Errorf("packed %t: noted %v without a log", packed, noted)
		}
		r.q.Stop()
	}
}

// TestLogTooSmall: what cannot be noted is a fault.
func TestLogTooSmall(t *testing.T) {
	for _, packed := range []bool{false, true} {
		r := newLogRig(t, heap(t), packed, 8, split, true)
		r.q.SetLog(vring.Logging{Log: guestmem.NewHeapLog(1), Ring: true, Addr: 0x8000 - 2})
		r.offer(0, 100)
		b := pop(t, r.q, 1)
		r.q.Complete(&b.Chains[0], 0)
		if err := guestmem.CatchFaults(func() {
			r.q.Publish()
			r.q.EnableKicks()
		}); !errors.Is(err, guestmem.ErrLog) {
			t.Errorf("packed %t: %v", packed, err)
		}
		r.q.Break(guestmem.ErrLog)
		r.q.Stop()
	}
}

// TestLogBeforeVisible: when the driver sees that a buffer is used, its page and
// those of the entries in the ring are noted already.
func TestLogBeforeVisible(t *testing.T) {
	m := heap(t)
	d := newModel(t, m, 1024, split, 0)
	q := d.activate()
	l := guestmem.NewHeapLog(2 * memSize / guestmem.LogPage / 8)
	q.SetLog(vring.Logging{Log: l, Ring: true, Addr: usedAt})
	const rounds = 2000
	done := make(chan struct{})
	go func() {
		defer close(done)
		b := vring.NewBatch(8, 64)
		for seen := 0; seen < rounds; {
			b.Reset()
			n, err := q.Pop(b, 8)
			if err != nil {
				t.Error(err)
				return
			}
			for i := range n {
				w := b.WritableOf(&b.Chains[i])[0]
				w[0] = 1
				q.Dirty(w[:1])
				q.Complete(&b.Chains[i], 1)
			}
			q.Publish()
			seen += n
		}
	}()
	for i := range rounds {
		id := uint16(i % 1024)
		page := uint64(logBuf) + guestmem.LogPage*uint64(id%64)
		d.put(int(id), page, 64, write, 0)
		d.offer(id)
		for d.usedIdx() != uint16(i+1) {
		}
		elem := (usedAt + 4 + 8*uint64(id)) &^ (guestmem.LogPage - 1)
		noted := map[uint64]bool{}
		l.Take(func(gpa uint64) { noted[gpa] = true })
		if !noted[page] || !noted[elem] {
			t.Fatalf("chain %d is used; buffer noted: %t, element: %t", id, noted[page], noted[elem])
		}
	}
	<-done
}
