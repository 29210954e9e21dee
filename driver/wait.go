package driver

import (
	"errors"
	"fmt"
	"runtime"
	"time"

	"golang.org/x/sys/unix"
)

// ErrClosed is returned by waits that Close or Interrupt has ended for good.
var ErrClosed = errors.New("driver: closed")

// epoch is the zero of the package's monotonic time; time.Since on a fixed base
// is about half the price of time.Now.
var epoch = time.Now()

// waiter sleeps on the call eventfds of one or two virtqueues.
type waiter struct {
	d      *Driver
	queues []*queue
	// tx marks the queues on which to wait for three quarters of what is
	// outstanding, as a driver that wants ring space does.
	tx  []bool
	fds []unix.PollFd
	ts  unix.Timespec
}

func newWaiter(d *Driver, queues ...*queue) *waiter {
	w := &waiter{d: d, queues: queues, fds: make([]unix.PollFd, len(queues)+1)}
	for i, q := range queues {
		w.tx = append(w.tx, q.index&1 == 1)
		w.fds[i] = unix.PollFd{Fd: int32(q.call), Events: unix.POLLIN}
	}
	w.fds[len(queues)] = unix.PollFd{Fd: int32(d.wake), Events: unix.POLLIN}
	return w
}

// wait asks the device for notifications and sleeps until a queue has used
// entries, or timeout has passed (negative: never). Afterwards notifications are
// unwanted again.
func (w *waiter) wait(timeout time.Duration) (bool, error) {
	if w.q0().polling {
		return w.spin(timeout)
	}
	deadline := time.Duration(-1)
	ready := false
	for {
		more, idle := w.enable()
		if ready = more; ready || idle || timeout == 0 || w.failed() != nil {
			break
		}
		left := time.Duration(-1)
		if timeout > 0 {
			now := time.Since(epoch)
			if deadline < 0 {
				deadline = now + timeout
			}
			if left = deadline - now; left <= 0 {
				break
			}
		}
		if err := w.sleep(left); err != nil {
			return false, err
		}
	}
	for _, q := range w.queues {
		q.disableCalls()
		ready = ready || q.pending() > 0
	}
	return ready, w.failed()
}

// waitCall sleeps until the device notifies of the first queue. Afterwards
// notifications are unwanted again.
func (w *waiter) waitCall(timeout time.Duration) (bool, error) {
	q := w.q0()
	before := q.c.notifications.v.Load()
	start := time.Since(epoch)
	for q.c.notifications.v.Load() == before {
		left := time.Duration(-1)
		if timeout >= 0 {
			if left = timeout - (time.Since(epoch) - start); left <= 0 {
				break
			}
		}
		if err := w.sleep(left); err != nil {
			return false, err
		}
	}
	q.disableCalls()
	return q.c.notifications.v.Load() != before, w.failed()
}

func (w *waiter) q0() *queue { return w.queues[0] }

// enable asks for notifications. more tells that there is work already, idle
// that nothing is outstanding that could ever notify.
func (w *waiter) enable() (more, idle bool) {
	idle = true
	for i, q := range w.queues {
		delay, out := uint16(0), q.outstanding()
		if w.tx[i] {
			delay = uint16(out * 3 / 4)
		}
		if out > 0 {
			idle = false
		}
		if q.enableCalls(delay) {
			more = true
		}
	}
	return more, idle
}

// sleep blocks until a call eventfd is readable and reads it.
func (w *waiter) sleep(left time.Duration) error {
	for _, q := range w.queues {
		q.c.sleeps.add(1)
	}
	ts := &w.ts
	if left < 0 {
		ts = nil
	} else {
		w.ts = unix.NsecToTimespec(int64(left))
	}
	if _, err := unix.Ppoll(w.fds, ts, nil); err != nil {
		if errors.Is(err, unix.EINTR) {
			return nil
		}
		return fmt.Errorf("driver: poll: %w", err)
	}
	if w.fds[len(w.queues)].Revents != 0 {
		return ErrClosed
	}
	for i, q := range w.queues {
		if w.fds[i].Revents == 0 {
			continue
		}
		if n := q.drain(); n > 0 {
			q.c.notifications.add(n)
			q.c.wakeups.add(1)
			if q.pending() == 0 {
				q.c.spurious.add(1)
			}
		}
	}
	return nil
}

func (w *waiter) failed() error {
	for _, q := range w.queues {
		if q.err != nil {
			return q.err
		}
	}
	return nil
}

// yieldAfter is how many looks at the ring a polling driver takes before it
// offers its processor to other threads: some ten microseconds of looks, so that
// a device that has a processor of its own is not waited for in the kernel.
const yieldAfter = 64

// spin is wait for a driver that polls.
func (w *waiter) spin(timeout time.Duration) (bool, error) {
	start := time.Since(epoch)
	for i := 1; ; i++ {
		idle := true
		for k, q := range w.queues {
			q.disableCalls() // moves the event index on
			delay, out := 0, q.outstanding()
			if w.tx[k] {
				delay = out * 3 / 4
			}
			if q.pending() > delay {
				return true, nil
			}
			idle = idle && out == 0
		}
		if err := w.failed(); err != nil {
			return false, err
		}
		switch {
		case w.d.closing.Load():
			return false, ErrClosed
		case idle || timeout >= 0 && time.Since(epoch)-start >= timeout:
			return false, nil
		}
		runtime.Gosched()
		if i%yieldAfter == 0 {
			// The device's thread may be waiting for this very processor.
			_, _, _ = unix.RawSyscall(unix.SYS_SCHED_YIELD, 0, 0, 0)
		}
	}
}
