package sim

// ring is the used side of a split virtqueue with VIRTIO_F_EVENT_IDX: indices
// only, since nobody looks at the packets.
type ring struct {
	// published is the device's used index, event the driver's event index.
	published, event uint16
	// decided is published at the last decision about a notification, span how
	// many entries followed; first: there was no decision yet.
	decided uint16
	span    uint32
	first   bool
	// told is the event index that the device saw last.
	told uint16
}

// publish makes n more entries visible to the driver.
func (r *ring) publish(n int) {
	r.published += uint16(n)
	r.span += uint32(n)
}

// needSignal takes a decision over all that was published since the last one.
func (r *ring) needSignal() bool {
	last, span, first := r.decided, r.span, r.first
	r.decided, r.span, r.first = r.published, 0, false
	switch {
	case span == 0 && !first:
		return false
	case first || span > 0xffff:
		return true
	}
	return r.published-r.event-1 < r.published-last
}

// driverEvent returns the event index and whether it moved since the last call.
func (r *ring) driverEvent() (idx uint16, moved bool) {
	moved = r.event != r.told
	r.told = r.event
	return r.event, moved
}
