package coalesce_test

import (
	"testing"

	"pgregory.net/rapid"

	"github.com/vhostnet/vhostnet/coalesce"
)

// slowModel is the specification's text written down naively: a list of when
// each packet was made used since the condition was last met.
type slowModel struct {
	limits coalesce.Limits
	times  []int64
}

func (m *slowModel) met(now int64) bool {
	if len(m.times) == 0 {
		return false
	}
	if m.limits.Usecs == 0 || m.limits.Packets == 0 {
		return true
	}
	return len(m.times) >= int(m.limits.Packets) || now-m.times[0] >= int64(m.limits.Usecs)*1000
}

func (m *slowModel) deadline() int64 { return m.times[0] + int64(m.limits.Usecs)*1000 }

// TestModeratorAgainstModel drives a moderator and the model with the same
// random calls. The caller it plays obeys verdicts at once or, as when a ring
// is busy, some calls later.
func TestModeratorAgainstModel(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		var (
			m     coalesce.Moderator
			model slowModel
			now   = rapid.Int64Range(0, 1<<40).Draw(t, "start")
		)
		small := rapid.Uint32Range(0, 6)
		for range rapid.IntRange(1, 120).Draw(t, "calls") {
			now += rapid.Int64Range(0, 3000).Draw(t, "ns")
			var v coalesce.Verdict
			forced := false
			switch rapid.IntRange(0, 4).Draw(t, "call") {
			case 0, 1:
				n := small.Draw(t, "packets")
				for range n {
					model.times = append(model.times, now)
				}
				v = m.Observe(now, n, uint64(n)*64)
			case 2:
				v = m.Expire(now)
			case 3:
				model.limits = coalesce.Limits{Usecs: small.Draw(t, "usecs"), Packets: small.Draw(t, "limit")}
				v = m.SetLimits(now, model.limits)
			case 4:
				v = m.Flush(now, coalesce.ReasonStop)
				forced = true
			}
			pending, since := m.Pending()
			if int(pending) != len(model.times) || (pending > 0 && since != model.times[0]) {
				t.Fatalf("pending %d since %d, the model has %v", pending, since, model.times)
			}
			switch want := model.met(now) || (forced && len(model.times) > 0); {
			case (v.Action == coalesce.Signal) != want:
				t.Fatalf("%+v, the model's condition is %v with %v and %v at %d", v, want, model.limits, model.times, now)
			case v.Action == coalesce.Signal && v.Reason == coalesce.ReasonNone:
				t.Fatal("signal without a reason")
			case v.Action == coalesce.Wait && v.Deadline != model.deadline():
				t.Fatalf("deadline %d, the model's is %d", v.Deadline, model.deadline())
			case v.Action == coalesce.Nothing && len(model.times) > 0:
				t.Fatal("packets are pending and no timer is asked for: they would wait for ever")
			}
			if v.Action == coalesce.Signal && rapid.IntRange(0, 3).Draw(t, "act") > 0 {
				m.Fired(now)
				model.times = nil
			}
		}
	})
}

// TestNoPacketWaitsTooLong plays a caller that sleeps until the deadline that
// it was told: no packet may be announced later than the time limit, nor more
// than the packet limit at once beyond what one burst brought.
func TestNoPacketWaitsTooLong(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		l := coalesce.Limits{Usecs: rapid.Uint32Range(0, 50).Draw(t, "usecs"), Packets: rapid.Uint32Range(0, 20).Draw(t, "packets")}
		var m coalesce.Moderator
		m.SetLimits(0, l)
		now, deadline, first := int64(0), int64(0), int64(-1)
		act := func(v coalesce.Verdict) {
			deadline = v.Deadline
			if v.Action != coalesce.Signal {
				return
			}
			if late := now - first; late > int64(l.Usecs)*1000 {
				t.Fatalf("first packet announced after %d ns with limits %v", late, l)
			}
			m.Fired(now)
			first = -1
		}
		for range rapid.IntRange(1, 100).Draw(t, "bursts") {
			next := now + rapid.Int64Range(0, 60_000).Draw(t, "gap")
			for deadline != 0 && deadline <= next {
				now = deadline
				act(m.Expire(now))
			}
			now = next
			n := rapid.Uint32Range(1, 8).Draw(t, "burst")
			if first < 0 {
				first = now
			}
			act(m.Observe(now, n, 0))
			if p, _ := m.Pending(); !l.EveryPacket() && p >= l.Packets {
				t.Fatalf("%d packets pending with limits %v", p, l)
			}
		}
	})
}

// TestSettingsAgainstLog replays the log of all commands for every queue, which
// is the slow way to say "the last one wins".
func TestSettingsAgainstLog(t *testing.T) {
	type command struct {
		kind, index int
		l           coalesce.Limits
	}
	rapid.Check(t, func(t *rapid.T) {
		pairs := rapid.IntRange(1, 4).Draw(t, "pairs")
		s := coalesce.NewSettings(pairs)
		var log []command
		for range rapid.IntRange(1, 60).Draw(t, "commands") {
			c := command{
				rapid.IntRange(0, 4).Draw(t, "kind"), rapid.IntRange(-1, 2*pairs+1).Draw(t, "index"),
				lim(rapid.Uint32().Draw(t, "usecs"), rapid.Uint32().Draw(t, "packets")),
			}
			switch c.kind {
			case 0:
				s.SetAllRX(c.l)
			case 1:
				s.SetAllTX(c.l)
			case 2:
				s.SetVQ(c.index, c.l)
			case 3:
				s.Reenable(c.index)
			case 4:
				s.Reset()
			}
			log = append(log, c)
			for i := range 2 * pairs {
				var own, all coalesce.Limits
				for _, c := range log {
					switch {
					case c.kind == i&1:
						own, all = c.l, c.l
					case c.kind == 2 && c.index == i:
						own = c.l
					case c.kind == 3 && c.index == i:
						own = all
					case c.kind == 4:
						own, all = coalesce.Limits{}, coalesce.Limits{}
					}
				}
				if got := s.VQ(i); got != own {
					t.Fatalf("virtqueue %d reports %v, the log says %v: %v", i, got, own, log)
				}
			}
		}
	})
}
