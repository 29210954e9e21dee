package demo

import (
	"errors"
	"fmt"
	"runtime"
	"sync/atomic"
	"time"

	hdr "github.com/HdrHistogram/hdrhistogram-go"

	"github.com/vhostnet/vhostnet/driver"
)

const (
	// frameSize is the smallest Ethernet frame, without its checksum.
	frameSize = 60
	// rate is how many packets per second are sent under load on all queue
	// pairs together: few enough for a device that notifies of each one.
	rate = 100_000
	// budget is how many frames are received at once, as NAPI does.
	budget = 64
	// drainTime is how long to wait for frames that are still on their way.
	drainTime = 100 * time.Millisecond
	// pingTimeout is how long to wait for a single frame.
	pingTimeout = 2 * time.Second
)

var errLost = errors.New("no answer to a single frame")

// flow is the traffic of one queue pair.
type flow struct {
	pair    *driver.Pair
	frame   [frameSize]byte
	receive []driver.Packet
	// What was measured since the last reset.
	packets, notifications uint64
	elapsed                time.Duration
	rtt                    *hdr.Histogram
}

// load makes traffic on all queue pairs.
type load struct {
	d     *driver.Driver
	flows []flow
}

// newHistogram records nanoseconds, from 100 ns to 10 s.
func newHistogram() *hdr.Histogram { return hdr.New(100, 10_000_000_000, 3) }

func newLoad(d *driver.Driver) *load {
	l := &load{d: d, flows: make([]flow, d.QueuePairs())}
	for i := range l.flows {
		f := &l.flows[i]
		f.pair = d.Pair(i)
		f.receive = make([]driver.Packet, budget)
		f.rtt = newHistogram()
		mac := d.MAC()
		copy(f.frame[0:], []byte{0x02, 0, 0, 0, 0, byte(i + 1)})
		copy(f.frame[6:], mac[:])
		copy(f.frame[12:], []byte{0x88, 0xb5}) // for local experiments
	}
	return l
}

// reset forgets what was measured.
func (l *load) reset() {
	for i := range l.flows {
		f := &l.flows[i]
		f.packets, f.notifications, f.elapsed = 0, 0, 0
		f.rtt.Reset()
	}
}

func (l *load) warmUp(d time.Duration) error {
	if err := l.run(d / 2); err != nil {
		return err
	}
	return l.ping(d / 2)
}

// run sends at the set rate for the given time, on all pairs in turn, and counts
// what comes back. One goroutine sends on all of them, one per pair receives.
func (l *load) run(d time.Duration) error {
	before := make([]flow, len(l.flows))
	for i := range l.flows {
		f := &l.flows[i]
		f.pair.RX.Settle()
		f.pair.TX.Settle()
		before[i].packets, before[i].notifications = f.count()
	}
	var stop atomic.Bool
	ended := make(chan error, len(l.flows))
	for i := range l.flows {
		go func() { ended <- l.flows[i].receiveUntil(&stop) }()
	}
	err := l.send(d)
	stop.Store(true)
	for range l.flows {
		err = errors.Join(err, <-ended)
	}
	for i := range l.flows {
		f := &l.flows[i]
		f.pair.RX.Settle()
		f.pair.TX.Settle()
		packets, notifications := f.count()
		f.packets += packets - before[i].packets
		f.notifications += notifications - before[i].notifications
		f.elapsed += d
	}
	return err
}

func (f *flow) count() (packets, notifications uint64) {
	rx, tx := f.pair.RX.Counters(), f.pair.TX.Counters()
	return rx.Packets, rx.Notifications + tx.Notifications
}

// send is the transmitting side: it sends each packet on its own when it is due,
// and yields in between. A device that falls behind makes it send less.
func (l *load) send(d time.Duration) error {
	const gap = time.Second / rate
	start := time.Now()
	due := time.Duration(0)
	for i := 0; ; i++ {
		now := time.Since(start)
		for now < due {
			runtime.Gosched()
			now = time.Since(start)
		}
		if now >= d {
			return nil
		}
		// Time that was lost is not made up for: a burst would not be a steady rate.
		due = max(due, now-gap) + gap
		f := &l.flows[i%len(l.flows)]
		switch err := f.pair.TX.Send(f.frame[:]); {
		case errors.Is(err, driver.ErrFull):
			if _, err := f.pair.TX.Wait(drainTime); err != nil {
				return err
			}
			continue
		case err != nil:
			return err
		}
		f.pair.TX.Flush()
		f.transmitted()
	}
}

// transmitted does what a kernel's driver does after it has sent: free buffers
// when the device has notified, and ask for the next notification.
func (f *flow) transmitted() {
	if f.pair.TX.Reclaim() > 0 {
		f.pair.TX.Settle()
	}
	f.pair.TX.Arm()
}

// receiveUntil is the receiving side: it polls as long as there are frames and
// otherwise sleeps until the device notifies, as NAPI does. After stop it takes
// in what is still on its way.
func (f *flow) receiveUntil(stop *atomic.Bool) error {
	for {
		n := f.pair.RX.Receive(f.receive)
		if n == len(f.receive) {
			continue
		}
		ending := stop.Load()
		if ready, err := f.pair.RX.Wait(drainTime); err != nil || (!ready && ending) {
			return err
		}
	}
}

// ping sends single frames on the pairs in turn for the given time and records
// how long each takes to come back.
func (l *load) ping(d time.Duration) error {
	start := time.Now()
	for i := 0; time.Since(start) < d; i++ {
		f := &l.flows[i%len(l.flows)]
		// Like a guest that has nothing else to do: it learns of the answer by
		// the notification, not by looking.
		f.pair.RX.Arm()
		sent := time.Now()
		if err := f.pair.TX.Send(f.frame[:]); err != nil {
			return err
		}
		f.pair.TX.Flush()
		if err := f.await(); err != nil {
			return fmt.Errorf("queue pair %d: %w", i%len(l.flows), err)
		}
		if err := f.rtt.RecordValue(int64(time.Since(sent))); err != nil {
			return fmt.Errorf("round-trip time: %w", err)
		}
	}
	return nil
}

// await sleeps until the answer to a single frame has been notified of.
func (f *flow) await() error {
	for {
		ready, err := f.pair.RX.WaitCall(pingTimeout)
		switch {
		case err != nil:
			return err
		case f.pair.RX.Receive(f.receive[:1]) > 0:
			return nil
		case !ready:
			return errLost
		case f.pair.RX.Arm() && f.pair.RX.Receive(f.receive[:1]) > 0:
			// The notification was one of an earlier frame.
			return nil
		}
	}
}
