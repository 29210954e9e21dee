package netdev

import (
	"errors"
	"fmt"
	"slices"

	"github.com/vhostnet/vhostnet/ctrlq"
	"github.com/vhostnet/vhostnet/port"
	"github.com/vhostnet/vhostnet/toeplitz"
	"github.com/vhostnet/vhostnet/virtio"
)

// steering is how received frames are hashed, and to which queue they go. It does
// not change: workers use it without a lock.
type steering struct {
	types  uint32
	key    []byte
	hasher *toeplitz.Hasher
	// table has a queue pair for each hash, nil if the hash is for reports only;
	// then frames stay on the queue that the port has put them on.
	table        []uint16
	unclassified uint16
	// pairs is how many queue pairs may get frames: all up to the last one named.
	pairs int
	// peers are the workers by queue pair.
	peers []*worker
}

// Steering of the snapshot.
const (
	steeringAutomatic = "automatic"
	steeringPort      = "port"
	steeringDevice    = "device"
)

func (d *Device) newSteering(c ctrlq.HashConfig) (*steering, error) {
	if extra := c.Types &^ toeplitz.All; extra != 0 {
		return nil, fmt.Errorf("netdev: hash types %#x are not supported", extra)
	}
	if len(c.Key) > d.cfg.RSSKey {
		return nil, fmt.Errorf("netdev: hash key of %d bytes: want %d at most", len(c.Key), d.cfg.RSSKey)
	}
	key := slices.Clone(c.Key)
	return &steering{types: c.Types, key: key, hasher: toeplitz.New(key), peers: d.pairs}, nil
}

// setTable checks and takes over the part of c that steers.
func (s *steering) setTable(c ctrlq.RSSConfig, pairs, longest int) error {
	if len(c.Table) > longest {
		return fmt.Errorf("netdev: indirection table of %d entries: want %d at most", len(c.Table), longest)
	}
	if c.MaxTX < 1 || int(c.MaxTX) > pairs {
		return fmt.Errorf("netdev: %d transmit queues: want 1 to %d", c.MaxTX, pairs)
	}
	last := max(c.Unclassified, slices.Max(c.Table))
	if int(last) >= pairs {
		return fmt.Errorf("netdev: indirection table names receive queue %d: want 0 to %d", last, pairs-1)
	}
	s.table, s.unclassified, s.pairs = slices.Clone(c.Table), c.Unclassified, int(last)+1
	return nil
}

// automatic is s without its table.
func (s *steering) automatic() *steering {
	if s == nil || s.table == nil {
		return s
	}
	n := *s
	n.table, n.pairs = nil, 0
	return &n
}

// setSteering puts s in force, nil for none.
func (d *Device) setSteering(s *steering) {
	d.guest.steer = s
	d.applyPairs()
	d.applySteering()
}

// applySteering tells the port and the workers how frames are steered. The port
// comes first, so that few frames have to be handed over.
func (d *Device) applySteering() {
	s := d.guest.steer
	d.steering = steeringAutomatic
	p, can := d.port.(port.Steerer)
	switch {
	case s != nil && s.table != nil:
		d.steering = steeringDevice
		if !can {
			break
		}
		d.steered = true
		err := p.Steer(&port.Steering{Types: s.types, Key: s.key, Table: s.table, Unclassified: s.unclassified})
		if err == nil {
			d.steering = steeringPort
			break
		}
		d.log.Warn("port cannot steer received frames; the device hands them over", "port", d.port, "error", err)
	case d.steered:
		d.steered = false
		if err := p.Steer(nil); err != nil {
			d.log.Warn("port cannot steer received frames by itself again", "port", d.port, "error", err)
		}
	}
	hdr, forwarding := virtio.NetHeaderSize(d.features), d.running > 0 && s != nil && s.table != nil
	for _, w := range d.pairs {
		_ = w.post(func() {
			w.steer, w.forwarding = s, forwarding
			w.rxs.prepare()
			if w.forwards() {
				// A port without a descriptor may have had frames all along.
				w.hdrLen, w.portReady = hdr, true
			}
			w.rxs.hash, w.rxs.report = 0, 0
		})
	}
}

// stopForwarding makes the workers leave their queues of the port alone.
func (d *Device) stopForwarding() {
	if d.guest.steer == nil {
		return
	}
	for _, w := range d.pairs {
		_ = w.post(func() { w.forwarding = false })
	}
}

// classify hashes the frame of n bytes that lies in rxs.iov. It returns false if
// the frame belongs to another queue, to which it has been handed over.
func (w *worker) classify(n int) bool {
	s, st := &w.rxs, w.steer
	first := s.iov[0]
	if look := min(n, w.hdrLen+toeplitz.Look); len(first) < look {
		first = gather(s.peek[:0], s.iov, look)
	}
	w.flow.Parse(first[w.hdrLen:min(len(first), n)], st.types)
	s.hash, s.report = 0, w.flow.Report
	if s.report != toeplitz.ReportNone {
		s.hash = st.hasher.Sum(w.flow.Input())
	}
	if st.table == nil {
		return true
	}
	to := st.unclassified
	if s.report != toeplitz.ReportNone {
		to = st.table[s.hash&uint32(len(st.table)-1)]
	}
	if int(to) == w.pair {
		return true
	}
	peer := st.peers[to]
	ok, wake := peer.inbox.push(s.iov, n)
	if !ok {
		w.rx.c.drop(dropSteer, 1)
		return false
	}
	w.rx.c.handed.add(1)
	if wake {
		peer.rouse()
	}
	return false
}

// takeHanded takes a frame that another worker has handed over, and returns its length,
// 0 if there is none.
func (w *worker) takeHanded(bufs [][]byte) int {
	n := w.inbox.pop(bufs)
	if w.dirty != nil {
		w.dirtied(bufs, n)
	}
	return n
}

// forwards tells whether the worker has no ring of its own to receive into, but a
// port from which frames may come that belong to others.
func (w *worker) forwards() bool {
	return w.forwarding && (w.rx.q == nil || !w.rx.enabled)
}

// forward hands a burst of frames over to those that have rings. It reports
// whether there was anything.
func (w *worker) forward() bool {
	s := &w.rxs
	for i := range burst {
		if !w.portReady {
			return i > 0
		}
		s.iov = append(s.iov[:0], s.spill)
		n, err := w.pq.Recv(s.iov)
		switch {
		case errors.Is(err, port.ErrDropped), errors.Is(err, port.ErrTruncated):
			w.rx.c.drop(dropPort, 1)
			continue
		case err != nil:
			w.portReady = false
			return i > 0
		case n < w.hdrLen+ethHeader:
			w.rx.c.drop(dropRunt, 1)
			continue
		}
		if w.filter != nil && !w.filter.Match(s.spill[w.hdrLen:n]) {
			w.rx.c.drop(dropFilter, 1)
			continue
		}
		if w.classify(n) {
			w.rx.c.drop(dropDisabled, 1)
		}
	}
	return true
}
