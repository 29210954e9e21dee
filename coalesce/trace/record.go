package trace

import "github.com/vhostnet/vhostnet/coalesce"

// Record is what an engine was told once, and what it made of that.
type Record struct {
	// Queue is the virtqueue's index, Direction "rx" or "tx".
	Queue     int    `json:"queue"`
	Direction string `json:"direction"`
	// TNS is the observation's time in nanoseconds of a monotonic clock. What has
	// arrived by then arrived before: the device's own delays are in it.
	TNS int64 `json:"t_ns"`
	// Tick: nothing was observed, the time had come that the engine asked for.
	Tick bool `json:"tick,omitempty"`

	// These are the fields of [coalesce.Observation].
	Packets    uint32 `json:"packets,omitempty"`
	Bytes      uint64 `json:"bytes,omitempty"`
	Notified   uint32 `json:"notified,omitempty"`
	Suppressed uint32 `json:"suppressed,omitempty"`
	Consumed   uint32 `json:"consumed,omitempty"`
	Idle       bool   `json:"idle,omitempty"`
	Backlog    uint32 `json:"backlog,omitempty"`
	Free       uint32 `json:"free,omitempty"`
	Size       uint32 `json:"size,omitempty"`
	Kicked     bool   `json:"kicked,omitempty"`
	PortEmpty  bool   `json:"port_empty,omitempty"`

	// Limits are the engine's from then on, before the driver's ceiling, and
	// Reason that of its last decision.
	Limits coalesce.Limits `json:"limits"`
	Reason string          `json:"reason"`
	// Flush and Next are the rest of the engine's advice.
	Flush bool  `json:"flush,omitempty"`
	Next  int64 `json:"next_ns,omitempty"`
}

// NewRecord is the record of an engine's advice on o, with its last decision. An
// observation of a virtqueue has the virtqueue's size; one without, which has
// the time alone, stands for a call of the engine's Tick.
func NewRecord(queue int, o *coalesce.Observation, d coalesce.Decision, a coalesce.Advice) Record {
	return Record{
		Queue: queue, Direction: direction(queue).String(), TNS: o.Now, Tick: o.Size == 0,
		Packets: o.Packets, Bytes: o.Bytes, Notified: o.Notified, Suppressed: o.Suppressed,
		Consumed: o.Consumed, Idle: o.Idle, Backlog: o.Backlog, Free: o.Free, Size: o.Size,
		Kicked: o.Kicked, PortEmpty: o.PortEmpty,
		Limits: a.Limits, Reason: d.Reason, Flush: a.Flush, Next: a.Next,
	}
}

// Observation is what the engine was told.
func (r *Record) Observation() coalesce.Observation {
	return coalesce.Observation{
		Now: r.TNS, Packets: r.Packets, Bytes: r.Bytes, Notified: r.Notified, Suppressed: r.Suppressed,
		Consumed: r.Consumed, Idle: r.Idle, Backlog: r.Backlog, Free: r.Free, Size: r.Size,
		Kicked: r.Kicked, PortEmpty: r.PortEmpty,
	}
}

// direction is that of a virtqueue: receive queues have even indices (virtio
// 1.4, "Network Device / Virtqueues").
func direction(queue int) coalesce.Direction { return coalesce.Direction(queue & 1) }
