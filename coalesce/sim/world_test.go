package sim

import (
	"context"
	"errors"
	"fmt"
	"math/rand/v2"
	"slices"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vhostnet/vhostnet/coalesce"
)

// The events of a world against sorting them.
func TestWorldOrder(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	w := &world{}
	type mark struct {
		at int64
		n  int
	}
	var got, want []mark
	n := 0
	var plan func(at int64)
	plan = func(at int64) {
		m := mark{max(at, w.now), n}
		n++
		want = append(want, m)
		w.at(at, func() {
			if w.now != m.at {
				t.Errorf("at %d, planned for %d", w.now, m.at)
			}
			got = append(got, m)
			for range r.IntN(3) {
				if n < 3000 {
					plan(w.now + r.Int64N(40) - 5)
				}
			}
		})
	}
	for range 500 {
		plan(r.Int64N(1000))
	}
	w.run(1 << 60)
	slices.SortStableFunc(want, func(a, b mark) int { return int(a.at - b.at) })
	if d := cmp.Diff(want, got, cmp.AllowUnexported(mark{})); d != "" {
		t.Error(d)
	}
}

func TestFIFO(t *testing.T) {
	var f fifo[int]
	next := 0
	for i := range 100_000 {
		f.push(i)
		if i%3 != 0 {
			if v := f.pop(); v != next {
				t.Fatalf("%d, want %d", v, next)
			}
			next++
		}
	}
	if f.len() != 100_000-next || *f.at(1) != next+1 || len(f.items) > 2*f.len()+2048 {
		t.Errorf("%d left, %d kept", f.len(), len(f.items))
	}
}

// The event index against counting without wrap-around: a decision notifies if
// it covers the entry that the driver waits for.
func TestRingEventIndex(t *testing.T) {
	r := rand.New(rand.NewPCG(3, 4))
	ring := ring{first: true}
	var published, decided, event uint64
	for range 200_000 {
		switch r.IntN(4) {
		case 0:
			event = published - min(published, uint64(r.IntN(3))) + uint64(r.IntN(200))
			ring.event = uint16(event)
		case 1:
			first := ring.first
			want := published > decided && decided <= event && event < published
			if got := ring.needSignal(); got != (want || first) {
				t.Fatalf("published %d, decided %d, event %d: %v", published, decided, event, got)
			}
			decided = published
		default:
			n := r.IntN(64)
			ring.publish(n)
			published += uint64(n)
		}
	}
}

func TestSuite(t *testing.T) {
	var specs []coalesce.EngineSpec
	for _, name := range []string{"fixed:64/64", "off", "net-dim"} {
		s, err := coalesce.ParseEngine(name, coalesce.RX)
		if err != nil {
			t.Fatal(err)
		}
		specs = append(specs, s)
	}
	var ws []Workload
	for _, name := range []string{"rr-1", "tx-window-32"} {
		w, _ := FindWorkload(name)
		w.Duration, w.Warmup = 20*millisecond, 0
		ws = append(ws, w)
	}
	var got []string
	err := Suite(t.Context(), specs, ws, Config{Seed: 1}, func(r Result) error {
		got = append(got, r.Workload+" "+r.Engine)
		switch {
		case r.Engine == "off" && r.ThroughputRatio != 1,
			r.Engine == "fixed:64/64" && (r.ThroughputRatio > 0.6 || r.ThroughputRatio < 0.2):
			t.Errorf("%s, %s: throughput %v", r.Workload, r.Engine, r.ThroughputRatio)
		}
		return nil
	})
	want := []string{"rr-1 fixed:64/64", "rr-1 off", "rr-1 net-dim", "tx-window-32 fixed:64/64", "tx-window-32 off", "tx-window-32 net-dim"}
	if d := cmp.Diff(want, got); d != "" || err != nil {
		t.Error(err, d)
	}
	stop := errors.New("stop")
	if err := Suite(t.Context(), specs, ws, Config{}, func(Result) error { return stop }); !errors.Is(err, stop) {
		t.Error(err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if err := Suite(ctx, specs, ws, Config{}, func(Result) error { return nil }); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
}

func TestDominance(t *testing.T) {
	result := func(engine, workload string, p99, notifications float64) Result {
		return Result{Engine: engine, Workload: workload, P99: p99, NotificationsPerPacket: notifications}
	}
	cs := Dominance([]Result{
		result("x", "a", 100, 0.5), result("y", "a", 101, 0.505), result("z", "a", 99, 0.4),
		result("x", "b", 10, 0.5), result("y", "b", 11, 0.5), result("z", "b", 11, 0.4),
		result("y", "c", 1, 1),
	}, "x", "y", "z", "none")
	var got []string
	for _, c := range cs {
		got = append(got, c.Workload+" "+c.Rival.Engine+" "+c.Standing().String())
	}
	want := []string{"a y equal", "a z dominated", "b y dominates", "b z trades"}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

// arrived runs a trace and returns how many packets there were.
func arrived(w Workload) uint64 { return Run(Config{Workload: w}).Arrived }

func TestTrace(t *testing.T) {
	csv := "t_ns,packets,bytes\n# recorded\n1000,2,3000\n\n1000,1,60\n501000,3\n"
	lines := `{"t_ns":-5,"packets":2,"bytes":3000,"queue":0}` + "\n" + `{"t_ns":499995,"packets":4}`
	for text, want := range map[string]uint64{csv: 6, lines: 6, "5,1,1": 1, strings.Repeat("7,100,6400\n", 20): 2000} {
		w, err := ReadTrace(strings.NewReader(text), "x", BusiestQueue)
		if err != nil {
			t.Errorf("%q: %v", text, err)
			continue
		}
		if got := arrived(w); got != want {
			t.Errorf("%q: %d packets, want %d", text, got, want)
		}
	}
	for text, want := range map[string]string{
		"":                         "no packets",
		"1,0,0":                    "no packets",
		"a,b,c":                    "line 1",
		"5,1,1\n4,1,1":             "line 2: time goes back",
		"0,1,1\n3600000000001,1,1": "3600 s",
		"-9223372036854775808,1,1\n9223372036854775807,1,1": "3600 s",
		"1,65537,1":                         "65536",
		"1,1,4294967296":                    "2^32",
		`{"packets":1}`:                     "t_ns",
		`{"t_ns":1,"packets":-1}`:           "line 1",
		"1,1,1,1":                           "t_ns,packets,bytes",
		`{"t_ns":1,"packets":1,"queue":-1}`: "virtqueue -1",
		`{"t_ns":1,"packets":1,"direction":"up"}`:           "want rx or tx",
		`{"t_ns":1}` + "\n" + `{"t_ns":1,"direction":"tx"}`: "line 2: virtqueue 0 was rx",
	} {
		_, err := ReadTrace(strings.NewReader(text), "x", BusiestQueue)
		if !errors.Is(err, ErrTrace) || !strings.Contains(err.Error(), want) {
			t.Errorf("%q: %v", text, err)
		}
	}
}

// A trace of several virtqueues is that of one of them; their order among each
// other means nothing.
func TestTraceOfSeveralQueues(t *testing.T) {
	const text = `{"queue":1,"direction":"tx","t_ns":900,"packets":3}
{"queue":0,"direction":"rx","t_ns":100,"packets":2}
{"queue":0,"direction":"rx","t_ns":1100,"packets":2}
{"queue":3,"direction":"tx","t_ns":50,"packets":4}
{"queue":2,"direction":"rx","t_ns":60}`
	for queue, want := range map[int]struct {
		dir     coalesce.Direction
		packets uint64
	}{BusiestQueue: {coalesce.RX, 4}, 0: {coalesce.RX, 4}, 1: {coalesce.TX, 3}, 3: {coalesce.TX, 4}} {
		w, err := ReadTrace(strings.NewReader(text), "x", queue)
		if err != nil {
			t.Fatal(err)
		}
		if n := arrived(w); w.Direction != want.dir || n != want.packets {
			t.Errorf("queue %d: %v, %d packets, want %+v", queue, w.Direction, n, want)
		}
	}
	// A guest sends as it did, whatever the device makes of it meanwhile.
	lines := ""
	for i := range 1000 {
		lines += fmt.Sprintf(`{"queue":1,"direction":"tx","t_ns":%d,"packets":%d}`+"\n", 20_000*i, i%3)
	}
	w, err := ReadTrace(strings.NewReader(lines), "x", 1)
	if err != nil {
		t.Fatal(err)
	}
	for _, s := range engines(t, w.Direction) {
		if r := Run(Config{Engine: s, Workload: w}); r.Arrived != 999 {
			t.Errorf("%v: %d packets", s, r.Arrived)
		}
	}
	for queue, want := range map[int]string{2: "no packets", 4: "nothing of virtqueue 4"} {
		if _, err := ReadTrace(strings.NewReader(text), "x", queue); !errors.Is(err, ErrTrace) || !strings.Contains(err.Error(), want) {
			t.Errorf("queue %d: %v", queue, err)
		}
	}
}

func FuzzReadTrace(f *testing.F) {
	f.Add("t_ns,packets,bytes\n1000,2,3000\n2000,1,60\n")
	f.Add(`{"t_ns":1,"packets":2,"bytes":3}`)
	f.Add("-9223372036854775808,1,1\n9223372036854775807,1,1")
	f.Add("0,0,0\n0,65536,4294967295")
	f.Add(`{"queue":1,"direction":"tx","t_ns":9,"packets":1}` + "\n" + `{"queue":0,"t_ns":1,"packets":2}`)
	f.Fuzz(func(t *testing.T, text string) {
		w, err := ReadTrace(strings.NewReader(text), "x", BusiestQueue)
		if err != nil {
			if !errors.Is(err, ErrTrace) {
				t.Error(err)
			}
			return
		}
		if len(text) < 200 {
			r := Run(Config{Workload: w})
			if r.Arrived == 0 || r.Taken+r.Dropped != r.Arrived {
				t.Errorf("%d packets, %d taken, %d lost", r.Arrived, r.Taken, r.Dropped)
			}
		}
	})
}
