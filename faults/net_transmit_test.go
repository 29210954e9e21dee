package faults

import (
	"bytes"
	"encoding/binary"
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/vhostnet/vhostnet/internal/scripted"
	"github.com/vhostnet/vhostnet/netdev"
	"github.com/vhostnet/vhostnet/virtio"
)

const (
	hostTSO = virtio.FeatureHostTSO4 | virtio.FeatureHostTSO6 | virtio.FeatureHostECN
	// hostOffloads are what a driver may ask of the frames that it sends.
	hostOffloads = virtio.FeatureCSum | hostTSO | virtio.FeatureHostUFO
)

// packet is a frame behind a header, in guest memory.
func packet(g *scripted.Guest, at uint64, hdr virtio.NetHeader, frame []byte) {
	b := g.Mem.At(at, virtio.NetHeaderLen+len(frame))
	hdr.Encode(b[:virtio.NetHeaderLen])
	copy(b[virtio.NetHeaderLen:], frame)
}

// pieces are consecutive buffers of these sizes.
func pieces(at uint64, sizes ...int) (segs []scripted.Seg) {
	for _, n := range sizes {
		segs = append(segs, scripted.Seg{Addr: at, Len: uint32(n)})
		at += uint64(n)
	}
	return segs
}

// N04: how a chain is cut says nothing about what is in it.
func TestN04Layout(t *testing.T) {
	t.Parallel()
	h := scripted.NewHost(t, 1)
	c, api := serveTAPWithAPI(t, h)
	g := c.Dial(t)
	g.Size = 1024
	g.Hello(virtio.FeatureCSum | hostTSO)
	watch(g, 0, 1)
	layouts := []struct {
		good  bool
		sizes []int
	}{
		{true, []int{1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 60}},
		{true, []int{7, 5, 60}},
		{true, []int{72}},
		{true, []int{13, 59}},
		{false, []int{12}},
		{false, []int{11}},
		{false, []int{0}},
		{false, []int{12, 13}},
	}
	expect := func(frames ...[]byte) {
		t.Helper()
		for _, f := range frames {
			if got, err := h.Receive(); err != nil || !bytes.Equal(got, f) {
				t.Fatalf("the TAP carries % x, %v; want % x", got, err, f)
			}
		}
	}
	back := func(n int) {
		t.Helper()
		for range n {
			if _, n, err := g.Ring(1).Wait(); err != nil || n != 0 {
				t.Fatalf("%d bytes written, %v", n, err)
			}
		}
	}
	for _, l := range layouts {
		f := g.Frame(60)
		packet(g, scratch, virtio.NetHeader{}, f)
		_, err := g.Ring(1).Add(pieces(scratch, l.sizes...)...)
		g.Must(err)
		kick(g, 1)
		back(1)
		if l.good {
			expect(f)
		}
	}
	for range 5 {
		var frames [][]byte
		for i := range 300 {
			l, at := layouts[i%len(layouts)], uint64(scratch+128*i)
			f := g.Frame(60)
			packet(g, at, virtio.NetHeader{}, f)
			_, err := g.Ring(1).Add(pieces(at, l.sizes...)...)
			g.Must(err)
			if l.good {
				frames = append(frames, f)
			}
		}
		kick(g, 1)
		back(300)
		expect(frames...)
	}

	// 64 KiB, to be segmented by the kernel, in pieces.
	big := tcp4(65535-40, false)
	packet(g, scratch, virtio.NetHeader{
		Flags: virtio.NetHdrFNeedsCSum, GSOType: virtio.GSOTCPv4, HdrLen: 54, GSOSize: 1448, CSumStart: 34, CSumOffset: 16,
	}, big)
	before := api.queue(t, 1)
	for _, sizes := range [][]int{{12 + len(big)}, {12, len(big)}, {5, 7, 14, 20, 20, 100, 65535 - 140}} {
		_, err := g.Ring(1).Add(pieces(scratch, sizes...)...)
		g.Must(err)
		kick(g, 1)
		back(1)
	}
	after := api.queue(t, 1)
	if n := after.Packets - before.Packets; n != 3 {
		t.Errorf("%d of 3 large frames were sent: %v", n, after.Drops)
	}
	c.RoundTrip(g)
	c.Alive(g)
}

// tcp4 is a TCP segment in IPv4 and Ethernet. Its checksum is whole, or that of the
// pseudo header only.
func tcp4(payload int, whole bool) []byte {
	f := make([]byte, 54+payload)
	copy(f, []byte{2, 0x56, 0x4E, 0x53, 0, 1, 2, 0x56, 0x4E, 0x53, 0, 2, 8, 0})
	ip, tcp := f[14:34], f[34:]
	copy(ip, []byte{0x45, 0, 0, 0, 0, 1, 0x40, 0, 64, 6, 0, 0, 192, 0, 2, 1, 192, 0, 2, 2})
	binary.BigEndian.PutUint16(ip[2:], uint16(20+len(tcp)))
	binary.BigEndian.PutUint16(ip[10:], ^sum(0, ip))
	copy(tcp, []byte{0x12, 0x34, 0, 80, 0, 0, 0, 1, 0, 0, 0, 1, 0x50, 0x10, 0xFF, 0xFF})
	for i := 20; i < len(tcp); i++ {
		tcp[i] = byte(i)
	}
	pseudo := sum(uint32(6+len(tcp)), ip[12:20])
	binary.BigEndian.PutUint16(tcp[16:], pseudo)
	if whole {
		binary.BigEndian.PutUint16(tcp[16:], ^sum(0, tcp))
	}
	return f
}

// sum is the Internet checksum before it is inverted (RFC 1071).
func sum(s uint32, b []byte) uint16 {
	for ; len(b) > 1; b = b[2:] {
		s += uint32(binary.BigEndian.Uint16(b))
	}
	if len(b) == 1 {
		s += uint32(b[0]) << 8
	}
	for s>>16 != 0 {
		s = s&0xFFFF + s>>16
	}
	return uint16(s)
}

// fate is what becomes of a frame with a certain header.
type fate int

const (
	sent    fate = iota // as if the header were zero
	refused             // by the device
	either              // the kernel decides
)

// N05: header fields of any value.
func TestN05Headers(t *testing.T) {
	t.Parallel()
	h := scripted.NewHost(t, 1)
	c, api := serveTAPWithAPI(t, h)
	type header = virtio.NetHeader
	const csum = virtio.NetHdrFNeedsCSum
	type row struct {
		name string
		hdr  header
		fate fate
	}
	always := []row{
		{"plain", header{}, sent},
		{"length of no header", header{HdrLen: 0xFFFF}, sent},
		{"number of buffers", header{NumBuffers: 7}, sent},
		{"unknown flags", header{Flags: 0xF8}, sent},
		{"data valid", header{Flags: virtio.NetHdrFDataValid}, sent},
		{"unused fields", header{HdrLen: 9, GSOSize: 9, CSumStart: 0xFFFF, CSumOffset: 0xFFFF}, sent},
		{"unknown type", header{Flags: csum, GSOType: 0x7F, GSOSize: 100, CSumStart: 34, CSumOffset: 16}, refused},
		{"everything", header{Flags: 0xFF, GSOType: 0xFF, HdrLen: 0xFFFF, GSOSize: 0xFFFF, CSumStart: 0xFFFF, CSumOffset: 0xFFFF, NumBuffers: 0xFFFF}, refused},
		{"ECN alone", header{GSOType: virtio.GSOECN}, either},
	}
	negotiated := append([]row{
		{"checksum nowhere", header{Flags: csum, CSumStart: 0xFFFF, CSumOffset: 0xFFFF}, refused},
		{"checksum one byte too far", header{Flags: csum, CSumStart: 40, CSumOffset: 60 + 1 - 2 - 40}, refused},
		{"checksum from the end", header{Flags: csum, CSumStart: 60}, refused},
		{"checksum at the end", header{Flags: csum, CSumStart: 40, CSumOffset: 18}, either},
		{"no segment size", header{Flags: csum, GSOType: virtio.GSOTCPv4, HdrLen: 54, CSumStart: 34, CSumOffset: 16}, refused},
		{"segments of another protocol", header{Flags: csum, GSOType: virtio.GSOTCPv6, HdrLen: 54, GSOSize: 10, CSumStart: 34, CSumOffset: 16}, either},
		{"segments without header length", header{Flags: csum, GSOType: virtio.GSOTCPv4, GSOSize: 10, CSumStart: 34, CSumOffset: 16}, either},
		{"segments with a long header", header{Flags: csum, GSOType: virtio.GSOTCPv4, HdrLen: 0xFFFF, GSOSize: 10, CSumStart: 34, CSumOffset: 16}, either},
		{"segments and ECN", header{Flags: csum, GSOType: virtio.GSOTCPv4 | virtio.GSOECN, HdrLen: 54, GSOSize: 10, CSumStart: 34, CSumOffset: 16}, either},
		{"fragments", header{Flags: csum, GSOType: virtio.GSOUDP, HdrLen: 42, GSOSize: 10, CSumStart: 34, CSumOffset: 6}, either},
	}, always...)
	plain := append([]row{
		{"checksum", header{Flags: csum, CSumStart: 34, CSumOffset: 16}, refused},
		{"TCP segments", header{GSOType: virtio.GSOTCPv4, GSOSize: 10}, refused},
		{"TCP segments, IPv6", header{GSOType: virtio.GSOTCPv6, GSOSize: 10}, refused},
		{"UDP fragments", header{GSOType: virtio.GSOUDP, GSOSize: 10}, refused},
		{"UDP segments", header{GSOType: virtio.GSOUDPL4, GSOSize: 10}, refused},
		{"ECN", header{GSOType: virtio.GSOTCPv4 | virtio.GSOECN, GSOSize: 10}, refused},
	}, always...)
	for _, session := range []struct {
		features virtio.Features
		rows     []row
	}{{hostOffloads, negotiated}, {0, plain}} {
		g := c.Dial(t)
		offer, err := g.GetFeatures()
		g.Must(err)
		g.Hello(session.features & offer)
		watch(g, 0, 1)
		// one sends a frame of 60 bytes of TCP, and returns what came out of the TAP
		// before the frame that follows it.
		one := func(hdr header) (out [][]byte, d netdev.QueueSnapshot) {
			f := g.Frame(60)
			copy(f[22:], tcp4(6, false)[22:])
			packet(g, scratch, hdr, f)
			_, err := g.Ring(1).Add(pieces(scratch, 72)...)
			g.Must(err)
			kick(g, 1)
			_, _, err = g.Ring(1).Wait()
			g.Must(err)
			end := g.Frame(60)
			g.Transmit(1, end)
			for {
				got, err := h.Receive()
				g.Must(err)
				if bytes.Equal(got, end) {
					return out, api.queue(t, 1)
				}
				out = append(out, got)
			}
		}
		for _, r := range session.rows {
			before := api.queue(t, 1).Drops["bad_header"]
			out, after := one(r.hdr)
			n := after.Drops["bad_header"] - before
			if r.fate == sent && (len(out) != 1 || n != 0 || !bytes.Equal(out[0], g.Mem.At(scratch+12, 60))) || r.fate == refused && (len(out) != 0 || n != 1) || len(out)+int(n) > 1 {
				t.Errorf("%s, %v: %d frames on the TAP, %d headers refused", r.name, g.Features, len(out), n)
			}
		}
		for range 10_000 / 250 {
			for i := range 250 {
				at := uint64(scratch + 128*i)
				packet(g, at, header{}, g.Frame(60))
				b := g.Mem.At(at, 12)
				for i := range b {
					// Small numbers are the likelier ones to be taken.
					if b[i] = byte(rand.Uint32()); rand.IntN(2) == 0 {
						b[i] &= 5
					}
				}
				_, err := g.Ring(1).Add(pieces(at, 12, 60)...)
				g.Must(err)
				if i%100 == 99 {
					kick(g, 1)
					for g.Ring(1).Outstanding() > 0 {
						_, n, err := g.Ring(1).Wait()
						if err != nil || n != 0 {
							t.Fatalf("%d bytes written, %v", n, err)
						}
					}
				}
			}
			kick(g, 1)
			for g.Ring(1).Outstanding() > 0 {
				_, _, err := g.Ring(1).Wait()
				g.Must(err)
			}
		}
		one(header{})
		c.RoundTrip(g)
		c.Alive(g)
	}
}

// N12: a driver that only sends is told of the buffers that it gets back.
func TestN12Completions(t *testing.T) {
	t.Parallel()
	for name, arg := range map[string]string{
		"every frame":          "--tx-coalesce=0/0",
		"moderated":            "--tx-coalesce=500/64",
		"more than the ring":   "--tx-coalesce=500/1024",
		"longer than the test": "--tx-coalesce=1000000/1024",
	} {
		for _, more := range []virtio.Features{0, virtio.FeatureEventIdx} {
			t.Run(name+"/"+more.String(), func(t *testing.T) {
				t.Parallel()
				c, api := serveAPI(t, "null", arg)
				g := c.Dial(t)
				g.Hello(more)
				g.Start(1)
				oneWay(t, g)
				// A second is not waited for in each of 100 rounds: a driver that has
				// nothing left to send with is called early.
				if why := api.queue(t, 1).CallReasons; strings.HasPrefix(arg, "--tx-coalesce=1000000/") && why["timeout"] > 20 {
					t.Errorf("calls %v", why)
				}
				c.Alive(g)
			})
		}
	}
}

// oneWay fills the ring again and again, and in between sleeps until it is called:
// with EVENT_IDX not before three quarters of the ring are back.
func oneWay(t *testing.T, g *scripted.Guest) {
	r := g.Ring(1)
	for i := range r.Size {
		r.SetDesc(i, desc(scratch, 72, 0, 0))
	}
	for round := range 100 {
		for int(r.Next-r.Seen) < r.Size {
			old := r.Next
			r.Put(r.Next % uint16(r.Size))
			r.Publish()
			if needKick(r, old, g.Features.Has(virtio.FeatureEventIdx)) {
				g.Must(r.Notify())
			}
		}
		enough := r.Seen + uint16(r.Size)*3/4
		r.SetUsedEvent(enough - 1)
		for int16(r.UsedIdx()-enough) < 0 {
			if err := r.WaitCall(scripted.Hang); err != nil {
				t.Fatalf("round %d: available %d, used %d of %d: no call: %v", round, r.Next, r.UsedIdx(), enough, err)
			}
			if !g.Features.Has(virtio.FeatureEventIdx) {
				break
			}
		}
		r.Seen = r.UsedIdx()
	}
}
