package coalesce_test

import (
	"testing"

	"github.com/vhostnet/vhostnet/coalesce"
	"github.com/vhostnet/vhostnet/coalesce/sim"
)

// TestAdaptiveInSimulation holds the engine to what it promises, under each
// workload of the simulator.
func TestAdaptiveInSimulation(t *testing.T) {
	var specs []coalesce.EngineSpec
	for _, name := range []string{"off", "net-dim", "rdma-dim", "adaptive"} {
		s, err := coalesce.ParseEngine(name, coalesce.RX)
		if err != nil {
			t.Fatal(err)
		}
		specs = append(specs, s)
	}
	workloads := sim.Workloads()
	for i := range workloads {
		if w := &workloads[i]; w.Step == 0 {
			w.Duration = min(w.Duration, 400*ms)
		}
	}
	var results []sim.Result
	emit := func(r sim.Result) error {
		results = append(results, r)
		return nil
	}
	if err := sim.Suite(t.Context(), specs, workloads, sim.Config{Seed: 1}, emit); err != nil {
		t.Fatal(err)
	}
	off := map[string]sim.Result{}
	for _, r := range results {
		switch r.Engine {
		case "off":
			off[r.Workload] = r
		case "adaptive":
			checkAgainstOff(t, r, off[r.Workload])
		}
	}
	for _, c := range sim.Dominance(results, "adaptive", "net-dim", "rdma-dim") {
		if c.Standing() == sim.Dominated {
			t.Errorf("%s: adaptive has p99 %.1f us and %.4f notifications a packet, %s %.1f and %.4f", c.Workload,
				c.Subject.P99, c.Subject.NotificationsPerPacket, c.Rival.Engine, c.Rival.P99, c.Rival.NotificationsPerPacket)
		}
	}
}

func checkAgainstOff(t *testing.T, r, off sim.Result) {
	t.Helper()
	// Sparse traffic and ping-pong are as if there was no moderation.
	for _, w := range []string{"constant-1k", "constant-20k", "poisson-5k", "idle-64", "rr-1", "rr-16", "bursts-16"} {
		if r.Workload == w && r.P50 > off.P50*1.01 {
			t.Errorf("%s: p50 is %.2f us, %.2f without", r.Workload, r.P50, off.P50)
		}
	}
	// Where the driver sleeps between notifications most of them go away.
	cut := map[string]float64{
		"constant-100k": 0.8, "constant-400k": 0.8, "poisson-50k": 0.77, "poisson-200k": 0.8, "on-off": 0.77, "tx-20k": 0.75, "tx-200k": 0.88,
	}
	if by, ok := cut[r.Workload]; ok && r.NotificationsPerPacket > (1-by)*off.NotificationsPerPacket {
		t.Errorf("%s: %.4f notifications a packet, %.4f without", r.Workload, r.NotificationsPerPacket, off.NotificationsPerPacket)
	}
	if r.ThroughputRatio < 0.96 {
		t.Errorf("%s: %.3f of the throughput without", r.Workload, r.ThroughputRatio)
	}
	if r.Settling > 5 {
		t.Errorf("%s: settles within %.1f ms", r.Workload, r.Settling)
	}
	if r.Flips > 25 {
		t.Errorf("%s: limits go to and fro %.1f times a second", r.Workload, r.Flips)
	}
}
