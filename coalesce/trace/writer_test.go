package trace_test

import (
	"bytes"
	"errors"
	"io"
	"strings"
	"sync"
	"testing"

	"go.uber.org/goleak"

	"github.com/vhostnet/vhostnet/coalesce"
	"github.com/vhostnet/vhostnet/coalesce/trace"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

func record(queue int, at int64) trace.Record {
	o := coalesce.Observation{Now: at, Packets: 2, Bytes: 3000, Size: 256}
	return trace.NewRecord(queue, &o, coalesce.Decision{Reason: "start"}, coalesce.Advice{Limits: coalesce.Limits{Packets: 1}})
}

// gate is a writer that waits for the test before it writes, or fails.
type gate struct {
	bytes.Buffer
	begun, open chan struct{}
	err         error
}

func newGate() *gate { return &gate{begun: make(chan struct{}, 1000), open: make(chan struct{})} }

func (g *gate) Write(b []byte) (int, error) {
	g.begun <- struct{}{}
	<-g.open
	if g.err != nil {
		return 0, g.err
	}
	return g.Buffer.Write(b)
}

func TestWriter(t *testing.T) {
	var out bytes.Buffer
	w := trace.NewWriter(&out, 1000)
	for i := range 100 {
		w.Add(record(i%3, int64(i)))
	}
	if err := w.Close(); err != nil {
		t.Fatal(err)
	}
	if w.Written() != 100 || w.Dropped() != 0 || strings.Count(out.String(), "\n") != 100 {
		t.Errorf("%d written, %d dropped:\n%s", w.Written(), w.Dropped(), out.String())
	}
	w.Add(record(0, 1))
	if err := w.Close(); err != nil || w.Dropped() != 1 {
		t.Errorf("after Close: %v, %d dropped", err, w.Dropped())
	}
}

// Workers add at the same time: nothing is lost uncounted, lines stay whole, and
// each worker's records keep their order.
func TestWriterConcurrently(t *testing.T) {
	for _, buffered := range []int{0, 7, 100_000} {
		var out bytes.Buffer
		w := trace.NewWriter(&out, buffered)
		const workers, each = 4, 5000
		var wg sync.WaitGroup
		for q := range workers {
			wg.Go(func() {
				for i := range each {
					w.Add(record(q, int64(i)))
				}
			})
		}
		wg.Wait()
		if err := w.Close(); err != nil {
			t.Fatal(err)
		}
		queues, err := trace.Read(&out) // checks the order
		if err != nil {
			t.Fatal(err)
		}
		n := 0
		for _, rs := range queues {
			n += len(rs)
		}
		if uint64(n) != w.Written() || w.Written()+w.Dropped() != workers*each {
			t.Errorf("%d read, %d written, %d dropped", n, w.Written(), w.Dropped())
		}
		if buffered >= workers*each && w.Dropped() != 0 {
			t.Errorf("%d dropped with room for all", w.Dropped())
		}
	}
}

// With an output that hangs, records are dropped and counted, and the datapath
// goes on.
func TestWriterDropsWhenFull(t *testing.T) {
	g := newGate()
	w := trace.NewWriter(g, 1000)
	// More than what is written at once, so that it hangs in the middle.
	added := uint64(0)
	for len(g.begun) == 0 {
		w.Add(record(0, int64(added)))
		added++
	}
	for range 1001 {
		w.Add(record(0, int64(added)))
		added++
	}
	if w.Dropped() == 0 {
		t.Error("nothing was dropped")
	}
	close(g.open)
	if err := w.Close(); err != nil {
		t.Error(err)
	}
	if lines := uint64(bytes.Count(g.Bytes(), []byte("\n"))); lines != w.Written() || lines+w.Dropped() != added {
		t.Errorf("%d lines, %d written, %d dropped of %d", lines, w.Written(), w.Dropped(), added)
	}
}

func TestWriterAfterAnError(t *testing.T) {
	full := errors.New("no space left on device")
	g := newGate()
	g.err = full
	close(g.open)
	w := trace.NewWriter(g, 10_000)
	added := uint64(0)
	for len(g.begun) == 0 {
		w.Add(record(0, int64(added)))
		added++
	}
	for range 5000 {
		w.Add(record(0, int64(added)))
		added++
	}
	if err := w.Close(); !errors.Is(err, full) {
		t.Error(err)
	}
	if w.Written() != 0 || w.Dropped() != added || len(g.begun) != 1 {
		t.Errorf("%d written, %d dropped of %d, %d calls", w.Written(), w.Dropped(), added, len(g.begun))
	}
}

// The error may come with the last lines only.
func TestWriterErrorAtClose(t *testing.T) {
	g := newGate()
	g.err = errors.New("x")
	close(g.open)
	w := trace.NewWriter(g, 10)
	w.Add(record(0, 1))
	if err := w.Close(); !errors.Is(err, g.err) || w.Dropped() != 1 {
		t.Errorf("%v, %d dropped", err, w.Dropped())
	}
}

func TestAddDoesNotAllocate(t *testing.T) {
	g := newGate()
	w := trace.NewWriter(g, 100)
	defer func() { _ = w.Close() }()
	defer close(g.open)
	// Until the goroutine hangs in the output: it may allocate.
	for len(g.begun) == 0 {
		w.Add(record(0, 1))
	}
	o := coalesce.Observation{Now: 1, Packets: 2, Size: 256}
	add := func() { w.Add(trace.NewRecord(0, &o, coalesce.Decision{Reason: "x"}, coalesce.Advice{})) }
	for _, what := range []string{"with room", "when full"} {
		if n := testing.AllocsPerRun(50, add); n != 0 {
			t.Errorf("%s: %v allocations", what, n)
		}
	}
	if w.Dropped() == 0 {
		t.Error("it never was full")
	}
}

// What a record costs the datapath.
func BenchmarkAdd(b *testing.B) {
	w := trace.NewWriter(io.Discard, 1<<14)
	defer func() { _ = w.Close() }()
	o := coalesce.Observation{Now: 1, Packets: 2, Size: 256}
	for b.Loop() {
		w.Add(trace.NewRecord(0, &o, coalesce.Decision{Reason: "rate"}, coalesce.Advice{}))
	}
	b.ReportMetric(float64(w.Dropped())/float64(b.N), "dropped/op")
}
