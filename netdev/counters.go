package netdev

import (
	"sync/atomic"

	"github.com/vhostnet/vhostnet/virtio"
)

// dropReason says why a frame did not reach the other side.
type dropReason uint8

const (
	dropMalformed   dropReason = iota // the descriptor chain breaks the spec
	dropRunt                          // no header, or less than an Ethernet header behind it
	dropOversize                      // longer than any frame that the port can carry
	dropHeader                        // virtio-net header refused
	dropPort                          // the port refused the frame
	dropDisabled                      // ring started but disabled
	dropNoBuffer                      // the driver did not post enough buffers in time
	dropSmallBuffer                   // the frame does not fit the driver's buffer
	dropFilter                        // receive filter
	dropBadBuffer                     // receive buffer unusable: readable, or too short for the header
	dropStopped                       // the ring stopped with the frame in hand
	dropSteer                         // steered to a queue that takes no frames, or has too many waiting
	dropReasons
)

var dropNames = [dropReasons]string{
	dropMalformed:   "malformed_chain",
	dropRunt:        "runt",
	dropOversize:    "oversize",
	dropHeader:      "bad_header",
	dropPort:        "port",
	dropDisabled:    "disabled",
	dropNoBuffer:    "no_buffer",
	dropSmallBuffer: "small_buffer",
	dropFilter:      "filter",
	dropBadBuffer:   "bad_buffer",
	dropStopped:     "stopped",
	dropSteer:       "steer",
}

// count is a counter with one writer, the ring's worker, and any number of
// readers. A plain load and store suffices, and spares the datapath a locked
// read-modify-write.
type count struct{ v atomic.Uint64 }

func (c *count) add(n uint64) {
	if n != 0 {
		c.v.Store(c.v.Load() + n)
	}
}

func (c *count) load() uint64 { return c.v.Load() }

// offloadCounters count frames whose header asks for something, or says something:
// others are not counted apart.
type offloadCounters struct{ valid, partial, gso, gsoBytes count }

// add counts a frame of size bytes without its header.
func (o *offloadCounters) add(flags, gsoType uint8, size int) {
	switch {
	case flags&virtio.NetHdrFNeedsCSum != 0:
		o.partial.add(1)
	case flags&virtio.NetHdrFDataValid != 0:
		o.valid.add(1)
	}
	if gsoType != virtio.GSONone {
		o.gso.add(1)
		o.gsoBytes.add(uint64(size))
	}
}

// queueCounters are the counters of one virtqueue. They live as long as the
// device: a ring that stops keeps them.
type queueCounters struct {
	packets, bytes count
	kicks          count
	calls          count
	suppressed     count
	callErrors     count
	drops          [dropReasons]count
	headerFaults   [16]count
	reasons        [16]count
	broken         count
	offloads       offloadCounters
	handed         count // received frames that another queue of the port had
	// host and inForce are the limits that the host's engine chose, and those
	// that are applied, packed.
	host, inForce atomic.Uint64
	// why is why the ring is broken at present, nil when it is not.
	why atomic.Pointer[string]
	_   [64]byte // keeps the next queue's counters off this cache line
}

func (c *queueCounters) drop(r dropReason, n uint64) { c.drops[r].add(n) }
