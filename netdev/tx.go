package netdev

import (
	"errors"

	"github.com/vhostnet/vhostnet/coalesce"
	"github.com/vhostnet/vhostnet/guestmem"
	"github.com/vhostnet/vhostnet/port"
	"github.com/vhostnet/vhostnet/virtio"
	"github.com/vhostnet/vhostnet/vring"
)

// ethHeader is the least that a frame must have behind the virtio-net header.
const ethHeader = 14

// txScratch is the transmit side's memory, made once when a ring starts.
type txScratch struct {
	batch *vring.Batch
	// head is the private copy of the driver's virtio-net header: what was
	// checked is what the port gets, whatever the driver does meanwhile.
	head   [virtio.NetHeaderLen]byte
	linear [linearLimit]byte
	iov    [][]byte
	// drained: the last burst took all that the driver had announced.
	drained bool
}

func (s *txScratch) start() {
	if s.batch == nil {
		s.batch = vring.NewBatch(burst, maxSegs)
		s.iov = make([][]byte, 0, maxSegs+1)
	}
}

// transmit moves one burst from the driver to the port and reports whether
// there was anything.
func (w *worker) transmit() bool {
	if w.transmitPlain() {
		return true
	}
	r, s := &w.tx, &w.txs
	s.batch.Reset()
	n, err := r.q.Pop(s.batch, burst)
	if err != nil {
		w.broke(r, err)
		return true
	}
	if n == 0 {
		return false
	}
	r.disableKicks()

	var sent, bytes uint64
	slots, done := 0, 0
	for ; done < n; done++ {
		c := &s.batch.Chains[done]
		size, err := w.transmitOne(c, s.batch, done)
		if err != nil {
			// Only a full port ends a burst early: the frame stays the driver's.
			w.txBlocked = true
			r.q.Unpop(n - done)
			break
		}
		if size > 0 {
			sent++
			bytes += uint64(size)
		}
		r.q.Complete(c, 0)
		slots += int(c.Count)
	}
	if done == 0 {
		return false
	}
	w.sent(done, sent, bytes, slots, done == n && n < burst)
	return true
}

// sent publishes a burst of so many chains that were given back, which took that
// many slots of the ring, and frames of so many bytes; drained if it took all that
// the driver had announced.
func (w *worker) sent(chains int, frames, bytes uint64, slots int, drained bool) {
	r := &w.tx
	r.q.Publish()
	r.c.packets.add(frames)
	r.c.bytes.add(bytes)
	if w.pq.FD() < 0 {
		w.portReady = true
	}
	now := nanotime()
	// Counted are entries given back, dropped ones too: the driver waits for
	// the buffer, not for the frame.
	r.observe(now, uint32(chains), bytes, slots)
	w.txs.drained = drained
	r.consult(now, uint32(chains), bytes)
	r.relieve(now)
}

// lookTX is what the transmit ring's engine is told of the ring.
func (w *worker) lookTX() (free int, portEmpty bool) {
	return w.tx.q.Size() - w.tx.slots, w.txs.drained
}

// transmitOne sends one chain's frame and returns its size without the
// virtio-net header, 0 if it was dropped. The error is port.ErrWouldBlock.
func (w *worker) transmitOne(c *vring.Chain, b *vring.Batch, i int) (int, error) {
	r, s := &w.tx, &w.txs
	switch {
	case c.Fault != 0:
		r.c.drop(dropMalformed, 1)
		return 0, nil
	case c.ReadLen < uint64(w.hdrLen+ethHeader) || c.WriteLen != 0:
		if c.WriteLen != 0 {
			r.c.drop(dropMalformed, 1)
		} else {
			r.c.drop(dropRunt, 1)
		}
		return 0, nil
	case c.ReadLen > uint64(w.hdrLen+maxFrame):
		r.c.drop(dropOversize, 1)
		return 0, nil
	case !r.enabled:
		r.c.drop(dropDisabled, 1)
		return 0, nil
	}
	size := int(c.ReadLen) - w.hdrLen
	s.iov = w.frame(s.iov[:0], b.Readable(i), int(c.ReadLen))
	if f := w.checkTX(s.iov[0], size); f != 0 {
		r.c.drop(dropHeader, 1)
		r.c.headerFaults[f].add(1)
		return 0, nil
	}
	err := w.pq.Send(s.iov)
	switch {
	case err == nil:
		return size, nil
	case errors.Is(err, port.ErrWouldBlock):
		if w.pq.FD() >= 0 || w.receiving() {
			return 0, err
		}
		// Such a port empties only by receiving, which nobody does.
		r.c.drop(dropPort, 1)
	case errors.Is(err, guestmem.ErrFault):
		// The frame's memory is gone, not the ring's.
		r.c.drop(dropMalformed, 1)
	default:
		r.c.drop(dropPort, 1)
	}
	return 0, nil
}

// frame lays out a chain for the port: a private copy of the virtio-net header,
// then the driver's own memory; a short frame is copied whole.
func (w *worker) frame(iov, segs [][]byte, size int) [][]byte {
	s := &w.txs
	if size <= linearLimit {
		n := 0
		for _, seg := range segs {
			n += copy(s.linear[n:], seg)
		}
		return append(iov, s.linear[:n])
	}
	iov = append(iov, s.head[:w.hdrLen])
	got := 0
	for _, seg := range segs {
		if got < w.hdrLen {
			n := copy(s.head[got:w.hdrLen], seg)
			got += n
			seg = seg[n:]
			if len(seg) == 0 {
				continue
			}
		}
		iov = append(iov, seg)
	}
	return iov
}

// checkTX validates the private copy of the header and cleans it in place.
func (w *worker) checkTX(head []byte, size int) virtio.HeaderFault {
	var h virtio.NetHeader
	h.Decode(head[:w.hdrLen])
	if f := h.CheckTX(size, w.features); f != 0 {
		return f
	}
	h.NumBuffers = 0 // has no meaning on transmission
	h.Encode(head[:w.hdrLen])
	return 0
}

// receiving tells whether frames flow towards the driver.
func (w *worker) receiving() bool {
	return w.rx.live() && w.rx.enabled && w.rx.q.Broken() == nil
}

// relieve fires early when the ring is about to have no descriptor left that
// the driver knows to be free: it would wait for the notification that waits
// for it. A Linux driver stops its queue when fewer than 19 slots are free.
func (r *ring) relieve(now int64) {
	size := r.q.Size()
	if r.deadline != 0 && size-r.slots < max(size/4, 20) {
		r.flush(now, coalesce.ReasonRingPressure)
	}
}
