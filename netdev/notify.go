package netdev

import (
	"log/slog"

	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/coalesce"
	"github.com/vhostnet/vhostnet/vring"
)

// ring is one virtqueue as its worker sees it. Only the worker touches it.
type ring struct {
	index int
	q     vring.Queue // nil while the ring is stopped
	// enabled is SET_VRING_ENABLE, and for rx also that the driver uses the pair.
	enabled bool
	// paused: the ring's addresses do not lie in the current memory table.
	paused bool
	// at is when entries were given back last.
	at int64
	// polled: the front-end sends no kicks (no kick fd).
	polled bool
	// due: the driver has announced entries since the ring was started. A ring
	// that is disabled is looked at only then: User-Mode Linux disables the rings
	// of a driver that goes and frees their memory, and a front-end that connects
	// again starts rings before it enables them, with frames in them that are to
	// be sent and not eaten.
	due bool
	// old: the kick descriptor was signalled when the ring was started. What that
	// announces is from before.
	old bool
	// kicksOn is true while the driver is asked for kicks.
	kicksOn bool
	logged  logged
	ringFDs

	mod coalesce.Moderator
	moderation
	// deadline is when the moderator wants to be asked again, 0: never.
	deadline int64
	// slots is how many ring slots the driver cannot have seen coming back.
	slots int
	c     *queueCounters
}

// ringFDs are a ring's descriptors, -1 for none. The kick descriptor is the
// worker's; the others are lent by the session, which takes them back before it
// closes them.
type ringFDs struct{ kick, call, err int }

var noFDs = ringFDs{-1, -1, -1}

func newRing(index int, c *queueCounters) ring {
	return ring{index: index, ringFDs: noFDs, c: c}
}

// live tells whether the worker may touch the ring.
func (r *ring) live() bool { return r.q != nil && !r.paused }

// observe tells the moderator what was just published and acts on its verdict.
// slots is how many descriptors went back with it.
func (r *ring) observe(now int64, packets uint32, bytes uint64, slots int) {
	r.slots += slots
	r.at = now
	r.act(now, r.mod.Observe(now, packets, bytes))
}

// act carries out a verdict.
func (r *ring) act(now int64, v coalesce.Verdict) {
	switch v.Action {
	case coalesce.Signal:
		r.signal(now, v.Reason)
	case coalesce.Wait:
		r.deadline = v.Deadline
	default:
		r.deadline = 0
	}
}

// signal decides about a notification over everything that was published since
// the last decision, and sends it unless the driver asked for none
// (virtio 1.4, "Driver Requirements: Used Buffer Notification Suppression").
func (r *ring) signal(now int64, reason coalesce.Reason) {
	r.deadline = 0
	r.slots = 0
	r.mod.Fired(now)
	if int(reason) < len(r.c.reasons) {
		r.c.reasons[reason].add(1)
	}
	if !r.q.NeedSignal() {
		r.c.suppressed.add(1)
		r.seen.Suppressed++
		return
	}
	r.seen.Notified++
	if r.call >= 0 {
		r.ringBell(r.call)
	}
}

// ringBell writes to a call eventfd. EAGAIN means that the driver has not yet
// taken an earlier notification, so it will look.
func (r *ring) ringBell(fd int) {
	b := [8]byte{1}
	switch _, err := unix.Write(fd, b[:]); err {
	case nil, unix.EAGAIN:
		r.c.calls.add(1)
	default:
		r.c.callErrors.add(1)
	}
}

// flush notifies now if anything is pending.
func (r *ring) flush(now int64, reason coalesce.Reason) {
	if r.live() && r.q.Broken() == nil {
		r.act(now, r.mod.Flush(now, reason))
	}
}

// expire fires the deadline if it has passed.
func (r *ring) expire(now int64) {
	if r.deadline != 0 && now >= r.deadline && r.live() {
		r.act(now, r.mod.Expire(now))
		r.consult(now, 0, 0)
	}
	if r.tick != 0 && now >= r.tick && r.live() {
		r.tick = 0
		advice := r.engine.Tick(now)
		if r.trace != nil {
			r.trace(r.index, &coalesce.Observation{Now: now}, r.engine.Decision(), advice)
		}
		r.take(now, advice)
	}
}

// disableKicks asks the driver for no kicks while the worker is at it anyway.
func (r *ring) disableKicks() {
	if r.kicksOn {
		r.q.DisableKicks()
		r.kicksOn = false
	}
}

// signalled tells whether an eventfd holds a count.
func signalled(fd int) bool {
	p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLIN}}
	n, err := unix.Poll(p, 0)
	return n > 0 && err == nil
}

// served tells whether the ring is to be looked at.
func (r *ring) served() bool { return r.enabled || r.due || r.polled }

// enableKicks asks for kicks and reports whether work appeared meanwhile.
func (r *ring) enableKicks() bool {
	r.kicksOn = true
	return r.q.EnableKicks()
}

// breakWith takes a ring out of service: one line in the log, one count, and
// the front-end's error eventfd. The other rings go on.
func (r *ring) breakWith(err error, log *slog.Logger) {
	r.q.Break(err)
	why := r.q.Broken().Error()
	r.c.why.Store(&why)
	r.c.broken.add(1)
	log.Error("virtqueue is broken and stays so until it is restarted", "queue", r.index, "reason", why)
	if r.err >= 0 {
		b := [8]byte{1}
		_, _ = unix.Write(r.err, b[:])
	}
}
