package driver

import (
	"encoding/binary"
	"errors"
	"testing"

	"pgregory.net/rapid"

	"github.com/vhostnet/vhostnet/guestmem"
	"github.com/vhostnet/vhostnet/virtio"
)

// packedRings makes drivers without a connection use packed rings.
var packedRings bool

// TestPacked runs the tests of a driver without a connection with packed rings.
func TestPacked(t *testing.T) {
	packedRings = true
	t.Cleanup(func() { packedRings = false })
	for name, f := range map[string]func(*testing.T){
		"TXLayouts": TestTXLayouts, "TXHeader": TestTXHeader, "TXErrors": TestTXErrors, "TXAgainstModel": TestTXAgainstModel,
		"RXReceive": TestRXReceive, "RXBudget": TestRXBudget, "RXDropCountsLikeReceive": TestRXDropCountsLikeReceive,
		"RXWithoutMergeableBuffers": TestRXWithoutMergeableBuffers, "RXShortBuffer": TestRXShortBuffer,
		"WaitFindsWorkWithoutSleeping": TestWaitFindsWorkWithoutSleeping, "WaitTimeout": TestWaitTimeout,
		"Interrupt": TestInterrupt, "NotificationsAreExact": TestNotificationsAreExact, "WaitCall": TestWaitCall,
		"Suppression": TestSuppression, "TransmitWaitIsDelayed": TestTransmitWaitIsDelayed,
		"EchoWithoutStalls": TestEchoWithoutStalls,
	} {
		t.Run(name, f)
	}
}

// dumbPacked is the device's side of a packed ring. Positions run freely and start in
// the first lap.
type dumbPacked struct {
	n              int
	desc           guestmem.View
	driver, device guestmem.View

	at, used, decided int
	counts            map[uint32]int
	fills             []uint64 // IDs and lengths of what is not published
}

func newDumbPacked(desc, driver, device []byte) *dumbPacked {
	return &dumbPacked{
		n: len(desc) / 16, desc: guestmem.NewView(desc), counts: map[uint32]int{},
		driver: guestmem.NewView(driver), device: guestmem.NewView(device),
	}
}

// counter is the wrap counter at a position.
func (p *dumbPacked) counter(pos int) uint64 { return uint64(1 - pos/p.n%2) }

func (p *dumbPacked) position(pos int) uint32 { return uint32(pos%p.n) | uint32(p.counter(pos))<<15 }

func (p *dumbPacked) word(pos int) uint64 { return p.desc.Load64(16*(pos%p.n) + 8) }

// has tells whether the descriptor at a position is available.
func (p *dumbPacked) has(pos int) bool {
	w, n := p.word(pos), p.counter(pos)
	return w>>55&1 == n && w>>63 != n
}

// available is how many chains the driver has made available.
func (p *dumbPacked) available() (n uint16) {
	for pos := p.at; p.has(pos); pos++ {
		if p.word(pos)>>48&virtio.DescFNext == 0 {
			n++
		}
	}
	return n
}

func (d *dumbDevice) popPacked() (c chain, ok bool) {
	p := d.packed
	if !p.has(p.at) {
		return chain{}, false
	}
	for count := 1; ; count++ {
		addr, w := p.desc.Load64(16*(p.at%p.n)), p.word(p.at)
		p.at++
		b, found := d.m.Slice(addr, uint64(uint32(w)))
		switch flags := uint16(w >> 48); {
		case !found:
			panic("a buffer that is not in the memory")
		case flags&virtio.DescFIndirect != 0:
			c.indirect = true
			for ; len(b) > 0; b = b[16:] {
				s, found := d.m.Slice(binary.LittleEndian.Uint64(b), uint64(binary.LittleEndian.Uint32(b[8:])))
				if !found || binary.LittleEndian.Uint16(b[14:]) != 0 {
					panic("a bad entry of a table")
				}
				c.out = append(c.out, s)
			}
		case flags&virtio.DescFWrite != 0:
			c.in = append(c.in, b)
		default:
			c.out = append(c.out, b)
		}
		if w>>48&virtio.DescFNext == 0 {
			c.head = uint16(w >> 32)
			p.counts[uint32(c.head)] = count
			d.lastAvail++
			return c, true
		}
	}
}

// position is where a device is that may go back.
type devicePosition struct {
	avail uint16
	at    int
}

func (d *dumbDevice) mark() devicePosition {
	if d.packed != nil {
		return devicePosition{d.lastAvail, d.packed.at}
	}
	return devicePosition{avail: d.lastAvail}
}

func (d *dumbDevice) rewind(to devicePosition) {
	d.lastAvail = to.avail
	if d.packed != nil {
		d.packed.at = to.at
	}
}

func (p *dumbPacked) fill(ahead int, id, length uint32) {
	p.fills = append(p.fills[:ahead], uint64(id)|uint64(length)<<32)
}

func (p *dumbPacked) publish(n int) {
	var at []int
	for _, f := range p.fills[:n] {
		at = append(at, p.used)
		p.used += max(p.counts[uint32(f)], 1)
	}
	for i := n - 1; i >= 0; i-- { // the first one last
		f, c := p.fills[i], p.counter(at[i])
		p.desc.Store64(16*(at[i]%p.n)+8, f>>32|f&0xffff<<32|c<<55|c<<63)
	}
	p.fills = p.fills[:0]
}

// wanted decides by the specification's words.
func (p *dumbPacked) wanted() bool {
	w := p.driver.Load32(0)
	old := p.decided
	p.decided = p.used
	for pos := old; pos < p.used; pos++ {
		if mode := w >> 16; mode == virtio.EventFEnable || mode == virtio.EventFDesc && w&0xffff == p.position(pos) {
			return true
		}
	}
	return false
}

// TestPackedKicks compares the kicks with the specification's rule, descriptor by
// descriptor.
func TestPackedKicks(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		size := rapid.SampledFrom([]int{5, 60, 64}).Draw(rt, "size")
		d := newOffline(t, Config{QueueSize: size, Packed: true, TXSegments: rapid.IntRange(1, 3).Draw(rt, "segments")},
			plain|virtio.FeatureRingPacked)
		dev, tx := newDumbDevice(t, d, 1), d.Pair(0).TX
		p, next := dev.packed, 0
		for range 60 {
			mode := rapid.IntRange(0, 2).Draw(rt, "mode")
			event := max(next+rapid.IntRange(-size, size-1).Draw(rt, "event"), 0)
			p.device.Store32(0, p.position(event)|uint32(mode)<<16)
			n := min(rapid.IntRange(1, 40).Draw(rt, "burst"), tx.Free())
			if got := tx.SendPrepared(n, 60); got != n {
				rt.Fatalf("sent %d of %d", got, n)
			}
			tx.Flush()
			got := kicks(t, d, 1)
			for {
				c, ok := dev.pop()
				if !ok {
					break
				}
				dev.complete(c.head, 0)
			}
			want := uint64(0)
			if mode == virtio.EventFEnable || mode == virtio.EventFDesc && event >= next && event < p.at {
				want = 1
			}
			if got != want {
				rt.Fatalf("%d kicks for descriptors %d to %d with mode %d at %d: want %d", got, next, p.at, mode, event, want)
			}
			next = p.at
			tx.Reclaim()
		}
		if err := tx.Err(); err != nil {
			rt.Fatal(err)
		}
	})
}

// TestPackedDeviceErrors: what a device cannot give back breaks the queue.
func TestPackedDeviceErrors(t *testing.T) {
	for name, id := range map[string]func(first uint32) uint32{
		"unknown buffer":    func(uint32) uint32 { return 16 },
		"wild buffer":       func(uint32) uint32 { return 0xffff },
		"middle of a chain": func(first uint32) uint32 { return first + 1 },
		"never given":       func(uint32) uint32 { return 14 },
		"given back twice":  nil,
	} {
		t.Run(name, func(t *testing.T) {
			d := newOffline(t, Config{QueueSize: 16, TXSegments: 2, Packed: true}, modern|virtio.FeatureRingPacked)
			dev, tx := newDumbDevice(t, d, 1), d.Pair(0).TX
			for i := range 3 {
				if err := tx.Send(pattern(60, i)); err != nil {
					t.Fatal(err)
				}
			}
			tx.Flush()
			c, _ := dev.pop()
			if id == nil {
				dev.complete(c.head, 0)
				dev.complete(c.head, 0)
			} else {
				dev.fill(0, id(uint32(c.head)), 0)
				dev.publish(1)
			}
			tx.Reclaim()
			tx.Reclaim()
			if err := tx.Err(); !errors.Is(err, ErrDevice) || !d.Broken() {
				t.Errorf("error %v, broken %v: want ErrDevice", err, d.Broken())
			}
			if got := tx.SendPrepared(1, 60); got != 0 {
				t.Error("a broken queue still sends")
			}
		})
	}
}

// TestPackedBase: where a device may have stopped.
func TestPackedBase(t *testing.T) {
	d := newOffline(t, Config{QueueSize: 5, Packed: true, TXSegments: 2}, modern|virtio.FeatureRingPacked)
	dev, tx := newDumbDevice(t, d, 1), d.Pair(0).TX
	for range 7 {
		if tx.SendPrepared(2, 60) != 2 {
			t.Fatal("full")
		}
		tx.Flush()
		c, _ := dev.pop()
		dev.complete(c.head, 0)
		for pos := dev.packed.used - 3; pos < dev.packed.used+5; pos++ {
			within := pos >= dev.packed.used && pos <= dev.packed.used+2
			if err := tx.q.stoppedAt(dev.packed.position(pos)); (err == nil) != within {
				t.Fatalf("stopped at %d, used up to %d: %v", pos, dev.packed.used, err)
			}
		}
		c, _ = dev.pop()
		dev.complete(c.head, 0)
		tx.Reclaim()
	}
}
