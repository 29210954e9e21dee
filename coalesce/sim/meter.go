package sim

import (
	"github.com/HdrHistogram/hdrhistogram-go"

	"github.com/vhostnet/vhostnet/coalesce"
)

// meter measures a run. What happens outside from and to is not counted, apart
// from what must hold always.
type meter struct {
	from, to int64
	delays   *hdrhistogram.Histogram

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

func newMeter(from, to int64) *meter {
	return &meter{from: from, to: to, delays: hdrhistogram.New(1, 100*second, 3)}
}

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
	own := n*service + (n/int64(p.Budget)+2)*p.Poll
	m.maxAfterwake = max(m.maxAfterwake, now-e.announced-own)
	if !m.counts(now) {
		return
	}
	m.packets++
	// The range of the histogram is far beyond any run.
	_ = m.delays.RecordValue(max(now-e.at, 1))
}
