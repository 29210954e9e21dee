package faults

import (
	"slices"
	"syscall"
	"testing"

	"github.com/vhostnet/vhostnet/guestmem"
	"github.com/vhostnet/vhostnet/internal/scripted"
	"github.com/vhostnet/vhostnet/vhostuser"
)

// P01: a size that is too large or wrong for the request, half a header, another
// version. The connection ends and the descriptors are closed.
func TestP01Framing(t *testing.T) {
	c := scripted.Serve(t, "echo")
	mem := scripted.NewMemory(t)
	fds := []int{scripted.Memfd(t, 4096), scripted.Memfd(t, 4096)}
	header := func(r vhostuser.Request, flags, size uint32) []byte {
		b := make([]byte, vhostuser.HeaderSize)
		vhostuser.Header{Request: r, Flags: flags, Size: size}.Encode(b)
		return b
	}
	for _, send := range []func(g *scripted.Guest){
		func(g *scripted.Guest) {
			g.SendPiece(header(vhostuser.ReqSetVringNum, scripted.Plain, 0x10000), fds...)
		},
		func(g *scripted.Guest) { g.SendPiece(header(vhostuser.ReqSetMemTable, scripted.Plain, 0xFFFFFFFF)) },
		func(g *scripted.Guest) { g.SendPiece([]byte{1, 0, 0, 0, 1}, fds...); g.Must(g.Conn.CloseWrite()) },
		func(g *scripted.Guest) { g.Tell(vhostuser.ReqSetVringNum, scripted.U32(0), fds...) },
		func(g *scripted.Guest) { g.Tell(vhostuser.ReqSetVringNum, scripted.U32(0, 256, 0)) },
		func(g *scripted.Guest) { g.SendPiece(header(vhostuser.ReqGetFeatures, 0, 0)) },
		func(g *scripted.Guest) { g.SendPiece(header(vhostuser.ReqGetFeatures, 2, 0), fds...) },
	} {
		for range 50 {
			g := c.DialWith(t, mem)
			send(g)
			g.Ended()
			g.Must(g.Close())
		}
		c.Alive()
	}
	// A clean end is none of these, and no error.
	before := c.Lines("level=warning", "level=error")
	for range 50 {
		g := c.DialWith(t, mem)
		g.Must(g.Close())
		c.Idle()
	}
	if n := c.Lines("level=warning", "level=error") - before; n > 0 {
		t.Errorf("%d lines about connections that were just closed", n)
	}
	c.Alive()
}

// P02: a message in pieces, with the descriptor on the first, and signals
// meanwhile; two messages in one piece.
func TestP02Pieces(t *testing.T) {
	c := scripted.Serve(t, "echo")
	for _, cuts := range [][]int{{12, 20}, {6, 12}, {6, 20}, {1, 51}} {
		g := c.Dial(t)
		g.Greet(scripted.Default)
		b := scripted.Message(vhostuser.ReqSetMemTable, scripted.NeedReply, scripted.TablePayload(1, g.Mem.Region))
		at, fds := 0, []int{g.Mem.FD}
		for _, to := range cuts {
			g.SendPiece(b[at:to], fds...)
			for range 20 {
				c.Signal(syscall.SIGURG)
				c.Signal(syscall.SIGPROF)
			}
			at, fds = to, nil
		}
		g.SendPiece(b[at:])
		if h, p, _, err := g.RecvRaw(deadline()); err != nil || h.Request != vhostuser.ReqSetMemTable || !slices.Equal(p, scripted.U64(0)) {
			t.Fatalf("cut at %v: %+v, % x, %v", cuts, h, p, err)
		}
		g.SendPiece(append(
			scripted.Message(vhostuser.ReqSetVringNum, scripted.Plain, scripted.U32(1, 256)),
			scripted.Message(vhostuser.ReqSetVringBase, scripted.Plain, scripted.U32(1, 3))...))
		if base, err := g.GetVringBase(1); err != nil || base != 3 {
			t.Errorf("base %d, %v", base, err)
		}
		g.Start(0, 1)
		c.RoundTrip(g)
		g.Must(g.Close())
		c.Idle()
	}
	c.Alive()
}

// P03: descriptors that no request takes, and so many that the kernel cuts.
func TestP03Descriptors(t *testing.T) {
	c := scripted.Serve(t, "echo")
	g := c.Dial(t)
	g.Hello(0)
	g.Start(0, 1)
	fd := scripted.Memfd(t, scripted.MemorySize)
	many := slices.Repeat([]int{fd}, 253)
	before := c.FDs()
	for range 5000 {
		if b := g.Ask(vhostuser.ReqGetFeatures, scripted.Plain, nil, many[:8]...); len(b) != 8 {
			t.Fatalf("% x", b)
		}
	}
	high := guestmem.Region{GuestAddr: 1 << 32, Size: 4096, UserAddr: 1 << 32}
	g.Refused(vhostuser.ReqSetVringCall, scripted.U64(0), many[:3]...)
	g.Refused(vhostuser.ReqSetMemTable, scripted.TablePayload(1, g.Mem.Region), many[:2]...)
	g.Refused(vhostuser.ReqSetMemTable, scripted.TablePayload(2, g.Mem.Region, high), many[:1]...)
	if after := c.FDs(); after != before {
		t.Errorf("%d descriptors, had %d", after, before)
	}
	c.RoundTrip(g)
	g.Tell(vhostuser.ReqGetFeatures, nil, many...)
	g.Ended()
	c.Alive(g)
}

// P05: arguments out of range reach no ring; the others keep running.
func TestP05RingArguments(t *testing.T) {
	c := scripted.Serve(t, "echo", "--queue-pairs=2")
	g := c.Dial(t)
	g.Greet(scripted.Default)
	addr := func(i uint32, desc, avail, used uint64) []byte { return scripted.AddrPayload(i, desc, used, avail) }
	const u = scripted.UserBase
	g.Refused(vhostuser.ReqSetVringAddr, addr(0, u+0x10000, u+0x14000, u+0x18000)) // no memory yet
	g.Must(g.SetMemTable([]guestmem.Region{g.Mem.Region}, []int{g.Mem.FD}))
	g.Start(0, 1)
	fd := scripted.Eventfd(t)
	before := c.FDs()
	for _, i := range []uint32{0x00010001, 0x00000100, 0x80000001, 0xFFFFFFFF} {
		g.Refused(vhostuser.ReqSetVringNum, scripted.U32(i, 256))
		g.Refused(vhostuser.ReqSetVringBase, scripted.U32(i, 0))
		g.Refused(vhostuser.ReqSetVringAddr, addr(i, u+0x30000, u+0x34000, u+0x38000))
		g.Refused(vhostuser.ReqSetVringEnable, scripted.U32(i, 0))
		if b := g.Ask(vhostuser.ReqGetVringBase, scripted.Plain, scripted.U32(i, 0)); len(b) != 8 {
			t.Errorf("ring %#x: base % x", i, b)
		}
		c.RoundTrip(g)
	}
	for _, r := range []vhostuser.Request{vhostuser.ReqSetVringKick, vhostuser.ReqSetVringCall, vhostuser.ReqSetVringErr} {
		g.Refused(r, scripted.U64(0xFF), fd)
		g.Refused(r, scripted.U64(0x1FF))
	}
	for _, n := range []uint32{0, 3, 200, 32769, 65536, 0x80000000} {
		g.Refused(vhostuser.ReqSetVringNum, scripted.U32(2, n))
	}
	for range 2000 {
		g.Accepted(vhostuser.ReqSetVringNum, scripted.U32(2, 256))
	}
	const end = u + scripted.MemorySize
	for name, p := range map[string][]byte{
		"descriptors at the end":  addr(2, end-16, u+0x34000, u+0x38000),
		"tail of used outside":    addr(2, u+0x30000, u+0x34000, end-4),
		"tail of used outside, 2": addr(2, u+0x30000, u+0x34000, end-6-2048+4),
		"guest addresses":         addr(2, 0x30000, 0x34000, 0x38000),
		"descriptors unaligned":   addr(2, u+0x30008, u+0x34000, u+0x38000),
		"available odd":           addr(2, u+0x30000, u+0x34001, u+0x38000),
	} {
		if g.Code(vhostuser.ReqSetVringAddr, p) == 0 {
			t.Errorf("%s: not refused", name)
		}
	}
	if after := c.FDs(); after != before {
		t.Errorf("%d descriptors, had %d", after, before)
	}
	c.RoundTrip(g)
	c.Alive(g)
}

// P10: exactly one reply where one is due.
func TestP10Replies(t *testing.T) {
	t.Run("a", func(t *testing.T) {
		c := scripted.Serve(t, "echo")
		g := c.Dial(t)
		g.Tell(vhostuser.ReqSetProtocolFeatures, scripted.U64(uint64(vhostuser.ProtocolReplyAck)))
		g.Accepted(vhostuser.ReqSetOwner, nil)
		g.InStep()
		c.Alive(g)
	})
	own := map[vhostuser.Request][]byte{
		vhostuser.ReqGetFeatures: nil, vhostuser.ReqGetProtocolFeatures: nil, vhostuser.ReqGetQueueNum: nil,
		vhostuser.ReqGetMaxMemSlots: nil, vhostuser.ReqGetStatus: nil,
		vhostuser.ReqGetVringBase: scripted.U32(1, 0),
		vhostuser.ReqGetConfig:    append(scripted.U32(0, 8, 0), make([]byte, 8)...),
	}
	others := map[vhostuser.Request][]byte{
		vhostuser.ReqSetOwner: nil, vhostuser.ReqResetOwner: nil, vhostuser.ReqSetLogFD: nil,
		vhostuser.ReqSetMemTable: scripted.TablePayload(1), vhostuser.ReqSetVringNum: scripted.U32(9, 0),
		vhostuser.ReqSetVringAddr: scripted.AddrPayload(0, 0, 0, 0), vhostuser.ReqSetVringBase: scripted.U32(0, 0),
		vhostuser.ReqSetVringKick: scripted.U64(0x100), vhostuser.ReqSetVringCall: scripted.U64(0x100),
		vhostuser.ReqSetVringErr: scripted.U64(0x100), vhostuser.ReqSetVringEnable: scripted.U32(0, 0),
		vhostuser.ReqSendRARP: scripted.U64(2), vhostuser.ReqNetSetMTU: scripted.U64(1), vhostuser.ReqSetBackendReqFD: nil,
		vhostuser.ReqSetConfig: append(scripted.U32(60, 1, 0), 0), vhostuser.ReqResetDevice: nil,
		vhostuser.ReqAddMemReg: make([]byte, 40), vhostuser.ReqRemMemReg: make([]byte, 40),
		vhostuser.ReqSetStatus: scripted.U64(0), vhostuser.ReqGetShmemConfig: nil, 99: nil,
	}
	t.Run("b", func(t *testing.T) {
		c := scripted.Serve(t, "echo")
		g := c.Dial(t)
		g.Hello(0)
		for r, p := range own {
			// Its own reply, and not a confirmation in its place.
			if with, without := g.Ask(r, scripted.NeedReply, p), g.Ask(r, scripted.Plain, p); !slices.Equal(with, without) {
				t.Errorf("%s: % x, and % x if a confirmation is asked for", r, without, with)
			}
			g.InStep()
		}
		for r, p := range others {
			g.Code(r, p)
			g.InStep()
		}
		// This one has a reply of its own where there is a log to pass.
		g.Ask(vhostuser.ReqSetLogBase, scripted.Plain, make([]byte, 16))
		g.InStep()
		c.Alive(g)
	})
	for name, flags := range map[string]uint32{"c": scripted.NeedReply, "e": scripted.Plain} {
		t.Run(name, func(t *testing.T) {
			c := scripted.Serve(t, "echo")
			g := c.Dial(t)
			if name == "e" {
				g.Hello(0)
			}
			for r, p := range others {
				g.SendPiece(scripted.Message(r, flags, p))
				g.InStep()
			}
			for r, p := range own {
				g.Ask(r, flags, p)
				g.InStep()
			}
			c.Alive(g)
		})
	}
	t.Run("d", func(t *testing.T) {
		c := scripted.Serve(t, "echo")
		g := c.Dial(t)
		g.Hello(0)
		g.Must(g.SetVringNum(1, 256))
		g.Refused(vhostuser.ReqSetVringAddr, scripted.AddrPayload(1, 0x1000, 0x2000, 0x3000))
		g.Start(0, 1)
		c.RoundTrip(g)
		c.Alive(g)
	})
}
