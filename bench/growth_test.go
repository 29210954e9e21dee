package main

import (
	"bytes"
	"context"
	"strings"
	"testing"
	"time"

	"github.com/vhostnet/vhostnet/bench/stat"
)

func TestParseFootprint(t *testing.T) {
	const status = "Name:\tx\nVmRSS:\t    1234 kB\nThreads:\t7\n"
	if kb, threads, err := parseFootprint(status); err != nil || kb != 1234 || threads != 7 {
		t.Error(kb, threads, err)
	}
	for _, bad := range []string{"", "VmRSS:\tx kB\nThreads:\t7\n", "VmRSS:\t1 kB\n"} {
		if _, _, err := parseFootprint(bad); err == nil {
			t.Errorf("%q is a footprint", bad)
		}
	}
}

// Ratios are to the base of the same group in the same round.
func TestGrowthReport(t *testing.T) {
	g := &growthArgs{Rounds: 3, Duration: time.Second}
	r := newGrowthReport(g, []*variant{
		{section: sectionPairs, name: "a1", group: "a", base: true},
		{section: sectionPairs, name: "a2", group: "a"},
		{section: sectionPairs, name: "b1", group: "b", base: true},
		{section: sectionDevices, name: "1", base: true},
		{section: sectionLatency, name: "ping", group: "a", base: true},
	})
	sample := func(packets float64) growthSample {
		return growthSample{loadResult: loadResult{Packets: packets, Seconds: 1, Calls: 1}, ResidentKB: 2048, Threads: 3, Idle: 2 * time.Millisecond}
	}
	for i, v := range r.Variants {
		for _, f := range []float64{1, 10, 4} {
			v.Samples = append(v.Samples, sample(f*float64(i+1)))
		}
	}
	r.Variants[4].Samples[0].P50 = 7
	r.finish()
	if v := r.Variants[1]; v.Ratio == nil || *v.Ratio != (stat.Spread{Median: 2, Min: 2, Max: 2, N: 3}) {
		t.Errorf("ratio %+v", v.Ratio)
	}
	for _, i := range []int{0, 2, 3} {
		if r.Variants[i].Ratio != nil {
			t.Errorf("%s is compared with itself", r.Variants[i].Name)
		}
	}
	var out bytes.Buffer
	if err := r.markdown(&out); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"| a2 | 0 [0-0] | 2.00 | 0.1250 [0.0500-0.5000] |",
		"| 1 | 0 [0-0] | - | 2 | 2 | 3 |",
		"| ping | 7.0 |",
	} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
}

// The whole measurement, of three devices and for moments.
func TestGrowth(t *testing.T) {
	var out bytes.Buffer
	g := &growthArgs{Rounds: 1, Duration: 2 * time.Millisecond, Devices: []int{1, 3}, Cores: []int{0, 0}}
	ctx, cancel := context.WithTimeout(context.Background(), 2*time.Minute)
	defer cancel()
	if err := g.Run(&streams{ctx: ctx, out: &out, err: t.Output()}); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{"## " + sectionPairs, "## " + sectionRings, "## " + sectionLatency, "| echo, 4096 |", "\n| 3 | ", "beside bulk, GOGC=off"} {
		if !strings.Contains(out.String(), want) {
			t.Errorf("%q is not in\n%s", want, out.String())
		}
	}
}
