package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
	"time"

	"go.uber.org/goleak"
)

// TestMain makes the test program its own child process, as the real one is.
func TestMain(m *testing.M) {
	if len(os.Args) == 3 && os.Args[1] == "--serve" {
		if err := serveChild(os.Args[2]); err != nil {
			_, _ = io.WriteString(os.Stderr, err.Error()+"\n")
			os.Exit(1)
		}
		os.Exit(0)
	}
	goleak.VerifyTestMain(m)
}

func TestRun(t *testing.T) {
	for _, device := range []string{"inproc", "child"} {
		t.Run(device, func(t *testing.T) {
			dir := filepath.Join(t.TempDir(), "out")
			var out, progress bytes.Buffer
			o := &options{Device: device, Repeats: 1, Duration: 5 * time.Millisecond, Out: dir}
			if err := run(t.Context(), o, &out, &progress); err != nil {
				t.Fatal(err)
			}
			b, err := os.ReadFile(filepath.Join(dir, "bench.json"))
			if err != nil {
				t.Fatal(err)
			}
			var r report
			if err := json.Unmarshal(b, &r); err != nil {
				t.Fatal(err)
			}
			if len(r.Cases) != len(allCases()) || r.Device != device || r.Machine.Kernel == "" || r.Machine.Go == "" {
				t.Errorf("report %+v", r)
			}
			for _, c := range r.Cases {
				if c.PacketsPerSecond.Median <= 0 || len(c.Samples) != 1 {
					t.Errorf("%s: %+v", c.benchCase, c)
				}
			}
			md, err := os.ReadFile(filepath.Join(dir, "bench.md"))
			if err != nil {
				t.Fatal(err)
			}
			if !bytes.Equal(md, out.Bytes()) || strings.Count(out.String(), "| sink | 64 B |") != 2 {
				t.Errorf("table:\n%s\nfile:\n%s", out.String(), md)
			}
		})
	}
}

func TestRunEnds(t *testing.T) {
	if err := run(t.Context(), &options{Device: "inproc", Duration: time.Second}, io.Discard, io.Discard); err == nil {
		t.Error("no repeats were accepted")
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	o := &options{Device: "inproc", Repeats: 1, Duration: time.Hour}
	if err := run(ctx, o, io.Discard, io.Discard); !errors.Is(err, context.Canceled) {
		t.Errorf("cancelled: %v", err)
	}
}

func TestSpread(t *testing.T) {
	for _, tt := range []struct {
		in   []float64
		want spread
	}{
		{nil, spread{}},
		{[]float64{5}, spread{5, 5, 5}},
		{[]float64{3, 1}, spread{2, 1, 3}},
		{[]float64{9, 1, 4}, spread{4, 1, 9}},
		{[]float64{4, 1, 9, 2}, spread{3, 1, 9}},
	} {
		if got := spreadOf(tt.in); got != tt.want {
			t.Errorf("%v: %+v, want %+v", tt.in, got, tt.want)
		}
	}
}
