package faults

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"
	"time"

	"github.com/vhostnet/vhostnet/internal/scripted"
	"github.com/vhostnet/vhostnet/virtio"
)

// le32 encodes numbers as control commands have them.
func le32(vs ...uint32) (b []byte) {
	for _, v := range vs {
		b = binary.LittleEndian.AppendUint32(b, v)
	}
	return b
}

// V05: an available index that jumps or goes backwards breaks its ring, once and
// alone, and nothing is taken from it.
func TestV05Transmit(t *testing.T) {
	t.Parallel()
	h := scripted.NewHost(t, 1)
	c := h.ServeTAP(t)
	g := c.Dial(t)
	g.Hello(0)
	watch(g, 0, 1)
	r := g.Ring(1)
	ten := func() {
		t.Helper()
		for range 10 {
			f := g.Frame(60)
			g.Transmit(1, f)
			if got, err := h.Receive(); err != nil || !bytes.Equal(got, f) {
				t.Fatalf("the TAP carries % x, %v; want % x", got, err, f)
			}
		}
	}
	for i, idx := range []uint16{10 + 5000, 3, 10 + scripted.DefaultSize + 1, 9} {
		ten()
		r.PublishAt(idx)
		g.Must(r.Notify())
		expectBroken(t, r)
		c.Await(lineRingBroken, i+1)
		// While it is broken it is not looked at.
		r.PublishAt(3)
		g.Must(r.Notify())
		barrier(g, 1)
		if n := r.UsedIdx(); n != 10 {
			t.Errorf("used index %d, want 10", n)
		}
		if n := signals(g, r.Err); n != 0 {
			t.Errorf("%d more error signals", n)
		}
		if f, err := h.ReceiveWithin(time.Millisecond); !errors.Is(err, scripted.ErrHang) {
			t.Errorf("%v, and a frame that nobody sent: % x", err, f)
		}
		// The other ring goes on.
		f := g.Frame(60)
		g.Must(h.Send(f))
		if _, got := g.Receive(0); !bytes.Equal(got, f) {
			t.Errorf("the guest gets % x, want % x", got, f)
		}
		expectIdle(t, c)
		if n := c.Lines(lineRingBroken); n != i+1 {
			t.Errorf("%d lines of broken rings, want %d", n, i+1)
		}
		restart(g, 1, 0)
	}
	ten()
	c.Alive(g)
}

// V05: the same on the receive ring with host traffic.
func TestV05Receive(t *testing.T) {
	t.Parallel()
	h := scripted.NewHost(t, 1)
	c := h.ServeTAP(t)
	g := c.Dial(t)
	g.Hello(0)
	watch(g, 0, 1)
	r := g.Ring(0)
	for i, jump := range []uint16{5000, 0x8000, 0xFFFF} {
		g.Post(0, 10)
		for range 10 {
			f := g.Frame(60)
			g.Must(h.Send(f))
			if _, got := g.Receive(0); !bytes.Equal(got, f) {
				t.Fatalf("the guest gets % x, want % x", got, f)
			}
		}
		r.PublishAt(r.Next + jump)
		g.Must(r.Notify())
		for range 10 {
			g.Must(h.Send(g.Frame(60)))
		}
		expectBroken(t, r)
		c.Await(lineRingBroken, i+1)
		if n := r.UsedIdx(); n != r.Seen {
			t.Errorf("used index %d, want %d", n, r.Seen)
		}
		g.Transmit(1, g.Frame(60))
		_, err := h.Receive()
		g.Must(err)
		expectIdle(t, c)

		restart(g, 0, 0)
		g.Post(0, 200)
		f := g.Frame(60)
		g.Must(h.Send(f))
		// What came while it was broken may come first.
		scripted.Until(t, "frames come again", func() bool {
			_, got := g.Receive(0)
			return bytes.Equal(got, f)
		})
		restart(g, 0, 0)
	}
	c.Alive(g)
}

// V05: the same on the control ring.
func TestV05Control(t *testing.T) {
	t.Parallel()
	c := scripted.Serve(t, "echo")
	g := c.Dial(t)
	g.Hello(virtio.FeatureCtrlRX)
	watch(g, 0, 1, 2)
	for i, idx := range []uint16{5003, 1, 0x8000} {
		for range 3 {
			expectAck(t, g, 2, virtio.CtrlOK, virtio.CtrlRX, virtio.CtrlRXPromisc, 1)
		}
		g.Ring(2).PublishAt(idx)
		g.Must(g.Ring(2).Notify())
		expectBroken(t, g.Ring(2))
		c.Await(lineRingBroken, i+1)
		if n := g.Ring(2).UsedIdx(); n != 3 {
			t.Errorf("used index %d, want 3", n)
		}
		c.RoundTrip(g)
		expectIdle(t, c)
		restart(g, 2, 0)
	}
	expectAck(t, g, 2, virtio.CtrlOK, virtio.CtrlRX, virtio.CtrlRXPromisc, 0)
	c.Alive(g)
}

// V07: indices run freely, and slots are taken modulo the size: on the control
// ring, for commands one at a time and many at once.
func TestV07Control(t *testing.T) {
	t.Parallel()
	c := scripted.Serve(t, "echo")
	g := c.Dial(t)
	g.Size = 64
	g.Hello(virtio.FeatureNotfCoal | virtio.FeatureIndirectDesc)
	g.Ring(2).Reset(65500)
	watch(g, 0, 1, 2)
	for i := range uint32(200) {
		expectAck(t, g, 2, virtio.CtrlOK, virtio.CtrlNotfCoal, virtio.CtrlNotfCoalRXSet, le32(i%8, 0)...)
	}
	// Sixty at once: each takes one descriptor, which refers to a table.
	r := g.Ring(2)
	for round := range 4 {
		acks := make(map[uint16]uint64)
		for i := range uint64(60) {
			at := scratch + 4096 + 256*i
			copy(g.Mem.At(at, 10), append([]byte{virtio.CtrlNotfCoal, virtio.CtrlNotfCoalRXSet}, le32(1, 0)...))
			g.Mem.Bytes[at+32] = 0xA5
			table(g, at+64, desc(at, 2, flagNext, 1), desc(at+2, 8, flagNext, 2), desc(at+32, 1, flagWrite, 0))
			head, err := r.Add(scripted.Seg{Addr: at + 64, Len: 48})
			g.Must(err)
			r.SetDesc(int(head), desc(at+64, 48, flagIndirect, 0))
			acks[head] = at + 32
		}
		kick(g, 2)
		for range 60 {
			head, n, err := r.Wait()
			if err != nil || n != 1 || g.Mem.Bytes[acks[head]] != virtio.CtrlOK {
				t.Fatalf("round %d: %d bytes, answer %d, %v", round, n, g.Mem.Bytes[acks[head]], err)
			}
		}
	}
	c.Alive(g)
}

// V07: control rings of one and two descriptors, whose commands are in a table.
func TestV07SmallControl(t *testing.T) {
	t.Parallel()
	for _, size := range []int{1, 2} {
		c := scripted.Serve(t, "echo")
		g := c.Dial(t)
		g.Size = size
		g.Hello(virtio.FeatureNotfCoal | virtio.FeatureIndirectDesc)
		g.Ring(2).Reset(65500)
		watch(g, 2)
		r := g.Ring(2)
		const at = scratch
		copy(g.Mem.At(at, 10), append([]byte{virtio.CtrlNotfCoal, virtio.CtrlNotfCoalRXSet}, le32(1, 0)...))
		table(g, at+64, desc(at, 2, flagNext, 1), desc(at+2, 8, flagNext, 2), desc(at+32, 1, flagWrite, 0))
		for i := range 200 {
			g.Mem.Bytes[at+32] = 0xA5
			head, err := r.Add(scripted.Seg{Addr: at + 64, Len: 48})
			g.Must(err)
			r.SetDesc(int(head), desc(at+64, 48, flagIndirect, 0))
			kick(g, 2)
			if _, n, err := r.Wait(); err != nil || n != 1 || g.Mem.Bytes[at+32] != virtio.CtrlOK {
				t.Fatalf("size %d, command %d: %d bytes, answer %d, %v", size, i, n, g.Mem.Bytes[at+32], err)
			}
		}
		c.Alive(g)
	}
}

// V07: the same on rings for frames, also of one and two descriptors.
func TestV07Frames(t *testing.T) {
	t.Parallel()
	h := scripted.NewHost(t, 1)
	c := h.ServeTAP(t)
	for _, size := range []int{1, 2, 64} {
		for _, more := range []virtio.Features{0, virtio.FeatureEventIdx} {
			g := c.Dial(t)
			g.Size = size
			g.Hello(more)
			for q := range 2 {
				g.Ring(q).Reset(65500)
			}
			watch(g, 0, 1)
			for range 100 {
				f := g.Frame(60)
				g.Transmit(1, f)
				if got, err := h.Receive(); err != nil || !bytes.Equal(got, f) {
					t.Fatalf("size %d: the TAP carries % x, %v; want % x", size, got, err, f)
				}
				f = g.Frame(60)
				g.Must(h.Send(f))
				if _, got := g.Receive(0); !bytes.Equal(got, f) {
					t.Fatalf("size %d: the guest gets % x; want % x", size, got, f)
				}
			}
			c.Alive(g)
		}
	}
}

// V11: the device acts on no index that the driver has not written, while the
// driver publishes one entry after the other over all byte boundaries.
func TestV11Indices(t *testing.T) {
	t.Parallel()
	const entries = 70_000
	for q, port := range map[int]string{1: "null", 0: "source:60"} {
		t.Run(port, func(t *testing.T) {
			t.Parallel()
			c, api := serveAPI(t, port)
			g := c.Dial(t)
			g.Hello(0)
			watch(g, q)
			plain(g, q)
			g.Must(errors.Join(hose{g, q, 1}.pour(entries), hose{g, q, 1}.rest()))
			barrier(g, q)
			if n := api.queue(t, q).Packets; n != entries {
				t.Errorf("%d frames for %d entries", n, entries)
			}
			if n := signals(g, g.Ring(q).Err); n != 0 {
				t.Error("the ring is broken")
			}
			c.Alive(g)
		})
	}
}
