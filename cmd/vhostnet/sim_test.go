package main

import (
	"bufio"
	"context"
	"encoding/json"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"testing"

	"github.com/vhostnet/vhostnet/coalesce/sim"
)

// One object a line, with the fields that scripts rely on.
func TestSimJSON(t *testing.T) {
	code, out, errs := inProcess(t, "sim", "--json", "--workload=rr-1", "--workload=tx-window-32")
	if code != exitOK || errs != "" {
		t.Fatalf("exit code %d, %q", code, errs)
	}
	var got []string
	for sc := bufio.NewScanner(strings.NewReader(out)); sc.Scan(); {
		var fields map[string]any
		if err := json.Unmarshal(sc.Bytes(), &fields); err != nil {
			t.Fatalf("%v in %q", err, sc.Text())
		}
		for _, name := range []string{"p50_us", "p99_us", "notifications_per_packet", "throughput_ratio"} {
			if v, ok := fields[name].(float64); !ok || v <= 0 {
				t.Errorf("%s is %v in %s", name, fields[name], sc.Text())
			}
		}
		engine, _ := fields["engine"].(string)
		workload, _ := fields["workload"].(string)
		got = append(got, workload+" "+engine)
	}
	for _, workload := range []string{"rr-1", "tx-window-32"} {
		for _, engine := range sim.DefaultEngines() {
			if !slices.Contains(got, workload+" "+engine) {
				t.Errorf("no %s with %s in %q", engine, workload, got)
			}
		}
	}
	_, again, _ := inProcess(t, "sim", "--json", "--workload=rr-1", "--workload=tx-window-32")
	if again != out {
		t.Error("not the same a second time")
	}
}

func TestSimTables(t *testing.T) {
	code, out, errs := inProcess(t, "sim", "--workload=rr-1", "--dominance", "--engine=adaptive", "--engine=net-dim", "--engine=rdma-dim", "--guest-dim")
	if code != exitOK || errs != "" {
		t.Fatalf("exit code %d, %q", code, errs)
	}
	for _, want := range []string{"workload", "p99 us", "guest CPU", "rr-1", "net-dim", "against", "adaptive dominates"} {
		if !strings.Contains(out, want) {
			t.Errorf("no %q in\n%s", want, out)
		}
	}
	// With --json, standard output is for machines.
	code, out, errs = inProcess(t, "sim", "--workload=rr-1", "--dominance", "--json", "--engine=off")
	if code != exitOK || strings.Count(out, "\n") != 1 || !strings.Contains(errs, "adaptive dominates") {
		t.Errorf("exit code %d, %q, %q", code, out, errs)
	}
}

func TestSimTraceAndPlot(t *testing.T) {
	dir := t.TempDir()
	trace, plots := filepath.Join(dir, "arrivals.csv"), filepath.Join(dir, "a", "plots")
	if err := os.WriteFile(trace, []byte("t_ns,packets,bytes\n0,1,60\n100000,5,300\n200000,1,60\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	code, out, errs := inProcess(t, "sim", "--trace", trace, "--workload=rr-1", "--engine=off", "--engine=fixed:64/64", "--plot", plots)
	if code != exitOK || errs != "" || !strings.Contains(out, "trace:arrivals.csv") {
		t.Fatalf("exit code %d, %q, %q", code, out, errs)
	}
	for _, name := range []string{"rr-1.svg", "trace_arrivals.csv.svg"} {
		b, err := os.ReadFile(filepath.Join(plots, name))
		if err != nil || !strings.Contains(string(b), "<svg") {
			t.Errorf("%s: %v", name, err)
		}
	}
}

func TestSimErrors(t *testing.T) {
	bad := filepath.Join(t.TempDir(), "bad")
	if err := os.WriteFile(bad, []byte("1,1,1\n0,1,1\n"), 0o600); err != nil {
		t.Fatal(err)
	}
	for _, c := range []struct {
		args []string
		code int
		want string
	}{
		{[]string{"--engine=fast"}, exitUsage, "fast"},
		{[]string{"--workload=none"}, exitUsage, "want one of constant-1k"},
		{[]string{"--seed=x"}, exitUsage, "--seed"},
		{[]string{"--trace=/nonexistent/trace"}, exitFailed, "/nonexistent/trace"},
		{[]string{"--trace=" + bad}, exitFailed, "line 2"},
		{[]string{"--trace-queue=0"}, exitUsage, "--trace-queue needs --trace"},
		{[]string{"--trace=" + bad, "--trace-queue=256"}, exitUsage, "0 to 255"},
		{[]string{"--replay"}, exitUsage, "--replay needs --trace"},
		{[]string{"--replay", "--trace=" + bad, "--guest-dim"}, exitUsage, "no simulation"},
		{[]string{"--replay", "--trace=" + bad}, exitFailed, "line 1"},
		{[]string{"--workload=rr-1", "--plot=" + bad}, exitFailed, "bad"},
	} {
		code, out, errs := inProcess(t, append([]string{"sim"}, c.args...)...)
		if code != c.code || out != "" || !strings.Contains(errs, c.want) {
			t.Errorf("%v: exit code %d, %q, %q", c.args, code, out, errs)
		}
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	var out, errs strings.Builder
	if code := run(ctx, []string{"sim"}, &out, &errs); code != exitFailed {
		t.Errorf("interrupted: exit code %d", code)
	}
}

func TestSimHelp(t *testing.T) {
	code, out, _ := inProcess(t, "sim", "--help")
	for _, want := range []string{"--json", "--plot=DIR", "--trace=FILE", "--trace-queue=N", "--replay", "--seed=N", "--dominance", "poisson-50k", "tx-bulk"} {
		if code != exitOK || !strings.Contains(out, want) {
			t.Errorf("exit code %d, no %q in\n%s", code, want, out)
		}
	}
}
