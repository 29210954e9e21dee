package vring

import "github.com/vhostnet/vhostnet/virtio"

func (q *packed) NeedSignal() bool {
	if q.idle != nil {
		return false
	}
	span, first := q.span, q.first
	// The driver has seen the return of anything older than a ring's worth, or it
	// could not have made this available.
	since := min(q.lag+span, q.size)
	q.span, q.spanChains, q.first = 0, 0, false
	if span == 0 && !first {
		return false
	}
	mode, ahead := q.driverEvent()
	switch {
	case first,
		mode == virtio.EventFEnable,
		mode == virtio.EventFDesc && ahead >= 2*q.size-since: // behind, and not further than that
		q.lag = 0
		return true
	}
	q.lag = since
	return false
}

// driverEvent returns what the driver asks for: all, none, or a notification when
// a descriptor is used, and then how far that is ahead of what is published, modulo
// twice the ring, of which the wrap counter is the upper half.
func (q *packed) driverEvent() (mode, ahead int) {
	w := q.driver.Load32(0)
	mode = int(w >> 16 & 3)
	if mode == virtio.EventFDisable {
		return mode, 0
	}
	off := int(w &^ virtio.PackedWrap & 0xffff)
	if mode != virtio.EventFDesc || !q.eventIdx || off >= q.size {
		return virtio.EventFEnable, 0
	}
	ahead = off - q.published
	if (w&virtio.PackedWrap != 0) != (q.lap != 0) {
		ahead += q.size
	}
	if ahead < 0 {
		ahead += 2 * q.size
	}
	return mode, ahead
}

func (q *packed) Unsignalled() int { return q.spanChains }

func (q *packed) DriverEvent() (idx uint16, moved bool) {
	if !q.eventIdx || q.idle != nil {
		return 0, false
	}
	mode, ahead := q.driverEvent()
	if mode != virtio.EventFDesc {
		return q.event, false
	}
	if ahead >= q.size { // behind: what is ahead is in flight
		ahead -= 2 * q.size
	}
	idx = q.total + uint16(ahead)
	moved = idx != q.event
	q.event = idx
	return idx, moved
}
