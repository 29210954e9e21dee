package faults

import (
	"bytes"
	"encoding/binary"
	"testing"

	"github.com/vhostnet/vhostnet/internal/scripted"
	"github.com/vhostnet/vhostnet/virtio"
)

const (
	flagNext     = virtio.DescFNext
	flagWrite    = virtio.DescFWrite
	flagIndirect = virtio.DescFIndirect
	nowhere      = 0xFFFF_FFFF_FFFF_FFFF
)

func desc(addr uint64, n uint32, flags, next uint16) scripted.Desc {
	return scripted.Desc{Addr: addr, Len: n, Flags: flags, Next: next}
}

// hostile are descriptor tables whose chain begins at descriptor 0. The flag is
// WRITE for the rings whose buffers the device fills.
func hostile(flag uint16) map[string][]scripted.Desc {
	const at, n = scratch, scripted.DefaultSize
	return map[string][]scripted.Desc{
		"link to itself":        {desc(at, 0, flag|flagNext, 0)},
		"loop of two":           {desc(at, 60, flag|flagNext, 1), desc(at, 60, flag|flagNext, 0)},
		"loop without length":   {desc(at, 0, flag|flagNext, 1), desc(at, 0, flag|flagNext, 0)},
		"next is the size":      {desc(at, 60, flag|flagNext, n)},
		"next is the last":      {desc(at, 60, flag|flagNext, 0xFFFF)},
		"behind the memory":     {desc(at, 12, flag|flagNext, 1), desc(scripted.MemorySize, 60, flag, 0)},
		"over the memory's end": {desc(at, 12, flag|flagNext, 1), desc(scripted.MemorySize-59, 60, flag, 0)},
		"address wraps":         {desc(at, 12, flag|flagNext, 1), desc(nowhere-58, 60, flag, 0)},
		"nowhere":               {desc(nowhere, 60, flag, 0)},
		"not negotiated":        {desc(at, 16, flagIndirect, 0)},
		"both directions":       {desc(at, 60, flagNext|flagWrite, 1), desc(at, 60, 0, 0)},
	}
}

// V01: bad chains are given back with nothing written, as many as there are, and
// the ring goes on.
func TestV01HostileChains(t *testing.T) {
	t.Parallel()
	c := scripted.Serve(t, "echo")
	g := c.Dial(t)
	g.Hello(0)
	watch(g, 0, 1, 2)

	put := func(q int, table []scripted.Desc, more ...scripted.Desc) {
		for i, d := range append(table, more...) {
			g.Ring(q).SetDesc(i, d)
		}
		for range scripted.DefaultSize {
			g.Ring(q).Put(0)
		}
		kick(g, q)
	}
	back := func(q int) {
		t.Helper()
		for range scripted.DefaultSize {
			expectUsed(t, g.Ring(q), 0, 0)
		}
	}
	tx := hostile(0)
	tx["all writable"] = []scripted.Desc{desc(scratch, 12, flagNext|flagWrite, 1), desc(scratch, 60, flagWrite, 0)}
	tx["one byte writable"] = []scripted.Desc{desc(scratch, 72, flagNext, 1), desc(scratch, 1, flagWrite, 0)}
	for name, table := range tx {
		t.Logf("transmit: %s", name)
		put(1, table)
		back(1)
		restart(g, 1, g.Ring(1).Next)
		c.RoundTrip(g)
	}
	rx := hostile(flagWrite)
	rx["readable"] = []scripted.Desc{desc(scratch, 2048, 0, 0)}
	rx["readable in front"] = []scripted.Desc{desc(scratch, 12, flagNext, 1), desc(scratch+64, 2048, flagWrite, 0)}
	for name, table := range rx {
		t.Logf("receive: %s", name)
		restart(g, 0, 0)
		put(0, table)
		// The device looks for a buffer when there is a frame.
		f := g.Frame(60)
		g.Transmit(1, f)
		back(0)
		restart(g, 0, g.Ring(0).Next)
		if _, got := g.Receive(0); scripted.Seq(got) != scripted.Seq(f) {
			t.Errorf("frame %d behind the bad buffers, want %d", scripted.Seq(got), scripted.Seq(f))
		}
	}
	ctl := hostile(0)
	ctl["writable in front"] = []scripted.Desc{desc(scratch, 1, flagNext|flagWrite, 1), desc(scratch, 11, 0, 0)}
	for name, table := range ctl {
		t.Logf("control: %s", name)
		put(2, table)
		back(2)
		restart(g, 2, g.Ring(2).Next)
		expectAck(t, g, 2, virtio.CtrlErr, 99, 99)
	}
	if n := c.Lines(lineRingBroken); n != 0 {
		t.Errorf("%d rings are broken: bad chains are no reason", n)
	}
	c.Alive(g)
}

// V01: a buffer without length is legal wherever it points.
func TestV01Filler(t *testing.T) {
	t.Parallel()
	h := scripted.NewHost(t, 1)
	c := h.ServeTAP(t)
	g := c.Dial(t)
	g.Hello(0)
	watch(g, 0, 1)
	f := g.Frame(60)
	at := g.Mem.Buffer(1, 0)
	copy(g.Mem.At(at+12, 60), f)
	_, err := g.Ring(1).Add(scripted.Seg{Addr: nowhere}, scripted.Seg{Addr: at, Len: 12}, scripted.Seg{Addr: nowhere}, scripted.Seg{Addr: at + 12, Len: 60}, scripted.Seg{})
	g.Must(err)
	kick(g, 1)
	if got, err := h.Receive(); err != nil || !bytes.Equal(got, f) {
		t.Errorf("the TAP carries % x, %v; want % x", got, err, f)
	}
	_, _, err = g.Ring(1).Wait()
	g.Must(err)
	c.RoundTrip(g)
	c.Alive(g)
}

// V01: a head that is no descriptor cannot be given back. The ring is broken, once
// and by itself, until it is restarted.
func TestV01BadHead(t *testing.T) {
	t.Parallel()
	c := scripted.Serve(t, "echo")
	g := c.Dial(t)
	g.Hello(0)
	watch(g, 0, 1, 2)
	broken := 0
	for _, head := range []uint16{scripted.DefaultSize, 0xFFFF} {
		for _, q := range []int{0, 1, 2} {
			r := g.Ring(q)
			var f []byte
			if q == 0 {
				f = g.Frame(60)
				restart(g, 0, 0)
				g.Transmit(1, f)
			}
			used := r.UsedIdx()
			for range 5 {
				r.Put(head)
			}
			kick(g, q)
			expectBroken(t, r)
			if n := r.UsedIdx(); n != used {
				t.Errorf("ring %d: used index %d, was %d", q, n, used)
			}
			// It stays so, and is not spoken of again.
			g.Must(r.Notify())
			barrier(g, q)
			if n := signals(g, r.Err); n != 0 {
				t.Errorf("ring %d: %d more error signals", q, n)
			}
			broken++
			c.Await(lineRingBroken, broken)
			restart(g, q, 0)
			if q == 0 {
				g.Receive(0)
			}
			c.RoundTrip(g)
			expectAck(t, g, 2, virtio.CtrlErr, 99, 99)
		}
	}
	if n := c.Lines(lineRingBroken); n != broken {
		t.Errorf("%d lines of broken rings, want %d", n, broken)
	}
	c.Alive(g)
}

// table writes an indirect table, which need not be aligned.
func table(g *scripted.Guest, at uint64, descs ...scripted.Desc) {
	for i, d := range descs {
		b := g.Mem.At(at+16*uint64(i), 16)
		binary.LittleEndian.PutUint64(b, d.Addr)
		binary.LittleEndian.PutUint32(b[8:], d.Len)
		binary.LittleEndian.PutUint16(b[12:], d.Flags)
		binary.LittleEndian.PutUint16(b[14:], d.Next)
	}
}

// V03: what is legal to the last byte is carried.
func TestV03Transmit(t *testing.T) {
	t.Parallel()
	h := scripted.NewHost(t, 1)
	c := h.ServeTAP(t)
	g := c.Dial(t)
	g.Size = 16
	g.Hello(virtio.FeatureIndirectDesc)
	watch(g, 0, 1)
	sent := func(name string, f []byte) {
		t.Helper()
		kick(g, 1)
		if got, err := h.Receive(); err != nil || !bytes.Equal(got, f) {
			t.Fatalf("%s: the TAP carries % x, %v; want % x", name, got, err, f)
		}
		_, n, err := g.Ring(1).Wait()
		if err != nil || n != 0 {
			t.Fatalf("%s: %d bytes written, %v", name, n, err)
		}
	}
	// frame lays out a packet whose last byte is at end.
	frame := func(end uint64) (at uint64, f []byte) {
		f = g.Frame(60)
		at = end - 72
		clear(g.Mem.At(at, 12))
		copy(g.Mem.At(at+12, 60), f)
		return at, f
	}
	for range 3 {
		at, f := frame(scratch + 1024)
		var segs []scripted.Seg
		for i := range uint64(12) {
			segs = append(segs, scripted.Seg{Addr: at + i, Len: 1})
		}
		for i := range uint64(4) {
			segs = append(segs, scripted.Seg{Addr: at + 12 + 15*i, Len: 15})
		}
		_, err := g.Ring(1).Add(segs...)
		g.Must(err)
		sent("a chain of all descriptors", f)

		at, f = frame(scripted.MemorySize)
		_, err = g.Ring(1).Add(scripted.Seg{Addr: at, Len: 72})
		g.Must(err)
		sent("the last byte of the memory", f)

		for _, flags := range []uint16{flagIndirect, flagIndirect | flagWrite} {
			at, f = frame(scratch + 1024)
			table(g, scratch+4097, desc(at, 12, flagNext, 1), desc(at+12, 60, 0, 0))
			// The chain's only descriptor is rewritten before it is shown.
			head, err := g.Ring(1).Add(scripted.Seg{Addr: scratch + 4097, Len: 32})
			g.Must(err)
			g.Ring(1).SetDesc(int(head), desc(scratch+4097, 32, flags, 0))
			sent("an indirect table at an odd address", f)
		}
	}
	c.RoundTrip(g)
	c.Alive(g)
}

// V03: a receive buffer of 68 KiB is one, and a length that no memory has is none.
func TestV03Receive(t *testing.T) {
	t.Parallel()
	c := scripted.Serve(t, "echo")
	g := c.Dial(t)
	g.HelloExactly(virtio.FeatureVersion1 | virtio.FeatureProtocolFeatures)
	watch(g, 0, 1)
	r := g.Ring(0)
	for range 3 {
		r.SetDesc(0, desc(scratch, 0x11000, flagWrite, 0))
		r.Put(0)
		kick(g, 0)
		g.Transmit(1, g.Frame(60))
		expectUsed(t, r, 0, 72)

		r.SetDesc(0, desc(scratch, 0xFFFFFFFF, flagWrite|flagNext, 1))
		r.SetDesc(1, desc(scratch, 0xFFFFFFFF, flagWrite, 0))
		r.SetDesc(2, desc(scratch, 0x11000, flagWrite, 0))
		r.Put(0)
		r.Put(2)
		kick(g, 0)
		g.Transmit(1, g.Frame(1000))
		expectUsed(t, r, 0, 0)
		expectUsed(t, r, 2, 1012)
	}
	restart(g, 0, r.Next)
	c.RoundTrip(g)
	c.Alive(g)
}
