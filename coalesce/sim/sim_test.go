package sim

import (
	"reflect"
	"slices"
	"testing"

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
		w.Duration = min(w.Duration, 400*millisecond)
		for _, s := range engines(t, w.Direction) {
			t.Run(w.Name+"/"+s.String(), func(t *testing.T) { f(t, s, w) })
		}
	}
}

// Whatever the engine, every packet reaches the guest, none waits longer for
// the decision than the limit in force and what a worker is busy with, and none
// longer from there than it takes to wake the guest and to serve what is before
// it.
func TestNobodyWaitsTooLong(t *testing.T) {
	p := DefaultParams()
	each(t, func(t *testing.T, s coalesce.EngineSpec, w Workload) {
		r := Run(Config{Engine: s, Workload: w, Seed: 7})
		if r.Arrived == 0 || r.Taken+r.Dropped != r.Arrived {
			t.Errorf("%d packets, %d taken, %d lost", r.Arrived, r.Taken, r.Dropped)
		}
		cost := p.Receive
		if w.Direction == coalesce.TX {
			cost = p.Transmit
		}
		// At a deadline it may sleep, be in a notification, or in a burst.
		if slack := p.Late + p.CallAsleep + p.PerBurst + int64(p.Burst)*cost; r.MaxExcess > slack {
			t.Errorf("a packet waited %d ns beyond the limit; %d would be excused", r.MaxExcess, slack)
		}
		// A sender puts off its own interrupt, so there is no such bound for tx.
		if slack := p.Wake + p.Interrupt*int64(1+r.Spurious); w.Direction == coalesce.RX && r.MaxAfter > slack {
			t.Errorf("a packet waited %d ns for the guest, beyond the packets before it; waking takes %d", r.MaxAfter, slack)
		}
	})
}

func TestSameSeedSameResult(t *testing.T) {
	each(t, func(t *testing.T, s coalesce.EngineSpec, w Workload) {
		w.Duration = min(w.Duration, 150*millisecond)
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
		w.Duration = 200 * millisecond
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
