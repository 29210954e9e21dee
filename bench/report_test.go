package main

import (
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vhostnet/vhostnet/bench/peer"
	"github.com/vhostnet/vhostnet/bench/stat"
)

// window has a rate; half of the time is the back-end's.
func rated(rate float64) peer.Window {
	return peer.Window{Packets: rate / 10, Seconds: 0.1, CPUSeconds: 0.05, Counted: true, Calls: rate / 100, Kicks: rate / 200}
}

// TestRatios: the median of the ratios is not the ratio of the medians, and a
// window has a ratio only if the reference has the same turn.
func TestRatios(t *testing.T) {
	r := &report{Rows: []*rowResult{newRowResult(testRow)}}
	w := r.Rows[0]
	add := func(name string, launch, window int, rate, others float64) {
		w.add(name, sample{turn{launch, window}, rated(rate), others})
	}
	add(netVhost, 0, 0, 100, 0)
	add("other", 0, 0, 50, 0) // 0.5
	add("other", 0, 1, 300, 0.01)
	add(netVhost, 0, 1, 200, 0) // 1.5
	add(netVhost, 1, 0, 1000, 0)
	add("other", 1, 0, 1100, 0) // 1.1
	add(netVhost, 1, 1, 1, 0.5)
	add("other", 1, 1, 500, 0) // the reference was disturbed
	add("other", 1, 2, 600, 0) // there is no reference
	add("noisy", 0, 0, 10, 0.9)
	add("noisy", 0, 1, 30, 0.8) // no other windows: they count
	r.finish()

	other := w.find("other")
	if diff := cmp.Diff(&stat.Spread{Median: 1.1, Min: 0.5, Max: 1.5, N: 3}, other.Ratio); diff != "" || other.Turns != 3 {
		t.Errorf("%d turns: %s", other.Turns, diff)
	}
	if diff := cmp.Diff(stat.Spread{Median: 500, Min: 50, Max: 1100, N: 5}, other.PacketsPerSecond); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(&stat.Spread{Median: 0.1, Min: 0.1, Max: 0.1, N: 5}, other.CallsPerPacket); diff != "" {
		t.Error(diff)
	}
	if diff := cmp.Diff(&stat.Spread{Median: 0.05, Min: 0.05, Max: 0.05, N: 5}, other.KicksPerPacket); diff != "" {
		t.Error(diff)
	}
	if got, want := other.CPUNanoseconds.Median, 0.05/50*1e9; got != want {
		t.Errorf("%v ns of processor time, want %v", got, want)
	}
	reference := w.find(netVhost)
	if reference.Ratio != nil || reference.PacketsPerSecond != (stat.Spread{Median: 200, Min: 100, Max: 1000, N: 3}) {
		t.Errorf("%+v", reference)
	}
	if noisy := w.find("noisy"); noisy.Turns != 2 || noisy.Ratio.Max != 0.15 {
		t.Errorf("%+v", noisy.Ratio)
	}
	if len(r.Notes) != 1 || !strings.Contains(r.Notes[0], "of 3 of 11 windows") {
		t.Errorf("notes %q", r.Notes)
	}
}

func TestMarkdown(t *testing.T) {
	r := &report{
		Rows: []*rowResult{newRowResult(testRow)}, PeerVersions: map[string]string{"passt": "2", "DPDK": "1"},
		Notes: []string{"a note"}, Failures: []string{"a failure"},
	}
	r.Rows[0].Distances = []float64{50, 90, 40}
	r.Rows[0].add(netVhost, sample{Window: rated(2e6)})
	uncounted := rated(3e6)
	uncounted.Counted = false
	r.Rows[0].add("vhostnet", sample{Window: uncounted})
	r.finish()
	var b strings.Builder
	if err := r.markdown(&b); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"A cache line takes 50 [40-90] ns from core to core.\n", "; DPDK 1; passt 2.", "Note: a note.\n", "Not measured: a failure.\n",
		"| built-in | echo | 64 B | polling | net_vhost | 2000 [2000-2000] | - | 0.1000 | 0.0500 | 250 |\n",
		"| built-in | echo | 64 B | polling | vhostnet | 3000 [3000-3000] | 1.50 | - | - | 167 |\n",
	} {
		if !strings.Contains(b.String(), want) {
			t.Errorf("no %q in\n%s", want, b.String())
		}
	}
}
