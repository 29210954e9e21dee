package faults

import (
	"testing"
	"time"

	"github.com/vhostnet/vhostnet/internal/scripted"
	"github.com/vhostnet/vhostnet/virtio"
)

// S01: GET_VRING_BASE answers the next available index to process.
func TestS01Base(t *testing.T) {
	c := scripted.Serve(t, "echo", "--queue-pairs=2")
	g := c.Dial(t)
	g.Hello(0)
	base := func(q int, want uint32) {
		t.Helper()
		if got, err := g.GetVringBase(q); err != nil || got != want {
			t.Errorf("ring %d: base %d, %v; want %d", q, got, err, want)
		}
	}
	// The echo port forgets what it holds when no ring is left: this one stays.
	g.Start(0)
	g.Post(0, 10)
	g.Ring(1).Reset(0xFFFD)
	g.Start(1)
	for range 5 {
		g.Transmit(1, g.Frame(60))
		g.Receive(0)
	}
	base(1, 2)
	base(1, 2)
	base(3, 0)
	base(0, 5)
	base(0, 5)
	g.Start(0, 1)
	c.RoundTrip(g)
	c.Alive(g)
}

// S01: the same with frames from outside, and on from there.
func TestS01Receive(t *testing.T) {
	h := scripted.NewHost(t, 1)
	c := h.ServeTAP(t)
	g := c.Dial(t)
	g.Hello(0)
	g.Start(0, 1)
	g.Post(0, 10)
	next := func() {
		t.Helper()
		f := g.Frame(60)
		g.Must(h.Send(f))
		_, got := g.Receive(0)
		if scripted.Seq(got) == 5 {
			_, got = g.Receive(0) // the TAP has kept the one that is sent below
		}
		if scripted.Seq(got) != scripted.Seq(f) {
			t.Fatalf("frame %d, want %d", scripted.Seq(got), scripted.Seq(f))
		}
	}
	for range 4 {
		next()
	}
	for range 2 {
		if base, err := g.GetVringBase(0); err != nil || base != 4 {
			t.Errorf("base %d, %v; want 4", base, err)
		}
	}
	// It is stopped: nothing moves any more.
	g.Must(h.Send(g.Frame(60)))
	g.InStep()
	if n := g.Ring(0).UsedIdx(); n != 4 {
		t.Errorf("used index %d after the stop at 4", n)
	}
	g.Start(0)
	for range 5 {
		next()
	}
	c.Alive(g)
}

// revive kills the process, which is replaced on its socket; the guest connects
// again and starts its rings at these bases, and kicks nothing.
func revive(t *testing.T, c *scripted.Child, old *scripted.Guest, bases ...uint16) (*scripted.Child, *scripted.Guest) {
	t.Helper()
	c.Kill()
	old.Must(old.Close())
	next := scripted.ServeAt(t, c.Path, "tap:"+scripted.TAP)
	next.Host = c.Host
	g := next.Dial(t)
	g.Adopt(old)
	g.Hello(virtio.FeatureEventIdx)
	for q, base := range bases {
		// The kick descriptor keeps its count: kicks of long ago announce nothing.
		_, err := scripted.Drain(g.Ring(q).Call)
		g.Must(err)
		g.StartAt(q, base)
		if err := g.Ring(q).WaitCall(scripted.Hang); err != nil {
			t.Errorf("ring %d: no interrupt at the start: %v", q, err)
		}
	}
	return next, g
}

// S04: the process dies with work in its rings. What was not used is processed
// by the next one, once, though nobody kicks.
func TestS04Revived(t *testing.T) {
	for name, stale := range map[string]bool{"base is used index": false, "base is 0": true} {
		t.Run(name, func(t *testing.T) {
			h := scripted.NewHost(t, 1)
			c := h.ServeTAP(t)
			g := c.Dial(t)
			g.Hello(virtio.FeatureEventIdx)
			g.Start(0, 1)
			g.Post(0, 64)
			for range 8 {
				f := g.Frame(60)
				g.Must(h.Send(f))
				if _, got := g.Receive(0); scripted.Seq(got) != scripted.Seq(f) {
					t.Fatalf("frame %d, want %d", scripted.Seq(got), scripted.Seq(f))
				}
			}
			g.Transmit(1, g.Frame(60)) // with a kick
			if _, err := h.Receive(); err != nil {
				t.Fatal(err)
			}
			want := make(map[uint64]bool)
			for range 6 {
				f := g.Frame(60)
				want[scripted.Seq(f)] = true
				g.Must(g.Queue(1, f))
			}
			bases := []uint16{g.Ring(0).UsedIdx(), g.Ring(1).UsedIdx()}
			if stale {
				bases = []uint16{0, 0}
			}
			c, g = revive(t, c, g, bases...)
			for len(want) > 0 {
				f, err := h.Receive()
				if err != nil || !want[scripted.Seq(f)] {
					t.Fatalf("frame %d, %v; want one of %v", scripted.Seq(f), err, want)
				}
				delete(want, scripted.Seq(f))
			}
			for range 6 {
				_, _, err := g.Ring(1).Wait()
				g.Must(err)
			}
			for range 40 {
				f := g.Frame(60)
				g.Must(h.Send(f))
				if _, got := g.Receive(0); scripted.Seq(got) != scripted.Seq(f) {
					t.Fatalf("frame %d, want %d", scripted.Seq(got), scripted.Seq(f))
				}
			}
			// A frame was sent twice if there is one more now.
			if f, err := h.ReceiveWithin(time.Millisecond); err == nil {
				t.Errorf("one frame too many: % x", f)
			}
			if n := g.Ring(0).Outstanding(); n != 64-48 {
				t.Errorf("%d buffers are left of 64 for 48 frames", n)
			}
			c.RoundTrip(g)
			c.Alive(g)
		})
	}
}
