package netdev_test

import (
	"fmt"
	"runtime"
	"sync"
	"sync/atomic"
	"testing"

	"github.com/vhostnet/vhostnet/driver"
	"github.com/vhostnet/vhostnet/netdev"
	"github.com/vhostnet/vhostnet/port"
	"github.com/vhostnet/vhostnet/port/builtin"
)

// newPool makes a pool that ends with the test.
func newPool(t *testing.T, threads int) *netdev.Pool {
	t.Helper()
	p, err := netdev.NewPool(threads, nil)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() {
		if err := p.Close(); err != nil {
			t.Error(err)
		}
	})
	return p
}

// TestPool: pairs that share threads, of two devices, echo everything while they
// are moved from thread to thread. The drivers sleep, so that no kick and no
// notification may get lost.
func TestPool(t *testing.T) {
	const pairs, frames = 3, 3000
	for _, threads := range []int{1, 2} {
		for _, polling := range []bool{false, true} {
			t.Run(fmt.Sprintf("threads=%d polling=%t", threads, polling), func(t *testing.T) {
				pool := newPool(t, threads)
				var load sync.WaitGroup
				var moves atomic.Int64
				stop := make(chan struct{})
				var movers sync.WaitGroup
				for range 2 {
					e, err := builtin.Echo(pairs)
					if err != nil {
						t.Fatal(err)
					}
					dev := newDevice(t, netdev.Config{QueuePairs: pairs, Pool: pool}, e)
					conn, ended := connect(t, dev)
					d, err := driver.New(conn, driver.Config{QueuePairs: pairs, QueueSize: 64, Polling: polling})
					if err != nil {
						t.Fatal(err)
					}
					t.Cleanup(func() {
						if err := d.Close(); err != nil {
							t.Error(err)
						}
						ended()
						if err := dev.Close(); err != nil {
							t.Error(err)
						}
					})
					if err := d.SetQueuePairs(pairs); err != nil {
						t.Fatal(err)
					}
					for i := range pairs {
						load.Go(func() {
							if err := echo(d.Pair(i), frames); err != nil {
								t.Errorf("pair %d: %v", i, err)
							}
						})
					}
					movers.Go(func() {
						for n := 0; threads > 1; n++ {
							select {
							case <-stop:
								return
							default:
								runtime.Gosched()
							}
							if dev.Move(n%pairs, n/pairs%threads) {
								moves.Add(1)
							}
						}
					})
				}
				load.Wait()
				close(stop)
				movers.Wait()
				if threads > 1 && moves.Load() < 10 {
					t.Errorf("%d moves", moves.Load())
				}
			})
		}
	}
}

// echo sends frames, a few at a time, and waits for each to come back, in order.
func echo(p *driver.Pair, frames int) error {
	const ahead = 8
	f := testFrame(0, 64)[12:]
	packets := make([]driver.Packet, ahead)
	for sent, got := 0, 0; got < frames; {
		for ; sent < frames && sent-got < ahead; sent++ {
			f[20], f[21] = byte(sent), byte(sent>>8)
			if err := p.TX.Send(f); err != nil {
				return fmt.Errorf("frame %d: %w", sent, err)
			}
		}
		p.TX.Flush()
		n := p.RX.Receive(packets)
		for _, r := range packets[:n] {
			if b := r.Frame(); len(b) != len(f) || b[20] != byte(got) || b[21] != byte(got>>8) {
				return fmt.Errorf("frame %d: %d bytes, number %d", got, len(b), int(b[20])|int(b[21])<<8)
			}
			got++
		}
		if n > 0 {
			continue
		}
		switch ready, err := p.RX.Wait(patience); {
		case err != nil:
			return err
		case !ready:
			return fmt.Errorf("%d sent, %d back, and nothing comes any more: %s", sent, got, p.State())
		}
	}
	return nil
}

// floodPort is a port whose transmit ring never runs dry: with each frame that is
// sent, the driver makes more available.
type floodPort struct {
	*fakePort
	q *floodQueue
}

func (p *floodPort) Queue(int) port.PortQueue { return p.q }

type floodQueue struct {
	*fakeQueue

	mu     sync.Mutex
	refill func() // nil: the port takes nothing yet
	sent   int
	gaveUp bool // it runs dry
}

// floodMost is after how many frames the flood ends, if nothing was received.
const floodMost = 10_000_000

func (q *floodQueue) Send([][]byte) error {
	q.mu.Lock()
	defer q.mu.Unlock()
	if q.refill == nil {
		return port.ErrWouldBlock
	}
	switch q.sent++; {
	case q.sent == 1000:
		q.inject(testFrame(7, 60))
	case q.sent == floodMost:
		q.gaveUp = true
	}
	if !q.gaveUp {
		q.refill()
	}
	return nil
}

// begin lends the driver's transmit half to the worker, until end.
func (q *floodQueue) begin(refill func()) {
	q.mu.Lock()
	q.refill = refill
	q.mu.Unlock()
	q.poke()
}

// end reports whether the flood went on until now.
func (q *floodQueue) end() bool {
	q.mu.Lock()
	defer q.mu.Unlock()
	going := !q.gaveUp
	q.gaveUp = true
	return going
}

// TestFloodDoesNotStopReceiving: a driver that always has more to send still gets what
// arrives, although the worker, which never sleeps, is told of that by an event.
func TestFloodDoesNotStopReceiving(t *testing.T) {
	fake := newFakePort(t, 1)
	p := &floodPort{fake, &floodQueue{fakeQueue: fake.queues[0]}}
	dev := newDevice(t, netdev.Config{}, p)
	conn, ended := connect(t, dev)
	d, err := driver.New(conn, driver.Config{QueueSize: 256})
	if err != nil {
		t.Fatal(err)
	}
	defer func() {
		if err := d.Close(); err != nil {
			t.Error(err)
		}
		ended()
		if err := dev.Close(); err != nil {
			t.Error(err)
		}
	}()
	rx, tx := d.Pair(0).RX, d.Pair(0).TX
	f := testFrame(0, 60)[12:]
	fill := func() {
		for tx.Reclaim(); tx.Free() > 0; {
			if err := tx.Send(f); err != nil {
				t.Error(err)
				return
			}
		}
		tx.Flush()
	}
	fill()
	p.q.begin(fill)
	defer p.q.end() // before the driver is closed
	packets := make([]driver.Packet, 1)
	for rx.Receive(packets) == 0 {
		if ready, err := rx.Wait(patience); !ready || err != nil {
			t.Fatalf("nothing was received: %v", err)
		}
	}
	if !p.q.end() {
		t.Error("only when there was nothing more to send")
	}
}
