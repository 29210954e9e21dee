package netdev

import (
	"testing"
	"time"

	"github.com/vhostnet/vhostnet/port/builtin"
)

func newPool(t *testing.T, threads int) *Pool {
	t.Helper()
	p, err := NewPool(threads, nil)
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

// workersOf are the workers of new devices with an echo each.
func workersOf(t *testing.T, p *Pool, devices, pairs int) (all []*worker) {
	t.Helper()
	for range devices {
		e, err := builtin.Echo(pairs)
		if err != nil {
			t.Fatal(err)
		}
		d, err := New(Config{Name: "test", QueuePairs: pairs, Pool: p}, e)
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() {
			if err := d.Close(); err != nil {
				t.Error(err)
			}
		})
		all = append(all, d.pairs...)
	}
	return all
}

func (p *Pool) counts() (n []int32) {
	for _, r := range p.runners {
		n = append(n, r.placed.Load())
	}
	return n
}

// TestPlacement: pairs spread over the threads, and those that end make room.
func TestPlacement(t *testing.T) {
	p := newPool(t, 3)
	workersOf(t, p, 2, 4)
	if n := p.counts(); n[0]+n[1]+n[2] != 8 || min(n[0], n[1], n[2]) != 2 {
		t.Errorf("eight pairs: %v", n)
	}
	w := workersOf(t, p, 1, 1)[0]
	if n := p.counts(); n[0] != 3 || n[1] != 3 || n[2] != 3 {
		t.Errorf("nine pairs: %v", n)
	}
	on := w.on.Load()
	w.stop()
	w.stop()
	p.mu.Lock()
	if on.placed.Load() != 2 || len(p.workers) != 8 {
		t.Errorf("after one has ended: %v, %d known", p.counts(), len(p.workers))
	}
	p.mu.Unlock()
	if err := w.post(func() { t.Error("it has ended") }); err != errStopped {
		t.Errorf("posting to it: %v", err)
	}
}

func TestPoolConfig(t *testing.T) {
	for _, threads := range []int{-1, 0, MaxPoolThreads + 1} {
		if _, err := NewPool(threads, nil); err == nil {
			t.Errorf("%d threads: no error", threads)
		}
	}
	if _, err := NewPool(2, []int{0, -1}); err == nil {
		t.Error("a negative processor: no error")
	}
	if _, err := NewPool(2, []int{0, 1 << 20}); err == nil {
		t.Error("a processor that does not exist: no error")
	}
	p, err := NewPool(2, []int{0})
	if err != nil {
		t.Fatal(err)
	}
	if p.Threads() != 2 {
		t.Errorf("%d threads", p.Threads())
	}
	if err := p.Close(); err != nil {
		t.Error(err)
	}
}

// TestBalance: what evens two threads out best moves; what would not, does not.
func TestBalance(t *testing.T) {
	const ms = time.Millisecond
	type load struct {
		thread int
		busy   time.Duration
	}
	for name, c := range map[string]struct {
		loads []load
		// moves is the index of what moves, to what thread; -1 for nothing.
		moves, to int
	}{
		"nothing to do":       {[]load{{0, 0}, {1, 0}, {0, 0}}, -1, 0},
		"even":                {[]load{{0, 20 * ms}, {0, 30 * ms}, {1, 45 * ms}, {2, 40 * ms}}, -1, 0},
		"nearly even":         {[]load{{0, 30 * ms}, {0, 10 * ms}, {1, 25 * ms}, {2, 21 * ms}}, -1, 0},
		"one does everything": {[]load{{0, 90 * ms}, {0, 0}, {1, 0}, {2, 0}}, -1, 0},
		"two on one thread":   {[]load{{0, 30 * ms}, {0, 45 * ms}, {0, 10 * ms}, {1, 10 * ms}}, 1, 2},
		"the smaller one":     {[]load{{1, 70 * ms}, {1, 20 * ms}, {0, 15 * ms}, {2, 20 * ms}}, 1, 0},
		"the one that fits":   {[]load{{1, 50 * ms}, {1, 30 * ms}, {1, 20 * ms}, {0, 40 * ms}, {2, 41 * ms}}, 1, 0},
		"more than the gap":   {[]load{{1, 70 * ms}, {0, 40 * ms}, {2, 40 * ms}}, -1, 0},
	} {
		runners := []*runner{{}, {}, {}}
		own := map[*worker]int64{}
		var all []*worker
		for _, l := range c.loads {
			w := new(worker)
			w.on.Store(runners[l.thread])
			own[w] = int64(l.busy)
			all = append(all, w)
		}
		w, _, to := uneven(runners, own, 100*ms)
		switch {
		case c.moves < 0:
			if w != nil {
				t.Errorf("%s: something moves", name)
			}
		case w != all[c.moves] || to != runners[c.to]:
			t.Errorf("%s: wrong pair or thread", name)
		}
	}
}

// TestPolledRings: a runner knows which of its workers have rings without kicks,
// whatever happens to them while they rest.
func TestPolledRings(t *testing.T) {
	p := newPool(t, 1)
	w, r := workersOf(t, p, 1, 1)[0], p.runners[0]
	round := func() (polled int, hot bool) {
		t.Helper()
		if err := r.post(func() { polled, hot = r.polled, w.hot }); err != nil {
			t.Fatal(err)
		}
		return polled, hot
	}
	for _, polled := range []bool{true, false, true, true, false} {
		if err := w.post(func() { w.rx.polled = polled }); err != nil {
			t.Fatal(err)
		}
		for range 3 { // it rests, and is looked after again
			if n, hot := round(); polled && !hot && n != 1 {
				t.Errorf("%d workers are polled, want one", n)
			}
		}
		if polled {
			continue
		}
		for end := time.Now().Add(20 * time.Second); ; time.Sleep(time.Millisecond) {
			n, hot := round()
			if n == 0 && !hot {
				break
			}
			if time.Now().After(end) {
				t.Fatalf("%d workers are polled, want none; hot is %t", n, hot)
			}
		}
	}
	w.stop()
	if err := r.post(func() {
		if r.polled != 0 || r.n != 0 || len(r.hot) != 0 {
			t.Errorf("after its end: %d polled, %d in all, %d hot", r.polled, r.n, len(r.hot))
		}
	}); err != nil {
		t.Fatal(err)
	}
}
