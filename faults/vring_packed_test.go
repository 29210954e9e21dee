package faults

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/vhostnet/vhostnet/internal/scripted"
	"github.com/vhostnet/vhostnet/vhostuser"
	"github.com/vhostnet/vhostnet/virtio"
)

// packedLayout is how many descriptors a driver uses for what.
type packedLayout struct {
	// size is that of the rings for frames.
	size int
	// tx is how many descriptors a frame to be sent takes.
	tx int
	// A received frame has so many chains of so many buffers of bytes.
	chains, buffers, bytes int
	// ctrl is how many descriptors a command takes, on a ring of ctrlSize.
	ctrl, ctrlSize int
}

// V14: in packed rings of any size, chains lie across the end, each takes one used
// descriptor, at its first place and with the ID of its last one, and a frame over
// several chains is seen at once.
func TestV14Packed(t *testing.T) {
	t.Parallel()
	for _, l := range []packedLayout{
		{size: 200, tx: 3, chains: 3, buffers: 2, bytes: 60, ctrl: 4, ctrlSize: 200},
		{size: 7, tx: 3, chains: 3, buffers: 2, bytes: 60, ctrl: 4, ctrlSize: 7},
		{size: 3, tx: 3, chains: 3, buffers: 1, bytes: 120, ctrl: 3, ctrlSize: 3},
		{size: 3, tx: 2, chains: 1, buffers: 3, bytes: 120, ctrl: 2, ctrlSize: 3},
		{size: 1, tx: 1, chains: 1, buffers: 1, bytes: 400, ctrl: 2, ctrlSize: 2},
	} {
		c := scripted.Serve(t, "echo")
		g := c.Dial(t)
		g.Hello(virtio.FeatureRingPacked | virtio.FeatureCtrlRX)
		for _, n := range []uint32{0, 32769} {
			g.Refused(vhostuser.ReqSetVringNum, scripted.U32(0, n))
		}
		rx, tx, ctrl := g.Packed(0, l.size), g.Packed(1, l.size), g.Packed(2, l.ctrlSize)
		// All are one before the end of a lap, from their earlier lives.
		for _, r := range []*scripted.PackedRing{rx, tx, ctrl} {
			r.Advance(3*r.Size - 1)
			g.StartPacked(r)
		}
		for round := range 3 * max(l.size, 5) {
			packedRound(t, g, l, rx, tx, ctrl, round)
		}
		for _, r := range []*scripted.PackedRing{rx, tx, ctrl} {
			if base, err := g.GetVringBase(r.Index); err != nil || base != r.Base() || r.Seen != r.Next {
				t.Errorf("%+v, ring %d: base %#x, %v, want %#x", l, r.Index, base, err, r.Base())
			}
		}
		c.Alive(g)
	}
}

// packedRound sends a frame and receives its echo.
func packedRound(t *testing.T, g *scripted.Guest, l packedLayout, rx, tx, ctrl *scripted.PackedRing, round int) {
	t.Helper()
	hdr := g.HeaderSize()
	frame := g.Frame(300)
	for i := range l.chains {
		at := g.Mem.Buffer(0, i)
		var segs []scripted.Seg
		for range l.buffers {
			segs = append(segs, scripted.Seg{Addr: at, Len: uint32(l.bytes), Write: true})
			at += uint64(l.bytes)
		}
		rx.Put(uint16(1000+i), segs...)()
	}
	g.Must(rx.Notify())

	at := g.Mem.Buffer(1, 0)
	copy(g.Mem.At(at+uint64(hdr), len(frame)), frame)
	show := tx.Put(uint16(round), pieces(at, [][]int{
		{hdr + len(frame)}, {hdr, len(frame)}, {hdr, 20, len(frame) - 20},
	}[l.tx-1]...)...)
	// Only its tail is there, if it has one: nothing is sent. The control ring answers
	// behind it.
	g.Must(tx.Notify())
	packedCommand(t, g, ctrl, l.ctrl)
	if _, _, ok, _ := tx.Reap(); ok {
		t.Fatal("used before it was available")
	}
	show()
	g.Must(tx.Notify())
	if id, n := g.WaitPacked(tx); id != uint16(round) || n != 0 {
		t.Fatalf("%+v: sent %d with %d bytes", l, id, n)
	}
	var got []byte
	for i := range l.chains {
		// The first one is written last: where it is, the others are.
		if i == 0 {
			scripted.Until(t, "a frame is received", func() bool { return rx.Used() })
		}
		id, n, ok, err := rx.Reap()
		if err != nil || !ok {
			t.Fatalf("%+v: chain %d of a frame is not used yet, %v", l, i, err)
		}
		if int(id) != 1000+i || int(n) > l.buffers*l.bytes {
			t.Fatalf("%+v: received in %d with %d bytes", l, id, n)
		}
		got = append(got, g.Mem.At(g.Mem.Buffer(0, i), int(n))...)
	}
	if n := binary.LittleEndian.Uint16(got[10:]); int(n) != l.chains {
		t.Fatalf("%+v: num_buffers %d", l, n)
	}
	want := append(append(bytes.Clone(frame[6:12]), frame[:6]...), frame[12:]...)
	if !bytes.Equal(got[hdr:], want) {
		t.Fatalf("%+v, round %d: echo of\n% x is\n% x", l, round, frame, got[hdr:])
	}
}

// packedCommand carries out a control command of two, three or four descriptors.
func packedCommand(t *testing.T, g *scripted.Guest, r *scripted.PackedRing, descriptors int) {
	t.Helper()
	at := g.Mem.Buffer(2, 0)
	b := g.Mem.At(at, 4)
	copy(b, []byte{virtio.CtrlRX, 0, 1, 0xff})
	segs := pieces(at, [][]int{{3, 1}, {1, 2, 1}, {1, 1, 1, 1}}[descriptors-2]...)
	segs[len(segs)-1].Write = true
	r.Put(77, segs...)()
	g.Must(r.Notify())
	if id, n := g.WaitPacked(r); id != 77 || n != 1 || b[3] != virtio.CtrlOK {
		t.Fatalf("answer %d of %d bytes: %d", id, n, b[3])
	}
}

// V01 for packed rings: a chain without an end breaks its ring, and no other one.
func TestV14Endless(t *testing.T) {
	t.Parallel()
	c := scripted.Serve(t, "echo")
	g := c.Dial(t)
	g.Hello(virtio.FeatureRingPacked | virtio.FeatureCtrlRX)
	tx, ctrl := g.Packed(1, 7), g.Packed(2, 7)
	g.StartPacked(tx)
	g.StartPacked(ctrl)
	for i := range 7 {
		at := int(tx.Desc) + 16*i
		g.Mem.View.Store64(at, g.Mem.Buffer(1, 0))
		g.Mem.View.Store64(at+8, 60|uint64(virtio.DescFNext|virtio.DescFAvail)<<48)
	}
	g.Must(tx.Notify())
	c.Await("virtqueue is broken", 1)
	packedCommand(t, g, ctrl, 4)
	c.Alive(g)
}
