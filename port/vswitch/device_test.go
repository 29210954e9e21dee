package vswitch_test

import (
	"context"
	"encoding/binary"
	"errors"
	"fmt"
	"runtime"
	"sync"
	"testing"
	"time"

	"go.uber.org/goleak"

	"github.com/vhostnet/vhostnet/driver"
	"github.com/vhostnet/vhostnet/internal/unixsock"
	"github.com/vhostnet/vhostnet/netdev"
	"github.com/vhostnet/vhostnet/port/vswitch"
	"github.com/vhostnet/vhostnet/vhostuser"
	"github.com/vhostnet/vhostnet/virtio"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// patience is how long something that must happen may take on a busy machine.
const patience = 20 * time.Second

// station is a device on a switch, with a driver.
type station struct {
	t   *testing.T
	dev *netdev.Device
	d   *driver.Driver
	n   uint16
	off func()
}

func newStation(t *testing.T, set *vswitch.Set, n uint16, cfg driver.Config) *station {
	t.Helper()
	pairs := max(cfg.QueuePairs, 1)
	p, err := set.Open("lan", pairs)
	if err != nil {
		t.Fatal(err)
	}
	dev, err := netdev.New(netdev.Config{Name: fmt.Sprint("s", n), QueuePairs: pairs}, p)
	if err != nil {
		t.Fatal(err)
	}
	s := &station{t: t, dev: dev, n: n}
	s.start(cfg)
	t.Cleanup(func() {
		s.off()
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	})
	return s
}

// start connects a driver; the one before must have gone.
func (s *station) start(cfg driver.Config) {
	s.t.Helper()
	front, back, err := unixsock.Pair()
	if err != nil {
		s.t.Fatal(err)
	}
	done := make(chan error, 1)
	go func() { done <- vhostuser.Serve(context.Background(), back, s.dev, vhostuser.Options{}) }()
	if s.d, err = driver.New(front, cfg); err != nil {
		s.t.Fatal(err)
	}
	d := s.d
	s.off = sync.OnceFunc(func() {
		if err := errors.Join(d.Close(), <-done); err != nil {
			s.t.Error(err)
		}
	})
}

// frame is one for another station, with a number.
func (s *station) frame(to uint16, number uint32, size int) []byte {
	f := make([]byte, size)
	f[0], f[6] = 2, 2
	binary.BigEndian.PutUint16(f[4:], to)
	binary.BigEndian.PutUint16(f[10:], s.n)
	f[12], f[13] = 0x88, 0xb5
	binary.BigEndian.PutUint32(f[14:], number)
	for i := 18; i < size; i++ {
		f[i] = byte(number) + byte(i)
	}
	return f
}

// send sends a frame on a pair and waits for room if there is none.
func (s *station) send(pair int, f []byte) {
	tx := s.d.Pair(pair).TX
	for {
		err := tx.Send(f)
		if err == nil {
			tx.Flush()
			tx.Reclaim()
			return
		}
		if !errors.Is(err, driver.ErrFull) {
			s.t.Error(err)
			return
		}
		if _, err := tx.Wait(patience); err != nil {
			s.t.Error(err)
			return
		}
		tx.Reclaim()
	}
}

// receive returns the next frame of a pair, nil if there is none for a while.
func (s *station) receive(pair int, wait time.Duration) []byte {
	rx := s.d.Pair(pair).RX
	var p [1]driver.Packet
	for end := time.Now().Add(wait); ; {
		if rx.Receive(p[:]) == 1 {
			f := append([]byte(nil), p[0].Frame()...)
			rx.Recycle()
			return f
		}
		if time.Now().After(end) {
			return nil
		}
		if _, err := rx.Wait(wait); err != nil {
			s.t.Error(err)
			return nil
		}
	}
}

// meet makes the switch know both addresses.
func meet(t *testing.T, a, b *station) {
	t.Helper()
	a.send(0, a.frame(b.n, 0, 60))
	if b.receive(0, patience) == nil {
		t.Fatal("nothing came")
	}
	b.send(0, b.frame(a.n, 0, 60))
	if a.receive(0, patience) == nil {
		t.Fatal("nothing came back")
	}
}

// Frames of all sizes go back and forth between two guests that sleep in between,
// and a third one hears nothing of it.
func TestTwoDrivers(t *testing.T) {
	for name, cfg := range map[string]driver.Config{
		"defaults":             {},
		"header apart":         {TXSegments: 2},
		"indirect, 3 pieces":   {TXSegments: 3, Indirect: true},
		"no mergeable buffers": {Without: virtio.FeatureMrgRxBuf},
		"small ring":           {QueueSize: 16},
	} {
		t.Run(name, func(t *testing.T) {
			var set vswitch.Set
			a, b, c := newStation(t, &set, 1, cfg), newStation(t, &set, 2, cfg), newStation(t, &set, 3, cfg)
			meet(t, a, b)
			if c.receive(0, patience) == nil {
				t.Fatal("the first frame was not flooded")
			}
			for i := range 300 {
				size := []int{60, 61, 257, 1000, 1514}[i%5]
				f := a.frame(b.n, uint32(i), size)
				a.send(0, f)
				if got := b.receive(0, patience); string(got) != string(f) {
					t.Fatalf("frame %d of %d bytes came with %d", i, size, len(got))
				}
				back := b.frame(a.n, uint32(i), size)
				b.send(0, back)
				if got := a.receive(0, patience); string(got) != string(back) {
					t.Fatalf("answer %d of %d bytes came with %d", i, size, len(got))
				}
			}
			s := c.dev.Snapshot()
			if n := s.Queues[0].Packets; n != 1 || s.PortKind != "switch" || s.PortCounters["receiver_full"] != 0 {
				t.Errorf("the third one got %d frames; %v", n, s.PortCounters)
			}
		})
	}
}

// Two senders at full speed to one receiver: what it gets is whole and in order, and
// what it does not get is counted.
func TestManyToOne(t *testing.T) {
	const each = 5000
	var set vswitch.Set
	a, b, c := newStation(t, &set, 1, driver.Config{}), newStation(t, &set, 2, driver.Config{}), newStation(t, &set, 3, driver.Config{QueueSize: 64})
	meet(t, a, c)
	meet(t, b, c)
	for a.receive(0, 0) != nil {
	}
	before := c.dev.Snapshot()
	var wg sync.WaitGroup
	for _, s := range []*station{a, b} {
		wg.Go(func() {
			for i := range uint32(each) {
				s.send(0, s.frame(c.n, i+1, 60+int(i)%1000))
			}
			// Until the last one is through, so that the receiver knows the end.
		})
	}
	sent := make(chan struct{})
	go func() { wg.Wait(); close(sent) }()
	last := map[uint16]uint32{}
	got := 0
	for ended := false; ; {
		wait := time.Millisecond
		select {
		case <-sent:
			ended = true
		default:
		}
		f := c.receive(0, wait)
		if f == nil {
			lost := c.dev.Snapshot().PortCounters["receiver_full"] - before.PortCounters["receiver_full"]
			if ended && got+int(lost) == 2*each {
				break
			}
			continue
		}
		src, number := binary.BigEndian.Uint16(f[10:]), binary.BigEndian.Uint32(f[14:])
		if number <= last[src] {
			t.Fatalf("frame %d of %d after %d", number, src, last[src])
		}
		if len(f) != 60+int(number-1)%1000 || f[len(f)-1] != byte(number)+byte(len(f)-1) {
			t.Fatalf("frame %d of %d has %d bytes", number, src, len(f))
		}
		last[src] = number
		got++
	}
	if got < inRing {
		t.Errorf("%d frames", got)
	}
}

// inRing is what an empty inbox and ring hold in any case.
const inRing = 64

// One side stops and starts again under traffic from the other, many times.
func TestStopAndStart(t *testing.T) {
	var set vswitch.Set
	a, b, c := newStation(t, &set, 1, driver.Config{}), newStation(t, &set, 2, driver.Config{}), newStation(t, &set, 3, driver.Config{})
	meet(t, a, b)
	ctx, stop := context.WithCancel(t.Context())
	var wg sync.WaitGroup
	for _, s := range []*station{a, c} {
		wg.Go(func() {
			for i := uint32(1); ctx.Err() == nil; i++ {
				to := b.n
				if i%100 == 0 {
					to = 0x99 // to all
				}
				s.send(0, s.frame(to, i, 60+int(i)%1400))
				for s.receive(0, 0) != nil {
				}
			}
		})
	}
	for i := range 20 {
		// From whoever: it must be a frame that was made by somebody.
		for range 50 {
			f := b.receive(0, patience)
			if f == nil {
				t.Fatalf("nothing comes in round %d", i)
			}
			if n := binary.BigEndian.Uint32(f[14:]); f[len(f)-1] != byte(n)+byte(len(f)-1) {
				t.Fatalf("a broken frame: %x", f)
			}
		}
		b.off()
		b.start(driver.Config{Without: virtio.FeatureMrgRxBuf * virtio.Features(i%2)})
		b.send(0, b.frame(a.n, 0, 60))
	}
	stop()
	wg.Wait()
	for _, s := range []*station{a, b, c} {
		for _, q := range s.dev.Snapshot().Queues {
			if q.Broken != "" {
				t.Errorf("device %d, queue %d: %s", s.n, q.Index, q.Broken)
			}
		}
	}
}

// What a hostile guest sends harms nobody: a well-behaved pair beside it goes on.
func TestHostileGuest(t *testing.T) {
	var set vswitch.Set
	a, b := newStation(t, &set, 1, driver.Config{}), newStation(t, &set, 2, driver.Config{})
	bad := newStation(t, &set, 3, driver.Config{
		Features: driver.DefaultFeatures | driver.Offloads, TXBufferSize: 1 << 17, QueueSize: 64,
	})
	meet(t, a, b)
	everyone := bad.frame(0, 1, 65535+22)
	copy(everyone, []byte{255, 255, 255, 255, 255, 255})
	groupSource := bad.frame(a.n, 1, 60)
	copy(groupSource[6:], []byte{255, 255, 255, 255, 255, 255})
	tx := bad.d.Pair(0).TX
	for i := range uint32(200) {
		bad.send(0, everyone)
		bad.send(0, groupSource)
		bad.send(0, bad.frame(a.n, i, 60)[:13]) // a runt
		bad.send(0, bad.frame(bad.n, i, 60))
		h := virtio.NetHeader{Flags: virtio.NetHdrFNeedsCSum, GSOType: virtio.GSOTCPv4, GSOSize: 1, CSumStart: 34, CSumOffset: 16}
		for tx.SendPacket(&h, bad.frame(a.n, i, 60000)) != nil {
			if _, err := tx.Wait(patience); err != nil {
				t.Fatal(err)
			}
			tx.Reclaim()
		}
		tx.Flush()
	}
	// Its last frames may still fill the inbox: those of others are lost then, as on
	// any wire, and not for good.
	for i := range uint32(200) {
		for end, came := time.Now().Add(patience), false; !came; {
			if time.Now().After(end) {
				t.Fatal("nothing comes")
			}
			a.send(0, a.frame(b.n, 1000+i, 60))
			for f := b.receive(0, time.Millisecond); f != nil && !came; f = b.receive(0, time.Millisecond) {
				came = len(f) == 60 && binary.BigEndian.Uint32(f[14:]) == 1000+i
			}
		}
	}
	s := bad.dev.Snapshot()
	c := s.PortCounters
	if c["bad_source"] != 200 || c["local"] != 200 || c["bad_offload"] != 200 || c["flooded"] != 200 || s.Queues[1].Drops["runt"] != 200 {
		t.Errorf("%v, %v", c, s.Queues[1].Drops)
	}
}

// Offloads between guests: a large frame passes to one that takes it, and comes in
// segments to one that does not.
func TestSegmentsBetweenDrivers(t *testing.T) {
	var set vswitch.Set
	full := driver.Config{Features: driver.DefaultFeatures | driver.Offloads, TXBufferSize: 1 << 17}
	a, b, c := newStation(t, &set, 1, full), newStation(t, &set, 2, full), newStation(t, &set, 3, driver.Config{})
	meet(t, b, c)
	f := a.frame(b.n, 0, 54+4000)
	copy(f[12:], []byte{8, 0, 0x45, 0, 0x0f, 0xc8, 0, 1, 0x40, 0, 64, 6, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2})
	f[46] = 5 << 4
	h := virtio.NetHeader{Flags: virtio.NetHdrFNeedsCSum, GSOType: virtio.GSOTCPv4, GSOSize: 1000, CSumStart: 34, CSumOffset: 16}
	for _, to := range []*station{b, c} {
		binary.BigEndian.PutUint16(f[4:], to.n)
		if err := a.d.Pair(0).TX.SendPacket(&h, f); err != nil {
			t.Fatal(err)
		}
		a.d.Pair(0).TX.Flush()
	}
	for got := b.receive(0, patience); len(got) != len(f); got = b.receive(0, patience) {
		if len(got) != 60 {
			t.Fatalf("%d bytes for who takes 4054", len(got))
		}
	}
	for i := 0; i < 4; {
		got := c.receive(0, patience)
		if len(got) == 60 {
			continue // of meet
		}
		if len(got) != 1054 {
			t.Fatalf("%d bytes for who takes 1054", len(got))
		}
		i++
	}
}

// Several queues: each flow on one of them, and whatever a driver uses of them.
func TestSeveralQueues(t *testing.T) {
	var set vswitch.Set
	a, b := newStation(t, &set, 1, driver.Config{}), newStation(t, &set, 2, driver.Config{QueuePairs: 4})
	b.send(3, b.frame(a.n, 0, 60))
	if a.receive(0, patience) == nil {
		t.Fatal("nothing came")
	}
	udp := func(portNumber uint16) []byte {
		f := a.frame(b.n, 7, 60)
		copy(f[12:], []byte{8, 0, 0x45, 0, 0, 46, 0, 0, 0, 0, 64, 17, 0, 0, 10, 0, 0, 1, 10, 0, 0, 2})
		binary.BigEndian.PutUint16(f[34:], portNumber)
		return f
	}
	for n := range uint16(64) {
		a.send(0, udp(n))
	}
	used := 0
	for got, pair := 0, 0; got < 64; pair = (pair + 1) % 4 {
		k := 0
		for b.receive(pair, 0) != nil {
			k++
		}
		got += k
		used |= min(k, 1) << pair
	}
	if used != 15 {
		t.Errorf("pairs in use: %b", used)
	}
	if err := b.d.SetQueuePairs(1); err != nil {
		t.Fatal(err)
	}
	for n := range uint16(64) {
		a.send(0, udp(n))
	}
	for range 64 {
		if b.receive(0, patience) == nil {
			t.Fatal("not all frames are on the first pair")
		}
	}
}

// No packet costs an allocation.
func TestNoAllocations(t *testing.T) {
	const packets = 100_000
	var set vswitch.Set
	a, b := newStation(t, &set, 1, driver.Config{}), newStation(t, &set, 2, driver.Config{})
	meet(t, a, b)
	f := a.frame(b.n, 1, 60)
	h := virtio.NetHeader{}
	move := func(n int) {
		tx, rx := a.d.Pair(0).TX, b.d.Pair(0).RX
		for got := 0; got < n; {
			tx.Reclaim()
			for range 32 {
				if tx.SendPacket(&h, f) != nil {
					break
				}
			}
			tx.Flush()
			for k := 1; k > 0; got += k {
				k = rx.Drop(64)
			}
			runtime.Gosched()
		}
	}
	move(packets / 10)
	var before, after runtime.MemStats
	runtime.ReadMemStats(&before)
	move(packets)
	runtime.ReadMemStats(&after)
	allowed := uint64(400)
	if raceEnabled {
		allowed = packets / 50
	}
	if n := after.Mallocs - before.Mallocs; n > allowed {
		t.Errorf("%d allocations for %d packets", n, packets)
	}
}
