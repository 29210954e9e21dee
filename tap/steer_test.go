package tap

import (
	"encoding/binary"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/cilium/ebpf"
	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/port"
	"github.com/vhostnet/vhostnet/toeplitz"
	"github.com/vhostnet/vhostnet/virtio"
)

// udpFrame is a UDP frame, IPv4 or IPv6, with optional tags.
func udpFrame(six bool, tags int, proto byte, src, dst uint16) []byte {
	f := []byte{2, 0, 0, 0, 0, 2, 2, 0, 0, 0, 0, 1}
	for range tags {
		f = append(f, 0x81, 0, 0, 5)
	}
	if six {
		f = append(f, 0x86, 0xdd, 0x60, 0, 0, 0, 0, 8, proto, 64)
		for i := range 32 {
			f = append(f, byte(i*7+int(src)))
		}
	} else {
		f = append(f, 8, 0, 0x46, 0, 0, 32, 0, 1, 0x40, 0, 64, proto, 0, 0, 10, 0, 0, 1, 10, 0, byte(dst), 2, 1, 1, 1, 1)
	}
	f = binary.BigEndian.AppendUint16(f, src)
	f = binary.BigEndian.AppendUint16(f, dst)
	return append(f, make([]byte, 30)...)
}

// TestSteeringProgram runs the program in the kernel and compares it with what the
// device computes.
func TestSteeringProgram(t *testing.T) {
	r := rand.New(rand.NewPCG(7, 8))
	key := make([]byte, 40)
	for i := range key {
		key[i] = byte(r.Uint32())
	}
	for _, types := range []uint32{toeplitz.All, 0, toeplitz.TCPv4, toeplitz.UDPv6 | toeplitz.IPv4, toeplitz.IPv6 | toeplitz.UDPv4, toeplitz.IPEx} {
		for _, entries := range []int{1, 128, 4096} {
			s := port.Steering{Types: types, Key: key, Table: make([]uint16, entries), Unclassified: 6}
			for i := range s.Table {
				s.Table[i] = uint16(r.IntN(6))
			}
			n, err := newSteering(s, ebpf.SchedCLS) // a socket filter's test run begins behind the Ethernet header
			if err != nil {
				t.Fatalf("%+v", err)
			}
			order := []int{3, 0, 5, 1, 6, 4, 2}
			if err := n.refresh(order); err != nil {
				t.Fatal(err)
			}
			h, flow := toeplitz.New(key), toeplitz.Flow{}
			for i := range 120 {
				f := udpFrame(i%2 == 1, i/2%4, []byte{17, 6, 1}[r.IntN(3)], uint16(r.Uint32()), uint16(r.Uint32()))
				switch {
				case i%10 == 8:
					f[14+4*(i/2%4)+7] = 9 // a fragment, or another hop limit
				case i%31 == 30:
					f = frame(60, uint32(i))
				}
				flow.Parse(f, types)
				want := s.Unclassified
				if flow.Report != toeplitz.ReportNone {
					want = s.Table[h.Sum(flow.Input())%uint32(entries)]
				}
				got, _, err := n.prog.Test(f)
				if err != nil {
					t.Fatal(err)
				}
				if int(got) >= len(order) || order[got] != int(want) {
					t.Fatalf("types %#x, %d entries: index %d, want queue %d of %v\n% x", types, entries, got, want, order, f)
				}
			}
			if err := n.close(); err != nil {
				t.Error(err)
			}
		}
	}
}

// got returns which queue the frame that was just sent came out of, -1 for none.
func got(t *testing.T, p *Port) int {
	t.Helper()
	at := -1
	b := make([]byte, frameRoom+1)
	for i := range p.Queues() {
		if !p.queues[i].active {
			continue
		}
		if _, err := polled(p, i).Recv([][]byte{b}); err == nil {
			if at >= 0 {
				t.Fatalf("a frame in queues %d and %d", at, i)
			}
			at = i
		}
	}
	return at
}

// TestSteer: the kernel puts frames on the queue that the table names, also after
// queues were detached, which changes its numbers for them.
func TestSteer(t *testing.T) {
	namespace(t)
	create(t, "vn0", CreateOptions{})
	p := open(t, "vn0", Options{Queues: 4})
	configure(t, p, 20, 0)
	s := &port.Steering{Types: toeplitz.All, Key: []byte{0x6d, 0x5a, 0x56, 0xda, 0x25, 0x5b, 0x0e, 0xc2, 0x41, 0x67, 0x25, 0x3d, 0x43, 0xa3, 0x8f, 0xb0}, Unclassified: 3}
	for i := range uint16(128) {
		s.Table = append(s.Table, []uint16{0, 2, 3, 2}[i%4])
	}
	if err := p.Steer(s); err != nil {
		t.Fatal(err)
	}
	h4, h6 := packet(t, "vn0", unix.ETH_P_IP), packet(t, "vn0", unix.ETH_P_IPV6)
	h, flow := toeplitz.New(s.Key), toeplitz.Flow{}
	check := func() {
		t.Helper()
		seen := map[int]bool{}
		for i := range uint16(64) {
			for six, sock := range map[bool]*host{false: h4, true: h6} {
				f := udpFrame(six, 0, unix.IPPROTO_UDP, 2000+i, 53)
				flow.Parse(f, s.Types)
				want := int(s.Table[h.Sum(flow.Input())%128])
				sock.send(f)
				if at := got(t, p); at != want {
					t.Fatalf("flow %d: queue %d, want %d", i, at, want)
				}
				seen[want] = true
			}
		}
		if len(seen) != 3 {
			t.Errorf("only queues %v were used", seen)
		}
		h4.send(frame(60, 1))
		if at := got(t, p); at != 3 {
			t.Errorf("a frame without a hash: queue %d", at)
		}
	}
	check()
	// 0 goes: the kernel moves 3 to its place. It comes back as the last.
	for _, on := range []bool{false, true} {
		for _, i := range []int{0, 1} {
			if err := p.SetActive(i, on); err != nil {
				t.Fatal(err)
			}
		}
	}
	check()
	if err := p.Steer(nil); err != nil {
		t.Fatal(err)
	}
	if p.steering != nil {
		t.Error("still steered")
	}
	used := map[int]bool{}
	for i := range uint16(64) {
		h4.send(udpFrame(false, 0, unix.IPPROTO_UDP, 2000+i, uint16(i)))
		used[got(t, p)] = true
	}
	if used[-1] || len(used) < 2 {
		t.Errorf("without a table: queues %v", used)
	}
}

// TestAutomaticSteering: the kernel answers a flow on the queue that it was last
// transmitted on.
func TestAutomaticSteering(t *testing.T) {
	namespace(t)
	create(t, "vn0", CreateOptions{})
	p := open(t, "vn0", Options{Queues: 4})
	configure(t, p, 12, virtio.FeatureGuestCSum)
	link := linkOf(t, "vn0")
	addr, err := netlink.ParseAddr("10.9.0.1/24")
	if err != nil {
		t.Fatal(err)
	}
	if err := netlink.AddrAdd(link, addr); err != nil {
		t.Fatal(err)
	}
	guest := []byte{2, 0, 0, 0, 0, 9}
	err = netlink.NeighSet(&netlink.Neigh{LinkIndex: link.Index, State: netlink.NUD_PERMANENT, IP: []byte{10, 9, 0, 2}, HardwareAddr: guest})
	if err != nil {
		t.Fatal(err)
	}
	for round, queue := range []int{2, 0, 3, 1} {
		f := slices.Concat(link.Attrs().HardwareAddr, guest, icmpEcho(uint16(round)))
		for i := range 3 {
			if err := p.Queue(queue).Send([][]byte{withHeader(12, f)}); err != nil {
				t.Fatal(err)
			}
			at := got(t, p)
			for ; at < 0; at = got(t, p) {
				waitAny(t, p)
			}
			// The kernel learns from a packet when it has answered it.
			if i > 0 && at != queue {
				t.Errorf("round %d: an answer on queue %d, want %d", round, at, queue)
			}
		}
	}
}

// waitAny waits until a queue has something.
func waitAny(t *testing.T, p *Port) {
	t.Helper()
	var fds []unix.PollFd
	for _, q := range p.queues {
		fds = append(fds, unix.PollFd{Fd: int32(q.fd), Events: unix.POLLIN})
	}
	if n, err := unix.Poll(fds, int(patience.Milliseconds())); err == nil && n == 0 {
		t.Fatal("no answer")
	}
}

// icmpEcho is an echo request from 10.9.0.2 to 10.9.0.1.
func icmpEcho(seq uint16) []byte {
	ip := []byte{0x45, 0, 0, 28, 0, 1, 0, 0, 64, 1, 0, 0, 10, 9, 0, 2, 10, 9, 0, 1}
	sum := func(b []byte, at int) {
		var s uint32
		for i := 0; i < len(b); i += 2 {
			s += uint32(binary.BigEndian.Uint16(b[i:]))
		}
		for s > 0xffff {
			s = s>>16 + s&0xffff
		}
		binary.BigEndian.PutUint16(b[at:], ^uint16(s))
	}
	sum(ip, 10)
	icmp := []byte{8, 0, 0, 0, 0, 1, byte(seq >> 8), byte(seq)}
	sum(icmp, 2)
	return slices.Concat([]byte{8, 0}, ip, icmp)
}
