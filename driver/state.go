package driver

import (
	"fmt"

	"golang.org/x/sys/unix"
)

// State describes both rings in a line each: where driver and device are, at which
// index either wants to be notified, and whether a notification waits in an
// eventfd. It is for the error of a wait that should have ended: it tells a lost
// notification from a device that does nothing. The goroutine that calls it must be
// the only user of both halves.
func (p *Pair) State() string { return p.RX.q.state() + "\n" + p.TX.q.state() }

func (q *queue) state() string {
	used := q.used.Load32(0)
	return fmt.Sprintf("virtqueue %d: available %d, used %d, consumed %d; kick wanted at %d (flags %d), waits: %t; call wanted at %d (flags %d), waits: %t",
		q.index, q.published, uint16(used>>16), q.last,
		uint16(q.used.Load32(q.availEvent)), uint16(used), signalled(q.kick), q.event, q.flags, signalled(q.call))
}

// signalled tells whether an eventfd holds a count. A device that never reads its
// kick eventfd leaves it so.
func signalled(fd int) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(p, 0)
	return n > 0 && err == nil
}
