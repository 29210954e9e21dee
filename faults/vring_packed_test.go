package faults

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/vhostnet/vhostnet/internal/scripted"
	"github.com/vhostnet/vhostnet/vhostuser"
	"github.com/vhostnet/vhostnet/virtio"
)

// V14: in packed rings of any size, chains lie across the end, each takes one used
// descriptor, at its first place and with the ID of its last one, and a frame over
// several chains is seen at once.
func TestV14Packed(t *testing.T) {
	t.Parallel()
	for _, size := range []int{200, 7} {
		c := scripted.Serve(t, "echo")
		g := c.Dial(t)
		g.Hello(virtio.FeatureRingPacked | virtio.FeatureCtrlRX)
		for _, n := range []uint32{0, 32769} {
			g.Refused(vhostuser.ReqSetVringNum, scripted.U32(0, n))
		}
		rx, tx, ctrl := g.Packed(0, size), g.Packed(1, size), g.Packed(2, size)
		// Both are one before the end of a lap, from their earlier lives.
		for _, r := range []*scripted.PackedRing{rx, tx, ctrl} {
			r.Advance(3*size - 1)
			g.StartPacked(r)
		}
		hdr := g.HeaderSize()
		for round := range 3 * size {
			frame := g.Frame(300)
			// Three chains of two buffers, of 60 bytes each.
			post := func(i int) {
				at := g.Mem.Buffer(0, i)
				rx.Put(uint16(1000+i), scripted.Seg{Addr: at, Len: 60, Write: true}, scripted.Seg{Addr: at + 60, Len: 60, Write: true})()
			}
			for i := range 3 {
				post(i)
			}
			g.Must(rx.Notify())

			at := g.Mem.Buffer(1, 0)
			copy(g.Mem.At(at+uint64(hdr), len(frame)), frame)
			show := tx.Put(uint16(round), scripted.Seg{Addr: at, Len: uint32(hdr)},
				scripted.Seg{Addr: at + uint64(hdr), Len: 20}, scripted.Seg{Addr: at + uint64(hdr) + 20, Len: uint32(len(frame) - 20)})
			// Only its tail is there: nothing is sent. The control ring answers behind it.
			g.Must(tx.Notify())
			packedCommand(t, g, ctrl)
			if _, _, ok, _ := tx.Reap(); ok {
				t.Fatal("used before it was available")
			}
			show()
			g.Must(tx.Notify())
			if id, n := g.WaitPacked(tx); id != uint16(round) || n != 0 {
				t.Fatalf("size %d: sent %d with %d bytes", size, id, n)
			}
			var got []byte
			for i := range 3 {
				id, n := g.WaitPacked(rx)
				if int(id) != 1000+i || n > 120 {
					t.Fatalf("size %d: received in %d with %d bytes", size, id, n)
				}
				got = append(got, g.Mem.At(g.Mem.Buffer(0, i), int(n))...)
			}
			if n := binary.LittleEndian.Uint16(got[10:]); n != 3 {
				t.Fatalf("size %d: num_buffers %d", size, n)
			}
			want := append(append(bytes.Clone(frame[6:12]), frame[:6]...), frame[12:]...)
			if !bytes.Equal(got[hdr:], want) {
				t.Fatalf("size %d, round %d: echo of\n% x is\n% x", size, round, frame, got[hdr:])
			}
		}
		for _, r := range []*scripted.PackedRing{rx, tx, ctrl} {
			if base, err := g.GetVringBase(r.Index); err != nil || base != r.Base() || r.Seen != r.Next {
				t.Errorf("size %d, ring %d: base %#x, %v, want %#x", size, r.Index, base, err, r.Base())
			}
		}
		c.Alive(g)
	}
}

// packedCommand carries out a control command of four descriptors.
func packedCommand(t *testing.T, g *scripted.Guest, r *scripted.PackedRing) {
	t.Helper()
	at := g.Mem.Buffer(2, 0)
	b := g.Mem.At(at, 4)
	copy(b, []byte{virtio.CtrlRX, 0, 1, 0xff})
	r.Put(77, scripted.Seg{Addr: at, Len: 1}, scripted.Seg{Addr: at + 1, Len: 1},
		scripted.Seg{Addr: at + 2, Len: 1}, scripted.Seg{Addr: at + 3, Len: 1, Write: true})()
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
	packedCommand(t, g, ctrl)
	c.Alive(g)
}
