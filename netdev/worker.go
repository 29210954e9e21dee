package netdev

import (
	"errors"
	"log/slog"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/coalesce"
	"github.com/vhostnet/vhostnet/ctrlq"
	"github.com/vhostnet/vhostnet/guestmem"
	"github.com/vhostnet/vhostnet/port"
	"github.com/vhostnet/vhostnet/toeplitz"
	"github.com/vhostnet/vhostnet/virtio"
	"github.com/vhostnet/vhostnet/vring"
)

const (
	// burst bounds how many frames one direction moves before the other
	// direction, the mailbox and the deadlines get their turn.
	burst = 64
	// maxFrame is the longest frame a port delivers: a 64 KiB IP packet in an
	// Ethernet header with two VLAN tags.
	maxFrame = 65535 + 22
	// maxSegs bounds the segments that the worker holds at once, and so the
	// longest chain: 1024 descriptors directly, as many in an indirect table,
	// and some that cross the border of a memory region.
	maxSegs = 2*1024 + 256
	// linearLimit is up to where a transmitted frame is copied into one buffer
	// instead of being handed to the port as a list: for so few bytes the
	// list costs more than the copy.
	linearLimit = 256
	// spinWindow is below what a sleep with a timer costs; a nearer deadline is
	// waited for awake.
	spinWindow = int64(15 * time.Microsecond)
	// pollInterval is how often, in milliseconds, a ring without a kick fd is
	// looked at while idle.
	pollInterval = 1
)

// worker serves one queue pair. It is run by a runner, whose goroutine everything
// but on, busy and roused belongs to.
type worker struct {
	// on is the runner, nil before the first and after the last.
	on atomic.Pointer[runner]
	// busy is how long, in ns, bursts have taken, in a pool.
	busy atomic.Int64
	// roused: another worker has something for this one.
	roused atomic.Bool

	// at and slot are where events come from, at is nil without a runner; hot and
	// wake whether and when the worker is to run, counted whether it is among those
	// that the runner looks after without an event.
	at      *loop
	slot    int32
	hot     bool
	wake    int64
	counted bool

	pair int
	pq   port.PortQueue
	// batched is pq if it is one that sends in batches.
	batched port.BatchQueue
	// memory is pq if its frames lie in memory.
	memory port.MemoryQueue
	log    *slog.Logger

	rx, tx   ring
	features virtio.Features
	// guest is features with the GUEST_* offloads that the driver has switched
	// off through the control queue taken out.
	guest  virtio.Features
	hdrLen int
	filter *ctrlq.Filter
	// steer is how received frames are hashed and steered, nil if they are not.
	steer *steering
	// forwarding: frames are handed over even if there is no ring of its own.
	forwarding bool
	inbox      inbox
	flow       toeplitz.Flow

	// portReady is true until the port says that it has nothing to read.
	portReady bool
	// txBlocked is true after the port would not take a frame.
	txBlocked    bool
	portWritable bool // the port's fd is watched for writability
	// portError is why the port has failed for good, nil if it has not. The
	// worker sets it once.
	portError atomic.Pointer[string]
	// dozing: the port in memory knows that only its descriptor wakes the worker.
	dozing bool

	// dirty is where writes to guest memory are noted, nil for nowhere.
	dirty *guestmem.Log

	txs   txScratch
	rxs   rxScratch
	plain plainScratch
	poll  poller
	// current tells the recover path which ring's memory access went wrong.
	current *ring
}

func newWorker(pair int, pq port.PortQueue, rx, tx *queueCounters, c *Config, log *slog.Logger) *worker {
	w := &worker{
		pair: pair, pq: pq, log: log,
		rx: newRing(2*pair, rx), tx: newRing(2*pair+1, tx),
		hdrLen: virtio.NetHeaderLen,
	}
	if p, ok := pq.(port.BurstQueue); ok {
		w.plain.port, w.plain.reads = p, p.ReadsFrames()
	}
	w.batched, _ = pq.(port.BatchQueue)
	w.memory, _ = pq.(port.MemoryQueue)
	w.rx.look, w.tx.look = w.lookRX, w.lookTX
	w.rx.trace, w.tx.trace = c.Trace, c.Trace
	return w
}

// start puts the worker into a runner's hands. On error it is to be stopped.
func (w *worker) start(r *runner) error {
	w.on.Store(r)
	var err error
	if e := r.post(func() { err = r.take(w) }); e != nil {
		return e
	}
	return err
}

// post runs f between two of the worker's bursts and returns when it has run. It
// fails only when the worker has ended.
func (w *worker) post(f func()) error {
	for {
		r := w.on.Load()
		if r == nil {
			return errStopped
		}
		there := false
		err := r.post(func() {
			if there = w.on.Load() == r; there {
				f()
				if w.at != nil {
					r.heat(w)
				}
			}
		})
		if there || err != nil {
			return err
		}
		// It has moved, or ended, meanwhile.
	}
}

// stop ends the worker. Nothing of it runs afterwards.
func (w *worker) stop() {
	var r *runner
	_ = w.post(func() {
		r = w.on.Swap(nil)
		r.drop(w)
	})
	switch {
	case r == nil:
	case r.pool == nil:
		r.stop()
	default:
		r.pool.forget(w, r)
	}
}

// rouse makes the worker run. Any goroutine may call it that keeps the worker from
// being stopped.
func (w *worker) rouse() {
	if r := w.on.Load(); r != nil {
		w.roused.Store(true)
		r.wake()
	}
}

// source is an event source of the worker's.
func (w *worker) source(tag int32) source { return source{tag, w.slot} }

func kickTag(index int) int32 {
	if index&1 == 1 {
		return tagTXKick
	}
	return tagRXKick
}

// watchAll makes the loop watch all that can wake the worker.
func (w *worker) watchAll() error {
	var errs []error
	if fd := w.pq.FD(); fd >= 0 {
		errs = append(errs, w.at.add(fd, w.source(tagPort), unix.EPOLLIN))
	}
	for _, r := range [...]*ring{&w.rx, &w.tx} {
		if r.kick >= 0 {
			errs = append(errs, w.at.add(r.kick, w.source(kickTag(r.index)), unix.EPOLLIN))
		}
	}
	return errors.Join(errs...)
}

func (w *worker) unwatchAll() {
	for _, fd := range [...]int{w.pq.FD(), w.rx.kick, w.tx.kick} {
		if fd >= 0 {
			w.at.remove(fd)
		}
	}
}

// polled tells whether there is a ring that the front-end sends no kicks for.
func (w *worker) polled() bool { return w.rx.polled || w.tx.polled }

// look reports whether to look for work again before going to sleep. What a port
// with a descriptor has is not seen without a system call, for which it is as well
// to sleep.
func (w *worker) look() bool {
	if w.memory == nil && w.pq.FD() >= 0 || !w.poll.idle(nanotime()) {
		return false
	}
	if w.memory == nil {
		w.portReady, w.txBlocked = true, false
	}
	return true
}

// guarded runs a burst of each direction. A fault in guest memory, which a
// front-end causes by shrinking its memory file, breaks the ring that hit it
// and nothing else.
func (w *worker) guarded() (moved bool) {
	w.current = nil
	if err := guestmem.CatchFaults(func() { moved = w.bursts() }); err != nil {
		if w.current != nil {
			w.broke(w.current, err)
		}
		return true
	}
	return moved
}

func (w *worker) bursts() bool {
	moved := false
	if w.memory != nil && !w.portReady {
		w.portReady = w.memory.Pending()
	}
	if w.tx.live() && w.tx.served() && w.tx.q.Broken() == nil && !w.txBlocked {
		w.current = &w.tx
		moved = w.transmit()
	}
	if w.rx.live() && w.rx.enabled && w.rx.q.Broken() == nil {
		w.current = &w.rx
		moved = w.receive() || moved
	} else if w.forwards() {
		moved = w.forward() || moved
	}
	if w.rx.deadline|w.rx.tick|w.tx.deadline|w.tx.tick != 0 {
		now := nanotime()
		w.current = &w.rx
		w.rx.expire(now)
		w.current = &w.tx
		w.tx.expire(now)
	}
	w.current = nil
	return moved
}

// broke takes a ring out of service: one line in the log, one count, and the
// front-end's error eventfd. The other rings go on.
func (w *worker) broke(r *ring, err error) {
	r.deadline = 0
	r.breakWith(err, w.log)
}

// rearm asks for kicks on the rings that wait for the driver. It reports
// whether there is work after all.
func (w *worker) rearm() (more bool) {
	w.current = nil
	err := guestmem.CatchFaults(func() {
		w.current = &w.rx
		w.rx.doze()
		w.current = &w.tx
		w.tx.doze()
		if r := &w.tx; r.live() && r.served() && !w.txBlocked && r.q.Broken() == nil {
			w.current = r
			more = r.enableKicks()
			r.due = more
		}
		if r := &w.rx; r.live() && r.enabled && r.q.Broken() == nil && w.rxs.starved {
			w.current = r
			if r.enableKicks() {
				w.rxs.starved = false
				more = true
			}
		}
	})
	if err != nil && w.current != nil {
		w.broke(w.current, err)
		return true
	}
	return more
}

// doze says to a port in memory that only events wake the worker from here on. It
// returns false if there is something to receive after all.
func (w *worker) doze() bool {
	if w.memory == nil || w.portReady {
		return true
	}
	w.dozing = w.memory.Sleep()
	w.portReady = !w.dozing
	return w.dozing
}

// awake is the opposite of doze.
func (w *worker) awake() {
	if w.dozing {
		w.dozing = false
		w.memory.Awake()
	}
}

func (w *worker) nextDeadline() int64 {
	at := int64(0)
	for _, d := range [...]int64{w.rx.deadline, w.rx.tick, w.tx.deadline, w.tx.tick, w.rxs.holdUntil} {
		if d != 0 && (at == 0 || d < at) {
			at = d
		}
	}
	return at
}

func (w *worker) ready(tag int32, events uint32) {
	switch tag {
	case tagRXKick:
		w.rx.c.kicks.add(1)
		w.rxs.starved = false
	case tagTXKick:
		w.tx.c.kicks.add(1)
		// An answer, perhaps, to what was received.
		w.tx.seen.Kicked, w.rx.seen.Kicked = true, true
		w.tx.due = !w.tx.old
		w.tx.old = false
	case tagPort:
		if events&unix.EPOLLOUT != 0 {
			w.txBlocked = false
		}
		if events&(unix.EPOLLIN|unix.EPOLLERR|unix.EPOLLHUP) != 0 {
			w.portReady = true
			if w.batched != nil {
				w.batched.Readable()
			}
		}
	}
	if w.pq.FD() < 0 {
		// Such a port becomes ready only by what this worker does.
		w.portReady, w.txBlocked = true, false
	}
}

// watchWritable adds writability to what is watched on the port while a frame
// waits for it.
func (w *worker) watchWritable(on bool) {
	fd := w.pq.FD()
	if fd < 0 || on == w.portWritable {
		return
	}
	ev := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET, Fd: tagPort, Pad: w.slot}
	if on {
		ev.Events |= unix.EPOLLOUT
	}
	if unix.EpollCtl(w.at.ep, unix.EPOLL_CTL_MOD, fd, &ev) == nil {
		w.portWritable = on
	}
}

// ringFor maps a virtqueue index to the worker's ring.
func (w *worker) ringFor(index int) *ring {
	if index&1 == 0 {
		return &w.rx
	}
	return &w.tx
}

// attach puts an activated queue into service.
func (w *worker) attach(index int, q vring.Queue, f ringFDs) error {
	r := w.ringFor(index)
	r.old = signalled(f.kick)
	if f.kick >= 0 {
		if err := w.at.add(f.kick, w.source(kickTag(index)), unix.EPOLLIN); err != nil {
			return err
		}
	}
	r.q, r.ringFDs, r.polled = q, f, f.kick < 0
	r.paused, r.due, r.kicksOn = false, false, true
	r.c.why.Store(nil)
	r.restart(nanotime())
	if r == &w.rx {
		w.rxs.start(w.hdrLen, q.Size())
		w.portReady = true
		w.inbox.open(r.enabled)
	} else {
		w.txs.start()
		w.txBlocked = false
	}
	w.setLog(w.dirty)
	return nil
}

// detach takes a ring out of service and returns the next available index.
// What is pending is announced first; nothing is after.
func (w *worker) detach(index int) uint32 {
	r := w.ringFor(index)
	if r.q == nil {
		return 0
	}
	if r == &w.rx {
		w.inbox.open(false)
	}
	w.settle(r)
	if r.kick >= 0 {
		w.at.remove(r.kick)
		closeFD(r.kick)
	}
	var base uint32
	w.guard(r, func() { base = r.q.Stop().Base })
	r.q, r.ringFDs, r.polled, r.deadline, r.tick, r.paused = nil, noFDs, false, 0, 0, false
	r.mod.Reset()
	w.forget(r)
	return base
}

// forget lets go of the driver's memory, before that is unmapped: no pointer may be
// left to where something else may be then. Nothing may be popped.
func (w *worker) forget(r *ring) {
	w.plain.forget()
	if r == &w.rx {
		clear(w.rxs.iov[:cap(w.rxs.iov)])
		return
	}
	if s := &w.txs; s.batch != nil {
		s.batch.Reset()
		clear(s.iov[:cap(s.iov)])
	}
}

// settle gives back what the worker has popped ahead and announces what is
// pending, so that the ring's memory can go.
func (w *worker) settle(r *ring) {
	w.guard(r, func() {
		if r == &w.rx {
			w.returnCached()
		}
		r.flush(nanotime(), coalesce.ReasonStop)
	})
}

// guard runs f, which works on r, outside of a burst; a fault in guest memory
// breaks the ring.
func (w *worker) guard(r *ring, f func()) {
	if err := guestmem.CatchFaults(f); err != nil && r.q != nil {
		w.broke(r, err)
	}
}

// rebind moves both rings to a new memory table.
func (w *worker) rebind(m *guestmem.Map) {
	for _, r := range [...]*ring{&w.rx, &w.tx} {
		if r.q == nil {
			continue
		}
		if !r.paused {
			w.settle(r)
		}
		w.forget(r)
		w.guard(r, func() { r.paused = r.q.Rebind(m) != nil })
	}
}
