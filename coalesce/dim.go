package coalesce

const (
	// dimEvents is how many notifications a window of measurement lasts.
	dimEvents = 64
	// dimPercent is by more than how many percent two rates must differ to count
	// as different. Windows this short are noisy.
	dimPercent = 10
)

// dimSample is a reading of the counters that net-dim and rdma-dim work with.
// Each counter wraps at its own width, and only differences have a meaning.
type dimSample struct {
	at      int64 // ns
	packets uint32
	bytes   uint32
	events  uint16
}

// dimStats are the rates of one window, per millisecond and rounded up, so that
// a rate is 0 only if nothing at all came.
type dimStats struct {
	us                  uint32 // length of the window
	ppms, bpms, epms    uint64
	packetsPer100Events uint64
}

// dimMeter cuts what is observed into windows of dimEvents notifications.
//
// It departs from the published algorithms in three ways. They stop measuring
// when the limits are to change until a worker has programmed the hardware, and
// could wait for it for ever; here limits hold as soon as they are decided, so
// the next observation opens the next window. A clock that went backwards opens
// a new window. And rates have 64 bits, where the published ones have 32.
type dimMeter struct {
	now, start dimSample
	// open: start was taken.
	open bool
}

// add counts an observation in, and returns the rates when that completes a
// window. The window stays open: close or restart it.
//
// The number of events wraps at 2^16 and the time at 2^32 us, 71 minutes. When
// the time comes out as 0 us there are no rates yet, and a later observation
// completes the window.
func (m *dimMeter) add(o *Observation) (dimStats, bool) {
	m.now.at = o.Now
	m.now.packets += o.Packets
	m.now.bytes += uint32(o.Bytes)
	m.now.events += uint16(o.Notified)
	if !m.open || m.now.at < m.start.at {
		m.restart()
		return dimStats{}, false
	}
	if m.now.events-m.start.events < dimEvents {
		return dimStats{}, false
	}
	us := uint32((uint64(m.now.at) - uint64(m.start.at)) / 1000)
	if us == 0 {
		return dimStats{}, false
	}
	s := dimStats{
		us:   us,
		ppms: perMS(m.now.packets-m.start.packets, us),
		bpms: perMS(m.now.bytes-m.start.bytes, us),
		// Not the events that were counted: a window is taken to have the number
		// it waits for, however many the last observation added.
		epms: perMS(dimEvents, us),
	}
	// epms is at least 1.
	s.packetsPer100Events = 100 * s.ppms / s.epms
	return s, true
}

// restart opens a window that begins with the last observation.
func (m *dimMeter) restart() { m.start, m.open = m.now, true }

// close leaves it to the next observation to open a window.
func (m *dimMeter) close() { m.open = false }

// perMS is the rate per millisecond of n in us, which is not 0, rounded up.
func perMS(n, us uint32) uint64 {
	return (uint64(n)*1000 + uint64(us) - 1) / uint64(us)
}

// inputs are the rates for [Decision].
func (s *dimStats) inputs() Inputs {
	return Inputs{
		WindowUS: float64(s.us),
		PPMS:     float64(s.ppms), BPMS: float64(s.bpms), EPMS: float64(s.epms),
		Ratio: float64(s.packetsPer100Events) / 100,
	}
}

// dimDiffer tells whether v differs from ref by more than dimPercent of ref,
// in whole percent. Nothing differs from a ref of 0.
func dimDiffer(v, ref uint64) bool {
	if ref == 0 {
		return false
	}
	return 100*(max(v, ref)-min(v, ref))/ref > dimPercent
}

// dimVerdict is how a window did in comparison with an earlier one.
type dimVerdict uint8

const (
	dimSame dimVerdict = iota
	dimBetter
	dimWorse
)

// moreIsBetter judges two rates that differ.
func moreIsBetter(v, ref uint64) dimVerdict {
	if v > ref {
		return dimBetter
	}
	return dimWorse
}

// Reasons of net-dim's and rdma-dim's decisions.
const (
	// becauseStart: no window is complete yet.
	becauseStart = "start"
	// becauseBetter: the last step made it better, so one more that way.
	becauseBetter = "better"
	// becauseTurned: the last step did not make it better, so one back.
	becauseTurned = "turned"
	// becauseEdge: there is no further step that way.
	becauseEdge = "edge"

	// Only net-dim parks.

	// becauseTop: it was worse on both sides of these limits.
	becauseTop = "top"
	// becauseTired: too many steps in a row without an end.
	becauseTired = "tired"
	// becauseParked: the traffic is as it was when the search ended.
	becauseParked = "parked"
	// becauseResting: the traffic is not looked at for some windows.
	becauseResting = "resting"
	// becauseChanged: the traffic is not as it was when the search ended.
	becauseChanged = "changed"
	// becauseRested: the rest is over.
	becauseRested = "rested"

	// Only rdma-dim stays without parking.

	// becauseSame: it did not change.
	becauseSame = "same"
	// becauseFew: it did not change, and each notification announces less than
	// such limits are for.
	becauseFew = "few_per_notification"
)
