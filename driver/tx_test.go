package driver

import (
	"bytes"
	"errors"
	"fmt"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/vhostnet/vhostnet/virtio"
)

func TestTXLayouts(t *testing.T) {
	for _, segs := range []int{1, 2, 3, 5} {
		for _, indirect := range []bool{false, true} {
			t.Run(fmt.Sprintf("segments=%d/indirect=%v", segs, indirect), func(t *testing.T) {
				d := newOffline(t, Config{QueueSize: 16, TXSegments: segs, Indirect: indirect, TXBufferSize: 4096}, modern)
				dev, tx := newDumbDevice(t, d, 1), d.Pair(0).TX
				// Twice round the ring, with all lengths that are special.
				for i, n := range []int{1, 2, 3, 14, 60, 64, 1500, 4084, 5, 60, 1, 1000, 60, 61, 62, 63, 2, 3, 4, 1, 59, 4084, 1, 7, 8, 9, 10, 11, 12, 13, 15, 16} {
					want := pattern(n, i)
					if err := tx.Send(want); err != nil {
						t.Fatalf("frame %d: %v", i, err)
					}
					tx.Flush()
					c, ok := dev.pop()
					if !ok {
						t.Fatalf("frame %d was not published", i)
					}
					got := c.readable()
					if len(got) != 12+n || !bytes.Equal(got[:12], make([]byte, 12)) || !bytes.Equal(got[12:], want) {
						t.Fatalf("frame %d of %d bytes: device reads %d bytes %x", i, n, len(got), got)
					}
					if c.indirect != indirect || len(c.in) != 0 || len(c.out) > segs {
						t.Fatalf("frame %d: indirect %v, %d readable and %d writable segments", i, c.indirect, len(c.out), len(c.in))
					}
					if segs > 1 && len(c.out[0]) != 12 {
						t.Fatalf("frame %d: header segment of %d bytes", i, len(c.out[0]))
					}
					for _, s := range c.out {
						if len(s) == 0 {
							t.Fatalf("frame %d has an empty segment", i)
						}
					}
					dev.complete(c.head, 0)
				}
				if err := tx.Err(); err != nil {
					t.Error(err)
				}
			})
		}
	}
}

func TestTXHeader(t *testing.T) {
	for _, tt := range []struct {
		f      virtio.Features
		hdrLen int
	}{{0, 10}, {virtio.FeatureMrgRxBuf, 12}, {plain, 12}} {
		d := newOffline(t, Config{QueueSize: 4}, tt.f)
		dev, tx := newDumbDevice(t, d, 1), d.Pair(0).TX
		want := virtio.NetHeader{Flags: virtio.NetHdrFNeedsCSum, GSOType: virtio.GSOTCPv4, HdrLen: 54, GSOSize: 1448, CSumStart: 34, CSumOffset: 16}
		if err := tx.SendPacket(&want, pattern(100, 1)); err != nil {
			t.Fatal(err)
		}
		// A buffer that had a header before must not leak it into the next frame.
		tx.Flush()
		c, _ := dev.pop()
		b := c.readable()
		var got virtio.NetHeader
		got.Decode(b[:tt.hdrLen])
		if diff := cmp.Diff(want, got); diff != "" || !bytes.Equal(b[tt.hdrLen:], pattern(100, 1)) {
			t.Errorf("%v: header (-want +got):\n%s", tt.f, diff)
		}
		dev.complete(c.head, 0)
		for i := range 4 {
			if err := tx.Send(pattern(60, i)); err != nil {
				t.Fatal(err)
			}
			tx.Flush()
			c, _ := dev.pop()
			if b := c.readable(); !bytes.Equal(b[:tt.hdrLen], make([]byte, tt.hdrLen)) {
				t.Errorf("%v: header of a plain frame is %x", tt.f, b[:tt.hdrLen])
			}
			dev.complete(c.head, 0)
		}
	}
}

func TestTXErrors(t *testing.T) {
	d := newOffline(t, Config{QueueSize: 8, TXBufferSize: 112}, modern)
	dev, tx := newDumbDevice(t, d, 1), d.Pair(0).TX
	if got := tx.MaxFrame(); got != 100 {
		t.Errorf("longest frame %d, want 100", got)
	}
	if err := tx.Send(make([]byte, 101)); !errors.Is(err, ErrFrameSize) {
		t.Errorf("too long: %v", err)
	}
	if err := tx.Prepare(make([]byte, 101)); !errors.Is(err, ErrFrameSize) {
		t.Errorf("too long to prepare: %v", err)
	}
	if got := tx.SendPrepared(1, 101); got != 0 {
		t.Errorf("%d prepared frames of too many bytes were sent", got)
	}
	for i := range 8 {
		if err := tx.Send(pattern(60, i)); err != nil {
			t.Fatal(err)
		}
	}
	if err := tx.Send(pattern(60, 9)); !errors.Is(err, ErrFull) {
		t.Errorf("full: %v", err)
	}
	if _, ok := dev.pop(); ok {
		t.Error("the device sees frames before Flush")
	}
	tx.Flush()
	if tx.Outstanding() != 8 || tx.Free() != 0 {
		t.Errorf("%d outstanding, %d free", tx.Outstanding(), tx.Free())
	}
	// Given back in another order than they were sent.
	var heads []uint16
	for {
		c, ok := dev.pop()
		if !ok {
			break
		}
		heads = append(heads, c.head)
	}
	for _, i := range []int{5, 0, 7, 1} {
		dev.complete(heads[i], 0)
	}
	if got := tx.SendPrepared(6, 60); got != 4 {
		t.Errorf("sent %d, want the 4 that were given back", got)
	}
	tx.Flush()
	want := Counters{Packets: 12, Bytes: 12 * 60, Completed: 4}
	got := tx.Counters()
	got.Kicks, got.KicksSuppressed = 0, 0
	if diff := cmp.Diff(want, got); diff != "" {
		t.Errorf("counters (-want +got):\n%s", diff)
	}
}

func TestTXDeviceErrors(t *testing.T) {
	tests := map[string]func(dev *dumbDevice, heads []uint16){
		"unknown descriptor": func(dev *dumbDevice, _ []uint16) { dev.fill(0, 16, 0); dev.publish(1) },
		"wild descriptor":    func(dev *dumbDevice, _ []uint16) { dev.fill(0, 0xffffffff, 0); dev.publish(1) },
		"middle of a chain":  func(dev *dumbDevice, h []uint16) { dev.fill(0, uint32(h[0])+1, 0); dev.publish(1) },
		"never given":        func(dev *dumbDevice, _ []uint16) { dev.fill(0, 14, 0); dev.publish(1) },
		"given back twice":   func(dev *dumbDevice, h []uint16) { dev.complete(h[0], 0); dev.complete(h[0], 0) },
		"more than it has":   func(dev *dumbDevice, _ []uint16) { dev.publish(4) },
		"index goes back":    func(dev *dumbDevice, _ []uint16) { dev.publish(0xffff) },
	}
	for name, misbehave := range tests {
		t.Run(name, func(t *testing.T) {
			d := newOffline(t, Config{QueueSize: 16, TXSegments: 2}, modern)
			dev, tx := newDumbDevice(t, d, 1), d.Pair(0).TX
			var heads []uint16
			for i := range 3 {
				if err := tx.Send(pattern(60, i)); err != nil {
					t.Fatal(err)
				}
				tx.Flush()
				c, _ := dev.pop()
				heads = append(heads, c.head)
			}
			misbehave(dev, heads)
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

// TestTXAgainstModel sends and gives back in random order for long enough that
// all indices wrap, and compares with a map.
func TestTXAgainstModel(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		segs := rapid.IntRange(1, 4).Draw(rt, "segments")
		d := newOffline(t, Config{QueueSize: 1 << rapid.IntRange(2, 5).Draw(rt, "size"), TXSegments: segs, Indirect: rapid.Bool().Draw(rt, "indirect")}, modern)
		dev, tx := newDumbDevice(t, d, 1), d.Pair(0).TX
		capacity := tx.Free()
		var sent [][]byte // not yet seen by the device
		var held []uint16 // with the device
		unflushed, seq := 0, 0
		for range rapid.IntRange(1, 200).Draw(rt, "steps") {
			switch rapid.IntRange(0, 3).Draw(rt, "do") {
			case 0:
				frame := pattern(rapid.IntRange(1, 300).Draw(rt, "length"), seq)
				err := tx.Send(frame)
				if full := len(held)+len(sent) >= capacity; full != errors.Is(err, ErrFull) || (!full && err != nil) {
					rt.Fatalf("Send with %d of %d in use: %v", len(held)+len(sent), capacity, err)
				}
				if err == nil {
					sent = append(sent, frame)
					unflushed++
					seq++
				}
			case 1:
				tx.Flush()
				unflushed = 0
			case 2:
				c, ok := dev.pop()
				if visible := len(sent) > unflushed; ok != visible {
					rt.Fatalf("device sees a frame: %v, %d sent of which %d not flushed", ok, len(sent), unflushed)
				}
				if ok {
					if !bytes.Equal(c.readable()[12:], sent[0]) {
						rt.Fatalf("frame arrived damaged or out of order")
					}
					sent = sent[1:]
					held = append(held, c.head)
				}
			case 3:
				if len(held) > 0 {
					i := rapid.IntRange(0, len(held)-1).Draw(rt, "which")
					dev.complete(held[i], 0)
					held = append(held[:i], held[i+1:]...)
				}
			}
			if err := tx.Err(); err != nil {
				rt.Fatal(err)
			}
		}
	})
}

// TestKicks compares the kicks with the specification's rule, index by index,
// over more than a wrap.
func TestKicks(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		eventIdx := rapid.Bool().Draw(rt, "event_idx")
		f := plain
		if eventIdx {
			f |= virtio.FeatureEventIdx
		}
		d := newOffline(t, Config{QueueSize: 64}, f)
		dev, tx := newDumbDevice(t, d, 1), d.Pair(0).TX
		// Start near the wrap.
		base := uint16(rapid.IntRange(0xffc0, 0xffff).Draw(rt, "base"))
		tx.q.next, tx.q.published, tx.q.last = base, base, base
		dev.lastAvail, dev.usedIdx, dev.decided = base, base, base
		dev.publish(0)
		index := base
		for range 60 {
			event := index + uint16(rapid.IntRange(-70, 70).Draw(rt, "event"))
			flag := rapid.Bool().Draw(rt, "no_notify")
			dev.setAvailEvent(event)
			dev.setNoKicks(flag)
			n := rapid.IntRange(1, 40).Draw(rt, "burst")
			if got := tx.SendPrepared(n, 60); got != n {
				rt.Fatalf("sent %d of %d", got, n)
			}
			want := uint64(0)
			if !eventIdx && !flag {
				want = 1
			}
			for range n {
				if eventIdx && index == event {
					want = 1
				}
				index++
			}
			tx.Flush()
			if got := kicks(t, d, 1); got != want {
				rt.Fatalf("%d kicks for %d entries up to %d with event %d, flag %v: want %d", got, n, index, event, flag, want)
			}
			for {
				c, ok := dev.pop()
				if !ok {
					break
				}
				dev.complete(c.head, 0)
			}
		}
		if err := tx.Err(); err != nil {
			rt.Fatal(err)
		}
	})
}
