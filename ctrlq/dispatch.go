package ctrlq

import (
	"encoding/binary"
	"errors"
	"fmt"

	"github.com/vhostnet/vhostnet/virtio"
)

// MaxRequest is the longest request in bytes that is looked at. Only a MAC table
// comes near; the longest that drivers send has a few hundred entries.
const MaxRequest = 64 << 10

const (
	ackLen  = 1
	coalLen = 8 // le32 packets, le32 microseconds
	macLen  = 6

	maxQueuePairs = 0x8000 // VIRTIO_NET_CTRL_MQ_VQ_PAIRS_MAX
	maxVLAN       = 4095
)

// Errors of [Dispatch], besides those of the handler.
var (
	// ErrNoRoom: the driver left no byte for the answer, or too few. The
	// command was not carried out.
	ErrNoRoom = errors.New("ctrlq: no room for the answer")
	// ErrMalformed: the data has the wrong length or a value that the command
	// does not have.
	ErrMalformed = errors.New("ctrlq: malformed command")
	// ErrUnknown: there is no such command.
	ErrUnknown = errors.New("ctrlq: unknown command")
	// ErrNotNegotiated: the command's feature was not negotiated.
	ErrNotNegotiated = errors.New("ctrlq: feature not negotiated")
)

// Result is the outcome of a command.
type Result struct {
	// Written is the length in bytes for the used element: 0 if there was no
	// room, 9 for a VQ_GET answered OK, for statistics what fits, else 1.
	Written uint32
	// Ack is the answer, virtio.CtrlOK or virtio.CtrlErr.
	Ack uint8
	// Class and Command are 255 if the request is too short to have them.
	Class, Command uint8
	// Err says why the command had no effect; nil if it had.
	Err error
}

// Dispatch carries out one control command. f are the negotiated features, req
// is a copy of the device-readable part of the chain (the driver can change the
// original at any time), reply are the writable segments as the driver made
// them. Requests of more than [MaxRequest] bytes are refused.
func Dispatch(f virtio.Features, h Handler, req []byte, reply [][]byte) Result {
	r := Result{Ack: virtio.CtrlErr, Class: 0xff, Command: 0xff}
	if len(req) >= 2 {
		r.Class, r.Command = req[0], req[1]
	}
	a := layOut(r.Class, r.Command, reply)
	if a.room < ackLen {
		// The driver could not learn of a change, so there is none.
		r.Err = ErrNoRoom
		return r
	}
	var value []byte
	value, r.Err = dispatch(f, h, req, a.room)
	if r.Err == nil {
		r.Ack = virtio.CtrlOK
	}
	r.Written = a.write(reply, r.Ack, value)
	return r
}

// dispatch checks the request in the order: known, well formed, negotiated. It
// returns what goes in front of the ack or behind it, nil for most commands.
func dispatch(f virtio.Features, h Handler, req []byte, room int) ([]byte, error) {
	if len(req) < 2 || len(req) > MaxRequest {
		return nil, fmt.Errorf("%w: request of %d bytes", ErrMalformed, len(req))
	}
	c := call{f: f, h: h, class: req[0], command: req[1], data: req[2:]}
	switch c.class {
	case virtio.CtrlRX:
		return nil, c.rx()
	case virtio.CtrlMAC:
		return nil, c.mac()
	case virtio.CtrlVLAN:
		return nil, c.vlan()
	case virtio.CtrlAnnounce:
		return nil, c.announce()
	case virtio.CtrlMQ:
		return nil, c.mq()
	case virtio.CtrlGuestOffloads:
		return nil, c.guestOffloads()
	case virtio.CtrlNotfCoal:
		if c.command == virtio.CtrlNotfCoalVQGet {
			return c.vqGet(room)
		}
		return nil, c.notfCoal()
	case virtio.CtrlStats:
		return c.stats()
	}
	return nil, c.unknown()
}

// answer says where in the writable segments the parts of an answer go.
type answer struct {
	room  int // bytes, of all segments
	value int // offset of what VQ_GET or STATS returns, -1 if there is none
	ack   int // offset
	stats bool
}

// layOut decides where the answer goes. Specification versions and drivers
// disagree about VQ_GET: the values come in front of the ack, unless the driver
// has split the room so that only the other order fits the segments.
func layOut(class, command uint8, reply [][]byte) answer {
	a := answer{value: -1}
	var first, segments int
	for _, s := range reply {
		if len(s) == 0 {
			continue
		}
		if segments == 0 {
			first = len(s)
		}
		segments++
		a.room += len(s)
	}
	if class == virtio.CtrlStats {
		// command-specific-result is behind the ack.
		a.value, a.stats = ackLen, true
		return a
	}
	if class != virtio.CtrlNotfCoal || command != virtio.CtrlNotfCoalVQGet || a.room < coalLen+ackLen {
		return a
	}
	if segments == 2 && first == ackLen {
		a.value = ackLen
		return a
	}
	a.value, a.ack = 0, coalLen
	return a
}

// write writes the answer and returns the length for the used element. A refused
// VQ_GET has its values cleared, and they do not count.
func (a answer) write(reply [][]byte, ack uint8, value []byte) uint32 {
	written := uint32(ackLen)
	if a.stats {
		value = value[:min(len(value), a.room-ackLen)]
		put(reply, a.value, value)
		written += uint32(len(value))
	} else if a.value >= 0 {
		var zero [coalLen]byte
		if ack == virtio.CtrlOK {
			written += coalLen
		} else {
			value = zero[:]
		}
		put(reply, a.value, value)
	}
	put(reply, a.ack, []byte{ack})
	return written
}

// put copies b into the segments, off bytes from their beginning.
func put(segments [][]byte, off int, b []byte) {
	for _, s := range segments {
		if off >= len(s) {
			off -= len(s)
			continue
		}
		n := copy(s[off:], b)
		if b = b[n:]; len(b) == 0 {
			return
		}
		off = 0
	}
}

// coal decodes the limits in b, packets first.
func coal(b []byte) (usecs, packets uint32) {
	return binary.LittleEndian.Uint32(b[4:]), binary.LittleEndian.Uint32(b)
}
