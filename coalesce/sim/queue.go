package sim

import "github.com/vhostnet/vhostnet/coalesce"

// packet is a packet on its way.
type packet struct {
	// at is when it arrived at the device: from the port for rx, and for tx when
	// the device has sent it, since from then on its buffer waits to be returned.
	at    int64
	bytes uint32
	// tag is its source's own.
	tag int32
}

// entry is a used entry that the guest has not taken.
type entry struct {
	packet
	// published is when the driver could have seen it; announced when the device
	// decided about a notification, or the driver came across it before: -1 until
	// then. ahead is how many the driver had to take before it.
	published, announced int64
	ahead                int
}

// queue is one virtqueue with both of its ends.
type queue struct {
	*world
	p      *Params
	m      *meter
	dir    coalesce.Direction
	ring   ring
	device device
	guest  guest
	source source
	// used is what the guest has not taken yet.
	used fifo[entry]
	// undecided is how many entries at the end of used no decision covers.
	undecided int
	end       int64
}

// source makes a queue's traffic.
type source interface {
	start()
	// taken is told when the guest has taken a packet (rx) or its buffer (tx).
	taken(p packet)
}

func newQueue(w *world, p *Params, m *meter, dir coalesce.Direction, e coalesce.Engine, learns bool, c Config) *queue {
	q := &queue{world: w, p: p, m: m, dir: dir}
	q.ring.first = true
	q.device = device{queue: q, guestLimits: c.Limits, strict: c.Strict, engine: e, learns: learns, asleep: true, posted: p.Ring}
	q.device.bind()
	q.guest = guest{queue: q}
	q.guest.bind()
	if c.GuestDIM {
		q.guest.dim = guestDIM()
	}
	return q
}

// arrive puts a packet in front of the device: on the port, or for tx into the
// available ring, which its source keeps within bounds.
func (q *queue) arrive(bytes uint32, tag int32) {
	d := &q.device
	q.m.arrived++
	if q.dir == coalesce.RX && d.port.len() >= q.p.PortQueue {
		q.m.lost++
		q.m.drop(q.now)
		return
	}
	d.port.push(packet{at: q.now, bytes: bytes, tag: tag})
	d.wake(q.dir == coalesce.TX)
}

// publish makes packets visible to the driver.
func (q *queue) publish(ps []packet) {
	for _, p := range ps {
		if q.dir == coalesce.TX {
			p.at = q.now
		}
		q.used.push(entry{packet: p, published: q.now, announced: -1})
	}
	q.undecided += len(ps)
	q.ring.publish(len(ps))
}

// decided notes that a decision covers all that was published.
func (q *queue) decided() {
	n := q.used.len()
	for i := n - min(q.undecided, n); i < n; i++ {
		e := q.used.at(i)
		e.announced, e.ahead = q.now, i
	}
	q.undecided = 0
}
