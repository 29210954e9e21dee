package coalesce_test

import (
	"math"
	"testing"

	"github.com/google/go-cmp/cmp"

	"github.com/vhostnet/vhostnet/coalesce"
)

const us = int64(1000) // nanoseconds

func signal(r coalesce.Reason) coalesce.Verdict {
	return coalesce.Verdict{Action: coalesce.Signal, Reason: r}
}

func wait(deadline int64) coalesce.Verdict {
	return coalesce.Verdict{Action: coalesce.Wait, Deadline: deadline}
}

var nothing = coalesce.Verdict{}

// step is one call on a moderator and the verdict that it must give.
type step struct {
	at   int64 // us
	call func(m *coalesce.Moderator, now int64) coalesce.Verdict
	want coalesce.Verdict
}

func observe(n uint32) func(*coalesce.Moderator, int64) coalesce.Verdict {
	return func(m *coalesce.Moderator, now int64) coalesce.Verdict { return m.Observe(now, n, 64*uint64(n)) }
}

func set(usecs, packets uint32) func(*coalesce.Moderator, int64) coalesce.Verdict {
	return func(m *coalesce.Moderator, now int64) coalesce.Verdict {
		return m.SetLimits(now, coalesce.Limits{Usecs: usecs, Packets: packets})
	}
}

func flush(r coalesce.Reason) func(*coalesce.Moderator, int64) coalesce.Verdict {
	return func(m *coalesce.Moderator, now int64) coalesce.Verdict { return m.Flush(now, r) }
}

func expire(m *coalesce.Moderator, now int64) coalesce.Verdict { return m.Expire(now) }

func fired(m *coalesce.Moderator, now int64) coalesce.Verdict {
	m.Fired(now)
	return m.Expire(now)
}

func reset(m *coalesce.Moderator, now int64) coalesce.Verdict {
	m.Reset()
	return m.Expire(now)
}

// TestModerator goes through reference cases M01, M04 and M07 and the corners
// that the specification leaves to the reader.
func TestModerator(t *testing.T) {
	const sec = 1_000_000 // us
	every := signal(coalesce.ReasonEveryPacket)
	packets := signal(coalesce.ReasonPackets)
	timeout := signal(coalesce.ReasonTimeout)
	shrunk := signal(coalesce.ReasonLimitShrunk)
	tests := []struct {
		name  string
		steps []step
	}{
		{"zero value: every packet", []step{
			{0, expire, nothing}, {1, observe(1), every}, {1, fired, nothing}, {2, observe(3), every},
		}},
		{"M01: three frames, then silence: fires by time", []step{
			{0, set(50_000, 64), nothing},
			{10, observe(1), wait(50_010 * us)},
			{20, observe(1), wait(50_010 * us)},
			{30, observe(1), wait(50_010 * us)},
			{50_009, expire, wait(50_010 * us)},
			{50_010, expire, timeout},
			{50_010, fired, nothing},
			{90_000, expire, nothing},
		}},
		{"M01: a slow trickle does not postpone the first packet", []step{
			{0, set(100, 64), nothing},
			{0, observe(1), wait(100 * us)},
			{60, observe(1), wait(100 * us)},
			{99, observe(1), wait(100 * us)},
			{120, observe(1), timeout},
			{120, fired, nothing},
			{130, observe(1), wait(230 * us)},
		}},
		{"M01: usecs 0 is every packet", []step{{0, set(0, 16), nothing}, {5, observe(1), every}}},
		{"M01: packets 0 is every packet", []step{{0, set(100_000, 0), nothing}, {5, observe(1), every}}},
		{"M01: packets 1 is every packet", []step{{0, set(sec, 1), nothing}, {5, observe(1), every}}},
		{"M01: 63 of 64, a pause that does not expire, one more", []step{
			{0, set(50_000, 64), nothing},
			{0, observe(63), wait(50_000 * us)},
			{10_000, observe(1), packets},
			{10_000, fired, nothing},
			{10_000, observe(1), wait(60_000 * us)},
		}},
		{"counting starts again only with the next packet", []step{
			{0, set(100, 4), nothing},
			{0, observe(4), packets},
			{0, fired, nothing},
			{500, expire, nothing},
			{900, observe(1), wait(1000 * us)},
		}},
		{"one burst over the limit is one notification", []step{
			{0, set(100, 4), nothing}, {0, observe(37), packets}, {0, fired, nothing}, {1, expire, nothing},
		}},
		{"an observation without packets only judges", []step{
			{0, set(100, 4), nothing},
			{0, observe(0), nothing},
			{50, observe(1), wait(150 * us)},
			{60, observe(0), wait(150 * us)},
			{150, observe(0), timeout},
		}},
		{"a verdict stays due until it is acted upon", []step{
			{0, set(100, 4), nothing},
			{0, observe(4), packets},
			{1, expire, packets},
			{1, observe(1), packets},
			{1, fired, nothing},
		}},
		{"M04: limit falls below what is pending", []step{
			{0, set(10*sec, 15), nothing}, {0, observe(10), wait(10 * sec * us)}, {5, set(10*sec, 8), shrunk},
		}},
		{"M04: limit falls to exactly what is pending", []step{
			{0, set(10*sec, 15), nothing}, {0, observe(10), wait(10 * sec * us)}, {5, set(10*sec, 10), shrunk},
		}},
		{"M04: time limit falls to zero", []step{
			{0, set(10*sec, 64), nothing}, {0, observe(3), wait(10 * sec * us)}, {5, set(0, 64), shrunk},
		}},
		{"packet limit falls to zero", []step{
			{0, set(10*sec, 64), nothing}, {0, observe(3), wait(10 * sec * us)}, {5, set(10*sec, 0), shrunk},
		}},
		{"a shorter time that has passed already fires", []step{
			{0, set(1000, 64), nothing}, {0, observe(1), wait(1000 * us)}, {500, set(400, 64), shrunk},
		}},
		{"a shorter time that has not passed moves the deadline, not its origin", []step{
			{0, set(1000, 64), nothing},
			{100, observe(1), wait(1100 * us)},
			{500, set(600, 64), wait(700 * us)},
			{700, expire, timeout},
		}},
		{"a longer time keeps the first packet as origin", []step{
			{0, set(100, 64), nothing},
			{10, observe(1), wait(110 * us)},
			{50, set(1000, 64), wait(1010 * us)},
			{110, expire, wait(1010 * us)},
		}},
		{"a change with nothing pending is silent", []step{
			{0, set(100, 64), nothing}, {1, set(0, 0), nothing}, {2, set(5, 5), nothing},
		}},
		{"M07: a suppressed expiry is not made up for; the next packet starts afresh", []step{
			{0, set(100, 64), nothing},
			{0, observe(3), wait(100 * us)},
			{100, expire, timeout},
			{100, fired, nothing},
			{400, expire, nothing},
			{500, observe(1), wait(600 * us)},
		}},
		{"expiry and packet limit at the same moment is one notification", []step{
			{0, set(100, 2), nothing},
			{0, observe(1), wait(100 * us)},
			{100, observe(1), packets},
			{100, fired, nothing},
			{100, expire, nothing},
		}},
		{"flush: ring pressure, stop and idle port, only when something is pending", []step{
			{0, set(sec, 64), nothing},
			{0, flush(coalesce.ReasonRingPressure), nothing},
			{1, observe(2), wait((sec + 1) * us)},
			{2, flush(coalesce.ReasonRingPressure), signal(coalesce.ReasonRingPressure)},
			{2, fired, nothing},
			{3, flush(coalesce.ReasonStop), nothing},
			{4, observe(1), wait((sec + 4) * us)},
			{4, flush(coalesce.ReasonStop), signal(coalesce.ReasonStop)},
			{4, fired, nothing},
			{5, observe(1), wait((sec + 5) * us)},
			{5, flush(coalesce.ReasonPortIdle), signal(coalesce.ReasonPortIdle)},
			{5, fired, nothing},
			{6, observe(1), wait((sec + 6) * us)},
			{6, flush(coalesce.ReasonDisabled), signal(coalesce.ReasonDisabled)},
		}},
		{"reset drops what is pending and the limits", []step{
			{0, set(100, 64), nothing},
			{0, observe(3), wait(100 * us)},
			{1, reset, nothing},
			{100, expire, nothing},
			{200, observe(1), every},
		}},
		{"largest limits", []step{
			{0, set(math.MaxUint32, math.MaxUint32), nothing},
			{1, observe(1), wait((math.MaxUint32 + 1) * us)},
			{2, observe(math.MaxUint32), packets}, // the count saturates
		}},
		{"a clock that steps back does not stretch the delay", []step{
			{0, set(100, 64), nothing},
			{1000, observe(1), wait(1100 * us)},
			{10, observe(1), wait(110 * us)},
			{110, expire, timeout},
		}},
	}
	for _, tt := range tests {
		t.Run(tt.name, func(t *testing.T) {
			var m coalesce.Moderator
			for i, s := range tt.steps {
				if diff := cmp.Diff(s.want, s.call(&m, s.at*us)); diff != "" {
					t.Fatalf("step %d at %d us (-want +got):\n%s", i, s.at, diff)
				}
			}
		})
	}
}

func TestModeratorDeadlineSaturates(t *testing.T) {
	var m coalesce.Moderator
	m.SetLimits(0, coalesce.Limits{Usecs: math.MaxUint32, Packets: 8})
	now := int64(math.MaxInt64 - 10)
	if got, want := m.Observe(now, 1, 1), wait(math.MaxInt64); got != want {
		t.Errorf("got %+v, want %+v", got, want)
	}
	if got := m.Expire(math.MaxInt64); got.Action != coalesce.Signal {
		t.Errorf("at the end of time: %+v, want a signal", got)
	}
}

func TestModeratorPending(t *testing.T) {
	var m coalesce.Moderator
	m.SetLimits(0, coalesce.Limits{Usecs: 50, Packets: 8})
	if p, s := m.Pending(); p != 0 || s != 0 {
		t.Errorf("new: %d packets since %d", p, s)
	}
	m.Observe(7, 2, 128)
	m.Observe(9, 1, 64)
	if p, s := m.Pending(); p != 3 || s != 7 || m.PendingBytes() != 192 {
		t.Errorf("got %d packets, %d bytes since %d; want 3, 192 since 7", p, m.PendingBytes(), s)
	}
	m.Fired(10)
	if p, s := m.Pending(); p != 0 || s != 0 || m.PendingBytes() != 0 {
		t.Errorf("after firing: %d packets, %d bytes since %d", p, m.PendingBytes(), s)
	}
	if got, want := m.Limits(), (coalesce.Limits{Usecs: 50, Packets: 8}); got != want {
		t.Errorf("limits %v, want %v: firing must not change them", got, want)
	}
}

func TestModeratorAllocs(t *testing.T) {
	var m coalesce.Moderator
	now := int64(0)
	if n := testing.AllocsPerRun(1000, func() {
		now += 10
		m.SetLimits(now, coalesce.Limits{Usecs: 50, Packets: 8})
		if m.Observe(now, 3, 192).Action == coalesce.Signal {
			m.Fired(now)
		}
		m.Expire(now)
		m.Flush(now, coalesce.ReasonPortIdle)
		m.Pending()
	}); n != 0 {
		t.Errorf("%v allocations per round, want 0", n)
	}
}

func TestNames(t *testing.T) {
	seen := map[string]bool{}
	for r := range coalesce.NumReasons {
		name := coalesce.Reason(r).String()
		if name == "" || name == "invalid" || seen[name] {
			t.Errorf("reason %d: name %q is missing or taken", r, name)
		}
		seen[name] = true
	}
	if got := coalesce.Reason(coalesce.NumReasons).String(); got != "invalid" {
		t.Errorf("reason out of range: %q", got)
	}
	for a, want := range map[coalesce.Action]string{coalesce.Nothing: "nothing", coalesce.Wait: "wait", coalesce.Signal: "signal", 9: "invalid"} {
		if a.String() != want {
			t.Errorf("action %d: %q, want %q", a, a, want)
		}
	}
}

func BenchmarkModerator(b *testing.B) {
	var m coalesce.Moderator
	m.SetLimits(0, coalesce.Limits{Usecs: 50, Packets: 64})
	for i := range b.N {
		if m.Observe(int64(i), 1, 64).Action == coalesce.Signal {
			m.Fired(int64(i))
		}
	}
}
