package trace_test

import (
	"bytes"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vhostnet/vhostnet/coalesce"
	"github.com/vhostnet/vhostnet/coalesce/sim"
	"github.com/vhostnet/vhostnet/coalesce/trace"
)

func engine(t *testing.T, name string, d coalesce.Direction) coalesce.EngineSpec {
	t.Helper()
	s, err := coalesce.ParseEngine(name, d)
	if err != nil {
		t.Fatal(err)
	}
	return s
}

// recorded runs an engine in the simulator and returns its trace, which has been
// through a file.
func recorded(t *testing.T, c sim.Config) (map[int][]trace.Record, sim.Result) {
	t.Helper()
	var out bytes.Buffer
	w := trace.NewWriter(&out, 1<<20)
	c.Trace = func(queue int, o *coalesce.Observation, d coalesce.Decision, a coalesce.Advice) {
		w.Add(trace.NewRecord(queue, o, d, a))
	}
	r := sim.Run(c)
	if err := w.Close(); err != nil || w.Dropped() != 0 {
		t.Fatal(err, w.Dropped())
	}
	queues, err := trace.Read(&out)
	if err != nil {
		t.Fatal(err)
	}
	return queues, r
}

// An engine decides by what it observes and nothing else: from its own trace it
// comes to the same limits after every record, in as many steps.
func TestReplayOfTheSameEngine(t *testing.T) {
	for _, name := range []string{"poisson-50k", "steps", "bursts-256", "rr-16", "bulk-256", "tx-200k", "tx-bulk"} {
		w, ok := sim.FindWorkload(name)
		if !ok {
			t.Fatal(name)
		}
		w.Duration, w.Warmup = 60_000_000, 0
		for _, e := range []string{"net-dim", "net-dim:cqe", "rdma-dim", "adaptive", "adaptive:max-latency=40"} {
			s := engine(t, e, w.Direction)
			for _, dim := range []bool{false, true} {
				queues, result := recorded(t, sim.Config{Engine: s, Workload: w, Seed: 9, GuestDIM: dim})
				rs := queues[int(w.Direction)]
				got := trace.Replay(rs, s)
				if got.Agreement != 1 || got.Changes != len(result.Changes) || got.LastReason != rs[len(rs)-1].Reason {
					t.Errorf("%s, %v, guest DIM %v: %+v, %d changes when it was recorded", name, s, dim, got, len(result.Changes))
				}
				if name == "steps" && (got.Decisions < 5 || got.Changes == 0) {
					t.Errorf("%s, %v: %+v", name, s, got)
				}
			}
		}
	}
}

// Each limit in the trace is one that the engine really had, in that order.
func TestReplayLimitsOneByOne(t *testing.T) {
	w, _ := sim.FindWorkload("steps")
	w.Duration = 300_000_000
	s := engine(t, "adaptive", coalesce.RX)
	queues, result := recorded(t, sim.Config{Engine: s, Workload: w, Seed: 2})
	var got []sim.Change
	last := s.New().Decision().Limits
	for _, r := range queues[0] {
		if r.Limits != last {
			last = r.Limits
			got = append(got, sim.Change{At: r.TNS, Limits: last})
		}
	}
	if d := cmp.Diff(result.Changes, got); d != "" || len(got) == 0 {
		t.Error(d, len(got))
	}
}

// Other engines judge the same observations in their own way.
func TestReplayOfOtherEngines(t *testing.T) {
	w, _ := sim.FindWorkload("constant-100k")
	queues, _ := recorded(t, sim.Config{Engine: engine(t, "net-dim", coalesce.RX), Workload: w, Seed: 1})
	rs := queues[trace.Busiest(queues)]
	for name, want := range map[string]coalesce.Limits{
		"off":         {},
		"fixed:64/32": {Usecs: 64, Packets: 32},
	} {
		got := trace.Replay(rs, engine(t, name, coalesce.RX))
		if d := cmp.Diff([]trace.Share{{Limits: want, Share: 1}}, got.Shares); d != "" || got.Changes != 0 || got.Decisions != 0 {
			t.Errorf("%s: %+v %s", name, got, d)
		}
	}
	got := trace.Replay(rs, engine(t, "adaptive", coalesce.RX))
	if got.Decisions < 100 || got.Agreement > 0.5 || got.Packets < 40_000 || got.Seconds < 0.4 || got.Direction != "rx" {
		t.Errorf("%+v", got)
	}
	if got := trace.Replay(nil, engine(t, "adaptive", coalesce.RX)); got.Records != 0 || got.Engine != "adaptive" {
		t.Errorf("%+v", got)
	}
}

// A virtqueue that is restarted shows in the reason, and the engine begins anew.
func TestReplayAcrossARestart(t *testing.T) {
	w, _ := sim.FindWorkload("steps")
	w.Duration = 200_000_000
	for _, name := range []string{"net-dim", "rdma-dim", "adaptive"} {
		s := engine(t, name, coalesce.RX)
		if r := s.New().Decision().Reason; r != "start" {
			t.Errorf("%s begins with reason %q", name, r)
		}
		queues, _ := recorded(t, sim.Config{Engine: s, Workload: w, Seed: 4})
		rs := queues[0]
		end := rs[len(rs)-1].TNS
		twice := append([]trace.Record(nil), rs...)
		for _, r := range rs {
			r.TNS += end
			if r.Next != 0 {
				r.Next += end
			}
			twice = append(twice, r)
		}
		if got := trace.Replay(twice, s); got.Agreement != 1 {
			t.Errorf("%+v", got)
		}
	}
}
