package coalesce

// Direction says which way the packets of a virtqueue go.
type Direction uint8

const (
	// RX is from the device to the driver.
	RX Direction = iota
	// TX is from the driver to the device.
	TX
)

// String returns "rx" or "tx".
func (d Direction) String() string {
	if d == TX {
		return "tx"
	}
	return "rx"
}

// Observation is what a worker saw of one virtqueue since the observation
// before. An engine does not keep it.
type Observation struct {
	// Now is when, in nanoseconds of a monotonic clock.
	Now int64 `json:"now"`
	// Packets and Bytes were made used.
	Packets uint32 `json:"packets,omitempty"`
	Bytes   uint64 `json:"bytes,omitempty"`
	// Notified counts notifications that were sent, Suppressed the decisions at
	// which the driver had asked for none.
	Notified   uint32 `json:"notified,omitempty"`
	Suppressed uint32 `json:"suppressed,omitempty"`
	// Consumed is by how many entries the driver's event index moved; it went
	// idle having consumed so many. It stays 0 without EVENT_IDX.
	Consumed uint32 `json:"consumed,omitempty"`
	// Idle: the driver's event index moved, so it has armed notifications and
	// sleeps or is about to.
	Idle bool `json:"idle,omitempty"`
	// Backlog is how many published entries no decision was taken for yet.
	Backlog uint32 `json:"backlog,omitempty"`
	// Free is how many entries of the Size that the ring has are ready for
	// traffic: buffers that the driver has posted in an rx ring, descriptors that
	// are not outstanding in a tx ring.
	Free uint32 `json:"free,omitempty"`
	Size uint32 `json:"size,omitempty"`
	// Kicked: the driver kicked a tx ring since the observation before, which
	// tells an answer to a request from a stream.
	Kicked bool `json:"kicked,omitempty"`
	// PortEmpty: there was nothing more at the end of this burst, in the port
	// for an rx ring, in the ring itself for a tx ring.
	PortEmpty bool `json:"port_empty,omitempty"`
}

// Engine chooses the limits of one virtqueue from what it observes. It belongs
// to the goroutine that serves the virtqueue, has no clock of its own and
// allocates nothing after it was made. What the driver asked for is not its
// business: the caller joins both with [Effective].
type Engine interface {
	// Name is the engine's name: "off", "fixed", "net-dim", "rdma-dim" or
	// "adaptive".
	Name() string
	// Observe is called after every burst and at every decision about a
	// notification. It takes some tens of nanoseconds.
	Observe(o *Observation) Advice
	// Tick is called at the time that Advice.Next named, unless something was
	// observed before.
	Tick(now int64) Advice
	// Decision returns the last decision, for people who ask why.
	Decision() Decision
	// Reset forgets everything learnt, as if the engine had just been made.
	Reset()
}

// Advice is an engine's answer.
type Advice struct {
	// Limits are those to use from now on, before the driver's ceiling.
	Limits Limits
	// Flush asks that what is pending be announced now: the burst is over.
	Flush bool
	// Next is when, in nanoseconds, Tick is to be called at the latest; 0 if not
	// at all. It is 0 while nothing is pending and nothing happens, so that an
	// idle virtqueue costs no timer.
	Next int64
}

// Decision is why an engine's limits are what they are.
type Decision struct {
	// At is when the decision was taken, in nanoseconds; 0 before the first one.
	At int64 `json:"at_ns"`
	// Limits are what was decided. The zero value leaves it to the driver.
	Limits Limits `json:"limits"`
	// Reason is one of a few constant strings that the engine documents.
	Reason string `json:"reason"`
	// Step is the index of the limits in the engine's profiles, -1 if it has none.
	Step int `json:"step"`
	// Inputs are what the decision was based on.
	Inputs Inputs `json:"inputs"`
}

// Inputs are the measurements that a decision was based on. An engine fills in
// those that it uses and leaves the others 0.
type Inputs struct {
	// WindowUS is over how many microseconds was measured.
	WindowUS float64 `json:"window_us,omitempty"`
	// PPMS, BPMS and EPMS are packets, bytes and notifications a millisecond.
	PPMS float64 `json:"packets_per_ms,omitempty"`
	BPMS float64 `json:"bytes_per_ms,omitempty"`
	EPMS float64 `json:"notifications_per_ms,omitempty"`
	// Ratio is packets per notification.
	Ratio float64 `json:"packets_per_notification,omitempty"`
	// Consumed is how many entries the driver takes each time it wakes up.
	Consumed float64 `json:"consumed_per_wakeup,omitempty"`
	// SuppressedRatio is the share, 0 to 1, of decisions at which the driver
	// wanted no notification.
	SuppressedRatio float64 `json:"suppressed_ratio,omitempty"`
	// ServiceUS is how long the driver takes from a notification until it is idle
	// again, and GapUS how long the pause between bursts is, in microseconds.
	ServiceUS float64 `json:"service_us,omitempty"`
	GapUS     float64 `json:"gap_us,omitempty"`
	// Backlog, Free and Size are as in [Observation].
	Backlog uint32 `json:"backlog,omitempty"`
	Free    uint32 `json:"free,omitempty"`
	Size    uint32 `json:"size,omitempty"`
}
