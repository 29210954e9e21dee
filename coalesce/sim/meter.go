package sim

import (
	"math"
	"slices"

	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/vhostnet/vhostnet/coalesce"
)

// meter measures a run. What happens outside from and to is not counted, apart
// from what must hold always.
type meter struct {
	from, to int64
	delays   *hdrhistogram.Histogram
	// bins are the cycle of a traffic that changes every step, all of its
	// repetitions on top of each other.
	step int64
	bins []share

	arrived, lost, taken             uint64 // always
	packets, dropped                 uint64
	notified, suppressed, spurious   uint64
	guestBusy, hostBusy              int64
	ticks                            uint64
	reasons                          [coalesce.NumReasons]uint64
	changes                          []change
	maxHold, maxExcess, maxAfterwake int64
}

// change is a change of the engine's limits, of whichever queue.
type change struct {
	at     int64
	limits coalesce.Limits
}

// bin is how finely the time after a step is looked at.
const bin = 2 * millisecond

// share counts packets and notifications in a bin.
type share struct{ packets, notified uint64 }

func newMeter(w Workload) *meter {
	m := &meter{from: w.Warmup, to: w.Duration, step: w.Step, delays: hdrhistogram.New(1, 100*second, 3)}
	if w.Step > 0 {
		m.bins = make([]share, int64(w.Phases)*w.Step/bin)
	}
	return m
}

// bin returns where now is in the traffic's cycle; nil without steps.
func (m *meter) bin(now int64) *share {
	if len(m.bins) == 0 {
		return nil
	}
	return &m.bins[int(now/bin)%len(m.bins)]
}

// settling returns how long after a step the notifications per packet are where
// they stay, in nanoseconds, for the slowest of the steps. A fifth of the time
// that remains may differ: an engine may try out something else now and then.
func (m *meter) settling() (longest int64) {
	if len(m.bins) == 0 {
		return 0
	}
	for phase := range slices.Chunk(m.bins, int(m.step/bin)) {
		var end share
		for _, b := range phase[len(phase)/2:] {
			end.packets += b.packets
			end.notified += b.notified
		}
		want := end.ratio()
		settled, in := len(phase), 0
		for i, b := range slices.Backward(phase) {
			// Chance may put a few packets off by more.
			chance := 3 * math.Sqrt(want/float64(max(b.packets, 1)))
			if off := b.ratio() - want; max(off, -off) > max(want/4, chance, 0.005) {
				continue
			}
			if in++; 5*in >= 4*(len(phase)-i) {
				settled = i
			}
		}
		longest = max(longest, int64(settled)*bin)
	}
	return longest
}

func (s share) ratio() float64 { return float64(s.notified) / float64(max(s.packets, 1)) }

func (m *meter) counts(now int64) bool { return now >= m.from && now < m.to }

func (m *meter) drop(now int64) {
	if m.counts(now) {
		m.dropped++
	}
}

func (m *meter) guest(now, ns int64) {
	if m.counts(now) {
		m.guestBusy += ns
	}
}

func (m *meter) host(now, ns int64) {
	if m.counts(now) {
		m.hostBusy += ns
	}
}

func (m *meter) notify(now, cost int64) {
	if m.counts(now) {
		m.notified++
		m.hostBusy += cost
		if b := m.bin(now); b != nil {
			b.notified++
		}
	}
}

func (m *meter) suppress(now int64) {
	if m.counts(now) {
		m.suppressed++
	}
}

func (m *meter) change(now int64, l coalesce.Limits) {
	m.changes = append(m.changes, change{now, l})
}

// held is told how long the oldest of what a decision covers had waited for it,
// and the longest limit meanwhile.
func (m *meter) held(ns, limit int64) {
	m.maxHold = max(m.maxHold, ns)
	m.maxExcess = max(m.maxExcess, ns-limit)
}

// done is told of an entry that the guest has taken.
func (m *meter) done(now int64, e entry, service int64, p *Params) {
	m.taken++
	n := int64(e.ahead + 1)
	own := n*service + (n/int64(p.Budget)+3)*p.Poll
	m.maxAfterwake = max(m.maxAfterwake, now-e.announced-own)
	if !m.counts(now) {
		return
	}
	m.packets++
	if b := m.bin(now); b != nil {
		b.packets++
	}
	// The range of the histogram is far beyond any run.
	_ = m.delays.RecordValue(max(now-e.at, 1))
}
