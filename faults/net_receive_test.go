package faults

import (
	"bytes"
	"errors"
	"testing"
	"time"

	"github.com/vhostnet/vhostnet/internal/scripted"
	"github.com/vhostnet/vhostnet/virtio"
)

// N01: the header has the size and the content that follow from the features.
func TestN01Header(t *testing.T) {
	t.Parallel()
	h := scripted.NewHost(t, 1)
	c := h.ServeTAP(t)
	const v1, mrg = virtio.FeatureVersion1, virtio.FeatureMrgRxBuf
	for _, f := range []virtio.Features{0, mrg, v1, v1 | mrg, 0} {
		g := c.Dial(t)
		g.HelloExactly(f | virtio.FeatureProtocolFeatures)
		g.Start(0, 1)
		hdr := 12
		if f == 0 {
			hdr = 10
		}
		for range 3 {
			frame := g.Frame(60)
			r, at := g.Ring(1), g.Mem.Buffer(1, 0)
			clear(g.Mem.At(at, hdr))
			copy(g.Mem.At(at+uint64(hdr), 60), frame)
			_, err := r.Add(scripted.Seg{Addr: at, Len: uint32(hdr + 60)})
			g.Must(err)
			kick(g, 1)
			_, n, err := r.Wait()
			g.Must(err)
			if got, err := h.Receive(); err != nil || n != 0 || !bytes.Equal(got, frame) {
				t.Errorf("%v: %d bytes written, %v: the TAP carries % x; want % x", f, n, err, got, frame)
			}

			r, at = g.Ring(0), g.Mem.Buffer(0, 0)
			copy(g.Mem.At(at, 2048), bytes.Repeat([]byte{0xEE}, 2048))
			_, err = r.Add(scripted.Seg{Addr: at, Len: 2048, Write: true})
			g.Must(err)
			kick(g, 0)
			frame = g.Frame(60)
			g.Must(h.Send(frame))
			_, n, err = r.Wait()
			g.Must(err)
			want := append(append(make([]byte, hdr), frame...), bytes.Repeat([]byte{0xEE}, 2048-hdr-60)...)
			if hdr == 12 {
				want[10] = 1 // num_buffers
			}
			if got := g.Mem.At(at, 2048); int(n) != hdr+60 || !bytes.Equal(got, want) {
				t.Errorf("%v: %d bytes written: % x; want % x", f, n, got[:80], want[:80])
			}
		}
		c.Alive(g)
	}
}

// receiver is a guest that posts buffers of any size, and puts frames together.
type receiver struct {
	*scripted.Guest
	t *testing.T
	// at is where the next buffer goes, addrs where they are, by head.
	at    uint64
	addrs map[uint16]uint64
	// hdr is the header of the last frame.
	hdr virtio.NetHeader
}

func newReceiver(t *testing.T, g *scripted.Guest) *receiver {
	return &receiver{Guest: g, t: t, at: scratch, addrs: make(map[uint16]uint64)}
}

// post posts a buffer of each size, without length if it is 0.
func (r *receiver) post(sizes ...int) {
	r.t.Helper()
	for _, n := range sizes {
		if r.at+uint64(n) > scripted.MemorySize {
			r.at = scratch
		}
		copy(r.Mem.At(r.at, n), bytes.Repeat([]byte{0xEE}, n))
		head, err := r.Ring(0).Add(scripted.Seg{Addr: r.at, Len: uint32(n), Write: true})
		r.Must(err)
		r.addrs[head] = r.at
		r.at += uint64(n) + 64
	}
	kick(r.Guest, 0)
}

// next returns the next used element, its bytes and their number.
func (r *receiver) next() []byte {
	r.t.Helper()
	head, n, err := r.Ring(0).Wait()
	r.Must(err)
	return r.Mem.At(r.addrs[head], int(n))
}

// frame returns the next frame, how many buffers it took, and how many came back
// empty in front of it.
func (r *receiver) frame() (frame []byte, buffers, empty int) {
	r.t.Helper()
	b := r.next()
	for len(b) == 0 {
		empty++
		b = r.next()
	}
	if len(b) < 12 {
		r.t.Fatalf("%d bytes of header", len(b))
	}
	r.hdr.Decode(b[:12])
	buffers = int(r.hdr.NumBuffers)
	frame = bytes.Clone(b[12:])
	for range buffers - 1 {
		frame = append(frame, r.next()...)
	}
	return frame, buffers, empty
}

// expect sends a frame of n bytes and expects it, whole.
func (r *receiver) expect(h *scripted.Host, n int) (buffers, empty int) {
	r.t.Helper()
	f := r.Frame(n)
	r.Must(h.Send(f))
	got, buffers, empty := r.frame()
	if !bytes.Equal(got, f) {
		r.t.Fatalf("received %d bytes, frame %d; sent %d bytes, frame %d", len(got), scripted.Seq(got), n, scripted.Seq(f))
	}
	return buffers, empty
}

// N03: a frame for which there are too few buffers waits for more, or is dropped;
// it is never cut, and never stops those behind it.
func TestN03Mergeable(t *testing.T) {
	t.Parallel()
	h := scripted.NewHost(t, 1)
	c, api := serveTAPWithAPI(t, h)
	g := c.Dial(t)
	g.Hello(0)
	watch(g, 0, 1)
	r := newReceiver(t, g)

	// The frame finds 400 bytes; it is dropped when it has waited for more.
	r.post(200, 200)
	g.Must(h.Send(g.Frame(1514)))
	scripted.Until(t, "the frame is dropped", func() bool { return api.queue(t, 0).Drops["no_buffer"] == 1 })
	if n := g.Ring(0).UsedIdx(); n != 0 {
		t.Fatalf("used index %d, and no frame fits", n)
	}
	r.post(500, 500, 500, 500, 500, 500, 500, 500)
	if n, _ := r.expect(h, 60); n != 1 {
		t.Errorf("%d buffers for a small frame", n)
	}
	if n, _ := r.expect(h, 1514); n != 4 {
		t.Errorf("%d buffers for 1526 bytes in 200 and 500s", n)
	}
	// All the others are still there.
	if n := g.Ring(0).Outstanding(); n != 5 {
		t.Fatalf("%d buffers are left, want 5", n)
	}
	restart(g, 0, 0)

	// Buffers too small for a header come back empty, also from between good
	// ones; one for a header alone is used as such.
	for range 20 {
		r.post(0, 8, 11, 12, 2048, 12, 0, 11, 12, 12, 48, 8, 2048)
		total := 0
		for range 2 {
			_, empty := r.expect(h, 1000)
			total += empty
		}
		// Three in front of the first good ones, then all up to the last bad one.
		if total != 3+7 {
			t.Errorf("%d buffers came back empty", total)
		}
		restart(g, 0, 0)
	}
	r.post(12, 8, 2048, 2048)
	r.expect(h, 60)
	r.expect(h, 60)
	restart(g, 0, 0)

	// Headers are all that there is room for: 64 times 12 bytes.
	for range 64 {
		r.post(12)
	}
	g.Must(h.Send(g.Frame(1514)))
	f := g.Frame(60)
	g.Must(h.Send(f))
	if got, n, _ := r.frame(); n != 6 || !bytes.Equal(got, f) {
		t.Errorf("%d buffers, % x", n, got)
	}
	expectIdle(t, c)
	restart(g, 0, 0)
	c.RoundTrip(g)
	c.Alive(g)
}

// N03: without mergeable buffers.
func TestN03Single(t *testing.T) {
	t.Parallel()
	h := scripted.NewHost(t, 1)
	c := h.ServeTAP(t)
	g := c.Dial(t)
	g.HelloExactly(virtio.FeatureVersion1 | virtio.FeatureProtocolFeatures)
	watch(g, 0, 1)
	r := newReceiver(t, g)
	r.post(100)
	g.Must(h.Send(g.Frame(514)))
	if n, empty := r.expect(h, 60); n != 1 || empty != 0 {
		t.Errorf("num_buffers %d, %d empty buffers", n, empty)
	}
	r.post(0, 8, 11, 12, 13, 25, 2048, 0, 2048)
	if _, empty := r.expect(h, 60); empty != 6 {
		t.Errorf("%d empty buffers, want 6", empty)
	}
	if _, empty := r.expect(h, 1514); empty != 1 {
		t.Errorf("%d empty buffers, want 1", empty)
	}
	expectIdle(t, c)
	if err := g.Ring(0).WaitCall(time.Millisecond); err != nil && !errors.Is(err, scripted.ErrHang) {
		t.Error(err)
	}
	restart(g, 0, g.Ring(0).Next)
	c.RoundTrip(g)
	c.Alive(g)
}
