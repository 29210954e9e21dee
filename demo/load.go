package demo

import (
	"errors"
	"fmt"
	"runtime"
	"time"

	hdr "github.com/HdrHistogram/hdrhistogram-go"
	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/driver"
)

const (
	// frameSize is the smallest Ethernet frame, without its checksum.
	frameSize = 60
	// rate is how many packets per second are sent under load on all queue
	// pairs together: few enough for a device that notifies of each one.
	rate = 100_000
	// inHand is how many frames the device may have to work on per queue pair.
	// One would make both sides wait for each other.
	inHand = 2
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

// run is a guest with one processor that sends at the set rate for the given
// time, on all pairs in turn, and serves interrupts in between. It does not run
// ahead of the device: what the device gets to see is one or two frames at a time,
// however fast or slow the machine is, so that how many it announces at once is
// its own decision.
func (l *load) run(d time.Duration) error {
	before := make([]flow, len(l.flows))
	for i := range l.flows {
		f := &l.flows[i]
		f.arm()
		before[i].packets, before[i].notifications = f.count()
	}
	err := l.send(d)
	for i := range l.flows {
		f := &l.flows[i]
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

// send sends for the given time and then waits for what is still on its way.
func (l *load) send(d time.Duration) error {
	const gap = time.Second / rate
	start := time.Now()
	due := time.Duration(0)
	for i := 0; ; {
		if err := l.serve(); err != nil {
			return err
		}
		now := time.Since(start)
		if now >= d {
			break
		}
		f := &l.flows[i%len(l.flows)]
		if now < due || !f.clear() {
			yield()
			continue
		}
		// Time that was lost is not made up for: a burst would not be a steady rate.
		due = max(due, now-gap) + gap
		if err := f.transmit(); err != nil {
			return err
		}
		i++
	}
	for end := time.Now().Add(drainTime); !l.quiet() && time.Now().Before(end); yield() {
		if err := l.serve(); err != nil {
			return err
		}
	}
	return nil
}

// yield lets others have the processor: this process's goroutines, and threads
// that wait for it, the device's perhaps.
func yield() {
	runtime.Gosched()
	_, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
}

// serve handles the interrupts that have come.
func (l *load) serve() error {
	for i := range l.flows {
		p := l.flows[i].pair
		if p.RX.Settle() > 0 {
			l.flows[i].poll()
		}
		if p.TX.Settle() > 0 {
			p.TX.Reclaim()
			p.TX.Arm()
		}
		if err := errors.Join(p.RX.Err(), p.TX.Err()); err != nil {
			return err
		}
	}
	return nil
}

// poll receives until there is nothing left and asks for the next interrupt, as
// NAPI does.
func (f *flow) poll() {
	for {
		for f.pair.RX.Receive(f.receive) > 0 {
		}
		if !f.pair.RX.Arm() {
			return
		}
	}
}

// arm asks for interrupts, with nothing left from before.
func (f *flow) arm() {
	f.poll()
	f.pair.RX.Settle()
	f.pair.TX.Settle()
}

// clear tells whether the device can be given another frame.
func (f *flow) clear() bool {
	f.pair.TX.Reclaim()
	return f.pair.TX.Outstanding() < inHand
}

// transmit sends one frame and asks for an interrupt when it is done with, as a
// kernel's driver does.
func (f *flow) transmit() error {
	if err := f.pair.TX.Send(f.frame[:]); err != nil {
		return err
	}
	f.pair.TX.Flush()
	f.pair.TX.Arm()
	return nil
}

// quiet tells whether every frame has come back.
func (l *load) quiet() bool {
	for i := range l.flows {
		p := l.flows[i].pair
		if p.RX.Counters().Packets < p.TX.Counters().Packets {
			return false
		}
	}
	return true
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
