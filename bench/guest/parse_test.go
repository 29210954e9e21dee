package main

import (
	"math"
	"os"
	"path/filepath"
	"strings"
	"testing"

	"github.com/google/go-cmp/cmp"
)

func testdata(t *testing.T, name string) string {
	t.Helper()
	raw, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(raw)
}

func TestParseThroughput(t *testing.T) {
	got, err := parseThroughput(testdata(t, "sockperf-throughput.txt"))
	if err != nil || got != 962745 {
		t.Errorf("%v, %v", got, err)
	}
	if _, err := parseThroughput(testdata(t, "sockperf-refused.txt")); err == nil || !strings.Contains(err.Error(), "Connection refused") {
		t.Errorf("%v", err)
	}
}

func TestParsePingPong(t *testing.T) {
	l, trips, err := parsePingPong(testdata(t, "sockperf-ping-pong.txt"))
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(&latency{Avg: 11.678, P50: 11.056, P99: 16.434, P999: 62.992}, l); d != "" {
		t.Error(d)
	}
	if want := 47033 / 0.55; math.Abs(trips-want) > 1e-6 {
		t.Errorf("%v round trips a second, want %v", trips, want)
	}
	if _, _, err := parsePingPong(testdata(t, "sockperf-throughput.txt")); err == nil {
		t.Error("another test's output passes")
	}
}

func TestParsePktgen(t *testing.T) {
	rate, refused, err := parsePktgen(testdata(t, "pktgen.txt"))
	if err != nil || rate != 164372 || refused != 0 {
		t.Errorf("%v, %v, %v", rate, refused, err)
	}
	if _, _, err := parsePktgen("Result: Idle"); err == nil {
		t.Error("what did not run passes")
	}
}

func TestParseRedis(t *testing.T) {
	out := testdata(t, "redis-benchmark.csv")
	rate, l, err := parseRedis("WARNING: first\n"+out, "get")
	if err != nil || rate != 60606.06 {
		t.Fatalf("%v, %v", rate, err)
	}
	if d := cmp.Diff(&latency{Avg: 511, P50: 463, P99: 1303}, l); d != "" {
		t.Error(d)
	}
	for _, bad := range []string{"", "Could not connect to Redis", out[:strings.Index(out, `"SET"`)], strings.ReplaceAll(out, "0.511", "x")} {
		if _, _, err := parseRedis(bad, "get"); err == nil {
			t.Errorf("%q passes", bad)
		}
	}
}

func TestParseWrk(t *testing.T) {
	rate, l, err := parseWrk(testdata(t, "wrk.txt"))
	if err != nil || rate != 64715.95 {
		t.Fatalf("%v, %v", rate, err)
	}
	if d := cmp.Diff(&latency{Avg: 233.42, P50: 171, P99: 2070}, l); d != "" {
		t.Error(d)
	}
	for name, want := range map[string]string{"wrk-errors.txt": "Non-2xx or 3xx responses: 15434", "wrk-refused.txt": "unable to connect"} {
		if _, _, err := parseWrk(testdata(t, name)); err == nil || !strings.Contains(err.Error(), want) {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSummarize(t *testing.T) {
	if _, err := summarize(nil); err == nil {
		t.Error("no round trips pass")
	}
	trips := make([]float64, 2000)
	for i := range trips {
		trips[i] = float64(len(trips) - i) // 1 to 2000
	}
	l, err := summarize(trips)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(&latency{Avg: 1000.5, P50: 1001, P99: 1981, P999: 1999}, l); d != "" {
		t.Error(d)
	}
	if l, _ := summarize(trips[:999]); l.P999 != 0 {
		t.Errorf("p99.9 of 999 is %v", l.P999)
	}
}
