package faults

import (
	"errors"
	"fmt"
	"math/rand/v2"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"github.com/vhostnet/vhostnet/internal/scripted"
	"github.com/vhostnet/vhostnet/virtio"
)

// plain makes each descriptor of a ring a buffer by itself: to be sent with 60
// bytes of frame, or to be received into.
func plain(g *scripted.Guest, q int) {
	r := g.Ring(q)
	for i := range r.Size {
		at := g.Mem.Buffer(q, i)
		if q&1 == 0 {
			r.SetDesc(i, desc(at, scripted.BufferSize, flagWrite, 0))
			continue
		}
		copy(g.Mem.At(at+12, 60), scripted.Frame(uint64(i), 60))
		r.SetDesc(i, desc(at, 72, 0, 0))
	}
}

// hose is a driver that publishes entries one by one as fast as it can, and expects
// each to be used once, in order, and none before it was published. The heads are
// every stride-th descriptor. It notifies only when the device has asked for it.
type hose struct {
	*scripted.Guest
	q, stride int
}

func (h hose) head(i uint16) uint16 {
	return i % uint16(h.Ring(h.q).Size/h.stride) * uint16(h.stride)
}

// reap takes what was used and reports whether there is room for another entry.
func (h hose) reap() (bool, error) {
	r := h.Ring(h.q)
	idx := r.UsedIdx()
	if idx-r.Seen > r.Next-r.Seen {
		return false, fmt.Errorf("ring %d: used index %d: entries are available to %d", h.q, idx, r.Next)
	}
	for ; r.Seen != idx; r.Seen++ {
		if id, _ := r.UsedElem(r.Seen); id != uint32(h.head(r.Seen)) {
			return false, fmt.Errorf("ring %d: used element %d is chain %d", h.q, r.Seen, id)
		}
	}
	return int(r.Next-r.Seen) < r.Size/h.stride, nil
}

func (h hose) await(cond func() bool) (err error) {
	r := h.Ring(h.q)
	return errors.Join(spin(fmt.Sprintf("ring %d: available %d, used %d", h.q, r.Next, r.UsedIdx()), func() bool {
		var room bool
		room, err = h.reap()
		return room && cond() || err != nil
	}), err)
}

// pour publishes so many entries.
func (h hose) pour(entries int) error {
	r := h.Ring(h.q)
	for range entries {
		if err := h.await(func() bool { return true }); err != nil {
			return err
		}
		old := r.Next
		r.Put(h.head(r.Next))
		r.Publish()
		if needKick(r, old, h.Features.Has(virtio.FeatureEventIdx)) {
			if err := r.Notify(); err != nil {
				return err
			}
		}
	}
	return nil
}

// rest waits until everything is used.
func (h hose) rest() error {
	r := h.Ring(h.q)
	return h.await(func() bool { return r.Seen == r.Next })
}

// V09: a driver that kicks and sleeps by the rules is never left alone: each kick
// that it saves is one that the device did not need, each call that it gets is in
// time.
func TestV09Rearm(t *testing.T) {
	t.Parallel()
	for q, port := range map[int]string{1: "null", 0: "source:60"} {
		for name, more := range map[string]virtio.Features{"flags": 0, "event index": virtio.FeatureEventIdx} {
			t.Run(port+"/"+name, func(t *testing.T) {
				t.Parallel()
				c := scripted.Serve(t, port)
				g := c.Dial(t)
				g.Hello(more | virtio.FeatureInOrder)
				watch(g, q)
				plain(g, q)
				stop := time.Now().Add(2 * time.Second)
				n := 0
				for ; n < 20_000 && time.Now().Before(stop); n++ {
					if err := lonely(g, q, more != 0); err != nil {
						t.Fatalf("after %d packets: %v", n, err)
					}
				}
				t.Log(n, "packets")
				c.Alive(g)
			})
		}
	}
}

// lonely makes one to four entries available, one by one, and then mostly sleeps
// until they are used.
func lonely(g *scripted.Guest, q int, eventIdx bool) error {
	r := g.Ring(q)
	for range 1 + rand.IntN(4) {
		old := r.Next
		r.Put(r.Next % uint16(r.Size))
		r.Publish()
		if needKick(r, old, eventIdx) {
			if err := r.Notify(); err != nil {
				return err
			}
		}
		for gap := time.Now().Add(time.Duration(rand.IntN(20)) * time.Microsecond); time.Now().Before(gap); {
		}
	}
	if !eventIdx {
		r.SetAvailFlags(0)
		defer r.SetAvailFlags(virtio.AvailFNoInterrupt)
	}
	if rand.IntN(8) == 0 && int(r.Next-r.Seen) < r.Size/2 {
		return nil
	}
	for r.Seen != r.Next {
		r.SetUsedEvent(r.Next - 1)
		if r.UsedIdx() == r.Next {
			for ; r.Seen != r.Next; r.Seen++ {
				if id, _ := r.UsedElem(r.Seen); id != uint32(r.Seen%uint16(r.Size)) {
					return fmt.Errorf("used element %d is chain %d: not in order", r.Seen, id)
				}
			}
			break
		}
		if err := r.WaitCall(scripted.Hang); err != nil {
			return fmt.Errorf("no call: available %d, used %d, used flags %d, avail event %d: %w", r.Next, r.UsedIdx(), r.UsedFlags(), r.AvailEvent(), err)
		}
	}
	return nil
}

// V12: the driver changes everything while the device reads it. What is checked is
// what is used.
func TestV12DoubleFetch(t *testing.T) {
	t.Parallel()
	h := scripted.NewHost(t, 1)
	c, api := serveTAPWithAPI(t, h)
	g := c.Dial(t)
	offer, err := g.GetFeatures()
	g.Must(err)
	const offloads = virtio.FeatureCSum | virtio.FeatureHostTSO4 | virtio.FeatureHostTSO6 | virtio.FeatureHostECN | virtio.FeatureHostUFO
	g.Hello(virtio.FeatureIndirectDesc | virtio.FeatureNotfCoal | virtio.FeatureCtrlRX | offer&offloads)
	watch(g, 0, 1, 2)

	var stop, received atomic.Bool
	var longest atomic.Int64
	var sides, traffic sync.WaitGroup
	errs := make(chan error, 8)
	drive := func(q, stride int, lay func()) {
		lay()
		sides.Go(func() {
			side := hose{g, q, stride}
			for !stop.Load() {
				entries := 1000
				if q == 0 {
					// Requests turn into filters, and then nothing is received.
					if r := g.Ring(0); int(r.Next-r.UsedIdx()) >= r.Size {
						runtime.Gosched()
						continue
					}
					entries = 1
				}
				if err := side.pour(entries); err != nil {
					errs <- err
					return
				}
			}
			if q == 0 {
				return // the last buffers may be too small for the next frame
			}
			if err := side.rest(); err != nil {
				errs <- err
			}
		})
	}
	drive(0, 1, func() { plain(g, 0) })
	drive(1, 1, func() { mixed(g) })
	drive(2, 2, func() { requests(g) })
	traffic.Go(func() {
		f := scripted.Frame(1, 1000)
		for !received.Load() {
			if err := h.Send(f); err != nil {
				errs <- err
				return
			}
		}
	})
	traffic.Go(func() {
		for !received.Load() {
			f, err := h.ReceiveWithin(10 * time.Millisecond)
			if err != nil && !errors.Is(err, scripted.ErrHang) {
				errs <- err
				return
			}
			longest.Store(max(longest.Load(), int64(len(f))))
		}
	})
	for end := time.Now().Add(3 * time.Second); time.Now().Before(end) && len(errs) == 0; {
		for range 1000 {
			mutate(g)
		}
	}
	stop.Store(true)
	sides.Wait()
	if len(errs) == 0 && g.Ring(0).UsedIdx() != g.Ring(0).Next {
		if err := deliversOrFilters(t, g, api); err != nil {
			errs <- err
		}
	}
	received.Store(true)
	traffic.Wait()
	select {
	case err := <-errs:
		t.Fatalf("%v: receive queue %+v", err, api.queue(t, 0))
	default:
	}
	// All that was sent is used, so its frames are on the host's side by now:
	// those that nobody has taken are not Alive's.
	for {
		f, err := h.ReceiveWithin(10 * time.Millisecond)
		if errors.Is(err, scripted.ErrHang) {
			break
		}
		g.Must(err)
		longest.Store(max(longest.Load(), int64(len(f))))
	}
	if n := longest.Load(); n < 60 || n > 65535+22 {
		t.Errorf("the longest frame on the TAP has %d bytes", n)
	}
	for q := range 3 {
		if signals(g, g.Ring(q).Err) != 0 {
			t.Errorf("ring %d is broken, and no head was changed", q)
		}
	}
	c.Alive(g)
}

// deliversOrFilters waits until the receive queue has done something with a frame.
func deliversOrFilters(t *testing.T, g *scripted.Guest, api statusAPI) error {
	t.Helper()
	used, drops := g.Ring(0).UsedIdx(), total(api.queue(t, 0).Drops)
	return spin("the receive queue", func() bool {
		return g.Ring(0).UsedIdx() != used || total(api.queue(t, 0).Drops) != drops
	})
}

func total(drops map[string]uint64) (n uint64) {
	for _, d := range drops {
		n += d
	}
	return n
}

// tables is where the indirect tables of the mutating driver are, 64 bytes each.
const tables = scratch + 0x100000

// mixed makes every second descriptor of the transmit ring an indirect one.
func mixed(g *scripted.Guest) {
	plain(g, 1)
	for i := 0; i < g.Ring(1).Size; i += 2 {
		at, to := g.Mem.Buffer(1, i), uint64(tables+64*i)
		table(g, to, desc(at, 12, flagNext, 1), desc(at+12, 60, 0, 0))
		g.Ring(1).SetDesc(i, desc(to, 32, flagIndirect, 0))
	}
}

// requests makes a control command of every two descriptors of the control ring.
func requests(g *scripted.Guest) {
	for i := 0; i < g.Ring(2).Size; i += 2 {
		at := g.Mem.Buffer(2, i)
		copy(g.Mem.At(at, 10), append([]byte{virtio.CtrlNotfCoal, virtio.CtrlNotfCoalRXSet}, le32(4, 50)...))
		g.Ring(2).SetDesc(i, desc(at, 10, flagNext, uint16(i+1)))
		g.Ring(2).SetDesc(i+1, desc(at+64, 1, flagWrite, 0))
	}
}

// mutate changes one field of one descriptor, table or header.
func mutate(g *scripted.Guest) {
	q := rand.IntN(3)
	r, v := g.Ring(q), g.Mem.View
	i := rand.IntN(r.Size)
	at := int(r.Desc) + 16*i
	if q == 1 && i&1 == 0 && rand.IntN(2) == 0 {
		at = tables + 64*i + 16*rand.IntN(2)
	}
	buf := g.Mem.Buffer(q, i)
	pick := func(vs ...uint64) uint64 { return vs[rand.IntN(len(vs))] }
	switch rand.IntN(4) {
	case 0:
		v.Store32(at+8, uint32(pick(72, 72, 60, 12, 2048, 0, 0xFFFFFFFF)))
	case 1:
		v.Store64(at, pick(buf, buf, buf, 0, nowhere, scripted.MemorySize-8, uint64(tables+64*i)))
	case 2:
		flags := pick(0, uint64(r.Index&1^1)*flagWrite, flagNext, flagIndirect, flagWrite)
		v.Store32(at+12, uint32(flags|uint64(rand.IntN(r.Size))<<16))
	case 3:
		// flags and gso_type, hdr_len, gso_size, csum_start, csum_offset.
		v.Store16(int(buf)+2*rand.IntN(5), uint16(pick(0, 1, 0x101, 0x401, 34, 1448, 0xFFFF)))
	}
}
