package coalesce

import "math"

// Action is what a verdict asks the caller to do.
type Action uint8

const (
	// Nothing: no packet waits to be announced, so no timer is needed.
	Nothing Action = iota
	// Wait: packets wait to be announced; ask again at the deadline.
	Wait
	// Signal: decide about a notification now and call Fired.
	Signal
)

// String returns the action's name.
func (a Action) String() string {
	switch a {
	case Nothing:
		return "nothing"
	case Wait:
		return "wait"
	case Signal:
		return "signal"
	}
	return "invalid"
}

// Reason says why a notification is due. Counters are indexed with it.
type Reason uint8

const (
	// ReasonNone comes with verdicts other than Signal.
	ReasonNone Reason = iota
	// ReasonEveryPacket: the limits ask for a notification after every packet.
	ReasonEveryPacket
	// ReasonPackets: the packet limit was reached.
	ReasonPackets
	// ReasonTimeout: the time limit was reached.
	ReasonTimeout
	// ReasonLimitShrunk: a change of the limits made what was pending due.
	ReasonLimitShrunk
	// ReasonRingPressure: the driver runs out of buffers, so waiting would stall it.
	ReasonRingPressure
	// ReasonStop: the virtqueue is about to stop.
	ReasonStop
	// ReasonDisabled: the virtqueue was disabled.
	ReasonDisabled
	// ReasonPortIdle: the port ran empty and the burst is taken to be over.
	ReasonPortIdle

	// NumReasons is the number of reasons, ReasonNone included.
	NumReasons = int(ReasonPortIdle) + 1
)

var reasonNames = [NumReasons]string{
	ReasonNone:         "none",
	ReasonEveryPacket:  "every_packet",
	ReasonPackets:      "packets",
	ReasonTimeout:      "timeout",
	ReasonLimitShrunk:  "limit_shrunk",
	ReasonRingPressure: "ring_pressure",
	ReasonStop:         "stop",
	ReasonDisabled:     "disabled",
	ReasonPortIdle:     "port_idle",
}

// String returns the reason's name as counters spell it.
func (r Reason) String() string {
	if int(r) < len(reasonNames) {
		return reasonNames[r]
	}
	return "invalid"
}

// Verdict is the answer of a [Moderator].
type Verdict struct {
	Action Action
	// Reason is set with Signal.
	Reason Reason
	// Deadline is set with Wait: when, in nanoseconds of the caller's clock, the
	// time limit is reached.
	Deadline int64
}

// Moderator applies notification limits to one virtqueue. The zero value
// notifies after every packet. It belongs to one goroutine.
//
// A verdict of Signal stays due: until Fired is called every further question
// is answered with Signal as long as the condition holds.
type Moderator struct {
	limits Limits
	// pending and bytes are what was made used since the last firing; since is
	// when the first of it was, and means nothing while pending is zero.
	pending uint32
	bytes   uint64
	since   int64
}

// Limits returns the limits in force.
func (m *Moderator) Limits() Limits { return m.limits }

// SetLimits changes the limits. What is pending is judged anew at once, with its
// time counted from its first packet as before (virtio 1.4, "Notifications When
// Coalescing Parameters Change").
func (m *Moderator) SetLimits(now int64, l Limits) Verdict {
	m.limits = l
	v := m.judge(now)
	if v.Action == Signal {
		v.Reason = ReasonLimitShrunk
	}
	return v
}

// Observe records packets, with bytes in them, that have just become visible in
// the used ring. A frame counts as one packet however many buffers it takes.
// With packets == 0 it only judges.
func (m *Moderator) Observe(now int64, packets uint32, bytes uint64) Verdict {
	if packets == 0 {
		return m.judge(now)
	}
	if m.pending == 0 {
		m.since = now
	}
	m.bytes += bytes
	if m.pending += packets; m.pending < packets {
		m.pending = math.MaxUint32
	}
	return m.judge(now)
}

// Expire asks again at or after a deadline. Too early, it repeats the deadline.
func (m *Moderator) Expire(now int64) Verdict { return m.judge(now) }

// Flush makes whatever is pending due now, for a reason outside the limits.
func (m *Moderator) Flush(_ int64, r Reason) Verdict {
	if m.pending == 0 {
		return Verdict{}
	}
	return Verdict{Action: Signal, Reason: r}
}

// Fired records that a Signal was acted upon: the virtqueue was asked, and the
// notification sent or suppressed. Counting begins again with the next packet.
// A notification that the driver did not want is not made up for later: a
// driver that asks for notifications again looks at the ring itself.
func (m *Moderator) Fired(int64) { m.pending, m.bytes = 0, 0 }

// Pending returns how many packets wait to be announced and when the first of
// them was observed; since is 0 when there is none.
func (m *Moderator) Pending() (packets uint32, since int64) {
	if m.pending == 0 {
		return 0, 0
	}
	return m.pending, m.since
}

// PendingBytes returns the bytes in the packets that wait to be announced.
func (m *Moderator) PendingBytes() uint64 { return m.bytes }

// Reset forgets what is pending and the limits, as a device reset does.
func (m *Moderator) Reset() { *m = Moderator{} }

func (m *Moderator) judge(now int64) Verdict {
	switch {
	case m.pending == 0:
		return Verdict{}
	case m.limits.EveryPacket():
		return Verdict{Action: Signal, Reason: ReasonEveryPacket}
	case m.pending >= m.limits.Packets:
		return Verdict{Action: Signal, Reason: ReasonPackets}
	}
	// A clock that stepped back must not stretch the delay.
	m.since = min(m.since, now)
	deadline := m.since + int64(m.limits.Usecs)*1000
	if deadline < m.since {
		deadline = math.MaxInt64
	}
	if now >= deadline {
		return Verdict{Action: Signal, Reason: ReasonTimeout}
	}
	return Verdict{Action: Wait, Deadline: deadline}
}
