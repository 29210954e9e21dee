package netdev

import (
	"errors"
	"fmt"
	"sync"
	"time"
)

const (
	// balanceInterval is how often a pool compares what its threads have to do.
	balanceInterval = 100 * time.Millisecond
	// balanceShare is by which share of that time two threads have to differ for a
	// queue pair to move: moving costs, and loads come and go.
	balanceShare = 0.2
)

// Pool is a number of threads that serve the queue pairs of one or more devices. A
// new pair goes to the thread with the fewest, and may move to another one if its
// own has more to do.
type Pool struct {
	runners []*runner
	stop    chan struct{}
	stopped sync.WaitGroup

	mu sync.Mutex // guards workers
	// workers are all, each with how busy it was when that was last looked at.
	workers map[*worker]int64
}

// MaxPoolThreads is the most threads that a pool has.
const MaxPoolThreads = 1024

// NewPool starts a pool of threads, 1 to MaxPoolThreads. With cpus, thread i stays on
// processor cpus[i % len(cpus)], and is not the kernel's to move. Close it after all
// devices.
func NewPool(threads int, cpus []int) (*Pool, error) {
	if threads < 1 || threads > MaxPoolThreads {
		return nil, fmt.Errorf("%w: pool of %d threads: want 1 to %d", ErrConfig, threads, MaxPoolThreads)
	}
	p := &Pool{stop: make(chan struct{}), workers: map[*worker]int64{}}
	for i := range threads {
		cpu := -1
		if len(cpus) > 0 {
			cpu = cpus[i%len(cpus)]
			if cpu < 0 {
				return nil, errors.Join(fmt.Errorf("%w: processor %d", ErrConfig, cpu), p.Close())
			}
		}
		r, err := newRunner(p, cpu)
		if err != nil {
			return nil, errors.Join(fmt.Errorf("netdev: pool: thread %d on processor %d: %w", i, cpu, err), p.Close())
		}
		p.runners = append(p.runners, r)
	}
	if threads > 1 {
		p.stopped.Go(p.keepBalance)
	}
	return p, nil
}

// Threads returns how many there are.
func (p *Pool) Threads() int { return len(p.runners) }

// Close ends the threads, of which a nil pool has none. The devices must be closed
// already.
func (p *Pool) Close() error {
	if p == nil {
		return nil
	}
	close(p.stop)
	p.stopped.Wait()
	for _, r := range p.runners {
		r.stop()
	}
	return nil
}

// place starts a worker: on the thread that has the fewest or, without a pool, on one
// of its own.
func (p *Pool) place(w *worker) error {
	if p == nil {
		r, err := newRunner(nil, -1)
		if err != nil {
			return err
		}
		return w.start(r)
	}
	p.mu.Lock()
	to := p.runners[0]
	for _, r := range p.runners[1:] {
		if r.placed.Load() < to.placed.Load() {
			to = r
		}
	}
	to.placed.Add(1)
	p.workers[w] = w.busy.Load()
	p.mu.Unlock()
	return w.start(to)
}

// forget is the opposite of place, when the worker has ended.
func (p *Pool) forget(w *worker, on *runner) {
	p.mu.Lock()
	defer p.mu.Unlock()
	on.placed.Add(-1)
	delete(p.workers, w)
}

func (p *Pool) keepBalance() {
	t := time.NewTicker(balanceInterval)
	defer t.Stop()
	for {
		select {
		case <-p.stop:
			return
		case <-t.C:
			p.balance(balanceInterval)
		}
	}
}

// balance moves the worker that evens out best what the threads have had to do since
// the last call, took ago.
func (p *Pool) balance(took time.Duration) {
	p.mu.Lock()
	defer p.mu.Unlock()
	own := map[*worker]int64{}
	for w, before := range p.workers {
		now := w.busy.Load()
		p.workers[w], own[w] = now, now-before
	}
	if w, from, to := uneven(p.runners, own, took); w != nil {
		w.move(from, to)
	}
}

// uneven returns the worker that should go from the most to the least busy thread, nil
// if none should. own is how busy each worker was.
func uneven(runners []*runner, own map[*worker]int64, took time.Duration) (best *worker, most, least *runner) {
	loads := map[*runner]int64{}
	for w, busy := range own {
		loads[w.on.Load()] += busy
	}
	most, least = runners[0], runners[0]
	for _, r := range runners {
		if loads[r] > loads[most] {
			most = r
		}
		if loads[r] < loads[least] {
			least = r
		}
	}
	gap := loads[most] - loads[least]
	if float64(gap) < balanceShare*float64(took) {
		return nil, nil, nil
	}
	for w, busy := range own {
		// What is lost here is won there: more than the gap would only turn it.
		if w.on.Load() == most && busy > 0 && busy < gap && (best == nil || evenness(gap, busy) < evenness(gap, own[best])) {
			best = w
		}
	}
	return best, most, least
}

// evenness is by how much two threads differ after a load has moved, 0 being best.
func evenness(gap, load int64) int64 { return max(gap-2*load, 2*load-gap) }

// move takes a worker from one runner to another, if it may move now.
func (w *worker) move(from, to *runner) {
	_ = from.post(func() {
		if w.on.Load() != from || !w.movable() {
			return
		}
		from.drop(w)
		// Before others can post to it there.
		_, err := to.enqueue(func() {
			if err := to.take(w); err != nil {
				w.log.Error("queue pair has lost descriptors by moving to another thread", "pair", w.pair, "error", err)
			}
		})
		if err != nil {
			to = from // the pool is being closed
			_ = to.take(w)
		}
		w.on.Store(to)
		// Who has roused it where it was did so in vain.
		_, _ = to.enqueue(func() {
			if w.at == to.loop {
				to.heat(w)
			}
		})
		from.placed.Add(-1)
		to.placed.Add(1)
	})
}

// movable: both rings are in use. Of one that is not, a kick is remembered, which is
// lost on the way.
func (w *worker) movable() bool {
	return w.rx.live() && w.tx.live() && w.rx.enabled && w.tx.enabled
}
