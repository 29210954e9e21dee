package driver

import (
	"bytes"
	"errors"
	"math/rand/v2"
	"runtime"
	"strings"
	"sync/atomic"
	"testing"
	"time"

	"pgregory.net/rapid"

	"github.com/vhostnet/vhostnet/virtio"
)

const never = -1 * time.Second

func TestWaitFindsWorkWithoutSleeping(t *testing.T) {
	d := newOffline(t, Config{QueueSize: 8}, modern)
	dev, rx := newDumbDevice(t, d, 0), d.Pair(0).RX
	dev.frame(12, pattern(60, 1))
	if ready, err := rx.Wait(never); !ready || err != nil {
		t.Fatalf("ready %v, error %v", ready, err)
	}
	if c := rx.Counters(); c.Sleeps != 0 {
		t.Errorf("slept %d times with a frame in the ring", c.Sleeps)
	}
}

func TestWaitTimeout(t *testing.T) {
	for _, polling := range []bool{false, true} {
		d := newOffline(t, Config{QueueSize: 8, Polling: polling}, modern)
		p := d.Pair(0)
		for _, timeout := range []time.Duration{0, time.Millisecond} {
			if ready, err := p.RX.Wait(timeout); ready || err != nil {
				t.Errorf("polling %v, %v: ready %v, error %v", polling, timeout, ready, err)
			}
			if ready, err := p.Wait(timeout); ready || err != nil {
				t.Errorf("polling %v, both, %v: ready %v, error %v", polling, timeout, ready, err)
			}
		}
	}
	// With nothing sent there is nothing to wait for.
	d := newOffline(t, Config{QueueSize: 8}, modern)
	if ready, err := d.Pair(0).TX.Wait(never); ready || err != nil {
		t.Errorf("nothing outstanding: ready %v, error %v", ready, err)
	}
}

func TestInterrupt(t *testing.T) {
	for _, polling := range []bool{false, true} {
		d := newOffline(t, Config{QueueSize: 8, Polling: polling}, modern)
		ended := make(chan error)
		go func() {
			_, err := d.Pair(0).RX.Wait(never)
			ended <- err
		}()
		d.Interrupt()
		if err := <-ended; !errors.Is(err, ErrClosed) {
			t.Errorf("polling %v: %v, want ErrClosed", polling, err)
		}
		if _, err := d.Pair(0).Wait(never); !errors.Is(err, ErrClosed) {
			t.Errorf("polling %v, afterwards: %v, want ErrClosed", polling, err)
		}
	}
}

// TestNotificationsAreExact: a device that notifies more often than it is asked
// to is found out, and so are notifications with nothing behind them.
func TestNotificationsAreExact(t *testing.T) {
	d := newOffline(t, Config{QueueSize: 8}, modern)
	dev, rx := newDumbDevice(t, d, 0), d.Pair(0).RX
	for range 3 {
		dev.ring()
	}
	if ready, err := rx.Wait(time.Millisecond); ready || err != nil {
		t.Fatalf("ready %v, error %v", ready, err)
	}
	if c := rx.Counters(); c.Notifications != 3 || c.Wakeups != 1 || c.Spurious != 1 {
		t.Errorf("after three notifications of nothing: %+v", c)
	}
	dev.ring()
	if n := rx.Settle(); n != 1 || rx.Counters().Notifications != 4 {
		t.Errorf("settled %d, counters %+v", n, rx.Counters())
	}
}

// TestWaitCall: a driver that learns of frames by interrupt sleeps although the
// ring has one, until it is notified.
func TestWaitCall(t *testing.T) {
	d := newOffline(t, Config{QueueSize: 8}, modern)
	dev, rx := newDumbDevice(t, d, 0), d.Pair(0).RX
	if rx.Arm() {
		t.Fatal("a frame before there is any")
	}
	dev.frame(12, pattern(60, 1))
	if ready, err := rx.WaitCall(time.Millisecond); ready || err != nil {
		t.Fatalf("not notified: ready %v, error %v", ready, err)
	}
	if !rx.Arm() {
		t.Fatal("Arm does not see the frame")
	}
	dev.ring()
	if ready, err := rx.WaitCall(never); !ready || err != nil {
		t.Fatalf("notified: ready %v, error %v", ready, err)
	}
	if c := rx.Counters(); c.Notifications != 1 || c.Wakeups != 1 || c.Spurious != 0 {
		t.Errorf("counters %+v", c)
	}
	d.Interrupt()
	if _, err := rx.WaitCall(never); !errors.Is(err, ErrClosed) {
		t.Errorf("interrupted: %v", err)
	}
}

// TestState: what is said of the rings tells a lost notification from none.
func TestState(t *testing.T) {
	d := newOffline(t, Config{QueueSize: 8}, modern)
	dev, p := newDumbDevice(t, d, 0), d.Pair(0)
	p.RX.Arm()
	dev.frame(12, pattern(60, 1))
	rx, tx, _ := strings.Cut(p.State(), "\n")
	for text, want := range map[string]string{
		rx: "virtqueue 0: available 8, used 1, consumed 0; kick wanted at 0 (flags 0), waits: false; call wanted at 0 (flags 0), waits: false",
		tx: "virtqueue 1: available 0, used 0, consumed 0; kick wanted at 0 (flags 0), waits: false; call wanted at 0 (flags 0), waits: false",
	} {
		if text != want {
			t.Errorf("%s\nwant %s", text, want)
		}
	}
	dev.ring()
	if rx, _, _ = strings.Cut(p.State(), "\n"); !strings.HasSuffix(rx, "call wanted at 0 (flags 0), waits: true") {
		t.Errorf("notified: %s", rx)
	}
	if err := p.TX.Prepare(pattern(60, 1)); err != nil || p.TX.SendPrepared(1, 60) != 1 {
		t.Fatal("not sent", err)
	}
	p.TX.Flush()
	if _, tx, _ = strings.Cut(p.State(), "\n"); !strings.HasPrefix(tx, "virtqueue 1: available 1, used 0, consumed 0; kick wanted at 0 (flags 0), waits: true;") {
		t.Errorf("kicked: %s", tx)
	}
}

// TestSuppression walks a queue through polling and waiting over several wraps,
// and lets the device decide after random spans: never a notification while the
// driver polls, always one when it waits.
func TestSuppression(t *testing.T) {
	rapid.Check(t, func(rt *rapid.T) {
		f := modern
		if rapid.Bool().Draw(rt, "flags") {
			f &^= virtio.FeatureEventIdx
		}
		d := newOffline(t, Config{QueueSize: 64}, f)
		dev, rx := newDumbDevice(t, d, 0), d.Pair(0).RX
		if _, err := rx.Wait(0); err != nil {
			rt.Fatal(err)
		}
		dev.wanted()
		for range rapid.IntRange(1, 30).Draw(rt, "rounds") {
			polls := rapid.IntRange(0, 600).Draw(rt, "polls")
			for i := range polls {
				n := 1 + i%64
				for range n {
					if !dev.frame(12, []byte{1}) {
						rt.Fatal("no buffers")
					}
				}
				if i%3 == 0 && dev.wanted() {
					rt.Fatalf("the polling driver asks for a notification at used index %d with event %d", dev.usedIdx, rx.q.event)
				}
				for n > 0 {
					n -= rx.Drop(64)
				}
				if i%500 == 0 {
					if ready, err := rx.Wait(0); ready || err != nil {
						rt.Fatal(ready, err)
					}
				}
			}
			dev.wanted()
			rx.q.enableCalls(0)
			for range rapid.IntRange(1, 64).Draw(rt, "burst") {
				dev.frame(12, []byte{1})
			}
			if !dev.wanted() {
				rt.Fatalf("no notification for the waiting driver: used index %d, event %d", dev.usedIdx, rx.q.event)
			}
			rx.q.disableCalls()
			for rx.Drop(64) > 0 {
			}
		}
		if err := rx.Err(); err != nil {
			rt.Fatal(err)
		}
	})
}

// TestTransmitWaitIsDelayed: a driver that waits for ring space is notified when
// three quarters of it are free, not before.
func TestTransmitWaitIsDelayed(t *testing.T) {
	d := newOffline(t, Config{QueueSize: 64}, modern)
	dev, tx := newDumbDevice(t, d, 1), d.Pair(0).TX
	tx.SendPrepared(64, 60)
	tx.Flush()
	dev.wanted()
	tx.Arm()
	for i := range 64 {
		c, _ := dev.pop()
		dev.complete(c.head, 0)
		if got, want := dev.wanted(), i == 48; got != want {
			t.Errorf("notification wanted after %d of 64: %v", i+1, got)
		}
	}
}

// runDevice echoes from the transmit to the receive queue until stop, in bursts
// of random size, yielding to the driver at random points.
func runDevice(rx, tx *dumbDevice, stop *atomic.Bool, r *rand.Rand) {
	for !stop.Load() {
		for range 1 + r.IntN(40) {
			start := tx.mark()
			c, ok := tx.pop()
			if !ok {
				break
			}
			if !rx.frame(12, c.readable()[12:]) {
				tx.rewind(start)
				break
			}
			tx.complete(c.head, 0)
			if r.IntN(4) == 0 {
				rx.notify()
			}
		}
		rx.notify()
		tx.notify()
		runtime.Gosched()
	}
}

// TestEchoWithoutStalls runs a driver that sleeps against a device in another
// goroutine: every frame comes back in order, no notification is lost, and the
// counts of both sides are the same.
func TestEchoWithoutStalls(t *testing.T) {
	frames := 30_000
	if testing.Short() {
		frames = 3_000
	}
	for name, f := range map[string]virtio.Features{"event index": modern, "flags": modern &^ virtio.FeatureEventIdx} {
		t.Run(name, func(t *testing.T) {
			d := newOffline(t, Config{QueueSize: 32, RXBufferSize: 128}, f)
			p := d.Pair(0)
			devRX, devTX := newDumbDevice(t, d, 0), newDumbDevice(t, d, 1)
			var stop atomic.Bool
			ended := make(chan struct{})
			go func() {
				defer close(ended)
				runDevice(devRX, devTX, &stop, rand.New(rand.NewPCG(1, 2)))
			}()
			r := rand.New(rand.NewPCG(3, 4))
			packets := make([]Packet, 16)
			sent, received := 0, 0
			for received < frames {
				for sent < frames && r.IntN(8) > 0 && p.TX.Send(pattern(14+sent%300, sent)) == nil {
					sent++
				}
				p.TX.Flush()
				n := p.RX.Receive(packets[:1+r.IntN(16)])
				for i := range n {
					if want := pattern(14+received%300, received); !bytes.Equal(packets[i].Frame(), want) {
						t.Fatalf("frame %d is damaged: %d bytes, want %d", received, len(packets[i].Frame()), len(want))
					}
					received++
				}
				if n > 0 || received == sent {
					continue
				}
				// Long enough to be a stall and not a busy machine.
				if ready, err := p.Wait(20 * time.Second); !ready || err != nil {
					t.Fatalf("stalled after %d of %d frames: ready %v, error %v", received, sent, ready, err)
				}
				p.TX.Reclaim()
			}
			stop.Store(true)
			<-ended
			p.RX.Settle()
			p.TX.Settle()
			rx, tx := p.RX.Counters(), p.TX.Counters()
			if rx.Notifications != devRX.calls || tx.Notifications != devTX.calls {
				t.Errorf("driver counts %d and %d notifications, device %d and %d", rx.Notifications, tx.Notifications, devRX.calls, devTX.calls)
			}
			if rx.Packets != uint64(frames) || tx.Packets != uint64(frames) || rx.Bytes != tx.Bytes {
				t.Errorf("counters rx %+v tx %+v", rx, tx)
			}
		})
	}
}

// TestNoAllocations: neither half allocates per packet, with a device that does
// not either.
func TestNoAllocations(t *testing.T) {
	d := newOffline(t, Config{QueueSize: 64, RXBufferSize: 256}, modern)
	p := d.Pair(0)
	frame := pattern(60, 1)
	header := virtio.NetHeader{}
	txq, rxq := newDumbDevice(t, d, 1), newDumbDevice(t, d, 0)
	packets := make([]Packet, 16)
	head := func(dev *dumbDevice, i int) uint16 {
		at := 2 * int((dev.lastAvail+uint16(i))%dev.size)
		return uint16(dev.availRing[at]) | uint16(dev.availRing[at+1])<<8
	}
	give := func(dev *dumbDevice, n, length int) {
		for i := range n {
			dev.fill(uint16(i), uint32(head(dev, i)), uint32(length))
		}
		dev.lastAvail += uint16(n)
		dev.publish(uint16(n))
	}
	// What a frame over four buffers needs is made once.
	mergeable := func(buffers byte) {
		d.Pair(0).RX.buffer(head(rxq, 0), 12)[10] = buffers
	}
	round := func() {
		for range 4 {
			_ = p.TX.Send(frame)
			_ = p.TX.SendPacket(&header, frame)
		}
		_ = p.TX.SendPrepared(8, 60)
		p.TX.Flush()
		give(txq, 16, 0)
		p.TX.Reclaim()
		for range 8 {
			mergeable(1)
			give(rxq, 1, 72)
		}
		mergeable(4)
		give(rxq, 4, 256)
		if n := p.RX.Receive(packets); n != 9 {
			t.Fatalf("received %d: %v", n, p.RX.Err())
		}
		_ = packets[0].Header()
		p.RX.Recycle()
		for range 8 {
			mergeable(1)
			give(rxq, 1, 72)
		}
		if n := p.RX.Drop(16); n != 8 {
			t.Fatalf("dropped %d: %v", n, p.RX.Err())
		}
		rxq.ring()
		if _, err := p.Wait(time.Microsecond); err != nil {
			t.Fatal(err)
		}
	}
	round()
	if n := testing.AllocsPerRun(200, round); n != 0 {
		t.Errorf("%v allocations per round, want 0", n)
	}
}
