package main

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"

	"github.com/vhostnet/vhostnet/bench/stat"
)

// measured is a sample of a receive workload.
func measured(variant string, round int, rate, perPacket float64) sample {
	return sample{
		Workload: "udp-rx-16", Variant: variant, Round: round, Rate: rate, Unit: "packets/s", CPU: 0.5,
		RX: flow{Packets: rate, Calls: rate * perPacket, CallsPerPacket: perPacket}, TX: flow{Calls: rate * 0.1},
	}
}

func someReport() *laneReport {
	return &laneReport{
		Lane: "native", Time: time.Unix(0, 0).UTC(), Machine: stat.Machine{CPU: "a|b", Cores: 2, Kernel: "6", Go: "go1"},
		Versions: map[string]string{"b": "2", "a": "1"}, Rounds: 2, Seconds: 1,
		Workloads: []workloadInfo{{Name: "udp-rx-16", About: "small", Kind: kindBulk, Direction: "rx"}},
		Samples: []sample{
			measured(baseline, 0, 1000, 0.5), measured("adaptive", 0, 1100, 0.1),
			measured(baseline, 1, 2000, 0.4), measured("adaptive", 1, 1800, 0.1),
			{Workload: "udp-rx-16", Variant: "net-dim", Round: 0, Error: "it\nbroke"},
		},
	}
}

// Each sample is compared with that of off in its own round.
func TestRows(t *testing.T) {
	r := someReport()
	rows := rowsOf(r.Samples, r.info)
	if len(rows) != 3 {
		t.Fatalf("%d rows", len(rows))
	}
	off, adaptive, failed := rows[0], rows[1], rows[2]
	if off.variant != baseline || off.rate.Median != 1500 || off.ratio.Min != 1 || off.ratio.Max != 1 || off.few {
		t.Errorf("%+v", off)
	}
	if adaptive.ratio != (stat.Spread{Median: 1, Min: 0.9, Max: 1.1, N: 2}) {
		t.Errorf("%+v", adaptive.ratio)
	}
	if c := adaptive.change; math.Abs(c.Min+0.8) > 1e-9 || math.Abs(c.Max+0.75) > 1e-9 {
		t.Errorf("%+v", c)
	}
	// With half a notification and that of the other direction for each packet.
	if c := adaptive.workChange; math.Abs(c.Min+(1-0.2/0.6)) > 1e-9 || math.Abs(c.Max+(1-0.2/0.5)) > 1e-9 {
		t.Errorf("%+v", c)
	}
	if want := 1e6 * 0.5 / 1100; math.Abs(adaptive.cpuPerPacket.Max-1e6*0.5/1100) > 1e-9 {
		t.Errorf("%+v, want %v", adaptive.cpuPerPacket, want)
	}
	if failed.failed != 1 || failed.rate.N != 0 {
		t.Errorf("%+v", failed)
	}
	// Without a sample of off in its round there is nothing to compare with.
	lonely := rowsOf([]sample{measured("adaptive", 7, 1, 1)}, r.info)[0]
	if lonely.ratio.N != 0 || lonely.rate.N != 1 {
		t.Errorf("%+v", lonely)
	}
	r.Samples[0].RX.CallsPerPacket, r.Samples[2].RX.CallsPerPacket = 0.01, 0.02
	if rows := rowsOf(r.Samples, r.info); !rows[1].few {
		t.Error("a driver that polls anyway is not marked")
	}
}

func TestFlows(t *testing.T) {
	s := sample{RX: flow{Packets: 10, Calls: 5, CallsPerPacket: 0.5}, TX: flow{Packets: 30, Calls: 5, CallsPerPacket: 1. / 6}}
	if f := s.flow("both"); f.Packets != 40 || f.CallsPerPacket != 0.25 {
		t.Errorf("%+v", f)
	}
	if s.flow("rx") != s.RX || s.flow("tx") != s.TX {
		t.Error("directions are mixed up")
	}
}

// What was written is what is read, and the tables come of it alone.
func TestSaveAndRender(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "results")
	if err := render(dir); err == nil {
		t.Error("nothing was rendered")
	}
	r := someReport()
	if err := r.save(dir); err != nil {
		t.Fatal(err)
	}
	list, err := loadLanes(dir)
	if err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}
	if d := cmp.Diff(r, list[0]); d != "" {
		t.Error(d)
	}
	if err := render(dir); err != nil {
		t.Fatal(err)
	}
	raw, err := os.ReadFile(filepath.Join(dir, "guest.md"))
	if err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| native | adaptive | -78 % [-78–-78] |", "1.00 [0.90–1.10]", "2 interleaved rounds", "a 1; b 2",
		"udp-rx-16, net-dim: 1 of 1 samples failed, the first with: it broke", "| udp-rx-16 | net-dim | failed |",
	} {
		if !strings.Contains(string(raw), want) {
			t.Errorf("there is no %q in\n%s", want, raw)
		}
	}
	if raw, err := os.ReadFile(filepath.Join(dir, "guest-native.svg")); err != nil || !strings.Contains(string(raw), "<svg") {
		t.Error("no plot", err)
	}
	if err := os.WriteFile(laneFile(dir, "uml", ".json"), []byte("{"), 0o644); err != nil {
		t.Fatal(err)
	}
	if _, err := loadLanes(dir); err == nil {
		t.Error("half a file was read")
	}
}

// A table has no columns that say nothing, and a run that was cut off says so.
func TestTables(t *testing.T) {
	var w strings.Builder
	table(&w, []string{"a", "b", "c"}, [][]string{{"1", "", "3"}, {"4", "", ""}})
	if want := "| a | c |\n|---|---|\n| 1 | 3 |\n| 4 |  |\n"; w.String() != want {
		t.Errorf("%q", w.String())
	}
	r := someReport()
	r.Rounds, r.Failure = 5, "no guest"
	if text := markdown([]*laneReport{r}); !strings.Contains(text, "in round 2 of 5: no guest") {
		t.Error(text)
	}
}
