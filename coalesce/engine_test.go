package coalesce_test

import (
	"encoding/json"
	"errors"
	"strings"
	"testing"

	"pgregory.net/rapid"

	"github.com/vhostnet/vhostnet/coalesce"
)

func TestParseEngine(t *testing.T) {
	tests := []struct{ spec, canonical, name string }{
		{"off", "off", "off"},
		{"fixed:50/64", "fixed:50/64", "fixed"},
		{"fixed:0/0", "fixed:0/1", "fixed"},
		{"fixed:1000000/32768", "fixed:1000000/32768", "fixed"},
		{"fixed:007/08", "fixed:7/8", "fixed"},
		{"net-dim", "net-dim", "net-dim"},
		{"net-dim:eqe", "net-dim", "net-dim"},
		{"net-dim:cqe", "net-dim:cqe", "net-dim"},
		{"net-dim:1,2_3,4_5,6_7,8_9,10", "net-dim:1,2_3,4_5,6_7,8_9,10", "net-dim"},
		{"net-dim:cqe:1,2_3,4_5,6_7,8_9,10", "net-dim:1,2_3,4_5,6_7,8_9,10", "net-dim"},
		{"net-dim:eqe:0,0_0,0_0,0_0,0_0,0", "net-dim:0,1_0,1_0,1_0,1_0,1", "net-dim"},
		{"rdma-dim", "rdma-dim", "rdma-dim"},
		{"adaptive", "adaptive", "adaptive"},
		{"adaptive:max-latency=80", "adaptive:max-latency=80", "adaptive"},
	}
	for _, tt := range tests {
		for _, dir := range []coalesce.Direction{coalesce.RX, coalesce.TX} {
			s, err := coalesce.ParseEngine(tt.spec, dir)
			if err != nil {
				t.Errorf("%q: %v", tt.spec, err)
				continue
			}
			if s.String() != tt.canonical || s.Kind.String() != tt.name || s.Direction != dir {
				t.Errorf("%q: %+v, written %q", tt.spec, s, s)
			}
			if again, err := coalesce.ParseEngine(s.String(), dir); err != nil || again != s {
				t.Errorf("%q reads as %+v, %v", s, again, err)
			}
			if got := s.New().Name(); got != tt.name {
				t.Errorf("%q makes %q", tt.spec, got)
			}
		}
	}
}

func TestParseEngineErrors(t *testing.T) {
	for _, spec := range []string{
		"", "on", "OFF", " off", "off ", "off:", "off:1", "fixed", "fixed:", "fixed:/", "fixed:1", "fixed:1/", "fixed:/1",
		"fixed:1/2/3", "fixed:-1/2", "fixed:+1/2", "fixed:1_0/2", "fixed:0x1/2", "fixed:1.5/2", "fixed:4294967296/1", "fixed:1,2",
		"fixed:1000001/1", "fixed:1/32769", "fixed:18446744073709551616/1", "adaptive:max-latency=1000001",
		"net-dim:", "net-dim:eqe:", "net-dim:xqe", "net-dim:eqe:cqe", "net-dim:xqe:1,2_3,4_5,6_7,8_9,10",
		"net-dim:1,2", "net-dim:1,2_3,4_5,6_7,8", "net-dim:1,2_3,4_5,6_7,8_9,10_11,12", "net-dim:1,2_3,4_5,6_7,8_9,10_",
		"net-dim:1,2_3,4_5,6_7,8_9,32769", "net-dim:1,2_3,4_5,6_7,8_9,10:eqe", "net-dim:1/2_3/4_5/6_7/8_9/10",
		"rdma-dim:", "rdma-dim:1", "adaptive:", "adaptive:80", "adaptive:max-latency", "adaptive:max-latency=",
		"adaptive:max-latency=0", "adaptive:max-latency=-1", "adaptive:max-latency=1=2", "adaptive:min-latency=1",
	} {
		s, err := coalesce.ParseEngine(spec, coalesce.TX)
		if !errors.Is(err, coalesce.ErrEngine) || s != (coalesce.EngineSpec{}) {
			t.Errorf("%q: %+v, %v", spec, s, err)
		} else if !strings.Contains(err.Error(), "\"") {
			t.Errorf("%q: %v does not name it", spec, err)
		}
	}
}

func FuzzParseEngine(f *testing.F) {
	for _, spec := range []string{
		"off", "fixed:50/64", "fixed:0/0", "net-dim", "net-dim:eqe", "net-dim:cqe", "rdma-dim", "adaptive",
		"net-dim:1,2_3,4_5,6_7,8_9,10", "net-dim:cqe:0,0_0,0_0,0_0,0_0,0", "adaptive:max-latency=80", "fixed:4294967296/1", "net-dim::",
	} {
		f.Add(spec, false)
		f.Add(spec, true)
	}
	f.Fuzz(func(t *testing.T, spec string, tx bool) {
		dir := coalesce.RX
		if tx {
			dir = coalesce.TX
		}
		s, err := coalesce.ParseEngine(spec, dir)
		if err != nil {
			if !errors.Is(err, coalesce.ErrEngine) || s != (coalesce.EngineSpec{}) {
				t.Fatalf("%+v, %v", s, err)
			}
			return
		}
		if again, err := coalesce.ParseEngine(s.String(), dir); err != nil || again != s {
			t.Fatalf("%+v is written %q, which reads as %+v, %v", s, s, again, err)
		}
		name, _, _ := strings.Cut(spec, ":")
		e := s.New()
		if e.Name() != name {
			t.Fatalf("%q makes %q", spec, e.Name())
		}
		if l := e.Tick(0).Limits; (l == coalesce.Limits{}) != (name == "off") {
			t.Fatalf("%q begins with %v: only \"off\" leaves it to the driver", spec, l)
		}
	})
}

func TestOffAndFixed(t *testing.T) {
	for spec, want := range map[string]coalesce.Limits{"off": {}, "fixed:50/64": lim(50, 64), "fixed:0/0": lim(0, 1)} {
		e := engine(t, spec, coalesce.RX)
		name, _, _ := strings.Cut(spec, ":")
		for i := range 3 {
			now := int64(i) * 1000 * us
			a := e.Observe(&coalesce.Observation{Now: now, Packets: 1000, Bytes: 64_000, Notified: 64, Idle: true})
			if a != (coalesce.Advice{Limits: want}) || e.Tick(now) != a {
				t.Errorf("%s: %+v", spec, a)
			}
			if got := e.Decision(); got != (coalesce.Decision{Limits: want, Reason: name, Step: -1}) {
				t.Errorf("%s: %+v", spec, got)
			}
			e.Reset()
		}
	}
}

func TestInvalidNames(t *testing.T) {
	if got := coalesce.EngineKind(200).String(); got != "invalid" {
		t.Error(got)
	}
	if got := (coalesce.EngineSpec{Kind: 200}).New().Name(); got != "off" {
		t.Errorf("an engine that does not exist is %q", got)
	}
}

// TestDecisionJSON pins the names that people and tools see.
func TestDecisionJSON(t *testing.T) {
	e := engine(t, "net-dim", coalesce.RX)
	replay(t, e, 0, []window{{1000, 640, 64_000, 1, "changed"}})
	b, err := json.Marshal(e.Decision())
	if err != nil {
		t.Fatal(err)
	}
	const want = `{"at_ns":1000000,"limits":{"usecs":8,"packets":256},"reason":"changed","step":1,` +
		`"inputs":{"window_us":1000,"packets_per_ms":640,"bytes_per_ms":64000,"notifications_per_ms":64,"packets_per_notification":10}}`
	if string(b) != want {
		t.Errorf("got  %s\nwant %s", b, want)
	}
	b, err = json.Marshal(coalesce.Observation{Now: 7, Packets: 1, Bytes: 64, Kicked: true})
	if err != nil || string(b) != `{"now":7,"packets":1,"bytes":64,"kicked":true}` {
		t.Errorf("%s, %v", b, err)
	}
}

// engines are the specs whose engines the general tests are run with.
func engines(t testing.TB) []coalesce.EngineSpec {
	t.Helper()
	var specs []coalesce.EngineSpec
	for _, dir := range []coalesce.Direction{coalesce.RX, coalesce.TX} {
		for _, text := range []string{
			"off", "fixed:50/64", "net-dim", "net-dim:cqe", "net-dim:5,5_5,5_5,5_5,5_5,5", "rdma-dim", "adaptive", "adaptive:max-latency=30",
		} {
			s, err := coalesce.ParseEngine(text, dir)
			if err != nil {
				t.Fatal(err)
			}
			specs = append(specs, s)
		}
	}
	return specs
}

func TestEnginesDoNotAllocate(t *testing.T) {
	for _, s := range engines(t) {
		e := s.New()
		r := newTraffic(1)
		r.now = 1
		var (
			o    coalesce.Observation
			sink coalesce.Decision
		)
		if n := testing.AllocsPerRun(20_000, func() {
			o = r.next()
			e.Observe(&o)
			e.Tick(o.Now)
			sink = e.Decision()
		}); n != 0 {
			t.Errorf("%v: %v allocations an observation", s, n)
		}
		if n := testing.AllocsPerRun(100, e.Reset); n != 0 {
			t.Errorf("%v: %v allocations a reset", s, n)
		}
		_ = sink
	}
}

// drawObservation draws any observation at all.
func drawObservation(t *rapid.T, now int64) coalesce.Observation {
	n := rapid.OneOf(rapid.Uint32Range(0, 70), rapid.Uint32())
	return coalesce.Observation{
		Now: now, Packets: n.Draw(t, "packets"), Bytes: rapid.Uint64().Draw(t, "bytes"),
		Notified: n.Draw(t, "notified"), Suppressed: n.Draw(t, "suppressed"), Consumed: n.Draw(t, "consumed"),
		Idle: rapid.Bool().Draw(t, "idle"), Backlog: n.Draw(t, "backlog"), Free: n.Draw(t, "free"), Size: n.Draw(t, "size"),
		Kicked: rapid.Bool().Draw(t, "kicked"), PortEmpty: rapid.Bool().Draw(t, "empty"),
	}
}

// TestEnginesAreDeterministic: whatever is observed, the advice is the decision,
// an engine that was reset does as a new one, and a tick that was not asked for
// changes nothing in an engine that never asks.
func TestEnginesAreDeterministic(t *testing.T) {
	specs := engines(t)
	rapid.Check(t, func(t *rapid.T) {
		s := rapid.SampledFrom(specs).Draw(t, "engine")
		used, fresh := s.New(), s.New()
		start := fresh.Decision()
		now := rapid.Int64().Draw(t, "start")
		for range rapid.IntRange(0, 30).Draw(t, "before") {
			o := drawObservation(t, rapid.Int64().Draw(t, "now"))
			used.Observe(&o)
		}
		used.Reset()
		if got := used.Decision(); got != start {
			t.Fatalf("%v after a reset: %+v, want %+v", s, got, start)
		}
		for range rapid.IntRange(1, 60).Draw(t, "observations") {
			now += rapid.Int64Range(-10, 1<<40).Draw(t, "ns")
			o := drawObservation(t, now)
			kept := o
			a := used.Observe(&o)
			if b := fresh.Observe(&o); a != b || o != kept {
				t.Fatalf("%v: %+v and %+v for %+v", s, a, b, o)
			}
			d := used.Decision()
			if d != fresh.Decision() || d.Reason == "" {
				t.Fatalf("%v: %+v", s, d)
			}
			if s.Kind == coalesce.EngineAdaptive {
				continue
			}
			if a.Limits != d.Limits || a.Next != 0 || a.Flush || used.Tick(now) != a || used.Decision() != d {
				t.Fatalf("%v: %+v, decided %+v", s, a, d)
			}
		}
	})
}

// TestDimStepsAreBounded: the limits move by at most one step for 64
// notifications, and rdma-dim moreover to the first ones.
func TestDimStepsAreBounded(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		spec := rapid.SampledFrom([]string{"net-dim", "rdma-dim"}).Draw(t, "engine")
		s, err := coalesce.ParseEngine(spec, coalesce.RX)
		if err != nil {
			t.Fatal(err)
		}
		e := s.New()
		now, notified, changes := int64(0), uint64(0), uint64(0)
		step := e.Decision().Step
		for range rapid.IntRange(1, 200).Draw(t, "observations") {
			now += rapid.Int64Range(0, 1<<24).Draw(t, "ns")
			o := drawObservation(t, now)
			o.Notified %= 130
			notified += uint64(o.Notified)
			e.Observe(&o)
			if next := e.Decision().Step; next != step {
				changes++
				if d := next - step; d*d != 1 && (spec != "rdma-dim" || next != 0) {
					t.Fatalf("%s: from step %d to %d", spec, step, next)
				}
				step = next
			}
			if step < 0 || step > 8 || changes*64 > notified {
				t.Fatalf("%s: step %d, %d changes in %d notifications", spec, step, changes, notified)
			}
		}
	})
}

func BenchmarkObserve(b *testing.B) {
	for _, s := range engines(b) {
		if s.Direction != coalesce.RX {
			continue
		}
		b.Run(s.String(), func(b *testing.B) {
			e := s.New()
			o := coalesce.Observation{Packets: 32, Bytes: 32 * 1500, Notified: 1, Free: 200, Size: 256}
			b.ReportAllocs()
			for b.Loop() {
				o.Now += 20_000
				e.Observe(&o)
			}
		})
	}
}
