package faults

import (
	"bytes"
	"slices"
	"testing"

	"github.com/vishvananda/netlink"

	"github.com/vhostnet/vhostnet/internal/scripted"
	"github.com/vhostnet/vhostnet/virtio"
)

// T01: a chain may have as many buffers as the ring, and more in a table, which is
// more than one system call takes.
func TestT01LongChains(t *testing.T) {
	t.Parallel()
	h := scripted.NewHost(t, 1)
	c := h.ServeTAP(t)
	g := c.Dial(t)
	g.Size = 1024
	g.Hello(virtio.FeatureIndirectDesc)
	watch(g, 0, 1)
	r := g.Ring(1)
	bytewise := slices.Repeat([]int{1}, 1024)
	sent := func(name string, f []byte) {
		t.Helper()
		kick(g, 1)
		if got, err := h.Receive(); err != nil || !bytes.Equal(got, f) {
			t.Fatalf("%s: %d bytes on the TAP, %v, want %d", name, len(got), err, len(f))
		}
		if _, n, err := r.Wait(); err != nil || n != 0 {
			t.Fatalf("%s: %d bytes written, %v", name, n, err)
		}
	}
	for range 3 {
		f := g.Frame(1012)
		packet(g, scratch, virtio.NetHeader{}, f)
		_, err := r.Add(pieces(scratch, bytewise...)...)
		g.Must(err)
		sent("1024 descriptors", f)

		// A header, and a table of 1024.
		f = g.Frame(1024)
		packet(g, scratch, virtio.NetHeader{}, f)
		var descs []scripted.Desc
		for i := range 1024 {
			descs = append(descs, desc(scratch+12+uint64(i), 1, flagNext, uint16(i+1)))
		}
		descs[1023].Flags = 0
		table(g, tables, descs...)
		head, err := r.Add(scripted.Seg{Addr: scratch, Len: 12}, scripted.Seg{Addr: tables, Len: 16 * 1024})
		g.Must(err)
		for i := range r.Size {
			// The table's descriptor is the one that is not the head.
			at := int(r.Desc) + 16*i
			if g.Mem.View.Load64(at) == tables && i != int(head) {
				r.SetDesc(i, desc(tables, 16*1024, flagIndirect, 0))
			}
		}
		sent("a table of 1024 behind a header", f)
		for i := range r.Size {
			r.SetDesc(i, scripted.Desc{})
		}

		// More than the ring and a table can have is a fault, and no more than that.
		g.Mem.View.Store16(tables+16*1023+12, flagNext)
		g.Mem.View.Store16(tables+16*1023+14, 0)
		r.SetDesc(0, desc(tables, 16*1024, flagIndirect, 0))
		r.Put(0)
		kick(g, 1)
		expectUsed(t, r, 0, 0)
	}
	restart(g, 1, r.Next)
	c.RoundTrip(g)
	c.Alive(g)
}

// T01: what is wrong with packets is counted, and not written down for each.
func TestT01Malformed(t *testing.T) {
	t.Parallel()
	h := scripted.NewHost(t, 1)
	c, api := serveTAPWithAPI(t, h)
	g := c.Dial(t)
	g.Hello(virtio.FeatureCSum)
	watch(g, 0, 1)
	r := g.Ring(1)
	packet(g, scratch, virtio.NetHeader{Flags: virtio.NetHdrFNeedsCSum, CSumStart: 0xFFFF}, g.Frame(60))
	bad := []scripted.Desc{
		desc(scratch, 72, flagNext, 0xFFFF),
		desc(nowhere, 72, 0, 0),
		desc(scratch, 72, flagWrite, 0),
		desc(scratch, 20, 0, 0),
		desc(scratch, 12, 0, 0),
		desc(scratch, 0, 0, 0),
		desc(scratch, 0x20000, 0, 0),
		desc(scratch, 72, 0, 0), // the header's checksum
	}
	for i := range r.Size {
		r.SetDesc(i, bad[i%len(bad)])
	}
	lines := c.Lines("")
	const entries = 100_000
	g.Must(hose{g, 1, 1}.pour(entries))
	g.Must(hose{g, 1, 1}.rest())
	barrier(g, 1)
	q, dropped := api.queue(t, 1), uint64(0)
	for _, why := range []string{"malformed_chain", "runt", "oversize", "bad_header"} {
		dropped += q.Drops[why]
	}
	if q.Packets != 0 || dropped != entries {
		t.Errorf("%d packets sent, %d dropped of %d: %v", q.Packets, dropped, entries, q.Drops)
	}
	if n := c.Lines("") - lines; n > 10 {
		t.Errorf("%d lines on standard error for %d packets", n, entries)
	}

	// Nor is that the host does not take them.
	link, err := netlink.LinkByName(scripted.TAP)
	g.Must(err)
	g.Must(netlink.LinkSetDown(link))
	plain(g, 1)
	g.Must(hose{g, 1, 1}.pour(10_000))
	g.Must(hose{g, 1, 1}.rest())
	barrier(g, 1)
	if n := api.queue(t, 1).Drops["port"]; n != 10_000 {
		t.Errorf("%d of 10000 frames are counted as refused by the TAP", n)
	}
	if n := c.Lines("") - lines; n > 10 {
		t.Errorf("%d lines on standard error", n)
	}
	g.Must(netlink.LinkSetUp(link))
	// The packet socket has been told that the link was down, which it says once.
	if f, err := h.Receive(); err == nil {
		t.Errorf("a frame that nobody sent: % x", f)
	}
	restart(g, 1, r.Next)
	c.RoundTrip(g)
	c.Alive(g)
}

// T01: a port that has no room is waited for. Nothing is lost, repeated or out of
// order when it takes frames again.
func TestT01Full(t *testing.T) {
	t.Parallel()
	c, api := serveAPI(t, "echo")
	g := c.Dial(t)
	g.Size = 1024
	g.Hello(0)
	watch(g, 0, 1)
	r := g.Ring(1)
	// The echo port holds half a megabyte: it has no room for all of these, and
	// nobody fetches them.
	const frames, size = 512, 1400
	for i := range uint64(frames) {
		at := scratch + 2048*i
		packet(g, at, virtio.NetHeader{}, g.Frame(size))
		_, err := r.Add(scripted.Seg{Addr: at, Len: 12 + size})
		g.Must(err)
	}
	kick(g, 1)
	scripted.Until(t, "the port is full", func() bool {
		before := r.UsedIdx()
		barrier(g, 1)
		return before > 0 && before == r.UsedIdx()
	})
	if r.UsedIdx() == frames {
		t.Fatalf("the port holds all %d frames", frames)
	}
	expectIdle(t, c)
	for i := range uint64(frames) {
		_, f := g.Receive(0)
		if scripted.Seq(f) != i+1 {
			t.Fatalf("frame %d, want %d", scripted.Seq(f), i+1)
		}
	}
	for range frames {
		_, n, err := r.Wait()
		if err != nil || n != 0 {
			t.Fatalf("%d bytes written, %v", n, err)
		}
	}
	if q := api.queue(t, 1); q.Packets != frames || len(q.Drops) != 0 {
		t.Errorf("%d frames were sent, drops %v", q.Packets, q.Drops)
	}
	c.RoundTrip(g)
	c.Alive(g)
}
