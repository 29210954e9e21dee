package faults

import (
	"bytes"
	"testing"

	"github.com/vhostnet/vhostnet/internal/scripted"
	"github.com/vhostnet/vhostnet/virtio"
)

// V06: a used element is the chain's head and the bytes that were written.
func TestV06UsedElements(t *testing.T) {
	t.Parallel()
	c := scripted.Serve(t, "echo")
	g := c.Dial(t)
	g.Hello(virtio.FeatureNotfCoal | virtio.FeatureVQNotfCoal)
	watch(g, 0, 1, 2)

	// Receive: three buffers, of which the third is used in part.
	rx, tx := g.Ring(0), g.Ring(1)
	rx.SetDesc(9, desc(scratch, 10, flagWrite|flagNext, 2))
	rx.SetDesc(2, desc(scratch+0x100, 22, flagWrite|flagNext, 4))
	rx.SetDesc(4, desc(scratch+0x200, 2048, flagWrite, 0))
	rx.Put(9)
	kick(g, 0)
	// Transmit: 7 -> 3 -> 5.
	f := g.Frame(60)
	at := g.Mem.Buffer(1, 0)
	copy(g.Mem.At(at+12, 60), f)
	tx.SetDesc(7, desc(at, 12, flagNext, 3))
	tx.SetDesc(3, desc(at+12, 30, flagNext, 5))
	tx.SetDesc(5, desc(at+42, 30, 0, 0))
	tx.Put(7)
	kick(g, 1)
	expectUsed(t, tx, 7, 0)
	expectUsed(t, rx, 9, 72)
	got := append(append(bytes.Clone(g.Mem.At(scratch, 10)), g.Mem.At(scratch+0x100, 22)...), g.Mem.At(scratch+0x200, 40)...)
	if !bytes.Equal(got[12+12:], f[12:]) {
		t.Errorf("received % x, sent % x", got[12:], f)
	}

	// Control: an acknowledgement is one byte whatever room there is.
	ctl := g.Ring(2)
	ask := func(want uint32, cmd uint8, data []byte, room ...uint32) []byte {
		t.Helper()
		copy(g.Mem.At(scratch, 2+len(data)), append([]byte{virtio.CtrlNotfCoal, cmd}, data...))
		copy(g.Mem.At(scratch+0x800, 16), bytes.Repeat([]byte{0xEE}, 16))
		segs := []scripted.Seg{{Addr: scratch, Len: uint32(2 + len(data))}}
		at := uint64(scratch + 0x800)
		for _, n := range room {
			segs = append(segs, scripted.Seg{Addr: at, Len: n, Write: true})
			at += uint64(n)
		}
		head, err := ctl.Add(segs...)
		g.Must(err)
		kick(g, 2)
		id, n, err := ctl.Wait()
		if err != nil || id != head || n != want {
			t.Errorf("command %d with room %v: chain %d with %d bytes, %v; want %d with %d", cmd, room, id, n, err, head, want)
		}
		return bytes.Clone(g.Mem.At(scratch+0x800, 16))
	}
	ee := bytes.Repeat([]byte{0xEE}, 16)
	for _, room := range [][]uint32{{1}, {4}, {9}, {1, 3}} {
		b := ask(1, virtio.CtrlNotfCoalRXSet, le32(5, 77), room...)
		if b[0] != virtio.CtrlOK || !bytes.Equal(b[1:], ee[1:]) {
			t.Errorf("room %v: answer % x", room, b)
		}
	}
	for _, room := range [][]uint32{{8, 1}, {9}, {3, 6}} {
		b := ask(9, virtio.CtrlNotfCoalVQGet, le32(0), room...)
		if want := append(le32(5, 77), virtio.CtrlOK); !bytes.Equal(b[:9], want) || !bytes.Equal(b[9:], ee[9:]) {
			t.Errorf("room %v: answer % x", room, b)
		}
	}
	restart(g, 0, rx.Next)
	restart(g, 1, tx.Next)
	c.RoundTrip(g)
	c.Alive(g)
}

// batch sends frames with one store of the available index, and returns how often
// the device called when it was done with them.
func batch(t *testing.T, g *scripted.Guest, n int) uint64 {
	t.Helper()
	r := g.Ring(1)
	for range n {
		_, err := r.Add(scripted.Seg{Addr: scratch, Len: 72})
		g.Must(err)
	}
	kick(g, 1)
	scripted.Until(t, "the batch is used", func() bool { return r.UsedIdx() == r.Next })
	barrier(g, 1)
	for {
		_, _, ok, err := r.Reap()
		g.Must(err)
		if !ok {
			return signals(g, r.Call)
		}
	}
}

// V08: a batch is announced if it passes the index that the driver waits for.
func TestV08Suppression(t *testing.T) {
	t.Parallel()
	c := scripted.Serve(t, "null")
	g := c.Dial(t)
	g.Hello(virtio.FeatureEventIdx)
	g.Ring(1).Reset(0)
	watch(g, 1)
	for _, flags := range []uint16{0, virtio.AvailFNoInterrupt} {
		for _, b := range []struct {
			base  uint16
			first int // frames in front of the batch, a batch of their own
			event uint16
			n     int
			want  uint64
		}{
			{0, 3, 5, 6, 1},
			{0, 3, 9, 6, 0},
			{0, 3, 2, 6, 0},
			{0, 3, 3, 6, 1},
			{0, 3, 8, 6, 1},
			{0, 3, 0x8003, 6, 0},
			{0xFFFC, 1, 0xFFFF, 5, 1},
			{0xFFFC, 1, 1, 5, 1},
			{0xFFFC, 1, 2, 5, 0},
			{0xFFFC, 1, 0xFFFC, 5, 0},
			{0x7FFC, 1, 0x7FFF, 5, 1},
			{40000, 0, 40000, 1, 1},
			// The first decision says yes: the driver may have been told nothing.
			{40000, 0, 39000, 1, 1},
		} {
			restart(g, 1, b.base)
			r := g.Ring(1)
			r.SetAvailFlags(flags) // it has no meaning with EVENT_IDX
			signals(g, r.Call)
			if b.first > 0 && batch(t, g, b.first) != 1 {
				t.Errorf("%+v: no call for the first batch", b)
			}
			r.SetUsedEvent(b.event)
			if got := batch(t, g, b.n); got != b.want {
				t.Errorf("%+v: %d calls", b, got)
			}
		}
	}
	c.Alive(g)

	g = c.Dial(t)
	g.Hello(0)
	g.Ring(1).Reset(0)
	watch(g, 1)
	signals(g, g.Ring(1).Call)
	for i := range 200 {
		flags := uint16(i / 7 & 1)
		g.Ring(1).SetAvailFlags(flags)
		// The event index has no meaning without EVENT_IDX.
		g.Ring(1).SetUsedEvent(g.Ring(1).Next + uint16(i%3))
		if got := batch(t, g, 1+i%5); got != uint64(1-flags) {
			t.Errorf("flags %d: %d calls", flags, got)
		}
	}
	c.Alive(g)
}
