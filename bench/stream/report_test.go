package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"regexp"
	"strings"
	"testing"
	"time"

	"github.com/google/go-cmp/cmp"
)

// fake is a site without a guest: its program prints a number, which the load takes
// for the amount.
type fake struct {
	amount  string
	fail    error
	running bool
	log     *[]string
	name    string
}

func (f *fake) Guest(context.Context, string, ...string) (string, error) {
	if !f.running {
		return "", errors.New("it is paused")
	}
	*f.log = append(*f.log, f.name)
	return f.amount, f.fail
}

func (f *fake) Segmentation(_ context.Context, on bool) error {
	*f.log = append(*f.log, fmt.Sprintf("segmentation %t", on))
	return nil
}

func (f *fake) Resume(context.Context) error { f.running = true; return nil }

func (f *fake) Pause(context.Context) error { f.running = false; return nil }

func (f *fake) CPU() (time.Duration, error) {
	if f.running {
		*f.log = append(*f.log, "cpu")
	}
	// Each look is five seconds later.
	return time.Duration(len(*f.log)) * 5 * time.Second, nil
}

func (f *fake) Calls(context.Context) (uint64, bool, error) { return uint64(len(*f.log)), true, nil }

func (f *fake) Close() error { *f.log = append(*f.log, "close "+f.name); return nil }

func fakeLoad(name, kind string) load {
	return load{name: name, kind: kind, about: "about " + name, parse: func(out string) (o outcome, err error) {
		_, err = fmt.Sscan(out, &o.Amount)
		o.AllAmount, o.Seconds, o.AllSeconds, o.P50, o.P99 = 2*o.Amount, 2, 4, o.Amount, 2*o.Amount
		return o, err
	}}
}

// fakeLane has back-ends whose names are amounts.
func fakeLane(log *[]string, names ...string) *lane {
	return &lane{
		name: laneNative, backEnds: names, cores: 1,
		open: func(_ context.Context, name string) (site, error) {
			switch name {
			case "broken":
				return nil, errors.New("does not start")
			case "failing":
				return &fake{log: log, name: name, fail: errors.New("failed halfway")}, nil
			}
			return &fake{amount: name, log: log, name: name}, nil
		},
	}
}

func compareFake(t *testing.T, l *lane, o *options, loads ...load) *report {
	t.Helper()
	r := newReport(o, []string{"a note"})
	c := &comparison{o: o, lane: l, plan: plan{loads: loads, backEnds: regexp.MustCompile("")}, progress: io.Discard, report: r}
	if err := c.run(t.Context()); err != nil {
		t.Fatal(err)
	}
	r.finish()
	return r
}

// TestCompare: back-ends take turns, ratios are to the first one, and what fails is
// said once and does not stop the others.
func TestCompare(t *testing.T) {
	var log []string
	o := &options{Launches: 1, Rounds: 2, Seconds: 2}
	r := compareFake(t, fakeLane(&log, "8", "16", "broken", "failing"), o, fakeLoad("one", kindTCP), fakeLoad("two", kindPingPong))
	order := strings.Join(log, " ")
	for _, want := range []string{"8 cpu cpu 16", "16 cpu cpu failing", "close 8 close 16 close failing"} {
		if !strings.Contains(order, want) {
			t.Errorf("%q is not in %q", want, order)
		}
	}
	if len(r.Failures) != 3 || r.failed() == nil {
		t.Errorf("failures %q", r.Failures)
	}
	loads := r.Lanes[0].Loads
	if len(loads) != 2 || len(loads[0].BackEnds) != 2 {
		t.Fatalf("%+v", loads)
	}
	first, second := loads[0].BackEnds[0], loads[0].BackEnds[1]
	if first.Name != "8" || first.Rate.Median != 4 || first.Ratio != nil {
		t.Errorf("%+v", first)
	}
	// A back-end has had at most one core for four seconds.
	if second.Ratio.Median != 2 || second.CPUNanoseconds.Median != 4e9/32 || len(second.Samples) != 2 || second.Calls == nil {
		t.Errorf("%+v", second)
	}
	if p := loads[1].BackEnds[1]; p.P50Ratio.Median != 2 || p.P99.Median != 32 {
		t.Errorf("%+v", p)
	}
}

// TestFrames: segmentation is off while such a load runs, and on again after it.
func TestFrames(t *testing.T) {
	var log []string
	l := fakeLoad("frames", kindTCP)
	l.frames = true
	r := compareFake(t, fakeLane(&log, "8", "failing"), &options{Launches: 1, Rounds: 1, Seconds: 2}, l)
	want := "segmentation false cpu 8 cpu segmentation true segmentation false cpu failing segmentation true close 8 close failing"
	if order := strings.Join(log, " "); order != want {
		t.Errorf("%s\nwant %s", order, want)
	}
	if len(r.Failures) != 1 {
		t.Errorf("failures %q", r.Failures)
	}
}

// TestAlone: one site at a time, beginning with another one in each launch.
func TestAlone(t *testing.T) {
	var log []string
	l := fakeLane(&log, "8", "16")
	l.alone, l.emulated = true, true
	native := fakeLoad("native", kindUDP)
	native.native = true
	r := compareFake(t, l, &options{Launches: 2, Rounds: 1, Seconds: 2}, fakeLoad("one", kindTCP), native)
	var order []string
	for _, what := range log {
		if what != "cpu" {
			order = append(order, what)
		}
	}
	if diff := cmp.Diff([]string{"8", "close 8", "16", "close 16", "16", "close 16", "8", "close 8"}, order); diff != "" {
		t.Error(diff)
	}
	if len(r.Lanes[0].Loads) != 1 {
		t.Errorf("%d loads", len(r.Lanes[0].Loads))
	}
	if b := r.Lanes[0].Loads[0].BackEnds; b[0].Name != "8" || b[1].Ratio.Median != 2 {
		t.Errorf("%+v", b)
	}
}

func TestInterruption(t *testing.T) {
	var log []string
	ctx, cancel := context.WithCancelCause(t.Context())
	cancel(errors.New("enough"))
	o := &options{Launches: 1, Rounds: 1, Seconds: 1}
	c := &comparison{
		o: o, lane: fakeLane(&log, "8"), plan: plan{loads: []load{fakeLoad("one", kindTCP)}, backEnds: regexp.MustCompile("")},
		progress: io.Discard, report: newReport(o, nil),
	}
	if err := c.run(ctx); err == nil || err.Error() != "enough" {
		t.Error(err)
	}
}

func TestMarkdown(t *testing.T) {
	var log []string
	o := &options{Launches: 1, Rounds: 1, Seconds: 2, Quick: true, HostCore: -1}
	r := compareFake(t, fakeLane(&log, "250000000", "125000000"), o, fakeLoad("t", kindTCP), fakeLoad("u", kindUDP), fakeLoad("p", kindPingPong))
	r.Failures = []string{"a failure"}
	var text bytes.Buffer
	if err := r.markdown(&text); err != nil {
		t.Fatal(err)
	}
	for _, want := range []string{
		"## Native guest", "a note", "quick run", "a failure", "| t | 250000000 | 1.00 | - |", "| t | 125000000 | 0.50 | 0.50 |",
		"| u | 125000000 | 62500 | 0.50 |", "| p | 125000000 | 125000000 | 0.50 | 250000000 |", "- u: about u.",
	} {
		if !strings.Contains(text.String(), want) {
			t.Errorf("%q is not in\n%s", want, &text)
		}
	}
	dir := filepath.Join(t.TempDir(), "new")
	if err := r.save(dir); err != nil {
		t.Fatal(err)
	}
	b, err := os.ReadFile(filepath.Join(dir, "stream.json"))
	if err != nil {
		t.Fatal(err)
	}
	var back report
	if err := json.Unmarshal(b, &back); err != nil || len(back.Lanes) != 1 || back.Lanes[0].Loads[0].BackEnds[0].Samples[0].Amount != 250000000 {
		t.Errorf("%v: %s", err, b)
	}
	if b, err := os.ReadFile(filepath.Join(dir, "stream.md")); err != nil || !bytes.Equal(b, text.Bytes()) {
		t.Errorf("%v: %s", err, b)
	}
}

func TestPlan(t *testing.T) {
	good := options{Lanes: laneNames, Launches: 1, Rounds: 1, Seconds: 1}
	for name, change := range map[string]func(*options){
		"lane": func(o *options) { o.Lanes = []string{"cloud"} }, "launches": func(o *options) { o.Launches = 0 },
		"seconds": func(o *options) { o.Seconds = 61 }, "loads": func(o *options) { o.Loads = "none" },
		"pattern": func(o *options) { o.Loads = "(" }, "back-ends": func(o *options) { o.BackEnds = "(" },
	} {
		o := good
		change(&o)
		if _, err := o.plan(); err == nil {
			t.Errorf("%s: no error", name)
		}
	}
	o := good
	o.Quick, o.Launches, o.Loads = true, 5, "tcp"
	if p, err := o.plan(); err != nil || len(p.loads) != 4 || o.Launches != 1 {
		t.Errorf("%+v, %v", p.loads, err)
	}
}

func TestOthers(t *testing.T) {
	if share, err := others(t.Context(), time.Millisecond); err != nil || share < 0 || share > 1 {
		t.Errorf("%v, %v", share, err)
	}
	ctx, cancel := context.WithCancel(t.Context())
	cancel()
	if _, err := others(ctx, time.Hour); !errors.Is(err, context.Canceled) {
		t.Error(err)
	}
	r := &report{Lanes: []*laneResult{{Reference: "a", Loads: []*loadResult{{BackEnds: []*backEndResult{{
		Name: "a", Samples: []sample{{Others: 0.5, outcome: outcome{Amount: 1, Seconds: 1, AllAmount: 1}}},
	}}}}}}}
	r.finish()
	if len(r.Notes) != 1 || !strings.Contains(r.Notes[0], "1 of 1 windows") {
		t.Errorf("%q", r.Notes)
	}
}
