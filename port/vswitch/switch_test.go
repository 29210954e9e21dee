package vswitch

import (
	"encoding/binary"
	"errors"
	"fmt"
	"strings"
	"testing"

	"github.com/vhostnet/vhostnet/port"
	"github.com/vhostnet/vhostnet/virtio"
)

// testSwitch is a switch with a clock and ports of the test's.
type testSwitch struct {
	t   *testing.T
	set Set
	now uint32
}

func newTestSwitch(t *testing.T) *testSwitch {
	s := &testSwitch{t: t, now: 1000}
	s.set.clock = func() uint32 { return s.now }
	return s
}

// open adds a port on which somebody receives.
func (s *testSwitch) open(queues int, guest virtio.Features) *Port {
	s.t.Helper()
	p, err := s.set.Open("sw", queues)
	if err != nil {
		s.t.Fatal(err)
	}
	s.t.Cleanup(func() {
		if err := p.Close(); err != nil {
			s.t.Error(err)
		}
	})
	if err := p.Configure(virtio.NetHeaderLen, guest); err != nil {
		s.t.Fatal(err)
	}
	for i := range queues {
		if err := p.SetActive(i, true); err != nil {
			s.t.Fatal(err)
		}
	}
	return p
}

// frame is one of 60 bytes between two addresses of 02:00:00:00:xx:xx.
func frame(dst, src uint16, text string) []byte {
	f := make([]byte, 60)
	f[0], f[6] = 2, 2
	binary.BigEndian.PutUint16(f[4:], dst)
	binary.BigEndian.PutUint16(f[10:], src)
	f[12], f[13] = 0x88, 0xb5
	copy(f[14:], text)
	return f
}

// send sends frames both ways: each through Send, or all through SendBurst.
func send(t *testing.T, p *Port, burst bool, frames ...[]byte) {
	t.Helper()
	q := p.queues[0]
	if burst {
		if n := q.SendBurst(frames); n != len(frames) {
			t.Fatalf("%d frames of %d were taken", n, len(frames))
		}
		return
	}
	for _, f := range frames {
		if err := q.Send([][]byte{make([]byte, 12), f[:20], f[20:]}); err != nil {
			t.Fatal(err)
		}
	}
}

// texts receives what a queue has and returns what is in the frames.
func texts(t *testing.T, p *Port, queue int, burst bool) string {
	t.Helper()
	var all []string
	add := func(f []byte) { all = append(all, strings.TrimRight(string(f[14:]), "\x00")) }
	for q := p.queues[queue]; ; {
		if burst {
			bufs, lens := [][]byte{make([]byte, 100), make([]byte, 100)}, make([]uint32, 2)
			n, more := q.RecvBurst(bufs, 12, lens)
			for i := range n {
				add(bufs[i][12:lens[i]])
			}
			if !more {
				return strings.Join(all, " ")
			}
			continue
		}
		b := make([]byte, 200)
		n, err := q.Recv([][]byte{b[:5], b[5:30], b[30:]})
		if errors.Is(err, port.ErrWouldBlock) {
			return strings.Join(all, " ")
		}
		if err != nil {
			t.Fatal(err)
		}
		add(b[12:n])
	}
}

func counter(p *Port, name string) uint64 {
	n, known := p.Counters()[name]
	if !known {
		panic(name)
	}
	return n
}

func TestSwitching(t *testing.T) {
	for _, burst := range []bool{false, true} {
		t.Run(fmt.Sprintf("burst=%t", burst), func(t *testing.T) {
			s := newTestSwitch(t)
			a, b, c := s.open(1, 0), s.open(1, 0), s.open(1, 0)
			got := func(want ...string) {
				t.Helper()
				for i, p := range []*Port{a, b, c} {
					if text := texts(t, p, 0, burst); text != want[i] {
						t.Errorf("port %d got %q, want %q", i, text, want[i])
					}
				}
			}
			// Nobody knows B; then everybody does, and A from the first frame.
			send(t, a, burst, frame(0xb, 0xa, "unknown"))
			got("", "unknown", "unknown")
			send(t, b, burst, frame(0xa, 0xb, "answer"), frame(0xa, 0xb, "again"))
			got("answer again", "", "")
			send(t, a, burst, frame(0xb, 0xa, "1"), frame(0xc, 0xa, "2"), frame(0xb, 0xa, "3"))
			got("", "1 2 3", "2")
			// Broadcast and multicast, in between.
			everyone := frame(0, 0xa, "all")
			copy(everyone, []byte{255, 255, 255, 255, 255, 255})
			many := frame(0, 0xa, "many")
			copy(many, []byte{1, 0, 0x5e, 0, 0, 1})
			send(t, a, burst, frame(0xb, 0xa, "x"), everyone, frame(0xb, 0xa, "y"), many)
			got("", "x all y many", "all many")
			// What goes nowhere.
			bad, none, reserved := frame(0xb, 0xa, "bad"), frame(0xb, 0xa, "none"), frame(0, 0xa, "reserved")
			bad[6] |= 1
			copy(none[6:12], make([]byte, 6))
			copy(reserved, []byte{1, 0x80, 0xc2, 0, 0, 0xe})
			send(t, a, burst, bad, none, reserved, frame(0xa, 0xa, "self"))
			got("", "", "")
			// A tag is no part of an address.
			tagged := frame(0xb, 0xa, "tagged")
			copy(tagged[12:], []byte{0x81, 0, 0, 7})
			send(t, a, burst, tagged)
			if texts(t, b, 0, burst) == "" || texts(t, c, 0, burst) != "" {
				t.Error("a tagged frame went elsewhere")
			}
			for name, want := range map[string]uint64{
				"flooded": 4, "bad_source": 2, "reserved": 1, "local": 1, "addresses": 1, "moves": 0, "unlearned": 0, "receiver_full": 0,
			} {
				if n := counter(a, name); n != want {
					t.Errorf("%s is %d, want %d", name, n, want)
				}
			}
			// B moves to port C, and is forgotten after 300 s of silence.
			send(t, c, burst, frame(0xa, 0xb, "moved"))
			got("moved", "", "")
			send(t, a, burst, frame(0xb, 0xa, "to C"))
			got("", "", "to C")
			if counter(c, "moves") != 1 || counter(b, "addresses") != 0 || counter(c, "addresses") != 1 {
				t.Error(c.Counters())
			}
			s.now += maxAge
			send(t, a, burst, frame(0xb, 0xa, "still"))
			got("", "", "still")
			s.now++
			send(t, a, burst, frame(0xb, 0xa, "again unknown"))
			got("", "again unknown", "again unknown")
			if counter(c, "addresses") != 0 || counter(a, "addresses") != 1 {
				t.Error(c.Counters(), a.Counters())
			}
			// A port on which nobody receives is no port; it is not flooded around.
			send(t, b, burst, frame(0xa, 0xb, "I am here"))
			got("I am here", "", "")
			if err := b.SetActive(0, false); err != nil {
				t.Fatal(err)
			}
			send(t, a, burst, frame(0xb, 0xa, "to nobody"))
			got("", "", "")
			if counter(a, "no_receiver") != 1 {
				t.Error(a.Counters())
			}
			// One that is gone is unknown.
			if err := b.Close(); err != nil {
				t.Fatal(err)
			}
			send(t, a, burst, frame(0xb, 0xa, "gone"))
			got("", "", "gone")
		})
	}
}

// A full receiver loses frames, and keeps nobody else from anything.
func TestFullReceiver(t *testing.T) {
	s := newTestSwitch(t)
	a, b, c := s.open(1, 0), s.open(1, 0), s.open(1, 0)
	send(t, b, true, frame(0xff, 0xb, ""))
	texts(t, a, 0, true)
	texts(t, c, 0, true)
	for range inboxFrames + 10 {
		send(t, a, false, frame(0xb, 0xa, "x"))
	}
	for range 3 {
		send(t, a, true, frame(0xb, 0xa, "y"), frame(0xff, 0xa, "for C"), frame(0xb, 0xa, "z"))
	}
	if text := texts(t, c, 0, true); text != "for C for C for C" {
		t.Errorf("C got %q", text)
	}
	if n := counter(b, "receiver_full"); n != 10+3*3 {
		t.Errorf("%d frames were lost", n)
	}
	if n := len(strings.Fields(texts(t, b, 0, true))); n != inboxFrames {
		t.Errorf("B got %d", n)
	}
	send(t, a, true, frame(0xb, 0xa, "room again"))
	if text := texts(t, b, 0, true); text != "room again" {
		t.Errorf("B got %q", text)
	}
}

// Frames of a flow go to one queue, those of many flows to all that are in use.
func TestQueueChoice(t *testing.T) {
	s := newTestSwitch(t)
	a, b := s.open(1, 0), s.open(4, 0)
	if err := b.SetActive(2, false); err != nil {
		t.Fatal(err)
	}
	flow := func(n int, text string) []byte {
		f := frame(0xb, 0xa, "")
		copy(f[12:], []byte{8, 0, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, protoUDP, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2})
		binary.BigEndian.PutUint16(f[34:], uint16(n))
		copy(f[42:], text)
		return f
	}
	at := map[int]int{}
	for round := range 3 {
		for n := range 64 {
			send(t, a, round%2 == 0, flow(n, "x"))
			for i := range 4 {
				if texts(t, b, i, false) == "" {
					continue
				}
				if was, known := at[n]; known && was != i {
					t.Fatalf("flow %d was on queue %d and is on %d", n, was, i)
				}
				at[n] = i
			}
		}
	}
	used := map[int]int{}
	for _, i := range at {
		used[i]++
	}
	if len(at) != 64 || used[2] != 0 || used[0] == 0 || used[1] == 0 || used[3] == 0 {
		t.Errorf("flows on queues: %v", used)
	}
	// Fragments, of which only the first has ports, stay together.
	first, second := flow(1, ""), flow(2, "")
	first[20], second[21] = 0x20, 10
	if flowHash(first) != flowHash(second) {
		t.Error("fragments of a datagram are apart")
	}
}

// A guest that makes up addresses fills its own share, and nobody else's.
func TestMadeUpAddresses(t *testing.T) {
	s := newTestSwitch(t)
	a, b := s.open(1, 0), s.open(1, 0)
	send(t, b, true, frame(0xff, 0xb, ""))
	for i := range 1 << 16 {
		f := frame(0xb, uint16(i), "")
		f[8] = 1
		send(t, a, true, f)
	}
	n := counter(a, "addresses")
	if n > maxLearned || n < maxLearned/2 || counter(b, "addresses") != 1 {
		t.Errorf("%d addresses of A, %d of B", n, counter(b, "addresses"))
	}
	if counter(a, "flooded") != 0 {
		t.Error("B was forgotten:", a.Counters())
	}
	if a.owned != int(n) {
		t.Errorf("%d slots are counted, %d are A's", a.owned, n)
	}
	// When they have aged, there is room for others.
	s.now += maxAge + 1
	for i := range 2000 {
		f := frame(0xff, uint16(i), "")
		f[8] = 2
		send(t, b, true, f)
	}
	if n := counter(b, "addresses"); n < maxLearned/2 {
		t.Errorf("%d addresses of B", n)
	}
}

// TestSeenLater: an address that another worker has seen after this one has looked at
// the clock is known, and nobody takes its place.
func TestSeenLater(t *testing.T) {
	s := newTestSwitch(t)
	a, b, c := s.open(1, 0), s.open(1, 0), s.open(1, 0)
	send(t, b, true, frame(0xa, 0xb, "I am here"))
	texts(t, a, 0, true)
	texts(t, c, 0, true)
	s.now--
	for _, burst := range []bool{true, false} {
		send(t, a, burst, frame(0xb, 0xa, "for B"))
		if got, other := texts(t, b, 0, burst), texts(t, c, 0, burst); got != "for B" || other != "" {
			t.Errorf("B has %q, C %q", got, other)
		}
	}
	for i := range 20000 {
		f := frame(0xa, uint16(i), "")
		f[8] = 1
		send(t, c, true, f)
		texts(t, a, 0, true)
	}
	if counter(b, "addresses") != 1 || counter(a, "flooded") != 0 {
		t.Errorf("%d addresses of B, A's: %v", counter(b, "addresses"), a.Counters())
	}
}

func TestOpen(t *testing.T) {
	var s Set
	for _, c := range []struct {
		name   string
		queues int
	}{{"", 1}, {"a b", 1}, {"a:b", 1}, {strings.Repeat("x", MaxName+1), 1}, {"a", 0}, {"a", MaxQueues + 1}} {
		if _, err := s.Open(c.name, c.queues); err == nil {
			t.Errorf("%q with %d queues", c.name, c.queues)
		}
	}
	p, err := s.Open("a", 2)
	if err != nil {
		t.Fatal(err)
	}
	if p.Kind() != "switch" || p.String() != "switch:a" || p.Queues() != 2 || p.Offloads() != offloads {
		t.Errorf("%s %v %d %s", p.Kind(), p, p.Queues(), p.Offloads())
	}
	if err := p.Configure(11, 0); err == nil {
		t.Error("a header of 11 bytes")
	}
	if err := p.SetActive(2, true); err == nil {
		t.Error("a third queue")
	}
	other, err := s.Open("b", 1)
	if err != nil {
		t.Fatal(err)
	}
	// Switches are apart, and end with their last port.
	if p.sw == other.sw || len(s.switches) != 2 {
		t.Error("one switch")
	}
	for _, p := range []*Port{p, other, p} {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	}
	if len(s.switches) != 0 {
		t.Errorf("%d switches without ports", len(s.switches))
	}
}

// Frames that are no frames.
func TestHostileLengths(t *testing.T) {
	s := newTestSwitch(t)
	a, b := s.open(1, 0), s.open(1, 0)
	q := a.queues[0]
	for _, n := range []int{0, 11, 12, 25} {
		if err := q.Send([][]byte{make([]byte, n)}); !errors.Is(err, port.ErrDropped) {
			t.Errorf("%d bytes: %v", n, err)
		}
	}
	if err := q.Send([][]byte{make([]byte, 12), make([]byte, maxFrame+1)}); !errors.Is(err, port.ErrDropped) {
		t.Error(err)
	}
	long := append(frame(0xb, 0xa, ""), make([]byte, maxFrame-60)...)
	if err := q.Send([][]byte{make([]byte, 12), long}); err != nil {
		t.Error(err)
	}
	got := make([]byte, 12+maxFrame)
	if n, err := b.queues[0].Recv([][]byte{got}); err != nil || n != len(got) {
		t.Errorf("%d bytes, %v", n, err)
	}
	// One that does not fit is lost, and the next one is not.
	send(t, a, true, long, frame(0xb, 0xa, "fits"))
	if n, more := b.queues[0].RecvBurst([][]byte{got[:100]}, 12, make([]uint32, 1)); n != 0 || !more {
		t.Error(n, more)
	}
	if n, err := b.queues[0].Recv([][]byte{got[:100]}); !errors.Is(err, port.ErrTruncated) || n != len(got) {
		t.Errorf("%d bytes, %v", n, err)
	}
	if text := texts(t, b, 0, true); text != "fits" {
		t.Error(text)
	}
}
