package driver

import (
	"bytes"
	"encoding/binary"
	"errors"
	"testing"

	"github.com/google/go-cmp/cmp"
	"pgregory.net/rapid"

	"github.com/vhostnet/vhostnet/virtio"
)

func TestRXReceive(t *testing.T) {
	d := newOffline(t, Config{QueueSize: 8, RXBufferSize: 256}, modern)
	dev, rx := newDumbDevice(t, d, 0), d.Pair(0).RX
	packets := make([]Packet, 4)
	if got := rx.Receive(packets); got != 0 {
		t.Fatalf("received %d frames of nothing", got)
	}
	seq := 0
	for _, lengths := range [][]int{{60}, {244}, {245}, {60, 500, 60}, {1000}, {8*256 - 12}, {60, 60, 60, 60}} {
		var want [][]byte
		for _, n := range lengths {
			seq++
			want = append(want, pattern(n, seq))
			if !dev.frame(12, want[len(want)-1]) {
				t.Fatalf("no buffers for a frame of %d bytes: the driver does not recycle", n)
			}
		}
		got := rx.Receive(packets)
		if got != len(lengths) {
			t.Fatalf("received %d frames, want %d: %v", got, len(lengths), rx.Err())
		}
		for i, n := range lengths {
			if buffers := (12 + n + 255) / 256; packets[i].Buffers != buffers || !bytes.Equal(packets[i].Frame(), want[i]) {
				t.Errorf("frame of %d bytes came as %d bytes over %d buffers, want %d", n, len(packets[i].Frame()), packets[i].Buffers, buffers)
			}
			if h := packets[i].Header(); h.NumBuffers != uint16(packets[i].Buffers) {
				t.Errorf("header %+v of a frame over %d buffers", h, packets[i].Buffers)
			}
		}
		rx.Recycle()
	}
	if err := rx.Err(); err != nil {
		t.Fatal(err)
	}
	got := rx.Counters()
	if got.Packets != 12 || got.Bytes != 60+244+245+620+1000+2036+240 || got.Completed != 1+1+2+4+4+8+4 {
		t.Errorf("counters %+v", got)
	}
}

// TestRXBudget: what does not fit the budget stays for the next call, and the
// buffers of delivered frames are not given back before it.
func TestRXBudget(t *testing.T) {
	d := newOffline(t, Config{QueueSize: 4}, modern)
	dev, rx := newDumbDevice(t, d, 0), d.Pair(0).RX
	for i := range 4 {
		dev.frame(12, pattern(60, i))
	}
	packets := make([]Packet, 3)
	if got := rx.Receive(packets); got != 3 {
		t.Fatalf("received %d, want the budget of 3", got)
	}
	if _, ok := dev.pop(); ok {
		t.Error("a buffer went back to the device while its frame is in use")
	}
	if got := rx.Receive(packets); got != 1 || !bytes.Equal(packets[0].Frame(), pattern(60, 3)) {
		t.Fatalf("received %d, want the last frame", got)
	}
	if got := dev.availIdx() - dev.lastAvail; got != 3 {
		t.Errorf("%d buffers are back, want 3", got)
	}
}

func TestRXDropCountsLikeReceive(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		size := rapid.SampledFrom([]int{13, 64, 256}).Draw(rt, "buffer")
		cfg := Config{QueueSize: 16, RXBufferSize: size}
		var devs [2]*dumbDevice
		var rxs [2]*RX
		for i := range devs {
			d := newOffline(t, cfg, modern)
			devs[i], rxs[i] = newDumbDevice(t, d, 0), d.Pair(0).RX
		}
		packets := make([]Packet, 8)
		for range rapid.IntRange(1, 40).Draw(rt, "rounds") {
			for range rapid.IntRange(0, 6).Draw(rt, "frames") {
				if rapid.IntRange(0, 9).Draw(rt, "kind") == 0 {
					for _, dev := range devs { // a buffer that comes back unused
						if c, ok := dev.pop(); ok {
							dev.complete(c.head, 0)
						}
					}
					continue
				}
				frame := pattern(rapid.IntRange(1, 600).Draw(rt, "length"), 1)
				if devs[0].frame(12, frame) != devs[1].frame(12, frame) {
					rt.Fatal("one of the two has no buffers")
				}
			}
			budget := rapid.IntRange(1, 8).Draw(rt, "budget")
			a, b := rxs[0].Receive(packets[:budget]), rxs[1].Drop(budget)
			rxs[0].Recycle()
			if a != b {
				rt.Fatalf("Receive %d, Drop %d", a, b)
			}
		}
		a, b := rxs[0].Counters(), rxs[1].Counters()
		// How often they publish differs.
		a.Kicks, a.KicksSuppressed, b.Kicks, b.KicksSuppressed = 0, 0, 0, 0
		if diff := cmp.Diff(a, b); diff != "" {
			rt.Fatalf("counters of Receive and Drop:\n%s", diff)
		}
		if err := errors.Join(rxs[0].Err(), rxs[1].Err()); err != nil {
			rt.Fatal(err)
		}
	})
}

func TestRXWithoutMergeableBuffers(t *testing.T) {
	for _, tt := range []struct {
		f      virtio.Features
		hdrLen int
	}{{plain, 12}, {0, 10}} {
		d := newOffline(t, Config{QueueSize: 4, RXBufferSize: 1024}, tt.f)
		dev, rx := newDumbDevice(t, d, 0), d.Pair(0).RX
		packets := make([]Packet, 4)
		// num_buffers must not be looked at: a device may leave rubbish there.
		dev.frameWith(tt.hdrLen, pattern(500, 1), func(h []byte) {
			if tt.hdrLen == 12 {
				binary.LittleEndian.PutUint16(h[10:], 7)
			}
		})
		if got := rx.Receive(packets); got != 1 || !bytes.Equal(packets[0].Frame(), pattern(500, 1)) || rx.Err() != nil {
			t.Errorf("header of %d: received %d frames: %v", tt.hdrLen, got, rx.Err())
		}
	}
}

func TestRXDeviceErrors(t *testing.T) {
	tests := map[string]func(dev *dumbDevice){
		"no buffers in the header": func(dev *dumbDevice) {
			dev.frameWith(12, pattern(60, 1), func(h []byte) { h[10] = 0 })
		},
		"published in part": func(dev *dumbDevice) {
			dev.frameWith(12, pattern(60, 1), func(h []byte) { h[10] = 3 })
		},
		"longer than the buffer": func(dev *dumbDevice) {
			c, _ := dev.pop()
			c.in[0][10] = 1
			dev.complete(c.head, 257)
		},
		"second buffer longer than it is": func(dev *dumbDevice) {
			a, _ := dev.pop()
			b, _ := dev.pop()
			a.in[0][10] = 2
			dev.fill(0, uint32(a.head), 256)
			dev.fill(1, uint32(b.head), 1<<31)
			dev.publish(2)
		},
		"same buffer twice": func(dev *dumbDevice) {
			a, _ := dev.pop()
			a.in[0][10] = 2
			dev.fill(0, uint32(a.head), 256)
			dev.fill(1, uint32(a.head), 256)
			dev.publish(2)
		},
		"more than it has": func(dev *dumbDevice) { dev.publish(9) },
	}
	for name, misbehave := range tests {
		for way, receive := range map[string]func(*RX) int{
			"receive": func(r *RX) int { return r.Receive(make([]Packet, 4)) },
			"drop":    func(r *RX) int { return r.Drop(4) },
		} {
			t.Run(name+"/"+way, func(t *testing.T) {
				d := newOffline(t, Config{QueueSize: 8, RXBufferSize: 256}, modern)
				dev, rx := newDumbDevice(t, d, 0), d.Pair(0).RX
				misbehave(dev)
				receive(rx)
				if err := rx.Err(); !errors.Is(err, ErrDevice) || !d.Broken() {
					t.Errorf("error %v, broken %v: want ErrDevice", err, d.Broken())
				}
			})
		}
	}
}

func TestRXShortBuffer(t *testing.T) {
	d := newOffline(t, Config{QueueSize: 2}, modern)
	dev, rx := newDumbDevice(t, d, 0), d.Pair(0).RX
	packets := make([]Packet, 4)
	for i, n := range []int{0, 11, 5, 0} {
		c, ok := dev.pop()
		if !ok {
			t.Fatalf("buffer %d was not given back to the device", i)
		}
		dev.complete(c.head, n)
		if got := rx.Receive(packets); got != 0 {
			t.Errorf("%d bytes were received as a frame", n)
		}
		rx.Recycle()
	}
	if got := rx.Counters(); got.Short != 4 || got.Packets != 0 || rx.Err() != nil {
		t.Errorf("counters %+v, error %v", got, rx.Err())
	}
}
