package faults

import (
	"bytes"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/guestmem"
	"github.com/vhostnet/vhostnet/internal/scripted"
	"github.com/vhostnet/vhostnet/vhostuser"
	"github.com/vhostnet/vhostnet/virtio"
)

// P11: features that come again while the rings run.
func TestP11FeaturesAgain(t *testing.T) {
	c := scripted.Serve(t, "echo")
	g := c.Dial(t)
	g.Hello(0)
	g.Start(0, 1)
	const f = scripted.Default
	for range 50 {
		// Logging comes and goes while rings run.
		g.Must(g.SetFeatures(f | virtio.FeatureLogAll))
		c.RoundTrip(g)
		g.Must(g.SetFeatures(f))
		c.RoundTrip(g)
	}
	g.Refused(vhostuser.ReqSetFeatures, scripted.U64(uint64(f&^virtio.FeatureMrgRxBuf)))
	c.RoundTrip(g)
	g.Refused(vhostuser.ReqSetFeatures, scripted.U64(uint64(f|1<<63)))
	c.RoundTrip(g)
	// Without bit 30 rings are enabled, and never disabled.
	g.Must(g.SetVringEnable(0, false))
	g.Must(g.SetFeatures(f &^ virtio.FeatureProtocolFeatures))
	c.RoundTrip(g)
	g.Must(g.SetFeatures(f))
	c.RoundTrip(g)
	c.Alive(g)
}

// P15: messages that can be repeated without end leave nothing behind.
func TestP15Repeated(t *testing.T) {
	c := scripted.Serve(t, "echo")
	g := c.Dial(t)
	g.Hello(0)
	g.Start(0, 1)
	file := scripted.Memfd(t, 0x1000)
	u64s := func(vs ...uint64) (b []byte) {
		for _, v := range vs {
			b = append(b, scripted.U64(v)...)
		}
		return b
	}
	before := c.FDs()
	for range 500 {
		g.Accepted(vhostuser.ReqSetLogBase, u64s(0x1000, 0), file)
	}
	for _, p := range [][]byte{u64s(0xFFFFFFFFFFFFF000, 0x2000), u64s(0x1000, 0x2000), u64s(0, 0)} {
		g.Refused(vhostuser.ReqSetLogBase, p, file)
		g.Accepted(vhostuser.ReqSetLogFD, nil, file)
	}
	if after, mapped := c.FDs(), c.Mapped(); after != before || mapped != 2 { // memory and log
		t.Errorf("%d descriptors, had %d; %d mappings", after, before, mapped)
	}
	var ends [2]int
	ends, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	g.Must(err)
	for range 500 {
		g.Must(g.SetBackendReqFD(ends[1]))
	}
	_, _ = unix.Close(ends[0]), unix.Close(ends[1])
	if after := c.FDs(); after != before+1 {
		t.Errorf("%d descriptors, had %d before the channel", after, before)
	}
	c.RoundTrip(g)
	c.Alive(g)
}

// P15: the region under the rings goes, and comes back.
func TestP15MemoryRegions(t *testing.T) {
	c := scripted.Serve(t, "echo")
	g := c.Dial(t)
	g.Greet(scripted.Default)
	slots, err := g.GetMaxMemSlots()
	if err != nil || slots < 8 {
		t.Fatalf("%d slots, %v", slots, err)
	}
	g.Must(g.AddMemRegion(g.Mem.Region, g.Mem.FD))
	g.Start(0, 1)
	c.RoundTrip(g)
	before := c.FDs()
	other := region(1<<32, 0x1000, scripted.UserBase+1<<32, 0)
	file := scripted.Memfd(t, 0x1000)
	remove := scripted.TablePayload(0, other) // 64 bits of padding and a region
	for i := range 500 {
		g.Must(g.AddMemRegion(other, file))
		if i%2 == 0 {
			g.Must(g.RemMemRegion(other))
		} else {
			g.Accepted(vhostuser.ReqRemMemReg, remove, file)
		}
	}
	g.Refused(vhostuser.ReqRemMemReg, remove)
	c.RoundTrip(g)
	g.Post(0, 5)
	for range 20 {
		g.Must(g.RemMemRegion(g.Mem.Region))
		if n := c.Mapped(); n != 0 {
			t.Fatalf("%d mappings", n)
		}
		g.Must(g.Ring(0).Notify())
		g.Must(g.Ring(1).Notify())
		g.Must(g.AddMemRegion(g.Mem.Region, g.Mem.FD))
		c.RoundTrip(g)
		g.Post(0, 1)
	}
	if after := c.FDs(); after != before {
		t.Errorf("%d descriptors, had %d", after, before)
	}
	c.Alive(g)
}

// P16: messages that nobody knows, or that no network device has.
func TestP16Unknown(t *testing.T) {
	c := scripted.Serve(t, "echo")
	g := c.Dial(t)
	g.Hello(0)
	g.Start(0, 1)
	file := scripted.Memfd(t, 0x1000)
	for _, r := range []vhostuser.Request{0, 33, 41, vhostuser.ReqGetShmemConfig, vhostuser.ReqSetVringEndian, 46, 99, 0xFFFFFFFF} {
		g.Refused(r, nil)
		g.Refused(r, make([]byte, 300), file)
		g.Tell(r, nil, file)
		g.InStep()
		c.RoundTrip(g)
	}
	c.Alive(g)
}

// P16: resets while frames are on their way.
func TestP16Resets(t *testing.T) {
	c := scripted.Serve(t, "source:60")
	for range 20 {
		g := c.Dial(t)
		g.Hello(0)
		for range 3 {
			g.Start(0, 1)
			g.Post(0, 100)
			g.Receive(0)
			g.Must(g.ResetOwner()) // disables the rings
			for q := range 2 {
				g.Must(g.SetVringEnable(q, true))
			}
			g.Post(0, 50)
			for range 120 {
				g.Receive(0)
			}
			g.Must(g.ResetDevice())
			stopped := g.Ring(0).UsedIdx()
			g.Must(g.Ring(0).Notify())
			g.InStep()
			if now := g.Ring(0).UsedIdx(); now != stopped {
				t.Fatalf("used index %d after the reset at %d", now, stopped)
			}
			g.Ring(0).Reset(0)
			g.Ring(1).Reset(0)
		}
		g.Must(g.Close())
		c.Idle()
	}
	c.Alive()
}

// P16: the configuration space.
func TestP16Config(t *testing.T) {
	c := scripted.Serve(t, "echo", "--mac=52:54:00:12:34:56", "--mtu=1400")
	g := c.Dial(t)
	g.Greet(scripted.Default)
	status, err := g.GetConfig(6, 2)
	if err != nil || !bytes.Equal(status, []byte{1, 0}) {
		t.Errorf("status % x, %v", status, err)
	}
	all, err := g.GetConfig(0, 60)
	if err != nil || !bytes.Equal(all[:6], []byte{0x52, 0x54, 0, 0x12, 0x34, 0x56}) || !bytes.Equal(all[10:12], []byte{0x78, 5}) {
		t.Errorf("% x, %v", all, err)
	}
	for _, q := range [][2]uint32{{0xFFFFFFFF, 2}, {0, 257}} {
		p := append(scripted.U32(q[0], q[1], 0), make([]byte, q[1])...)
		if b := g.Ask(vhostuser.ReqGetConfig, scripted.Plain, p); len(b) != 0 {
			t.Errorf("%v: % x", q, b)
		}
		g.InStep()
	}
	g.Must(g.SetMemTable([]guestmem.Region{g.Mem.Region}, []int{g.Mem.FD}))
	g.Start(0, 1)
	c.RoundTrip(g)
	c.Alive(g)
}
