package fleet_test

import (
	"context"
	"errors"
	"fmt"
	"slices"
	"strings"
	"sync"
	"testing"

	"github.com/google/go-cmp/cmp"
	"go.uber.org/goleak"

	"github.com/vhostnet/vhostnet/fleet"
	"github.com/vhostnet/vhostnet/netdev"
)

func TestMain(m *testing.M) { goleak.VerifyTestMain(m) }

// yard makes fake devices and knows what became of them.
type yard struct {
	mu     sync.Mutex
	events []string
	broken map[string]error // cannot be opened
	made   map[string]*fake
}

func newYard() *yard { return &yard{broken: map[string]error{}, made: map[string]*fake{}} }

func (y *yard) note(format string, args ...any) {
	y.mu.Lock()
	defer y.mu.Unlock()
	y.events = append(y.events, fmt.Sprintf(format, args...))
}

// took returns what happened since the last call.
func (y *yard) took() []string {
	y.mu.Lock()
	defer y.mu.Unlock()
	e := y.events
	y.events = nil
	return e
}

func (y *yard) get(name string) *fake {
	y.mu.Lock()
	defer y.mu.Unlock()
	return y.made[name]
}

// define describes a device with some configuration.
func (y *yard) define(name, config string) fleet.Definition {
	return fleet.Definition{
		Name: name, Port: "fake:" + config, Config: map[string]string{"config": config},
		Open: func() (fleet.Device, error) {
			y.mu.Lock()
			defer y.mu.Unlock()
			if err := y.broken[name]; err != nil {
				return nil, err
			}
			d := &fake{yard: y, name: name, fail: make(chan error), closed: make(chan struct{})}
			y.made[name] = d
			y.events = append(y.events, "open "+name)
			return d, nil
		},
	}
}

type fake struct {
	yard   *yard
	name   string
	fail   chan error
	closed chan struct{}
}

func (d *fake) Serve(ctx context.Context) error {
	select {
	case <-ctx.Done():
		return nil
	case err := <-d.fail:
		return err
	}
}

func (d *fake) Snapshot() netdev.DeviceSnapshot {
	return netdev.DeviceSnapshot{Name: d.name, State: netdev.StateServing}
}

func (d *fake) SetModeration(queue int, engine string) error {
	d.yard.note("moderation %s %d %s", d.name, queue, engine)
	return nil
}

func (d *fake) Close() error {
	d.yard.note("close %s", d.name)
	close(d.closed)
	return errors.New("closing is logged and no more")
}

// states are the devices' names and states.
func states(f *fleet.Fleet) string {
	var all []string
	for _, s := range f.Snapshots() {
		text := s.Name + " " + s.State
		if s.Error != "" {
			text += " (" + s.Error + ")"
		}
		all = append(all, text)
	}
	return strings.Join(all, ", ")
}

func apply(t *testing.T, f *fleet.Fleet, want fleet.Changes, list ...fleet.Definition) {
	t.Helper()
	got, err := f.Apply(list)
	if err != nil {
		t.Fatal(err)
	}
	if d := cmp.Diff(want, got); d != "" {
		t.Error(d)
	}
}

func expect(t *testing.T, y *yard, want ...string) {
	t.Helper()
	if d := cmp.Diff(want, y.took()); d != "" {
		t.Error(d)
	}
}

// Devices whose configuration is what it was are left alone, and everything that
// goes is gone before anything comes.
func TestApply(t *testing.T) {
	y, f := newYard(), fleet.New(nil)
	defer f.Close()
	apply(t, f, fleet.Changes{Added: 3}, y.define("a", "1"), y.define("b", "1"), y.define("c", "1"))
	expect(t, y, "open a", "open b", "open c")
	apply(t, f, fleet.Changes{Kept: 3}, y.define("c", "1"), y.define("a", "1"), y.define("b", "1"))
	expect(t, y)
	apply(t, f, fleet.Changes{Added: 1, Changed: 1, Removed: 1, Kept: 1}, y.define("d", "1"), y.define("a", "1"), y.define("b", "2"))
	got := y.took()
	if len(got) != 4 {
		t.Fatal(got)
	}
	slices.Sort(got[:2]) // they are closed at once
	if d := cmp.Diff([]string{"close b", "close c", "open d", "open b"}, got); d != "" {
		t.Error(d)
	}
	if got := states(f); got != "a serving, b serving, d serving" {
		t.Error(got)
	}
}

// A list that cannot be changes nothing.
func TestApplyRefused(t *testing.T) {
	y, f := newYard(), fleet.New(nil)
	defer f.Close()
	apply(t, f, fleet.Changes{Added: 1}, y.define("a", "1"))
	if err := f.Add(y.define("x", "1")); err != nil {
		t.Fatal(err)
	}
	y.took()
	once := y.define("o", "1")
	once.Once = true
	for name, c := range map[string]struct {
		list []fleet.Definition
		want error
	}{
		"twice":        {[]fleet.Definition{y.define("b", "1"), y.define("b", "2")}, fleet.ErrExists},
		"added before": {[]fleet.Definition{y.define("b", "1"), y.define("x", "1")}, fleet.ErrExists},
		"late":         {[]fleet.Definition{y.define("b", "1"), once}, fleet.ErrOnce},
	} {
		if _, err := f.Apply(c.list); !errors.Is(err, c.want) {
			t.Errorf("%s: %v", name, err)
		}
	}
	expect(t, y)
	if got := states(f); got != "a serving, x serving" {
		t.Error(got)
	}
}

// A device that fails is shown and tried again; the others do not notice.
func TestFailures(t *testing.T) {
	y, f := newYard(), fleet.New(nil)
	defer f.Close()
	y.broken["b"] = errors.New("no such thing")
	list := []fleet.Definition{y.define("a", "1"), y.define("b", "1"), y.define("c", "1")}
	apply(t, f, fleet.Changes{Added: 3, Failed: 1}, list...)
	if s := f.Snapshots()[1]; s.Port != "fake:1" || s.PortKind != "fake" || s.Queues == nil || s.Counters == nil {
		t.Errorf("%+v", s)
	}
	c := y.get("c")
	c.fail <- errors.New("its socket has gone")
	<-c.closed
	if got := states(f); got != "a serving, b failed (no such thing), c failed (its socket has gone)" {
		t.Error(got)
	}
	expect(t, y, "open a", "open c", "close c")
	delete(y.broken, "b")
	apply(t, f, fleet.Changes{Changed: 2, Kept: 1}, list...)
	expect(t, y, "open b", "open c")
	if got := states(f); got != "a serving, b serving, c serving" {
		t.Error(got)
	}
}

// What was handed down is opened once: when it has ended it stays so.
func TestOnce(t *testing.T) {
	y, f := newYard(), fleet.New(nil)
	defer f.Close()
	once := y.define("o", "1")
	once.Once = true
	apply(t, f, fleet.Changes{Added: 2}, once, y.define("a", "1"))
	d := y.get("o")
	d.fail <- nil
	<-d.closed
	if got := states(f); got != "a serving, o ended" {
		t.Error(got)
	}
	y.took()
	apply(t, f, fleet.Changes{Kept: 2}, once, y.define("a", "1"))
	expect(t, y)
	if err := f.Add(once); !errors.Is(err, fleet.ErrOnce) {
		t.Error(err)
	}
}

func TestAddAndRemove(t *testing.T) {
	y, f := newYard(), fleet.New(nil)
	apply(t, f, fleet.Changes{Added: 1}, y.define("a", "1"))
	if err := f.Add(y.define("b", "1")); err != nil {
		t.Fatal(err)
	}
	if err := f.Add(y.define("a", "2")); !errors.Is(err, fleet.ErrExists) {
		t.Error(err)
	}
	y.broken["c"] = errors.New("no such thing")
	if err := f.Add(y.define("c", "1")); !errors.Is(err, y.broken["c"]) {
		t.Error(err)
	}
	expect(t, y, "open a", "open b")
	// A file that is read again does not know of b.
	apply(t, f, fleet.Changes{Kept: 1}, y.define("a", "1"))
	if got := states(f); got != "a serving, b serving" {
		t.Error(got)
	}
	if err := f.SetModeration("b", 1, "off"); err != nil {
		t.Error(err)
	}
	if err := f.SetModeration("c", 1, "off"); !errors.Is(err, fleet.ErrMissing) {
		t.Error(err)
	}
	for _, name := range []string{"b", "a"} {
		if err := f.Remove(name); err != nil {
			t.Error(err)
		}
		if err := f.Remove(name); !errors.Is(err, fleet.ErrMissing) {
			t.Error(err)
		}
	}
	expect(t, y, "moderation b 1 off", "close b", "close a")
	f.Close()
	if err := f.Add(y.define("a", "1")); !errors.Is(err, fleet.ErrClosed) {
		t.Error(err)
	}
	if _, err := f.Apply(nil); !errors.Is(err, fleet.ErrClosed) {
		t.Error(err)
	}
}

// Everything at once; the race detector and goleak are the judges.
func TestConcurrentChanges(t *testing.T) {
	y, f := newYard(), fleet.New(nil)
	var wg sync.WaitGroup
	for i := range 4 {
		wg.Go(func() {
			name := fmt.Sprint("n", i)
			for range 50 {
				if err := f.Add(y.define(name, "1")); err != nil {
					t.Error(err)
				}
				_ = f.SetModeration(name, 0, "off")
				if err := f.Remove(name); err != nil {
					t.Error(err)
				}
			}
		})
		wg.Go(func() {
			for j := range 50 {
				if _, err := f.Apply([]fleet.Definition{y.define("a", fmt.Sprint(j)), y.define("b", "1")}); err != nil {
					t.Error(err)
				}
				f.Snapshots()
			}
		})
	}
	wg.Wait()
	if got := states(f); got != "a serving, b serving" {
		t.Error(got)
	}
	f.Close()
	if got := states(f); got != "" {
		t.Error(got)
	}
	opened, closed := 0, 0
	for _, e := range y.took() {
		if strings.HasPrefix(e, "open") {
			opened++
		} else if strings.HasPrefix(e, "close") {
			closed++
		}
	}
	if opened == 0 || opened != closed {
		t.Errorf("%d opened, %d closed", opened, closed)
	}
}
