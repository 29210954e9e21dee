package faults

import (
	"bufio"
	"errors"
	"fmt"
	"math/rand/v2"
	"os"
	"strings"
	"sync"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/guestmem"
	"github.com/vhostnet/vhostnet/internal/scripted"
	"github.com/vhostnet/vhostnet/vhostuser"
	"github.com/vhostnet/vhostnet/virtio"
)

// storm is a front-end that sends messages at random while its driver carries
// frames over two pairs, rings 0 to 3, with the control ring behind them.
type storm struct {
	*scripted.Guest
	t    *testing.T
	c    *scripted.Child
	api  statusAPI
	file int // a memory file that is no part of R0
	log  int // a dirty log with room for all memory
	rand *rand.Rand
	more virtio.Features
	// calls are eventfds to be called on.
	calls [4]int
	// extra is a region that is in the table besides R0.
	extra bool
}

const stormControl = 4

// spareRegion is a region that holds nothing.
var spareRegion = guestmem.Region{GuestAddr: 0x1000_0000, Size: 0x10000, UserAddr: 0x7F00_0000_0000}

// start greets, and starts all rings where they are.
func (s *storm) start() {
	s.extra = false
	s.Hello(virtio.FeatureMQ | virtio.FeatureNotfCoal | virtio.FeatureVQNotfCoal | virtio.FeatureCtrlRX | s.more)
	for q := range stormControl {
		s.StartAt(q, s.Ring(q).UsedIdx())
	}
	s.Ring(stormControl).Reset(0)
	watch(s.Guest, stormControl)
	s.pairs(2)
}

func (s *storm) pairs(n byte) {
	expectAck(s.t, s.Guest, stormControl, virtio.CtrlOK, virtio.CtrlMQ, virtio.CtrlMQVQPairsSet, n, 0)
}

// legal does something that a front-end may do at any time.
func (s *storm) legal() {
	q := s.rand.IntN(stormControl)
	switch s.rand.IntN(18) {
	case 0:
		s.Must(s.SetVringEnable(q, false))
		s.Must(s.SetVringEnable(q, true))
	case 1:
		s.Must(s.SetVringCall(q, s.calls[s.rand.IntN(len(s.calls))]))
	case 2:
		s.Must(s.SetVringErr(q, s.Ring(q).Err))
	case 3:
		s.Must(s.SetVringKick(q, s.Ring(q).Kick))
	case 4, 5:
		base, err := s.GetVringBase(q)
		s.Must(err)
		s.StartAt(q, uint16(base))
	case 6:
		s.Must(s.SetMemTable([]guestmem.Region{s.Mem.Region}, []int{s.Mem.FD}))
		s.extra = false
	case 7:
		if s.extra {
			s.Must(s.RemMemRegion(spareRegion))
		} else {
			s.Must(s.AddMemRegion(spareRegion, s.file))
		}
		s.extra = !s.extra
	case 8:
		s.Must(s.SetFeatures(s.Features))
	case 9:
		s.Must(s.SendAddr(q))
	case 10:
		_, err := s.GetConfig(0, 12)
		s.Must(err)
	case 11:
		s.Must(s.SetMTU(uint64(1000 + s.rand.IntN(500))))
	case 12:
		s.Must(s.SendRARP([6]byte{2, 0, 0, 0, 0, 1}))
	case 13:
		s.pairs(byte(1 + s.rand.IntN(2)))
	case 14:
		expectAck(s.t, s.Guest, stormControl, virtio.CtrlOK, virtio.CtrlNotfCoal, uint8(s.rand.IntN(2)), le32(uint32(s.rand.IntN(64)), uint32(s.rand.IntN(500)))...)
	case 15:
		s.api.device(s.t)
	case 16:
		s.Must(s.SetLogBase(s.log, 0x10000, 0))
	case 17:
		s.Must(s.SetFeatures(s.Features | virtio.FeatureLogAll))
	}
}

// illegal sends a message that is wrong in one way or another; it must change
// nothing, but may end the connection.
func (s *storm) illegal() error {
	requests := []vhostuser.Request{
		vhostuser.ReqSetVringNum, vhostuser.ReqSetVringBase, vhostuser.ReqSetVringAddr, vhostuser.ReqSetVringEnable,
		vhostuser.ReqSetFeatures, vhostuser.ReqSetMemTable, vhostuser.ReqAddMemReg, vhostuser.ReqRemMemReg, vhostuser.ReqSetVringKick,
		vhostuser.ReqSetVringCall, vhostuser.ReqNetSetMTU, vhostuser.ReqSetInflightFD, vhostuser.ReqSetLogBase, vhostuser.Request(77),
	}
	r := requests[s.rand.IntN(len(requests))]
	pick := func(vs ...uint64) uint64 { return vs[s.rand.IntN(len(vs))] }
	var payload []byte
	var fds []int
	switch r {
	case vhostuser.ReqSetVringNum:
		payload = scripted.U32(uint32(pick(0, 1, 2, 3, 0x10001, 0xFFFFFFFF)), uint32(pick(0, 3, 200, 65536, 0x80000000)))
	case vhostuser.ReqSetVringBase:
		payload = scripted.U32(uint32(pick(0, 1, 2, 3, 0x10001, 0xFFFFFFFF)), uint32(pick(5, 0x10000)))
	case vhostuser.ReqSetVringEnable:
		payload = scripted.U32(uint32(pick(5, 0x10001, 0xFFFFFFFF)), 1)
	case vhostuser.ReqSetVringAddr:
		bad := pick(0, 1, nowhere, 0x10000, scripted.UserBase+scripted.MemorySize-16)
		payload = scripted.AddrPayload(uint32(pick(0, 1, 2, 3, 99)), bad, bad, bad)
	case vhostuser.ReqSetFeatures:
		payload = scripted.U64(uint64(s.Features) | 1<<pick(34, 63))
	case vhostuser.ReqSetMemTable:
		bad := s.Mem.Region
		bad.Size = pick(0, nowhere, scripted.MemorySize+1)
		payload, fds = scripted.TablePayload(uint32(pick(1, 1, 0, 2, 9)), bad), []int{s.Mem.FD}
	case vhostuser.ReqAddMemReg:
		payload, fds = append(scripted.U64(0), scripted.TablePayload(1, s.Mem.Region)[8:]...), []int{s.Mem.FD} // it overlaps
	case vhostuser.ReqRemMemReg:
		payload = append(scripted.U64(0), scripted.TablePayload(1, guestmem.Region{Size: 1})[8:]...)
	case vhostuser.ReqSetVringKick, vhostuser.ReqSetVringCall:
		payload, fds = scripted.U64(pick(0, 1, 0xFF)), [][]int{nil, {s.file, s.file}}[s.rand.IntN(2)]
	case vhostuser.ReqNetSetMTU:
		payload = scripted.U64(pick(0, 67, 65536))
	case vhostuser.ReqSetInflightFD:
		payload, fds = inflight(pick(0, 16, nowhere), pick(0, 0x10000, nowhere), uint16(pick(0, 2, 65535)), 256), []int{s.file}
	case vhostuser.ReqSetLogBase: // too short, or nowhere
		payload, fds = append(scripted.U64(pick(0, 8, nowhere)), scripted.U64(pick(0, 0x10000, nowhere))...), []int{s.file}
	default:
		payload = scripted.U64(s.rand.Uint64())
	}
	if s.rand.IntN(8) == 0 {
		payload = payload[:s.rand.IntN(len(payload))]
	}
	h := vhostuser.Header{Request: r, Flags: scripted.NeedReply, Size: uint32(len(payload))}
	if err := s.SendRaw(h, payload, fds); err != nil {
		return err
	}
	_, _, got, err := s.RecvRaw(deadline())
	for _, fd := range got {
		_ = unix.Close(fd)
	}
	return err
}

// carry makes entries available on a ring for as long as it is told, and counts
// what is used.
func (s *storm) carry(q int, stop *atomic.Bool, used *atomic.Uint64) error {
	h := hose{s.Guest, q, 1}
	r := s.Ring(q)
	for !stop.Load() {
		seen := r.Seen
		room, err := h.reap()
		if err != nil {
			return err
		}
		used.Add(uint64(r.Seen - seen))
		if room {
			for range min(32, r.Size-int(r.Next-r.Seen)) {
				r.Put(h.head(r.Next))
			}
			r.Publish()
			if err := r.Notify(); err != nil {
				return err
			}
		}
		// The ring may be stopped: a call is not to be counted on.
		if err := r.WaitCall(time.Millisecond); err != nil && !errors.Is(err, scripted.ErrHang) {
			return err
		}
	}
	return nil
}

// L04: messages of all kinds while the rings carry frames. Each is answered, no
// frame is used twice, and when it is over everything runs.
func TestL04Storm(t *testing.T) {
	t.Parallel()
	c, api := serveAPI(t, "echo", "--queue-pairs=2", "--rx-coalesce=50/16", "--tx-coalesce=50/16")
	seed := rand.Uint64()
	t.Log("seed", seed)
	s := &storm{
		t: t, c: c, api: api, file: scripted.Memfd(t, 0x10000), log: scripted.Memfd(t, 0x10000),
		rand: rand.New(rand.NewPCG(seed, 0)), more: virtio.FeatureIndirectDesc,
	}
	for i := range s.calls {
		s.calls[i] = scripted.Eventfd(t)
	}
	mem := scripted.NewMemory(t)
	s.Guest = c.DialWith(t, mem)
	for q := range stormControl {
		plain(s.Guest, q)
	}
	s.start()

	var stop atomic.Bool
	var used [stormControl]atomic.Uint64
	var sides sync.WaitGroup
	errs := make(chan error, stormControl)
	driver := s.Guest // its rings stay when connections come and go
	for q := range stormControl {
		side := &storm{Guest: driver}
		sides.Go(func() {
			if err := side.carry(q, &stop, &used[q]); err != nil {
				errs <- err
			}
		})
	}
	legal, illegal, connections := 0, 0, 1
	for end := time.Now().Add(15 * time.Second); time.Now().Before(end) && len(errs) == 0; {
		if s.rand.IntN(3) > 0 {
			s.legal()
			legal++
			continue
		}
		illegal++
		if err := s.illegal(); err == nil {
			continue
		} else if errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal("no reply:", err)
		}
		// The device has hung up, which it may.
		_ = s.Close()
		next := c.DialWith(t, mem)
		next.Adopt(driver)
		s.Guest = next
		connections++
		s.start()
	}
	// Everything runs when everything is started.
	for q := range stormControl {
		base, err := s.GetVringBase(q)
		s.Must(err)
		s.StartAt(q, uint16(base))
	}
	s.pairs(2)
	for q := range stormControl {
		before := used[q].Load()
		scripted.Until(t, fmt.Sprintf("ring %d goes on", q), func() bool { return used[q].Load() > before+1000 || len(errs) > 0 })
	}
	stop.Store(true)
	sides.Wait()
	select {
	case err := <-errs:
		t.Fatal(err)
	default:
	}
	t.Logf("%d legal and %d other messages on %d connections; used %d %d %d %d", legal, illegal, connections,
		used[0].Load(), used[1].Load(), used[2].Load(), used[3].Load())
	if n := c.Lines(lineRingBroken); n != 0 {
		t.Errorf("%d rings are broken", n)
	}
	if n := c.Lines(""); n > 2000 {
		t.Errorf("%d lines of log", n)
	}
	c.Alive(s.Guest)
}

// L04: 64 GiB of guest memory cost address space only.
func TestL04HugeTable(t *testing.T) {
	t.Parallel()
	c := scripted.Serve(t, "echo")
	const size = 64 << 30
	m := scripted.NewMemory(t)
	if err := unix.Ftruncate(m.FD, size); err != nil {
		t.Fatal(err)
	}
	m.Region.Size = size
	g := c.DialWith(t, m)
	g.Greet(scripted.Default)
	before := resident(t, c)
	for range 20 {
		start := time.Now()
		g.Must(g.SetMemTable([]guestmem.Region{m.Region}, []int{m.FD}))
		// Touching each page takes more than ten seconds, even if it is only read.
		if d := time.Since(start); d > 10*time.Second {
			t.Errorf("the table took %v", d)
		}
	}
	g.Start(0, 1)
	c.RoundTrip(g)
	if grown := resident(t, c) - before; grown > 64<<10 {
		t.Errorf("%d KiB more are resident", grown)
	}
	c.Alive(g)
}

// resident is how much of a process is in memory, in KiB.
func resident(t *testing.T, c *scripted.Child) (kib int) {
	t.Helper()
	f, err := os.Open(fmt.Sprintf("/proc/%d/status", c.PID()))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = f.Close() }()
	for sc := bufio.NewScanner(f); sc.Scan(); {
		if rest, ok := strings.CutPrefix(sc.Text(), "VmRSS:"); ok {
			if _, err := fmt.Sscanf(rest, "%d kB", &kib); err != nil {
				t.Fatal(err)
			}
		}
	}
	return kib
}
