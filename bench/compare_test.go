package main

import (
	"context"
	"errors"
	"io"
	"os"
	"runtime"
	"slices"
	"testing"
	"time"

	"github.com/vhostnet/vhostnet/bench/peer"
	"github.com/vhostnet/vhostnet/bench/stat"
)

// fakePeer is a back-end and its front-end in one, in this process.
type fakePeer struct {
	name string
	// rates are the packets per second of one window after the other, 0 for one
	// that fails.
	rates []float64
	// running is between Resume and Pause.
	running bool
	closed  int
	// log is shared by the peers of a row.
	log *[]string
	// all are the peers of the row.
	all *[]*fakePeer
}

func (f *fakePeer) Socket() string { return "" }
func (f *fakePeer) PID() int       { return os.Getpid() }

func (f *fakePeer) Resume(context.Context) error {
	f.running = true
	return nil
}

func (f *fakePeer) Pause(context.Context) error {
	f.running = false
	return nil
}

func (f *fakePeer) Close() error {
	f.closed++
	return nil
}

func (f *fakePeer) Measure(ctx context.Context, _, length time.Duration, pid int) (peer.Window, error) {
	*f.log = append(*f.log, f.name)
	for _, o := range *f.all {
		if o.running != (o == f) || pid != os.Getpid() {
			return peer.Window{}, errors.New("others run too")
		}
	}
	rate := f.rates[0]
	f.rates = f.rates[1:]
	if rate == 0 {
		return peer.Window{}, peer.ErrNothing
	}
	s := length.Seconds()
	return peer.Window{
		Packets: rate * s, Seconds: s, CPUSeconds: s / 2, Counted: f.name != netVhost, Calls: rate * s / 10, Kicks: rate * s / 20,
	}, nil
}

// fakeRow opens peers with the given rates.
type fakeRow struct {
	log   []string
	peers []*fakePeer
}

func (f *fakeRow) add(name string, rates ...float64) {
	f.peers = append(f.peers, &fakePeer{name: name, rates: rates, log: &f.log, all: &f.peers})
}

func (f *fakeRow) open(context.Context, row) (list []*contender, failed map[string]error) {
	for _, p := range f.peers {
		list = append(list, &contender{name: p.name, back: p, FrontEnd: p})
	}
	return list, map[string]error{"absent": errors.New("not here")}
}

var testRow = row{builtIn, "echo", 64, polling}

// quietMachine makes no window count as disturbed: what other programs do while
// the test runs is not what it tests.
func quietMachine(r *report) {
	for _, w := range r.Rows {
		for _, b := range w.BackEnds {
			for i := range b.Samples {
				b.Samples[i].Others = 0
			}
		}
	}
}

// TestCompare: turns, ratios of the same turn, and a back-end that fails.
func TestCompare(t *testing.T) {
	o := &options{Launches: 1, Tries: 4, Cores: []int{0, 0}, Windows: 3, Duration: time.Second, Quick: true}
	f := &fakeRow{}
	// More rates than windows: one that is disturbed is measured again.
	f.add(netVhost, slices.Repeat([]float64{100}, 12)...)
	f.add("good", slices.Repeat([]float64{150}, 12)...)
	f.add("bad", 0)
	r := newReport(o, []string{"a note"})
	c := &comparison{o: o, open: f.open, progress: io.Discard, report: r}
	if err := c.run(t.Context(), []row{testRow}); err != nil {
		t.Fatal(err)
	}
	order := slices.Compact(slices.Clone(f.log))
	// In the second turn the second one begins, in the third the third one.
	if want := []string{netVhost, "good", "bad", "good", netVhost, "good"}; !slices.Equal(order, want) {
		t.Errorf("order %q", order)
	}
	for _, p := range f.peers {
		if p.closed != 2 || p.running {
			t.Errorf("%s: closed %d times, running %v", p.name, p.closed, p.running)
		}
	}
	if len(r.Failures) != 2 || r.failed() == nil {
		t.Errorf("failures %q", r.Failures)
	}
	quietMachine(r)
	r.finish()
	good := r.Rows[0].find("good")
	if want := (stat.Spread{Median: 1.5, Min: 1.5, Max: 1.5, N: 3}); *good.Ratio != want || good.Turns != 3 {
		t.Errorf("ratio %+v of %d turns", *good.Ratio, good.Turns)
	}
	if r.Rows[0].find("bad") != nil || r.Rows[0].find(netVhost).Ratio != nil {
		t.Error("there is something about nothing")
	}
}

func TestCompareEnds(t *testing.T) {
	ctx, cancel := context.WithCancel(t.Context())
	f := &fakeRow{}
	f.add(netVhost, 0)
	cancel()
	o := &options{Launches: 1, Tries: 4, Cores: []int{0, 0}, Windows: 1, Duration: time.Second}
	c := &comparison{o: o, open: f.open, progress: io.Discard, report: newReport(o, nil)}
	if err := c.run(ctx, []row{testRow}); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
	if f.peers[0].closed != 2 {
		t.Error("not closed")
	}
}

// TestArrival: packets that the host did not get are not measured.
func TestArrival(t *testing.T) {
	n, err := peer.NewNetwork()
	if err != nil {
		t.Fatal(err)
	}
	f := &fakeRow{}
	f.add("lost", 100)
	c := &contender{name: "lost", back: f.peers[0], FrontEnd: f.peers[0], network: n, host: true}
	if _, _, err := c.window(t.Context(), 0, time.Second); err == nil {
		t.Error("a host that got nothing")
	}
	if err := c.Close(); err != nil {
		t.Error(err)
	}
}

// TestOthers: what others had of the busier of two processors, or of one that is
// shared.
func TestOthers(t *testing.T) {
	at := time.Now()
	a := state{at: at, front: 10, back: 20, idle: map[int]time.Duration{0: 1000, 1: 2000, 2: 0}}
	b := state{at: at.Add(1000), front: 510, back: 420, idle: map[int]time.Duration{0: 1400, 1: 2500, 2: 1000}}
	for cores, want := range map[[2]int]float64{{0, 1}: 0.1, {1, 0}: 0.2, {0, 2}: 0.1, {2, 2}: 0, {1, 1}: 0} {
		if got := (&contender{cores: cores}).othersBetween(a, b); got != want {
			t.Errorf("processors %v: %v, want %v", cores, got, want)
		}
	}
}

func TestDistance(t *testing.T) {
	if ns, err := distance([2]int{0, 0}, 10); ns != 0 || err != nil {
		t.Errorf("to itself: %v ns, %v", ns, err)
	}
	if _, err := distance([2]int{0, 1000}, 10); err == nil {
		t.Error("there are not that many processors")
	}
	if runtime.NumCPU() > 1 {
		if ns, err := distance([2]int{0, 1}, 10); ns <= 0 || err != nil {
			t.Errorf("%v ns, %v", ns, err)
		}
	}
}
