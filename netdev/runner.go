package netdev

import (
	"runtime"
	"sync/atomic"
	"time"

	"golang.org/x/sys/unix"
)

const (
	// turn is for how long, in ns, a runner has work done before it lets other
	// goroutines have the processor, if they are waiting for it. Round trips beside
	// bulk wait for such turns; but bulk loads that share a processor are slower the
	// more often they change places, since driver and worker of a pair then find
	// each other asleep.
	turn = int64(300 * time.Microsecond)
	// glanceAlone and glanceShared are for how long, in ns, a runner works before it
	// looks for events of its sleeping workers, and of ports. With one worker, what
	// can be waiting is a port whose frames wait for those in the other direction.
	glanceAlone  = turn
	glanceShared = int64(50 * time.Microsecond)
)

// runner is a goroutine that runs workers, one or more. A worker is hot while it may
// have something to do; each hot one gets a burst of each direction in turn. The
// others rest: an event, a deadline or a letter makes them hot again.
type runner struct {
	*loop
	pool *Pool // nil if the runner is a worker's own
	// workers are all by slot, nil where one has gone; n is how many there are.
	workers []*worker
	n       int
	hot     []*worker
	// due is when, in nanotime, the first of those that rest wants to run; 0: never.
	due int64
	// polled is how many of those that rest have a ring without a kick descriptor.
	polled int
	// shared is when other goroutines were last let have the processor, glanced when
	// events were last looked for.
	shared, glanced int64
	// placed is how many workers were put here; the pool reads it.
	placed atomic.Int32
	quit   bool
	done   chan struct{}
}

// newRunner starts a runner, bound to a processor unless cpu is negative.
func newRunner(p *Pool, cpu int) (*runner, error) {
	l, err := newLoop()
	if err != nil {
		return nil, err
	}
	r := &runner{loop: l, pool: p, done: make(chan struct{})}
	bound := make(chan error, 1)
	go func() {
		defer close(r.done)
		err := bindTo(cpu)
		if bound <- err; err != nil {
			l.close()
			return
		}
		r.run()
	}()
	if err := <-bound; err != nil {
		return nil, err
	}
	return r, nil
}

// bindTo gives the goroutine a thread of its own on a processor, for good.
func bindTo(cpu int) error {
	if cpu < 0 {
		return nil
	}
	runtime.LockOSThread()
	var set unix.CPUSet
	set.Set(cpu)
	return unix.SchedSetaffinity(0, &set)
}

// stop ends the goroutine and waits for it. All workers must have left.
func (r *runner) stop() {
	_ = r.post(func() { r.quit = true })
	<-r.done
}

func (r *runner) run() {
	for {
		if r.mail.Load() {
			r.deliver()
			if r.quit {
				r.shut()
				return
			}
		}
		if r.due != 0 {
			r.wakeDue(nanotime())
		}
		switch busy, now := r.round(); {
		case busy:
			r.share(now)
		case len(r.hot) == 0:
			r.sleep()
		case r.n > 1:
			r.share(nanotime())
		}
	}
}

// round gives each hot worker a burst. It reports whether any of them had work, and
// when about that was.
func (r *runner) round() (busy bool, now int64) {
	for i := 0; i < len(r.hot); {
		w := r.hot[i]
		switch {
		case r.burst(w):
			if w.poll.since != 0 {
				w.poll.worked(nanotime())
			}
			busy, now = true, max(now, w.tx.at, w.rx.at)
		case w.look(), w.rearm(), !w.doze():
		default:
			last := len(r.hot) - 1
			r.hot[i], r.hot[last] = r.hot[last], nil
			r.hot = r.hot[:last]
			r.rest(w)
			continue
		}
		i++
	}
	return busy, now
}

// burst runs a worker once, and takes its time where that is compared.
func (r *runner) burst(w *worker) bool {
	if r.pool == nil {
		return w.guarded()
	}
	start := nanotime()
	moved := w.guarded()
	w.busy.Add(nanotime() - start)
	return moved
}

// rest makes a worker wait for an event, or for its deadline.
func (r *runner) rest(w *worker) {
	w.hot = false
	w.watchWritable(w.txBlocked)
	if w.counted = w.polled(); w.counted {
		r.polled++
	}
	if w.wake = w.nextDeadline(); w.wake != 0 && (r.due == 0 || w.wake < r.due) {
		r.due = w.wake
	}
}

// heat makes a worker run again.
func (r *runner) heat(w *worker) {
	if w.hot {
		return
	}
	if w.counted {
		// Whatever its rings are by now.
		w.counted = false
		r.polled--
	}
	w.awake()
	w.hot, w.wake = true, 0
	r.hot = append(r.hot, w)
}

// wakeDue makes those hot whose deadline has passed.
func (r *runner) wakeDue(now int64) {
	if now < r.due {
		return
	}
	r.due = 0
	for _, w := range r.workers {
		switch {
		case w == nil || w.wake == 0:
		case w.wake <= now:
			r.heat(w)
		case r.due == 0 || w.wake < r.due:
			r.due = w.wake
		}
	}
}

// share lets others have their turn after a while of work: other goroutines, which
// the runtime would let have the processor after 10 ms only, and workers that rest.
func (r *runner) share(now int64) {
	if now-r.shared > turn {
		r.shared = now
		runtime.Gosched()
	}
	glance := glanceAlone
	if r.n > 1 {
		glance = glanceShared
	}
	if now-r.glanced > glance {
		r.glanced = now
		r.wait(0, r.ready)
		r.heatPolled()
	}
}

// sleep waits for a kick, a port, a deadline or mail.
func (r *runner) sleep() {
	timeout := -1
	if r.polled > 0 {
		timeout = pollInterval
	}
	if r.due != 0 {
		now := nanotime()
		if r.due-now <= spinWindow {
			timeout = 0
		} else {
			r.arm(r.due, now)
		}
	}
	r.wait(timeout, r.ready)
	r.heatPolled()
}

// heatPolled makes those hot that no event makes so.
func (r *runner) heatPolled() {
	for _, w := range r.workers {
		if r.polled == 0 {
			return
		}
		if w != nil && w.counted {
			r.heat(w)
		}
	}
}

// heatRoused makes those hot that others have work for.
func (r *runner) heatRoused() {
	for _, w := range r.workers {
		if w != nil && w.roused.Load() {
			w.roused.Store(false)
			r.heat(w)
		}
	}
}

// ready passes an event on.
func (r *runner) ready(s source, events uint32) {
	if s.slot == own {
		if s.tag == tagMail {
			r.heatRoused()
		}
		return
	}
	if w := r.workers[s.slot]; w != nil {
		w.ready(s.tag, events)
		r.heat(w)
	}
}

// take makes a worker one of the runner's, and watches its descriptors. It runs on
// the runner. On error some of them are not watched.
func (r *runner) take(w *worker) error {
	w.slot = int32(len(r.workers))
	for i, other := range r.workers {
		if other == nil {
			w.slot = int32(i)
			break
		}
	}
	if int(w.slot) == len(r.workers) {
		r.workers = append(r.workers, nil)
	}
	r.workers[w.slot] = w
	r.n++
	w.hot = true
	r.hot = append(r.hot, w)
	w.at, w.portWritable = r.loop, false
	return w.watchAll()
}

// drop is the opposite of take.
func (r *runner) drop(w *worker) {
	r.heat(w)
	for i, other := range r.hot {
		if other == w {
			r.hot = append(r.hot[:i], r.hot[i+1:]...)
			break
		}
	}
	w.unwatchAll()
	w.hot, w.at = false, nil
	r.workers[w.slot] = nil
	r.n--
}
