package faults

import (
	"errors"
	"sync/atomic"
	"testing"

	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/guestmem"
	"github.com/vhostnet/vhostnet/internal/scripted"
	"github.com/vhostnet/vhostnet/vhostuser"
)

func region(gpa, size, user, off uint64) guestmem.Region {
	return guestmem.Region{GuestAddr: gpa, Size: size, UserAddr: user, Offset: off}
}

// P06: a table is taken whole or not at all, and the old one stays.
func TestP06TableAtomic(t *testing.T) {
	c := scripted.Serve(t, "echo")
	g := c.Dial(t)
	g.Hello(0)
	g.Start(0, 1)
	var pipe [2]int
	g.Must(unix.Pipe2(pipe[:], unix.O_CLOEXEC))
	defer func() { _, _ = unix.Close(pipe[0]), unix.Close(pipe[1]) }()
	before := c.FDs()
	r0, mem := g.Mem.Region, g.Mem.FD
	const u = scripted.UserBase
	for _, n := range []uint32{0, 9, 0xFFFFFFFF} {
		g.Refused(vhostuser.ReqSetMemTable, scripted.TablePayload(n, r0), mem)
	}
	g.Refused(vhostuser.ReqSetMemTable, scripted.TablePayload(3, r0, r0), mem, mem, mem)
	g.Refused(vhostuser.ReqSetMemTable, scripted.TablePayload(2, r0, region(1<<32, 4096, u+1<<32, 0)), mem, pipe[0])
	if fds, mapped := c.FDs(), c.Mapped(); fds != before || mapped != 1 {
		t.Errorf("%d descriptors, had %d; %d mappings", fds, before, mapped)
	}
	c.RoundTrip(g)        // with the table that it has
	g.Must(g.SendAddr(0)) // which is no null table
	c.RoundTrip(g)

	// Byte k of a region is byte k behind the offset of its file.
	const half = scripted.MemorySize / 2
	g.Accepted(vhostuser.ReqSetMemTable, scripted.TablePayload(2, region(0, half, u, 0), region(4<<30, half, u+half, half)), mem, mem)
	c.RoundTrip(g)
	frame := g.Frame(60)
	at := uint64(half + 4096)
	copy(g.Mem.At(at+12, 60), frame)
	high := uint64(4<<30) + at - half
	g.Post(0, 1)
	sendFrom(t, g, high, 72)
	if _, got := g.Receive(0); scripted.Seq(got) != scripted.Seq(frame) {
		t.Errorf("what lies in the second region is frame % x, want % x", got, frame)
	}

	// An offset inside of a page: the rings move with it.
	g.Accepted(vhostuser.ReqSetMemTable, scripted.TablePayload(1, region(0x800, scripted.MemorySize-0x800, u+0x800, 0x800)), mem)
	c.RoundTrip(g)

	// Huge pages, and a region that is no multiple of them.
	huge, err := unix.MemfdCreate("scripted", unix.MFD_CLOEXEC|unix.MFD_HUGETLB|unix.MFD_HUGE_2MB)
	if err == nil {
		g.Must(unix.Ftruncate(huge, 4<<20))
		// No page need be there: nothing touches the memory.
		g.Accepted(vhostuser.ReqSetMemTable, scripted.TablePayload(2, r0, region(1<<32, 3<<20, u+1<<32, 0)), mem, huge)
		c.RoundTrip(g)
		g.Accepted(vhostuser.ReqSetMemTable, scripted.TablePayload(2, r0, region(1<<32, 1<<20, u+1<<32, 0x1800)), mem, huge)
		c.RoundTrip(g)
		_ = unix.Close(huge)
	} else if !errors.Is(err, unix.ENOSYS) && !errors.Is(err, unix.EINVAL) && !errors.Is(err, unix.ENOENT) {
		t.Error("huge pages:", err)
	}
	c.Alive(g)
}

// sendFrom transmits n bytes from a guest address, header included, and expects
// the chain to come back.
func sendFrom(t *testing.T, g *scripted.Guest, gpa uint64, n uint32) {
	t.Helper()
	r := g.Ring(1)
	head, err := r.Add(scripted.Seg{Addr: gpa, Len: n})
	g.Must(err)
	r.Publish()
	g.Must(r.Notify())
	used, written, err := r.Wait()
	g.Must(err)
	if used != head || written != 0 {
		t.Errorf("used %d with %d bytes, want %d with none", used, written, head)
	}
}

// P07: arithmetic that wraps around, in regions and in descriptors.
func TestP07Arithmetic(t *testing.T) {
	c := scripted.Serve(t, "echo")
	const u, m = scripted.UserBase, 1 << 20
	for name, rs := range map[string][]guestmem.Region{
		"A": {region(0, 0xFFFFFFFFFFFFF000, u, 0x2000)},
		"B": {region(0xFFFFFFFFFFFFF000, 0x2000, u, 0)},
		"C": {region(0, 0x2000, 0xFFFFFFFFFFFFF000, 0)},
		"D": {region(0, 0, u, 0)},
		"E": {region(0, 8*m, u, 0), region(4*m, 8*m, u+1<<32, 0)},
		"F": {region(0, 8*m, u, 0), region(1<<32, 8*m, u+4*m, 0)},
		"G": {region(0, 16*m, u, 0x8000000000000000)},
	} {
		g := c.Dial(t)
		g.Greet(scripted.Default)
		fds := []int{g.Mem.FD, scripted.Memfd(t, scripted.MemorySize)}[:len(rs)]
		if g.Code(vhostuser.ReqSetMemTable, scripted.TablePayload(uint32(len(rs)), rs...), fds...) == 0 {
			t.Errorf("%s: not refused", name)
		}
		if n := c.Mapped(); n != 0 {
			t.Errorf("%s: %d mappings", name, n)
		}
		g.Must(g.SetMemTable([]guestmem.Region{g.Mem.Region}, []int{g.Mem.FD}))
		g.Start(0, 1)
		sendFrom(t, g, 0xFFFFFFFFFFFFFFF8, 64)
		c.RoundTrip(g)
		g.Must(g.Close())
		c.Idle()
	}
	c.Alive()
}

// P09: the memory table changes while both directions run; the rings go on
// without new addresses.
func TestP09TableWhileRunning(t *testing.T) {
	c := scripted.Serve(t, "source:60")
	g := c.Dial(t)
	g.Hello(0)
	g.Start(0, 1)
	more := scripted.Memfd(t, 4<<20)
	g.Post(0, 255)

	var received, sent atomic.Uint64
	var quit atomic.Bool
	ended := make(chan error, 2)
	go func() { ended <- send(g, &sent, &quit) }()
	go func() { ended <- receive(g, &received, &quit) }()

	for i := range 200 {
		fd, err := unix.Dup(g.Mem.FD)
		g.Must(err)
		if i%10 == 9 {
			g.Mem.Region.UserAddr += 1 << 33
		}
		regions, fds := []guestmem.Region{g.Mem.Region}, []int{fd}
		if i%2 == 1 {
			regions = append(regions, region(4<<30, 4<<20, g.Mem.Region.UserAddr+1<<32, 0))
			fds = append(fds, more)
		}
		g.Must(g.SetMemTable(regions, fds))
		g.Must(unix.Close(fd))
		if i%10 == 9 {
			g.Must(g.SendAddr(0))
			g.Must(g.SendAddr(1))
		}
		if n := c.Mapped(); n != len(regions) {
			t.Fatalf("%d mappings for %d regions", n, len(regions))
		}
		r, s := received.Load(), sent.Load()
		scripted.Until(t, "both directions go on", func() bool {
			return received.Load() > r && sent.Load() > s || len(ended) > 0
		})
	}
	quit.Store(true)
	for range 2 {
		if err := <-ended; err != nil {
			t.Error(err)
		}
	}
	c.Alive(g)
}

// send transmits until it is told to stop.
func send(g *scripted.Guest, n *atomic.Uint64, quit *atomic.Bool) error {
	r := g.Ring(1)
	for seq := uint64(1); !quit.Load(); seq++ {
		if err := g.Queue(1, scripted.Frame(seq, 60)); err != nil {
			return err
		}
		if err := r.Notify(); err != nil {
			return err
		}
		if _, _, err := r.Wait(); err != nil {
			return err
		}
		n.Add(1)
	}
	return nil
}

// receive takes frames of a source, which come in order and once each.
func receive(g *scripted.Guest, n *atomic.Uint64, quit *atomic.Bool) error {
	r, last, first := g.Ring(0), uint64(0), true
	for !quit.Load() {
		_, f, err := g.TryReceive(0)
		if err != nil {
			return err
		}
		seq := scripted.Seq(f)
		if !first && seq <= last {
			return errors.New("a frame came twice, or late")
		}
		last, first = seq, false
		if err := g.PostQuietly(0, 1); err != nil {
			return err
		}
		if err := r.Notify(); err != nil {
			return err
		}
		n.Add(1)
	}
	return nil
}
