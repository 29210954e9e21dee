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
	n := s.packets.Add(100)
	by := uint64(100)
	if s.engine != "off" {
		by = 10
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

// fakeBench runs loads that take as long as they are asked to, at once.
func fakeBench(t *testing.T, s *fakeSite, workloads ...workload) (*bench, *laneReport) {
	t.Helper()
	variants, err := parseVariants([]string{"adaptive", guestVariant})
	if err != nil {
		t.Fatal(err)
	}
	b := &bench{
		lane: "native", rounds: 3, seconds: 0.001, all: workloads, variants: variants, progress: io.Discard,
		versions: map[string]string{"vhostnet": "x"},
		start:    func(context.Context) (site, error) { return s, nil },
		save:     func(*laneReport) error { return nil },
	}
	return b, newLaneReport(&options{Rounds: 3, Seconds: 0.001}, "native", workloads)
}

func fakeLoad(s *fakeSite, name string, fail func(variant string) error) workload {
	return workload{
		name: name, kind: kindBulk, direction: "rx",
		run: func(_ context.Context, _ *bench, l load) (outcome, error) {
			s.log = append(s.log, fmt.Sprint(name, " ", l.variant, " ", s.engine, " ", s.adapts))
			if err := fail(l.variant); err != nil {
				return outcome{}, err
			}
			time.Sleep(20 * time.Millisecond)
			return outcome{rate: 5, unit: "things/s"}, nil
		},
	}
}

// The variants take turns, each is in force when its load runs, and a load that
// fails is a sample without numbers among those that have them.
func TestRounds(t *testing.T) {
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
		if m.RX.CallsPerPacket != want || m.Rate != 5 || m.Seconds <= 0 {
			t.Errorf("%+v", m)
		}
	}
	if r.Versions["guest kernel"] != "6.1" || len(r.failed()) != 0 || r.done() != 3 {
		t.Errorf("%v, %v", r.Versions, r.failed())
	}
}

// A guest that has died is replaced, and not for ever.
func TestRevive(t *testing.T) {
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
