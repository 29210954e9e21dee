package afpacket

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/vishvananda/netlink"
	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/port"
	"github.com/vhostnet/vhostnet/virtio"
)

// Frames of all sizes go both ways as they are, one by one and in batches, and do not
// come back to who sent them.
func TestBothWays(t *testing.T) {
	namespace(t)
	near, far := open(t, "near", 1, 0), open(t, "far", 1, 0)
	for _, hdr := range []int{10, 12} {
		if err := near.Configure(hdr, 0); err != nil {
			t.Fatal(err)
		}
		a, b := near.Queue(0), far.Queue(0)
		for i, n := range []int{60, 61, 300, 1000, 1514} {
			f := frame(n, uint32(i))
			if err := a.Send([][]byte{append(make([]byte, hdr), f[:20]...), f[20:]}); err != nil {
				t.Fatal(err)
			}
			if _, got := receive(t, b); !bytes.Equal(got, f) {
				t.Fatalf("%d bytes became % x", n, got)
			}
			if err := b.Send(withHeader(f)); err != nil {
				t.Fatal(err)
			}
			room := make([]byte, 2000)
			for readable(a.FD()) {
				got, err := a.Recv([][]byte{room[:11], room[11:]})
				if errors.Is(err, port.ErrWouldBlock) {
					continue
				}
				if err != nil || !bytes.Equal(room[hdr:got], f) {
					t.Fatalf("%d, %v", got, err)
				}
				break
			}
		}
	}
	if err := near.Configure(12, 0); err != nil {
		t.Fatal(err)
	}
	var frames [][][]byte
	for i := range 150 {
		frames = append(frames, withHeader(frame(60+i, uint32(i))))
	}
	errs := make([]error, len(frames))
	near.Queue(0).(port.BatchQueue).SendBatch(frames, errs)
	if err := errors.Join(errs...); err != nil {
		t.Fatal(err)
	}
	for i := range frames {
		if _, got := receive(t, far.Queue(0)); !bytes.Equal(got, frames[i][1]) {
			t.Fatalf("frame %d: % x", i, got)
		}
	}
	settle(t, far.Queue(0), near.Queue(0)) // nothing of its own came back
}

// The far end of a driver that accepts everything, or nothing: what is to be done to
// a frame is said in its header, or has been done.
func TestChecksums(t *testing.T) {
	namespace(t)
	near, far := open(t, "near", 1, guestAll), open(t, "far", 1, guestAll|guestUSO)
	send := func(n int, gso uint16) []byte {
		f := udp(1, 2, 1000, 2000, n)
		// The pseudo-header's sum.
		sum := uint32(10<<8+0)*2 + 1 + 2 + 17 + uint32(8+n)
		binary.BigEndian.PutUint16(f[40:], uint16(sum>>16+sum&0xffff))
		h := virtio.NetHeader{Flags: virtio.NetHdrFNeedsCSum, CSumStart: 34, CSumOffset: 6}
		if gso != 0 {
			h.GSOType, h.GSOSize, h.HdrLen = virtio.GSOUDPL4, gso, 42
		}
		head := make([]byte, 12)
		h.Encode(head)
		if err := near.Queue(0).Send([][]byte{head, f}); err != nil {
			t.Fatal(err)
		}
		return f
	}
	f := send(500, 0)
	h, got := receive(t, far.Queue(0))
	if h.Flags != virtio.NetHdrFNeedsCSum || h.CSumStart != 34 || h.CSumOffset != 6 || !bytes.Equal(got, f) {
		t.Errorf("%+v, % x", h, got[:60])
	}
	f = send(5000, 1000)
	h, got = receive(t, far.Queue(0))
	if h.GSOType != virtio.GSOUDPL4 || h.GSOSize != 1000 || !bytes.Equal(got, f) {
		t.Errorf("%+v, %d bytes", h, len(got))
	}
	if err := far.Configure(12, 0); err != nil {
		t.Fatal(err)
	}
	whole := func(n int) {
		h, got := receive(t, far.Queue(0))
		if h != (virtio.NetHeader{}) || len(got) != 42+n {
			t.Fatalf("%+v, %d bytes", h, len(got))
		}
		if ip, u := ones(0, got[14:34]), ones(10<<8*2+1+2+17+uint32(8+n), got[34:]); len(got) > 600 && ip != 0xffff || u != 0xffff {
			t.Errorf("sums %#x and %#x", ip, u)
		}
	}
	send(500, 0)
	whole(500)
	send(4500, 1000)
	for _, n := range []int{1000, 1000, 1000, 1000, 500} {
		whole(n)
	}
	if c := far.Counters(); c["rx_checksums"] != 1 || c["rx_segmented"] != 1 || c["rx_bad_offload"] != 0 {
		t.Error(c)
	}
}

// ones is a dull ones' complement sum.
func ones(sum uint32, b []byte) uint32 {
	for i, v := range b {
		sum += uint32(v) << (8 * (1 - i&1))
	}
	for sum > 0xffff {
		sum = sum>>16 + sum&0xffff
	}
	return sum
}

// Tags are where they were: the outer one, which the kernel takes out, and one
// behind it, also where a checksum is left to the driver.
func TestVLAN(t *testing.T) {
	namespace(t)
	near, far := open(t, "near", 1, guestAll), open(t, "far", 1, guestAll)
	for i, tags := range [][]byte{
		{0x81, 0, 0x20, 5},
		{0x88, 0xa8, 0x0f, 0xff},
		{0x88, 0xa8, 0, 7, 0x81, 0, 0xe0, 9},
		{0x81, 0, 0, 0}, // a priority only, zero
	} {
		plain := frame(1400, uint32(i))
		f := append(append(append([]byte{}, plain[:12]...), tags...), plain[12:]...)
		if err := near.Queue(0).Send(withHeader(f)); err != nil {
			t.Fatal(err)
		}
		if _, got := receive(t, far.Queue(0)); !bytes.Equal(got, f) {
			t.Errorf("tags % x became % x", tags, got[:30])
		}
	}
	f := udp(1, 2, 3, 4, 100)
	f = append(append(append([]byte{}, f[:12]...), 0x81, 0, 0, 5), f[12:]...)
	head := make([]byte, 12)
	h := virtio.NetHeader{Flags: virtio.NetHdrFNeedsCSum, CSumStart: 38, CSumOffset: 6}
	h.Encode(head)
	if err := near.Queue(0).Send([][]byte{head, f}); err != nil {
		t.Fatal(err)
	}
	got, data := receive(t, far.Queue(0))
	if got.CSumStart != 38 || got.Flags != virtio.NetHdrFNeedsCSum || !bytes.Equal(data, f) {
		t.Errorf("%+v, % x", got, data[:60])
	}
	if c := far.Counters(); c["rx_vlan"] != 5 {
		t.Error(c)
	}
	// A driver that completes no checksum gets one that is right.
	if err := far.Configure(12, 0); err != nil {
		t.Fatal(err)
	}
	if err := near.Queue(0).Send([][]byte{head, f}); err != nil {
		t.Fatal(err)
	}
	if got, data = receive(t, far.Queue(0)); got != (virtio.NetHeader{}) || ones(0, data[38:]) != 0xffff {
		t.Errorf("%+v, % x", got, data[:60])
	}
}

func TestMTU(t *testing.T) {
	namespace(t)
	near, far := open(t, "near", 1, 0), open(t, "far", 1, 0)
	long := withHeader(frame(1515, 1))
	if err := near.Queue(0).Send(long); !errors.Is(err, port.ErrDropped) || !errors.Is(err, unix.EMSGSIZE) {
		t.Errorf("a frame longer than the MTU: %v", err)
	}
	// Those around it go.
	errs := make([]error, 3)
	near.queues[0].SendBatch([][][]byte{withHeader(frame(1514, 0)), long, withHeader(frame(1514, 2))}, errs)
	if errs[0] != nil || !errors.Is(errs[1], port.ErrDropped) || errs[2] != nil {
		t.Error(errs)
	}
	for _, want := range []uint32{0, 2} {
		if _, f := receive(t, far.Queue(0)); binary.BigEndian.Uint32(f[14:]) != want {
			t.Errorf("frame %d is missing", want)
		}
	}
	if c := near.Counters(); c["tx_too_long"] != 2 {
		t.Error(c)
	}
	if err := errors.Join(near.SetMTU(9000), far.SetMTU(9000), near.SetMTU(1400)); err != nil {
		t.Fatal(err)
	}
	if mtu, err := near.MTU(); mtu != 9000 || err != nil {
		t.Errorf("MTU %d, %v", mtu, err)
	}
	f := frame(9014, 3)
	if err := near.Queue(0).Send(withHeader(f)); err != nil {
		t.Fatal(err)
	}
	if _, got := receive(t, far.Queue(0)); !bytes.Equal(got, f) {
		t.Error("a jumbo frame is another one")
	}
	if near.SetMTU(1<<20) == nil {
		t.Error("an MTU of a megabyte")
	}
}

// A link that goes down costs frames, and is there again when it is up; one that is
// removed is not.
func TestLink(t *testing.T) {
	for _, queues := range []int{1, 2} {
		namespace(t)
		near, far := open(t, "near", queues, 0), open(t, "far", 1, 0)
		q := near.Queue(0)
		room := [][]byte{make([]byte, 70000)}
		if !near.LinkUp() || near.Err() != nil {
			t.Errorf("up: %v", near.Err())
		}
		set(t, "near", false)
		if err := near.Err(); near.LinkUp() || err != nil {
			t.Errorf("down: %v", err)
		}
		if !readable(q.FD()) {
			t.Error("nobody is told")
		}
		if _, err := q.Recv(room); !errors.Is(err, port.ErrWouldBlock) {
			t.Errorf("Recv while it is down: %v", err)
		}
		if err := q.Send(withHeader(frame(60, 1))); !errors.Is(err, port.ErrDropped) || !errors.Is(err, unix.ENETDOWN) {
			t.Errorf("Send while it is down: %v", err)
		}
		set(t, "near", true)
		carrier(t)
		if err := near.Err(); err != nil {
			t.Error(err)
		}
		settle(t, q, far.Queue(0))
		settle(t, far.Queue(0), q) // of a flow without addresses
		if c := near.Counters(); c["tx_link_down"] != 1 || c["link_lost"] != 1 {
			t.Error(c)
		}
		if err := netlink.LinkDel(link(t, "near")); err != nil {
			t.Fatal(err)
		}
		if err := near.Err(); near.LinkUp() || !errors.Is(err, ErrGone) {
			t.Errorf("gone: %v", err)
		}
		if _, err := q.Recv(room); !errors.Is(err, port.ErrWouldBlock) {
			t.Errorf("Recv when it is gone: %v", err)
		}
		if err := q.Send(withHeader(frame(60, 1))); !errors.Is(err, port.ErrDropped) {
			t.Errorf("Send when it is gone: %v", err)
		}
		if c := near.Counters(); c["tx_link_down"] != 2 {
			t.Error(c)
		}
		for _, err := range []error{near.SetMTU(1500), near.Err()} {
			if !errors.Is(err, ErrGone) {
				t.Error(err)
			}
		}
	}
}

// Flows stay on a queue, are on all of those in use, and both directions on the same.
func TestQueues(t *testing.T) {
	namespace(t)
	const queues, flows = 4, 64
	near, far := open(t, "near", 1, 0), open(t, "far", queues, 0)
	where := func(f []byte) int {
		t.Helper()
		if err := near.Queue(0).Send(withHeader(f)); err != nil {
			t.Fatal(err)
		}
		fds := make([]unix.PollFd, queues)
		for i := range fds {
			fds[i] = unix.PollFd{Fd: int32(far.Queue(i).FD()), Events: unix.POLLIN}
		}
		if n, err := unix.Poll(fds, 10000); n != 1 || err != nil {
			t.Fatalf("%d queues are readable, %v", n, err)
		}
		for i := range fds {
			if fds[i].Revents != 0 {
				if _, got := receive(t, far.Queue(i)); !bytes.Equal(got, f) {
					t.Fatal("another frame")
				}
				if _, err := far.Queue(i).Recv([][]byte{make([]byte, 100)}); !errors.Is(err, port.ErrWouldBlock) {
					t.Fatal(err)
				}
				return i
			}
		}
		return -1
	}
	for _, active := range [][]int{{0, 1, 2, 3}, {0}, {0, 1}, {1, 3}, {2}, {0, 1, 2, 3}} {
		for i := range queues {
			on := false
			for _, a := range active {
				on = on || a == i
			}
			if err := far.SetActive(i, on); err != nil {
				t.Fatal(err)
			}
		}
		var seen [queues]int
		for i := range flows {
			q := where(udp(1, 2, uint16(1000+i), 80, 30))
			if back := where(udp(2, 1, 80, uint16(1000+i), 30)); back != q {
				t.Errorf("a flow is on queue %d, its answers on %d", q, back)
			}
			seen[q]++
		}
		for i, n := range seen {
			on := false
			for _, a := range active {
				on = on || a == i
			}
			if on != (n > 0) {
				t.Errorf("in use %v: %v", active, seen)
			}
		}
		var v6 [queues]int
		for i := range flows {
			f := frame(100, 0)
			f[12], f[13], f[14], f[20] = 0x86, 0xdd, 0x60, unix.IPPROTO_TCP
			f[54], f[55] = byte(i), byte(i*7)
			v6[where(f)]++
		}
		for _, a := range active {
			if v6[a] == 0 {
				t.Errorf("IPv6, in use %v: %v", active, v6)
			}
		}
		// No flow: the first that is in use.
		if got := where(frame(60, 1)); got != active[0] {
			t.Errorf("in use %v: no flow is on queue %d", active, got)
		}
	}
	for i := range queues {
		if err := far.SetActive(i, false); err != nil {
			t.Fatal(err)
		}
	}
	if err := near.Queue(0).Send(withHeader(frame(60, 1))); err != nil {
		t.Fatal(err)
	}
	if err := far.SetActive(1, true); err != nil {
		t.Fatal(err)
	}
	settle(t, near.Queue(0), far.Queue(1)) // what came meanwhile is gone
	if far.SetActive(4, true) == nil || far.SetActive(-1, true) == nil {
		t.Error("there is such a queue")
	}
}

func TestOpenErrors(t *testing.T) {
	namespace(t)
	for name, want := range map[string]error{
		"": ErrName, "a/b": ErrName, "much-too-long-a-name": ErrName, "nobody": ErrMissing, "lo": ErrNotEthernet,
	} {
		if p, err := Open(name, Options{}); !errors.Is(err, want) {
			t.Errorf("%q: %v, %v", name, p, err)
		}
	}
	if _, err := Open("near", Options{Queues: 257}); err == nil {
		t.Error("257 queues")
	}
	p := open(t, "near", 2, 0)
	if p.Configure(11, 0) == nil {
		t.Error("a header of 11 bytes")
	}
	if p.Kind() != "af-packet" || p.String() != "af-packet:near" || p.Queues() != 2 {
		t.Error(p)
	}
	q := p.Queue(0)
	if err := q.Send([][]byte{make([]byte, 20)}); !errors.Is(err, port.ErrDropped) {
		t.Errorf("a runt: %v", err)
	}
	if err := q.Send([][]byte{make([]byte, 70000)}); !errors.Is(err, port.ErrDropped) {
		t.Errorf("an oversized frame: %v", err)
	}
	// A header that makes no sense.
	bad := withHeader(frame(60, 0))
	bad[0][0], bad[0][6] = virtio.NetHdrFNeedsCSum, 200
	if err := q.Send(bad); !errors.Is(err, port.ErrDropped) {
		t.Errorf("a checksum outside of the frame: %v", err)
	}
	if c := p.Counters(); c["tx_refused"] != 2 || c["tx_too_long"] != 1 {
		t.Error(c)
	}
	// More segments than a message has.
	f, far := frame(1514, 7), open(t, "far", 1, 0)
	bufs := [][]byte{make([]byte, 12)}
	for i := range f {
		bufs = append(bufs, f[i:i+1])
	}
	if err := q.Send(bufs); err != nil {
		t.Fatal(err)
	}
	if _, got := receive(t, far.Queue(0)); !bytes.Equal(got, f) {
		t.Error("another frame")
	}
}

// What does not fit into the socket's buffer is counted.
func TestOverrun(t *testing.T) {
	namespace(t)
	near, far := open(t, "near", 1, 0), open(t, "far", 1, 0)
	if err := unix.SetsockoptInt(far.queues[0].fd, unix.SOL_SOCKET, unix.SO_RCVBUF, 1); err != nil {
		t.Fatal(err)
	}
	f := withHeader(frame(1514, 1))
	for far.Counters()["rx_overrun"] < 10 {
		if err := near.Queue(0).Send(f); err != nil {
			t.Fatal(err)
		}
	}
	if _, got := receive(t, far.Queue(0)); !bytes.Equal(got, f[1]) {
		t.Error("another frame")
	}
}

func TestNoAllocations(t *testing.T) {
	namespace(t)
	near, far := open(t, "near", 1, guestAll), open(t, "far", 1, 0)
	f := frame(1514, 0)
	frames := [][][]byte{{append(make([]byte, 12), f...)}, {make([]byte, 12), f}, {make([]byte, 12), f[:600], f[600:]}, {make([]byte, 5)}}
	errs := make([]error, len(frames))
	room := [][]byte{make([]byte, 1000), make([]byte, 1000)}
	a, b := near.Queue(0).(port.BatchQueue), far.Queue(0)
	n := testing.AllocsPerRun(100, func() {
		a.SendBatch(frames, errs)
		for got := 0; got < 3; {
			switch _, err := b.Recv(room); {
			case err == nil:
				got++
			case !errors.Is(err, port.ErrWouldBlock):
				t.Fatal(err)
			}
		}
		if err := a.Send(frames[1]); err != nil {
			t.Fatal(err)
		}
		for {
			if _, err := b.Recv(room); err == nil {
				break
			}
		}
	})
	if n != 0 {
		t.Errorf("%v allocations", n)
	}
}
