package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"strings"
	"sync/atomic"
	"testing"
	"testing/synctest"
	"time"

	"github.com/vhostnet/vhostnet/netdev"
	qemutest "github.com/vhostnet/vhostnet/qemu-test"
)

// fakeSite is a guest whose device counts a hundred packets whenever it is looked
// at, and a notification for each of them without an engine.
type fakeSite struct {
	engine  string
	adapts  bool
	packets atomic.Uint64
	calls   atomic.Uint64
	dead    bool
	// stopped is a device that nothing comes to.
	stopped atomic.Bool
	closed  int
	log     []string
}

func (s *fakeSite) Lane() string { return "native" }

func (s *fakeSite) Guest(_ context.Context, script string) (string, error) {
	if strings.HasPrefix(script, "uname") {
		return "6.1\ncubic\n", nil
	}
	return "", errNotHere
}

func (s *fakeSite) StartGuest(context.Context, string, ...string) (func(), error) {
	return nil, errNotHere
}

func (s *fakeSite) Host(context.Context, string, ...string) (string, error) { return "", errNotHere }

func (s *fakeSite) StartHost(context.Context, string, ...string) (func(), error) {
	return nil, errNotHere
}

func (s *fakeSite) Namespace() *qemutest.Namespace { return nil }

func (s *fakeSite) SetEngines(_ context.Context, rx, tx string) error {
	if rx != tx {
		return errors.New("one engine was to be for both")
	}
	s.engine = rx
	return nil
}

func (s *fakeSite) GuestAdaptive(_ context.Context, on bool) error {
	s.adapts = on
	return nil
}

func (s *fakeSite) Configure(context.Context, guestConfig) error { return nil }

func (s *fakeSite) Device(context.Context) (netdev.DeviceSnapshot, error) {
	n, by := uint64(100), uint64(100)
	if s.stopped.Load() {
		n, by = 0, 0
	}
	n = s.packets.Add(n)
	if s.engine != "off" {
		by /= 10
	}
	c := s.calls.Add(by)
	return netdev.DeviceSnapshot{Queues: []netdev.QueueSnapshot{{Kind: "rx", Packets: n, Calls: c}}}, nil
}

func (s *fakeSite) Interrupts(context.Context) (uint64, error) {
	if s.dead {
		return 0, errors.New("nobody there")
	}
	return s.calls.Load(), nil
}

func (s *fakeSite) BackendCPU() (time.Duration, error) { return time.Second, nil }
func (s *fakeSite) Close()                             { s.closed++ }

// fakeBench has three rounds of three variants. It belongs into a bubble, in which
// nothing depends on how fast the machine is.
func fakeBench(t *testing.T, s *fakeSite, workloads ...workload) (*bench, *laneReport) {
	t.Helper()
	variants, err := parseVariants([]string{"adaptive", guestVariant})
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{
		lane: "native", rounds: 3, seconds: 0.5, settle: 100 * time.Millisecond, all: workloads, variants: variants, progress: io.Discard,
		versions: map[string]string{"vhostnet": "x"},
		start:    func(context.Context) (site, error) { return s, nil },
		save:     func(*laneReport) error { return nil },
	}
	return b, newLaneReport(&options{Rounds: 3, Seconds: 0.5}, "native", workloads)
}

func fakeLoad(s *fakeSite, name string, fail func(variant string) error) workload {
	return workload{
		name: name, kind: kindBulk, direction: "rx",
		run: func(ctx context.Context, _ *bench, l load) (outcome, error) {
			s.log = append(s.log, fmt.Sprint(name, " ", l.variant, " ", s.engine, " ", s.adapts))
			if err := fail(l.variant); err != nil {
				return outcome{}, err
			}
			// As programs do, it waits a little before its load.
			return outcome{rate: 5, unit: "things/s"}, pause(ctx, 50*time.Millisecond+time.Duration(l.seconds*float64(time.Second)))
		},
	}
}

// The variants take turns, each is in force when its load runs, and a load that
// fails is a sample without numbers among those that have them.
func TestRounds(t *testing.T) { synctest.Test(t, testRounds) }

func testRounds(t *testing.T) {
	s := &fakeSite{}
	good := fakeLoad(s, "good", func(string) error { return nil })
	bad := fakeLoad(s, "bad", func(v string) error {
		if v == "adaptive" {
			return errors.New("it broke")
		}
		return nil
	})
	b, r := fakeBench(t, s, good, bad)
	if err := b.run(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	if len(r.Samples) != 3*2*3 || s.closed != 1 {
		t.Fatalf("%d samples, closed %d times", len(r.Samples), s.closed)
	}
	var order []string
	for _, line := range s.log {
		if rest, ok := strings.CutPrefix(line, "good "); ok {
			order = append(order, rest)
		}
	}
	off, adaptive, guest := "off off false", "adaptive adaptive false", "guest-adaptive off true"
	if want := []string{off, adaptive, guest, adaptive, guest, off, guest, off, adaptive}; !slices.Equal(order, want) {
		t.Errorf("%q", order)
	}
	for _, m := range r.Samples {
		broken := m.Workload == "bad" && m.Variant == "adaptive"
		if broken != (m.Error != "") {
			t.Errorf("%+v", m)
		}
		if broken {
			continue
		}
		want := 1.0
		if m.Variant == "adaptive" {
			want = 0.1
		}
		if m.RX.CallsPerPacket != want || m.Rate != 5 || m.Seconds != 0.5 {
			t.Errorf("%+v", m)
		}
	}
	if r.Versions["guest kernel"] != "6.1" || len(r.failed()) != 0 || r.done() != 3 {
		t.Errorf("%v, %v", r.Versions, r.failed())
	}
}

// A guest that has died is replaced, and not for ever.
func TestRevive(t *testing.T) { synctest.Test(t, testRevive) }

func testRevive(t *testing.T) {
	s := &fakeSite{dead: true}
	b, r := fakeBench(t, s, fakeLoad(s, "one", func(string) error { return nil }))
	b.rounds = 100
	err := b.run(t.Context(), r)
	if err == nil || !strings.Contains(err.Error(), "guests stopped answering") || s.closed != guestsPerLane {
		t.Errorf("%v, %d guests", err, s.closed)
	}
	for _, m := range r.Samples {
		if m.Error == "" {
			t.Errorf("%+v", m)
		}
	}
}

// A load that ends before it was measured, or that moves nothing, has no numbers;
// neither has one that never ends.
func TestBadLoads(t *testing.T) { synctest.Test(t, testBadLoads) }

func testBadLoads(t *testing.T) {
	load := func(name string, f func(context.Context) error) workload {
		return workload{name: name, kind: kindBulk, direction: "rx", run: func(ctx context.Context, _ *bench, _ load) (outcome, error) {
			return outcome{}, f(ctx)
		}}
	}
	s := &fakeSite{}
	b, r := fakeBench(t, s,
		load("short", func(ctx context.Context) error { return pause(ctx, 200*time.Millisecond) }),
		load("endless", func(ctx context.Context) error {
			<-ctx.Done()
			return context.Cause(ctx)
		}),
		load("nothing", func(ctx context.Context) error {
			s.stopped.Store(true)
			defer s.stopped.Store(false)
			return pause(ctx, 1002*time.Millisecond) // and not when somebody looks
		}),
	)
	b.rounds = 1
	if err := b.run(t.Context(), r); err != nil {
		t.Fatal(err)
	}
	want := map[string]string{"short": "were to be measured", "endless": "the load has no end", "nothing": "moved no packets"}
	if len(r.Samples) != 9 {
		t.Errorf("%d samples", len(r.Samples))
	}
	for _, m := range r.Samples {
		if !strings.Contains(m.Error, want[m.Workload]) {
			t.Errorf("%s: %q", m.Workload, m.Error)
		}
	}
	if len(r.failed()) != 3 {
		t.Errorf("%q", r.failed())
	}
}

// A run that is ended leaves what it has, also of the round that it was in.
func TestInterrupted(t *testing.T) { synctest.Test(t, testInterrupted) }

func testInterrupted(t *testing.T) {
	ctx, stop := context.WithCancelCause(t.Context())
	defer stop(nil)
	s := &fakeSite{}
	runs := 0
	w := fakeLoad(s, "one", func(string) error {
		if runs++; runs == 5 {
			stop(errors.New("somebody pressed a key"))
		}
		return nil
	})
	b, _ := fakeBench(t, s, w)
	o := &options{Rounds: 3, Seconds: 0.5, Out: t.TempDir()}
	saved := 0
	b.save = func(r *laneReport) error {
		saved++
		return r.save(o.Out)
	}
	if err := b.measure(ctx, o); err == nil || !strings.Contains(err.Error(), "a key") {
		t.Errorf("%v", err)
	}
	list, err := loadLanes(o.Out)
	if err != nil || len(list) != 1 {
		t.Fatal(list, err)
	}
	if r := list[0]; len(r.Samples) != 4 || r.done() != 2 || saved != 1 || !strings.Contains(r.Failure, "a key") {
		t.Errorf("%d samples in %d rounds, saved %d times: %q", len(r.Samples), r.done(), saved, r.Failure)
	}
	if s.closed != 1 {
		t.Errorf("closed %d times", s.closed)
	}
	if err := render(o.Out); err != nil {
		t.Error(err)
	}
}

// A lane that does not start keeps the results that it had.
func TestNoGuest(t *testing.T) {
	s := &fakeSite{}
	b, r := fakeBench(t, s, fakeLoad(s, "one", func(string) error { return nil }))
	o := &options{Rounds: 3, Seconds: 0.5, Out: t.TempDir()}
	r.Title = "older"
	if err := r.save(o.Out); err != nil {
		t.Fatal(err)
	}
	b.start = func(context.Context) (site, error) { return nil, errors.New("it does not boot") }
	if err := b.measure(t.Context(), o); err == nil || !strings.Contains(err.Error(), "does not boot") {
		t.Errorf("%v", err)
	}
	if list, err := loadLanes(o.Out); err != nil || list[0].Title != "older" {
		t.Error(list, err)
	}
}

// Over as many rounds as there are variants, each has had each place once, and
// all of them are in each round.
func TestOrder(t *testing.T) {
	for n := 1; n <= 5; n++ {
		places := make([][]int, n)
		for round := range n {
			order := orderOf(n, round)
			for place, i := range order {
				places[i] = append(places[i], place)
			}
			if sorted := slices.Sorted(slices.Values(order)); !slices.Equal(sorted, slices.Sorted(slices.Values(orderOf(n, 0)))) {
				t.Errorf("%d variants, round %d: %v", n, round, order)
			}
		}
		for i, p := range places {
			slices.Sort(p)
			if len(slices.Compact(p)) != n {
				t.Errorf("%d variants: number %d had the places %v", n, i, p)
			}
		}
	}
}

func TestOptions(t *testing.T) {
	good := options{Lanes: []string{"native"}, Rounds: 5, Seconds: 1, Quick: true}
	if p, err := good.plan(); err != nil || good.Rounds != 2 || len(p.all) == 0 {
		t.Errorf("%v", err)
	}
	for _, bad := range []options{
		{Lanes: []string{"moon"}, Rounds: 1, Seconds: 1},
		{Rounds: 0, Seconds: 1},
		{Rounds: 1, Seconds: 0.01},
		{Rounds: 1, Seconds: 1, Workloads: "("},
		{Rounds: 1, Seconds: 1, Variants: []string{""}},
	} {
		if _, err := bad.plan(); err == nil {
			t.Errorf("%+v", bad)
		}
	}
	// A quick look is part of the whole, and what a workload is a variation of is there.
	whole := allWorkloads(false)
	names := map[string]bool{}
	for _, w := range whole {
		if names[w.name] {
			t.Errorf("two workloads are called %s", w.name)
		}
		names[w.name] = true
	}
	for _, w := range allWorkloads(true) {
		if !names[w.name] || w.base != "" && !names[w.base] {
			t.Errorf("%s, of %q", w.name, w.base)
		}
	}
	if v := variantsOf(mustVariants(t), "netdev"); slices.ContainsFunc(v, func(v variant) bool { return v.guest }) {
		t.Error("QEMU's netdev lane has no control queue")
	}
}

func mustVariants(t *testing.T) []variant {
	t.Helper()
	v, err := parseVariants([]string{"off", "off", "adaptive", guestVariant})
	if err != nil || len(v) != 3 {
		t.Fatal(v, err)
	}
	return v
}
