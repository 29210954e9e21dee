package netdev

import (
	"log/slog"
	"runtime"
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
	// turn is for how long, in ns, a worker has work done before it lets others have
	// the processor, if they are waiting for it. Round trips beside bulk wait for
	// such turns; but bulk loads that share a processor are slower the more often
	// they change places, since driver and worker of a pair then find each other
	// asleep.
	turn = int64(300 * time.Microsecond)
	// pollInterval is how often, in milliseconds, a ring without a kick fd is
	// looked at while idle.
	pollInterval = 1
)

// worker serves one queue pair. Everything below loop is its goroutine's own.
type worker struct {
	*loop
	pair int
	pq   port.PortQueue
	// batched is pq if it is one that sends in batches.
	batched port.BatchQueue
	log     *slog.Logger

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
	portGone     bool // it has failed for good, which was logged
	quit         bool
	done         chan struct{}

	// shared is when others were last let have the processor.
	shared int64

	txs   txScratch
	rxs   rxScratch
	plain plainScratch
	poll  poller
	// current tells the recover path which ring's memory access went wrong.
	current *ring
}

func newWorker(pair int, pq port.PortQueue, rx, tx *queueCounters, c *Config, log *slog.Logger) (*worker, error) {
	l, err := newLoop()
	if err != nil {
		return nil, err
	}
	w := &worker{
		loop: l, pair: pair, pq: pq, log: log,
		rx: newRing(2*pair, rx), tx: newRing(2*pair+1, tx),
		hdrLen: virtio.NetHeaderLen, done: make(chan struct{}),
	}
	if p, ok := pq.(port.BurstQueue); ok {
		w.plain.port, w.plain.reads = p, p.ReadsFrames()
	}
	w.batched, _ = pq.(port.BatchQueue)
	w.rx.look, w.tx.look = w.lookRX, w.lookTX
	w.rx.trace, w.tx.trace = c.Trace, c.Trace
	if fd := pq.FD(); fd >= 0 {
		if err := l.add(fd, tagPort, unix.EPOLLIN); err != nil {
			l.close()
			return nil, err
		}
	}
	go w.run()
	return w, nil
}

// stop ends the worker's goroutine and waits for it.
func (w *worker) stop() {
	_ = w.post(func() { w.quit = true })
	<-w.done
}

func (w *worker) run() {
	defer close(w.done)
	for {
		if w.mail.Load() {
			w.deliver()
			if w.quit {
				w.shut()
				return
			}
		}
		if w.guarded() {
			w.share()
			if w.poll.since != 0 {
				w.poll.worked(nanotime())
			}
			continue
		}
		if w.look() || w.rearm() {
			continue
		}
		w.sleep()
	}
}

// share lets others have the processor after a while of work. The runtime would do
// so after 10 ms, for which another queue's worker, if they are more than
// processors, would have to wait for its turn.
func (w *worker) share() {
	if now := max(w.tx.at, w.rx.at); now-w.shared > turn {
		w.shared = now
		runtime.Gosched()
	}
}

// look reports whether to look for work again before going to sleep. What a port
// with a descriptor has is not seen without a system call, for which it is as well
// to sleep.
func (w *worker) look() bool {
	if w.pq.FD() >= 0 || !w.poll.idle(nanotime()) {
		return false
	}
	w.portReady, w.txBlocked = true, false
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

// sleep waits for a kick, the port, a deadline or mail.
func (w *worker) sleep() {
	timeout := -1
	if w.rx.polled || w.tx.polled {
		timeout = pollInterval
	}
	if at := w.nextDeadline(); at != 0 {
		now := nanotime()
		if at-now <= spinWindow {
			timeout = 0
		} else {
			w.arm(at, now)
		}
	}
	w.watchWritable(w.txBlocked)
	w.wait(timeout, w.ready)
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
	ev := unix.EpollEvent{Events: unix.EPOLLIN | unix.EPOLLET, Fd: tagPort}
	if on {
		ev.Events |= unix.EPOLLOUT
	}
	if unix.EpollCtl(w.ep, unix.EPOLL_CTL_MOD, fd, &ev) == nil {
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
	r, tag := w.ringFor(index), tagRXKick
	if index&1 == 1 {
		tag = tagTXKick
	}
	r.old = signalled(f.kick)
	if f.kick >= 0 {
		if err := w.add(f.kick, tag, unix.EPOLLIN); err != nil {
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
		w.remove(r.kick)
		closeFD(r.kick)
	}
	var base uint32
	w.guard(r, func() { base = r.q.Stop().Base })
	r.q, r.ringFDs, r.polled, r.deadline, r.tick, r.paused = nil, noFDs, false, 0, 0, false
	r.mod.Reset()
	w.plain.forget()
	return base
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
	w.plain.forget()
	for _, r := range [...]*ring{&w.rx, &w.tx} {
		if r.q == nil {
			continue
		}
		if !r.paused {
			w.settle(r)
		}
		w.guard(r, func() { r.paused = r.q.Rebind(m) != nil })
	}
}
