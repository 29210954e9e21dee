package sim

// world is the virtual time and what is going to happen in it.
type world struct {
	now    int64
	seq    uint64
	events []event
	// watch, if set, is called after each event.
	watch func()
}

type event struct {
	at  int64
	seq uint64 // what was planned first happens first
	do  func()
}

func (e *event) before(o *event) bool {
	return e.at < o.at || e.at == o.at && e.seq < o.seq
}

// at plans do for time t, or for now if that is past.
func (w *world) at(t int64, do func()) {
	e := event{max(t, w.now), w.seq, do}
	w.seq++
	i := len(w.events)
	w.events = append(w.events, e)
	for i > 0 {
		up := (i - 1) / 2
		if !e.before(&w.events[up]) {
			break
		}
		w.events[i] = w.events[up]
		i = up
	}
	w.events[i] = e
}

// after plans do for d from now.
func (w *world) after(d int64, do func()) { w.at(w.now+d, do) }

// run lets happen what is planned until time end, exclusively.
func (w *world) run(end int64) {
	for len(w.events) > 0 && w.events[0].at < end {
		e := w.pop()
		w.now = e.at
		e.do()
		if w.watch != nil {
			w.watch()
		}
	}
}

func (w *world) pop() event {
	top, last := w.events[0], len(w.events)-1
	e := w.events[last]
	w.events[last] = event{}
	w.events = w.events[:last]
	if last == 0 {
		return top
	}
	i := 0
	for {
		down := 2*i + 1
		if down >= last {
			break
		}
		if down+1 < last && w.events[down+1].before(&w.events[down]) {
			down++
		}
		if !w.events[down].before(&e) {
			break
		}
		w.events[i] = w.events[down]
		i = down
	}
	w.events[i] = e
	return top
}

// fifo is a queue that keeps its memory.
type fifo[T any] struct {
	items []T
	head  int
}

func (f *fifo[T]) len() int { return len(f.items) - f.head }
func (f *fifo[T]) push(v T) { f.items = append(f.items, v) }

// at returns the i-th item; it stays valid until the next push or pop.
func (f *fifo[T]) at(i int) *T { return &f.items[f.head+i] }

func (f *fifo[T]) pop() T {
	v := f.items[f.head]
	f.head++
	if f.head >= 1024 && 2*f.head >= len(f.items) {
		n := copy(f.items, f.items[f.head:])
		f.items, f.head = f.items[:n], 0
	}
	return v
}
