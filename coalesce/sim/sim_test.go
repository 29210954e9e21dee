package sim

import (
	"reflect"
	"slices"
	"testing"

	"pgregory.net/rapid"

	"github.com/vhostnet/vhostnet/coalesce"
)

// engines are all that this build has, and the grid of fixed limits.
func engines(t *testing.T, dir coalesce.Direction) (specs []coalesce.EngineSpec) {
	t.Helper()
	for _, name := range []string{
		"off", "net-dim", "net-dim:cqe", "rdma-dim", "adaptive", "adaptive:max-latency=20",
		"fixed:0/1", "fixed:8/8", "fixed:32/32", "fixed:64/64", "fixed:128/64", "fixed:256/64", "fixed:1000/1000",
	} {
		s, err := coalesce.ParseEngine(name, dir)
		if err != nil {
			t.Fatal(err)
		}
		if Known(s) {
			specs = append(specs, s)
		}
	}
	return specs
}

func each(t *testing.T, f func(t *testing.T, s coalesce.EngineSpec, w Workload)) {
	for _, w := range Workloads() {
		// Shorter than for tables: what must hold must hold at any time.
		w.Duration = min(w.Duration, 80*millisecond)
		for _, s := range engines(t, w.Direction) {
			t.Run(w.Name+"/"+s.String(), func(t *testing.T) { f(t, s, w) })
		}
	}
}

// holds asserts what must hold whatever the engine: every packet reaches the
// guest, none waits longer for the decision than the limit in force and what a
// worker is busy with, and none longer from there than it takes to wake the
// guest and to serve what is before it.
func holds(t interface{ Errorf(string, ...any) }, r Result, p Params, dir coalesce.Direction) {
	if r.Taken+r.Dropped != r.Arrived {
		t.Errorf("%d packets, %d taken, %d lost", r.Arrived, r.Taken, r.Dropped)
	}
	cost := p.Receive
	if dir == coalesce.TX {
		cost = p.Transmit
	}
	// At a deadline it may sleep or wake, be in a notification, in a burst, or in
	// a turn of its loop without work.
	if slack := turn + p.Late + p.DeviceWake + max(p.Call, p.CallAsleep) + p.PerBurst + int64(p.Burst)*cost; r.MaxExcess > slack {
		t.Errorf("a packet waited %d ns beyond the limit; %d would be excused", r.MaxExcess, slack)
	}
	// A sender puts off its own interrupt, so there is no such bound for tx.
	if slack := p.Wake + p.Interrupt*int64(1+r.Spurious); dir == coalesce.RX && r.MaxAfter > slack {
		t.Errorf("a packet waited %d ns for the guest, beyond the packets before it; waking takes %d", r.MaxAfter, slack)
	}
}

func TestNobodyWaitsTooLong(t *testing.T) {
	each(t, func(t *testing.T, s coalesce.EngineSpec, w Workload) {
		r := Run(Config{Engine: s, Workload: w, Seed: 7})
		if r.Arrived == 0 {
			t.Error("no packets")
		}
		holds(t, r, DefaultParams(), w.Direction)
		for _, c := range r.Changes {
			if budget := int64(s.MaxLatency) * microsecond; budget != 0 && limitOf(c.Limits) > budget {
				t.Errorf("limits %v with a budget of %d us", c.Limits, s.MaxLatency)
			}
		}
	})
}

// The same with costs, limits, rings and traffic of all kinds, and with a guest
// that moderates too.
func TestNobodyWaitsTooLongAnywhere(t *testing.T) {
	names := []string{"off", "net-dim", "net-dim:cqe", "rdma-dim", "adaptive", "adaptive:max-latency=30"}
	rapid.Check(t, func(t *rapid.T) {
		ns := func(name string, most int64) int64 { return rapid.Int64Range(0, most).Draw(t, name) }
		p := Params{
			Wake: ns("wake", 100_000), Interrupt: ns("interrupt", 20_000), Service: 1 + ns("service", 10_000),
			Reclaim: ns("reclaim", 1000), Send: 1 + ns("send", 5000), Poll: 1 + ns("poll", 2000),
			Budget:     rapid.IntRange(1, 300).Draw(t, "budget"),
			DeviceWake: ns("device wake", 50_000), Late: ns("late", 50_000), Spin: ns("spin", 20_000),
			Receive: ns("receive", 3000), Transmit: ns("transmit", 3000), PerBurst: 1 + ns("per burst", 2000),
			Burst: rapid.IntRange(1, 128).Draw(t, "burst"),
			Call:  ns("call", 1000), CallAsleep: ns("call asleep", 30_000),
			Ring:      1 << rapid.IntRange(6, 10).Draw(t, "ring"),
			PortQueue: rapid.IntRange(1, 2000).Draw(t, "port queue"),
		}
		w := rapid.SampledFrom(Workloads()).Draw(t, "workload")
		w.Duration, w.Warmup, w.Queues = 5*millisecond, 0, 1
		limits := func(name string) coalesce.Limits {
			return coalesce.Limits{
				Usecs:   rapid.Uint32Range(0, 2000).Draw(t, name+" usecs"),
				Packets: rapid.Uint32Range(0, 500).Draw(t, name+" packets"),
			}
		}
		s := coalesce.EngineSpec{Kind: coalesce.EngineFixed, Limits: limits("fixed")}
		if i := rapid.IntRange(0, len(names)).Draw(t, "engine"); i < len(names) {
			var err error
			if s, err = coalesce.ParseEngine(names[i], w.Direction); err != nil {
				t.Fatal(err)
			}
		}
		c := Config{
			Engine: s, Workload: w, Params: p, Seed: rapid.Uint64().Draw(t, "seed"),
			Limits: limits("guest"), Strict: rapid.Bool().Draw(t, "strict"), GuestDIM: rapid.Bool().Draw(t, "guest dim"),
		}
		holds(t, Run(c), p, w.Direction)
	})
}

// A step of the traffic settles within settlingBound, and in steady load adaptive
// does not swing: it goes back to limits that it has just left no more often than
// flipsBound a second, which is what trying out whether waiting still pays needs.
const (
	settlingBound = 5.0 // ms
	flipsBound    = 40
)

func TestSettles(t *testing.T) {
	w, _ := FindWorkload("steps")
	for _, s := range engines(t, w.Direction) {
		r := Run(Config{Engine: s, Workload: w, Seed: 11})
		if s.Kind != coalesce.EngineNetDim && s.Kind != coalesce.EngineRDMADim && r.Settling > settlingBound {
			t.Errorf("%v: %v ms", s, r.Settling)
		}
	}
}

func TestDoesNotSwing(t *testing.T) {
	for _, w := range Workloads() {
		s, err := coalesce.ParseEngine("adaptive", w.Direction)
		if err != nil {
			t.Fatal(err)
		}
		if !w.Steady || !Known(s) {
			continue
		}
		r := Run(Config{Engine: s, Workload: w, Seed: 13})
		if r.Flips > flipsBound {
			t.Errorf("%s: %.0f times a second", w.Name, r.Flips)
		}
	}
}

// An idle queue costs no timer: with one packet in a while, no engine asks to be
// called more often than a few times for each of them.
func TestIdleQueuesCostNoTimer(t *testing.T) {
	w, _ := FindWorkload("idle-64")
	for _, s := range engines(t, w.Direction) {
		if r := Run(Config{Engine: s, Workload: w, Seed: 1}); r.Ticks > 2*r.Arrived {
			t.Errorf("%v: %d ticks for %d packets", s, r.Ticks, r.Arrived)
		}
	}
}

// What a guest asks for is a ceiling: no engine makes it wait longer. That also
// holds while the guest's own net-dim moves the ceiling.
func TestGuestIsACeiling(t *testing.T) {
	p := DefaultParams()
	ceiling := coalesce.Limits{Usecs: 20, Packets: 64}
	for _, name := range []string{"constant-100k", "poisson-50k", "steps"} {
		w, _ := FindWorkload(name)
		w.Duration = 300 * millisecond
		for _, s := range engines(t, w.Direction) {
			r := Run(Config{Engine: s, Workload: w, Seed: 1, Limits: ceiling})
			holds(t, r, p, w.Direction)
			if most := limitOf(ceiling) + p.Late + p.DeviceWake + p.CallAsleep + p.PerBurst + int64(p.Burst)*p.Receive; r.MaxHold > most {
				t.Errorf("%s, %v: held for %d ns", name, s, r.MaxHold)
			}
			holds(t, Run(Config{Engine: s, Workload: w, Seed: 1, GuestDIM: true}), p, w.Direction)
		}
	}
}

func TestSameSeedSameResult(t *testing.T) {
	each(t, func(t *testing.T, s coalesce.EngineSpec, w Workload) {
		w.Duration = min(w.Duration, 30*millisecond)
		w.Warmup = 0
		a := Run(Config{Engine: s, Workload: w, Seed: 3})
		b := Run(Config{Engine: s, Workload: w, Seed: 3})
		if !reflect.DeepEqual(a, b) {
			t.Errorf("%+v\n%+v", a, b)
		}
	})
	w, _ := FindWorkload("poisson-50k")
	a, b := Run(Config{Workload: w, Seed: 1}), Run(Config{Workload: w, Seed: 2})
	if a.Arrived == b.Arrived && a.Mean == b.Mean {
		t.Error("the seed makes no difference")
	}
}

// Open traffic is the same for all engines.
func TestTrafficDoesNotDependOnTheEngine(t *testing.T) {
	for _, name := range []string{"constant-100k", "poisson-50k", "bursts-16", "on-off", "steps", "idle-64"} {
		w, ok := FindWorkload(name)
		if !ok {
			t.Fatal(name)
		}
		w.Duration = 50 * millisecond
		var arrived []uint64
		for _, s := range engines(t, w.Direction) {
			arrived = append(arrived, Run(Config{Engine: s, Workload: w, Seed: 5}).Arrived)
		}
		if len(slices.Compact(arrived)) != 1 {
			t.Errorf("%s: %v", name, arrived)
		}
	}
}

// By hand: one packet a millisecond.
func TestSparseTrafficByHand(t *testing.T) {
	w, _ := FindWorkload("constant-1k")
	p := DefaultParams()
	base := p.DeviceWake + p.PerBurst + p.Receive + p.Wake + p.Interrupt + p.Poll + p.Service
	for name, want := range map[string]int64{
		"off":         base,
		"fixed:0/1":   base,
		"fixed:8/8":   base + 8*microsecond, // awake
		"fixed:64/64": base + 64*microsecond + p.Late,
	} {
		s, err := coalesce.ParseEngine(name, coalesce.RX)
		if err != nil {
			t.Fatal(err)
		}
		r := Run(Config{Engine: s, Workload: w})
		if got := int64(r.Mean * 1000); got < want*999/1000 || got > want*1001/1000 {
			t.Errorf("%s: %d ns, want %d", name, got, want)
		}
		if r.NotificationsPerPacket != 1 {
			t.Errorf("%s: %v notifications per packet", name, r.NotificationsPerPacket)
		}
	}
}
