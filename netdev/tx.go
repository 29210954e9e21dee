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
	// heads are private copies of the driver's virtio-net headers: what was checked
	// is what the port gets, whatever the driver does meanwhile.
	heads [burst][virtio.NetHeaderMax]byte
	// linear has room for a short frame each.
	linear [][linearLimit]byte
	iov    [][]byte
	// frames are the segments of those that go to the port, errs what it says.
	frames [burst][][]byte
	errs   [burst]error
	// fates are what becomes of the chains in batch.
	fates [burst]fate
	// drained: the last burst took all that the driver had announced.
	drained bool
}

// fate is what becomes of a chain.
type fate struct {
	// size is the frame's length without the header, 0 if there is no frame to
	// send; then reason is why, and header what is wrong with its header.
	size   int
	reason dropReason
	header virtio.HeaderFault
	// flags and gso are the header's.
	flags, gso uint8
}

func (s *txScratch) start() {
	if s.batch == nil {
		s.batch = vring.NewBatch(burst, maxSegs)
		s.iov = make([][]byte, 0, maxSegs+burst)
		s.linear = make([][linearLimit]byte, burst)
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

	frames := 0
	s.iov = s.iov[:0]
	for i := range n {
		f := w.examine(i, frames)
		s.fates[i] = f
		if f.size > 0 {
			frames++
		}
	}
	w.send(s.frames[:frames], s.errs[:frames])
	clear(s.frames[:frames]) // they may outlive the memory that they point to

	var sent, bytes uint64
	slots, done, frame := 0, 0, 0
	for ; done < n; done++ {
		c, f := &s.batch.Chains[done], &s.fates[done]
		if f.size > 0 {
			err := s.errs[frame]
			frame++
			if err == port.ErrWouldBlock {
				// Only a full port ends a burst early: the frame stays the driver's.
				w.txBlocked = true
				r.q.Unpop(n - done)
				break
			}
			if err == nil {
				sent++
				bytes += uint64(f.size)
				if f.flags|f.gso != 0 {
					r.c.offloads.add(f.flags, f.gso, f.size)
				}
			} else {
				f.size, f.reason = 0, sendDrop(err)
			}
		}
		if f.size == 0 {
			r.c.drop(f.reason, 1)
			if f.header != 0 {
				r.c.headerFaults[f.header].add(1)
			}
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

// sendDrop is the reason for the loss of a frame that the port did not take.
func sendDrop(err error) dropReason {
	if errors.Is(err, guestmem.ErrFault) {
		return dropMalformed // the frame's memory is gone, not the ring's
	}
	return dropPort
}

// send gives frames to the port, in order. Behind the first ErrWouldBlock there are
// only others.
func (w *worker) send(frames [][][]byte, errs []error) {
	if w.batched != nil {
		w.batched.SendBatch(frames, errs)
		return
	}
	for i, f := range frames {
		errs[i] = w.pq.Send(f)
		if !errors.Is(errs[i], port.ErrWouldBlock) {
			continue
		}
		if w.pq.FD() >= 0 || w.receiving() {
			for k := range errs[i:] {
				errs[i+k] = port.ErrWouldBlock
			}
			return
		}
		// Such a port empties only by receiving, which nobody does.
		errs[i] = errNobodyReceives
	}
}

var errNobodyReceives = errors.New("netdev: the port is full, and nobody receives from it")

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

// examine decides what becomes of a chain of the batch. If there is a frame to send,
// it is put into frames[to].
func (w *worker) examine(i, to int) fate {
	s := &w.txs
	switch c := &s.batch.Chains[i]; {
	case c.Fault != 0 || c.WriteLen != 0:
		return fate{reason: dropMalformed}
	case c.ReadLen < uint64(w.hdrLen+ethHeader):
		return fate{reason: dropRunt}
	case c.ReadLen > uint64(w.hdrLen+maxFrame):
		return fate{reason: dropOversize}
	case !w.tx.enabled:
		return fate{reason: dropDisabled}
	default:
		size := int(c.ReadLen) - w.hdrLen
		f := w.frame(s.batch.Readable(i), int(c.ReadLen), to)
		if fault := w.checkTX(f[0], size); fault != 0 {
			return fate{reason: dropHeader, header: fault}
		}
		s.frames[to] = f
		return fate{size: size, flags: f[0][0], gso: f[0][1]}
	}
}

// frame lays out a chain for the port: a private copy of the virtio-net header,
// then the driver's own memory; a short frame is copied whole.
func (w *worker) frame(segs [][]byte, size, to int) [][]byte {
	s := &w.txs
	from := len(s.iov)
	if size <= linearLimit {
		linear, n := &s.linear[to], 0
		for _, seg := range segs {
			n += copy(linear[n:], seg)
		}
		s.iov = append(s.iov, linear[:n])
		return s.iov[from:]
	}
	head := s.heads[to][:w.hdrLen]
	s.iov = append(s.iov, head)
	got := 0
	for _, seg := range segs {
		if got < w.hdrLen {
			n := copy(head[got:], seg)
			got += n
			seg = seg[n:]
			if len(seg) == 0 {
				continue
			}
		}
		s.iov = append(s.iov, seg)
	}
	return s.iov[from:]
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
	return w.forwards() || w.rx.live() && w.rx.enabled && w.rx.q.Broken() == nil
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
