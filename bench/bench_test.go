package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"flag"
	"os"
	"os/signal"
	"path/filepath"
	"slices"
	"strings"
	"testing"
	"time"

	"github.com/alecthomas/kong"
	"go.uber.org/goleak"
	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/netdev"
	"github.com/vhostnet/vhostnet/port"
	"github.com/vhostnet/vhostnet/port/builtin"
	"github.com/vhostnet/vhostnet/vhostuser"
)

// TestMain makes the test program its own children, and a vhostnet.
func TestMain(m *testing.M) {
	if len(os.Args) < 2 || !slices.Contains([]string{"drive", "serve", "hold", "load"}, os.Args[1]) {
		// With the race detector a child would end a second late.
		_ = os.Setenv("GORACE", "atexit_sleep_ms=0")
		goleak.VerifyTestMain(m)
		return
	}
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM)
	defer stop()
	var err error
	if slices.Contains(os.Args, "--socket-path") {
		err = fakeVhostnet(ctx, os.Args[2:])
	} else {
		var c commands
		var k *kong.Context
		k, err = kong.Must(&c).Parse(os.Args[1:])
		if err == nil {
			err = k.Run(&streams{ctx, os.Stdin, os.Stdout, os.Stderr})
		}
	}
	if err != nil {
		_, _ = os.Stderr.WriteString(err.Error() + "\n")
		os.Exit(1)
	}
}

// fakeVhostnet is the part of the program vhostnet that is measured.
func fakeVhostnet(ctx context.Context, args []string) error {
	f := flag.NewFlagSet("vhostnet serve", flag.ContinueOnError)
	path := f.String("socket-path", "", "")
	name := f.String("port", "", "")
	f.String("log-level", "", "")
	if err := f.Parse(args); err != nil {
		return err
	}
	spec, err := port.Parse(*name)
	if err != nil {
		return err
	}
	p, err := builtin.Open(spec.Kind, spec.Args, 1)
	if err != nil {
		return err
	}
	dev, err := netdev.New(netdev.Config{Name: "fake", QueuePairs: 1}, p)
	if err != nil {
		return err
	}
	err = vhostuser.Run(ctx, vhostuser.Endpoint{Path: *path}, dev, vhostuser.Options{})
	return errors.Join(err, dev.Close(), p.Close())
}

// self is the test program as a vhostnet.
func self(t *testing.T) map[string]string {
	t.Helper()
	path, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	return map[string]string{"fake": path}
}

// TestRun is a whole run without peers: the rows that are left have a vhostnet and,
// for sinks, the copying one.
func TestRun(t *testing.T) {
	dir := filepath.Join(t.TempDir(), "out")
	var out, progress bytes.Buffer
	o := &options{
		Rows: "built-in/.*/64/", Out: dir, Launches: 1, Tries: 4, Windows: 2, Duration: 5 * time.Millisecond, Vhostnet: self(t),
		Cores: []int{0, 1}, NoPeers: true,
	}
	if err := o.Run(&streams{ctx: t.Context(), out: &out, err: &progress}); err != nil {
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
	if len(r.Rows) != 9 || r.Machine.Kernel == "" || r.Machine.Go == "" || len(r.Failures) != 0 {
		t.Errorf("report %+v", r)
	}
	for _, w := range r.Rows {
		if want := map[string]int{"sink": 2, "source": 1, "echo": 1}[w.Mode]; len(w.BackEnds) != want || w.FrontEnd == virtioUser {
			t.Errorf("%s: %d back-ends", w, len(w.BackEnds))
		}
		for _, b := range w.BackEnds {
			if b.PacketsPerSecond.Median <= 0 || len(b.Samples) != 2 || b.CPUNanoseconds.Median <= 0 || b.Ratio != nil || b.CallsPerPacket == nil {
				t.Errorf("%s: %s: %+v", w, b.Name, b)
			}
		}
	}
	md, err := os.ReadFile(filepath.Join(dir, "bench.md"))
	if err != nil {
		t.Fatal(err)
	}
	if !bytes.Equal(md, out.Bytes()) || strings.Count(out.String(), "| built-in | sink | 64 B |") != 6 {
		t.Errorf("table:\n%s\nfile:\n%s", out.String(), md)
	}
	if !strings.Contains(progress.String(), "launch 1 of 1: built-in/sink/64/polling") {
		t.Errorf("progress %q", progress.String())
	}
}

// TestRunFails: what could not be measured is an error after the table.
func TestRunFails(t *testing.T) {
	var out bytes.Buffer
	o := &options{
		Rows: "built-in/echo/64/polling", Launches: 1, Tries: 4, Windows: 1, Duration: time.Millisecond,
		Vhostnet: map[string]string{"none": "/nowhere"}, Cores: []int{0, 0}, NoPeers: true,
	}
	err := o.Run(&streams{ctx: t.Context(), out: &out, err: &bytes.Buffer{}})
	if err == nil || !strings.Contains(err.Error(), "/nowhere") || !strings.Contains(out.String(), "Not measured: built-in/echo/64/polling, none:") {
		t.Errorf("%v\n%s", err, out.String())
	}
}

func TestCheck(t *testing.T) {
	good := func() *options {
		return &options{Launches: 1, Tries: 4, Windows: 1, Duration: 1, Cores: []int{0, 1}}
	}
	for name, c := range map[string]struct {
		change func(o *options)
		rows   int
	}{
		"all":            {func(*options) {}, 38},
		"some":           {func(o *options) { o.Rows = "^built-in/echo/64/" }, 5},
		"quick":          {func(o *options) { o.Quick, o.Launches, o.Windows = true, 0, 0 }, 38},
		"none":           {func(o *options) { o.Rows = "loop" }, 0},
		"no expression":  {func(o *options) { o.Rows = "(" }, 0},
		"no launches":    {func(o *options) { o.Launches = 0 }, 0},
		"no windows":     {func(o *options) { o.Windows = 0 }, 0},
		"no tries":       {func(o *options) { o.Tries = 0 }, 0},
		"no time":        {func(o *options) { o.Duration = 0 }, 0},
		"one processor":  {func(o *options) { o.Cores = []int{0} }, 0},
		"negative":       {func(o *options) { o.Cores = []int{-1, 0} }, 0},
		"three in a row": {func(o *options) { o.Cores = []int{0, 1, 2} }, 0},
	} {
		o := good()
		c.change(o)
		rows, err := o.check()
		if len(rows) != c.rows || (err == nil) != (c.rows > 0) {
			t.Errorf("%s: %d rows, %v", name, len(rows), err)
		}
	}
}

func TestRows(t *testing.T) {
	seen := map[string]bool{}
	for _, r := range allRows() {
		if seen[r.String()] {
			t.Errorf("%s is there twice", r)
		}
		seen[r.String()] = true
		names := r.backEnds([]string{"vhostnet"})
		if names[0] != r.reference() || !slices.Contains(names, "vhostnet") {
			t.Errorf("%s: %q", r, names)
		}
		if slices.Contains(names, copying) != (r.Host == builtIn && r.Mode == "sink") || slices.Contains(names, passt) != (r.Host == tapPort && r.Mode == "sink") {
			t.Errorf("%s: %q", r, names)
		}
		if spec, err := port.Parse(r.port()); err != nil || spec.Kind == "" {
			t.Errorf("%s: port %q: %v", r, r.port(), err)
		}
	}
	s := &starter{vhostnets: map[string]string{"a": "", "b": ""}}
	if got := s.names(row{builtIn, "sink", 64, polling}); !slices.Equal(got, []string{"a", "b", copying}) {
		t.Errorf("without peers: %q", got)
	}
	s.noTAP = true
	if got := s.possible(allRows()); len(got) != 18 {
		t.Errorf("without peers and TAPs: %d rows", len(got))
	}
}
