package afpacket

import "sync/atomic"

// Counters of a queue.
const (
	rxRefused   = iota // the kernel could not describe it in a virtio-net header
	rxTooLong          // longer than any frame that a driver takes
	rxVLAN             // its VLAN tag was put back
	rxChecksum         // its checksum was completed
	rxSegmented        // it was segmented
	rxOffload          // lost: it could not be
	txTooLong          // longer than the interface's MTU
	txDown             // the interface is down or gone
	txNoBuffer         // the interface's queue, or the kernel's memory, is full
	txRefused          // the kernel refused it otherwise
	linkLost           // times that the socket was told that the link went down
	counters
)

var counterNames = [counters]string{
	"rx_refused", "rx_too_long", "rx_vlan", "rx_checksums", "rx_segmented", "rx_bad_offload",
	"tx_too_long", "tx_link_down", "tx_no_buffer", "tx_refused", "link_lost",
}

// counter has one writer, the queue's worker.
type counter struct{ v atomic.Uint64 }

func (c *counter) inc() { c.v.Store(c.v.Load() + 1) }

// Counters returns what happened to frames, by name: those of all queues, and
// rx_overrun, the frames that came while a socket's buffer was full.
func (p *Port) Counters() map[string]uint64 {
	m := make(map[string]uint64, counters+1)
	for _, q := range p.queues {
		for i := range q.c {
			m[counterNames[i]] += q.c[i].v.Load()
		}
	}
	p.mu.Lock()
	defer p.mu.Unlock()
	if !p.closed {
		for _, q := range p.queues {
			// Reading the kernel's count sets it to zero.
			if n, err := lost(q.fd); err == nil {
				p.overrun += uint64(n)
			}
		}
	}
	m["rx_overrun"] = p.overrun
	return m
}
