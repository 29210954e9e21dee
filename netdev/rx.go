package netdev

import (
	"encoding/binary"
	"errors"
	"time"

	"github.com/vhostnet/vhostnet/coalesce"
	"github.com/vhostnet/vhostnet/guestmem"
	"github.com/vhostnet/vhostnet/port"
	"github.com/vhostnet/vhostnet/toeplitz"
	"github.com/vhostnet/vhostnet/virtio"
	"github.com/vhostnet/vhostnet/vring"
)

const (
	// popAhead is how many receive chains the worker takes at once.
	popAhead = 64
	// maxCached is over how many buffers a frame can be spread, in a ring that has
	// as many.
	maxCached = 1024
	// maxHold is how long a frame for which the driver has not posted enough
	// buffers waits for more of them before it is dropped, so that a driver
	// which never posts enough does not stop its own queue.
	maxHold = int64(100 * time.Millisecond)
	// maxRefused is how many frames in a row may have a header that the driver must
	// not see before the buffers that they went into are given back empty. A port's
	// frames do not stop the queue; buffers that lie over each other would.
	maxRefused = 64
	// calmFrames is after how many frames that fitted well the worker offers
	// the port less room again.
	calmFrames = 64
)

// rxScratch is the receive side's memory, made once when a ring starts.
type rxScratch struct {
	batch *vring.Batch
	// head is the first chain in batch that is not used yet.
	head int
	// room is how many bytes of driver memory the port is offered, and calm
	// counts frames that would have fitted in less.
	room, calm int
	iov        [][]byte
	// spill takes what does not fit in the room that was offered, so that a
	// frame is never cut.
	spill []byte
	// held is a frame's length including its header while it waits for more
	// buffers, 0 if none does; its first heldIn bytes are in the driver's
	// memory and the others in spill.
	held, heldIn int
	holdUntil    int64
	// blocked is the unusable chain in batch at which an offer had to end, -1 if
	// there was none.
	blocked int
	// refused counts frames whose header was refused since one was delivered.
	refused int
	// starved is true when the driver must post buffers before anything moves.
	starved bool
	// hash is what the header of the present frame says of it, with HASH_REPORT.
	hash   uint32
	report uint16
	peek   [virtio.NetHeaderMax + toeplitz.Look]byte
}

// prepare makes what a worker needs to receive anything.
func (s *rxScratch) prepare() {
	if s.spill == nil {
		s.iov = make([][]byte, 0, maxSegs+1)
		s.spill = make([]byte, maxFrame+virtio.NetHeaderMax)
	}
}

func (s *rxScratch) start(hdrLen, size int) {
	s.prepare()
	if chains := min(size, maxCached) + popAhead; s.batch == nil || cap(s.batch.Chains) < chains {
		s.batch = vring.NewBatch(chains, maxSegs)
	}
	s.batch.Reset()
	s.hash, s.report = 0, 0
	s.head, s.room, s.calm, s.held, s.heldIn, s.holdUntil, s.refused, s.starved = 0, hdrLen+1518, 0, 0, 0, 0, 0, true
}

// returnCached gives all chains that are not used back to the ring.
func (w *worker) returnCached() {
	s := &w.rxs
	if s.batch == nil {
		return
	}
	if s.held != 0 {
		w.rx.c.drop(dropStopped, 1)
		s.held, s.holdUntil = 0, 0
	}
	if n := len(s.batch.Chains) - s.head; n > 0 {
		w.rx.q.Unpop(n)
	}
	s.batch.Reset()
	s.head = 0
}

// receive moves one burst from the port to the driver and reports whether
// there was anything.
func (w *worker) receive() bool {
	r, s := &w.rx, &w.rxs
	var got, bytes uint64
	slots, tries := 0, 0
	if s.held == 0 && !w.portReady && !w.inbox.ready.Load() {
		return false
	}
	r.disableKicks()
	if n, size := w.receivePlain(); n > 0 {
		got, bytes, slots, tries = uint64(n), size, n, burst
	}
	for ; tries < burst; tries++ {
		n, ok := w.nextFrame()
		if !ok {
			break
		}
		used, size := w.deliverFrame(n)
		if used > 0 {
			got++
			bytes += uint64(size)
			slots += used
		} else if s.held != 0 {
			break
		}
	}
	if r.q.Broken() != nil {
		return true
	}
	if r.q.Unpublished() == 0 {
		return tries > 0 && s.held == 0
	}
	r.q.Publish()
	r.c.packets.add(got)
	r.c.bytes.add(bytes)
	if w.pq.FD() < 0 {
		w.txBlocked = false
	}
	now := nanotime()
	if got > 0 {
		r.observe(now, uint32(got), bytes, slots)
	} else {
		// Only unusable buffers went back; the driver may be waiting for them.
		r.observe(now, 1, 0, slots)
	}
	r.consult(now, uint32(got), bytes)
	w.relieveRX(now)
	return true
}

// relieveRX fires early when the driver has few buffers posted: it refills when
// it is told of the used ones.
func (w *worker) relieveRX(now int64) {
	r := &w.rx
	if r.deadline == 0 {
		return
	}
	if w.posted() <= r.q.Size()/4 {
		r.flush(now, coalesce.ReasonRingPressure)
	}
}

// lookRX is what the receive ring's engine is told of the ring and the port.
func (w *worker) lookRX() (free int, portEmpty bool) { return w.posted(), !w.portReady }

// posted is how many buffers the driver has posted that are not used.
func (w *worker) posted() int {
	return w.rx.q.AvailCount() + len(w.rxs.batch.Chains) - w.rxs.head
}

// nextFrame returns the length, header included, of the next frame, which then
// lies in s.iov: from the port, or the held one if there is room for it now.
func (w *worker) nextFrame() (int, bool) {
	s := &w.rxs
	if s.held != 0 {
		return s.held, true
	}
	handed := w.inbox.ready.Load()
	if !w.portReady && !handed {
		return 0, false
	}
	room := w.offer(s.room)
	if room == 0 {
		s.starved = true
		return 0, false
	}
	s.iov = append(s.iov, s.spill)
	if handed {
		if n := w.takeHanded(s.iov); n > 0 {
			s.heldIn = min(n, room)
			return n, true
		}
		if !w.portReady {
			return 0, false
		}
	}
	n, err := w.pq.Recv(s.iov)
	switch {
	case err == nil:
	case errors.Is(err, port.ErrWouldBlock):
		w.portReady = false
		return 0, false
	case errors.Is(err, guestmem.ErrFault):
		w.broke(w.current, err)
		return 0, false
	case errors.Is(err, port.ErrDropped), errors.Is(err, port.ErrTruncated):
		w.rx.c.drop(dropPort, 1)
		return 0, true
	default:
		// The port is gone. Its descriptor is edge triggered, so it does not
		// keep the worker awake.
		w.portReady = false
		if w.portError.Load() == nil {
			why := err.Error()
			w.portError.Store(&why)
			w.log.Error("port has failed; nothing is received from it any more", "port_queue", w.pair, "error", err)
		}
		return 0, false
	}
	s.heldIn = min(n, room)
	return n, true
}

// offer fills s.iov with at least want bytes of the driver's memory, if it has
// posted so much, and returns how many there are. Without mergeable buffers
// that is one chain.
func (w *worker) offer(want int) int {
	s := &w.rxs
	merge := w.features.Has(virtio.FeatureMrgRxBuf)
	s.iov, s.blocked = s.iov[:0], -1
	room, empty := 0, 0
	for i := s.head; room < want; i++ {
		if i >= len(s.batch.Chains) {
			if w.fill() {
				s.iov, room, i = s.iov[:0], 0, s.head
			}
			if i >= len(s.batch.Chains) {
				break
			}
		}
		c := &s.batch.Chains[i]
		if reason, bad := w.unusable(c); bad {
			if i != s.head {
				// A frame's buffers follow each other in the used ring.
				s.blocked = i
				break
			}
			if empty == w.rx.q.Size() {
				break
			}
			w.rx.c.drop(reason, 1)
			w.rx.q.Complete(c, 0)
			s.head++
			empty++
			continue
		}
		if len(s.iov)+len(s.batch.Writable(i)) > maxSegs {
			break
		}
		s.iov = append(s.iov, s.batch.Writable(i)...)
		room += int(min(c.WriteLen, uint64(maxFrame+virtio.NetHeaderMax)))
		if !merge {
			break
		}
	}
	return room
}

// unusable tells whether, and why, a receive chain can hold nothing.
func (w *worker) unusable(c *vring.Chain) (dropReason, bool) {
	switch {
	case c.Fault != 0:
		return dropMalformed, true
	case c.ReadLen != 0 || c.WriteLen < uint64(w.hdrLen):
		return dropBadBuffer, true
	case c.WriteLen < uint64(w.hdrLen+ethHeader) && !w.features.Has(virtio.FeatureMrgRxBuf):
		// It would stay where it is, and no frame would pass it.
		return dropBadBuffer, true
	}
	return 0, false
}

// fill pops more chains, if there are any. It reports whether the unused ones have
// moved in the batch. They have been popped again then, and what the driver has changed
// meanwhile they are not what they were.
func (w *worker) fill() (moved bool) {
	r, s := &w.rx, &w.rxs
	cached := len(s.batch.Chains) - s.head
	if moved = cached == 0 && s.head > 0; moved {
		s.batch.Reset()
		s.head = 0
	}
	n, err := r.q.Pop(s.batch, popAhead)
	if err == nil && n == 0 && s.head > 0 && r.q.AvailCount() > 0 {
		// The batch is full of used chains: pop the unused ones again.
		r.q.Unpop(cached)
		s.batch.Reset()
		s.head, moved = 0, true
		_, err = r.q.Pop(s.batch, cached+popAhead)
	}
	if err != nil {
		w.broke(r, err)
	}
	return moved
}

// deliverFrame hands the frame of n bytes that lies in s.iov to the driver. It
// returns how many ring slots it took and its size without the header; 0 slots
// if it was dropped, or is held for want of buffers.
func (w *worker) deliverFrame(n int) (slots, size int) {
	s := &w.rxs
	if n < w.hdrLen+ethHeader {
		if n > 0 {
			w.rx.c.drop(dropRunt, 1)
		}
		return 0, 0
	}
	if n > s.heldIn && !w.spread(n) {
		return 0, 0
	}
	first := s.iov[0]
	if len(first) < w.hdrLen+18 {
		first = gather(s.peek[:0], s.iov, w.hdrLen+18)
	}
	frame := first[w.hdrLen:min(len(first), n)]
	if w.filter != nil && !w.filter.Match(frame) {
		w.rx.c.drop(dropFilter, 1)
		return 0, 0
	}
	if w.steer != nil && !w.classify(n) {
		return 0, 0
	}
	used := 0
	for left, i := n, s.head; left > 0; i++ {
		left -= int(min(s.batch.Chains[i].WriteLen, uint64(left)))
		used++
	}
	if !w.header(n, used) {
		if s.refused++; s.refused >= maxRefused {
			s.refused = 0
			w.giveBack(used)
		}
		return 0, 0
	}
	s.refused = 0
	for left := n; left > 0; s.head++ {
		c := &s.batch.Chains[s.head]
		l := int(min(c.WriteLen, uint64(left)))
		w.rx.q.Complete(c, uint32(l))
		slots += int(c.Count)
		left -= l
	}
	w.adapt(n)
	return slots, n - w.hdrLen
}

// adapt follows the size of the frames: what is offered grows at once and
// shrinks after a run of smaller frames, since a long list of buffers makes
// every read of a small frame dearer.
func (w *worker) adapt(n int) {
	s := &w.rxs
	switch least := w.hdrLen + 1518; {
	case n > s.room:
		s.room, s.calm = n, 0
	case n > s.room/2 || s.room == least:
		s.calm = 0
	default:
		if s.calm++; s.calm >= calmFrames {
			s.room, s.calm = max(s.room/2, least), 0
		}
	}
}

// spread copies the spilled part of a frame into further buffers. It returns
// false if there are not enough; the frame is then held, or dropped if it
// cannot ever fit or has been held for too long.
func (w *worker) spread(n int) bool {
	r, s := &w.rx, &w.rxs
	room := w.offer(n)
	for room < n && s.blocked >= 0 && n <= len(s.spill) {
		w.pass(n)
		room = w.offer(n)
	}
	if room < n {
		now := nanotime()
		switch {
		case !w.features.Has(virtio.FeatureMrgRxBuf):
			r.c.drop(dropSmallBuffer, 1)
		case len(s.batch.Chains)-s.head >= r.q.Size(), r.q.AvailCount() > 0, s.held != 0 && now >= s.holdUntil:
			r.c.drop(dropNoBuffer, 1)
		default:
			if s.held == 0 {
				s.held, s.holdUntil = n, now+maxHold
			}
			s.starved = true
			return false
		}
		s.held, s.holdUntil = 0, 0
		return false
	}
	s.held, s.holdUntil = 0, 0
	scatter(s.iov, s.heldIn, s.spill[:n-s.heldIn])
	if w.dirty != nil {
		w.dirtied(s.iov, n) // the filter may still drop it
	}
	return true
}

// pass gives back, empty, the unusable chain at which the last offer ended and
// those in front of it, which are too few. The frame of n bytes moves out of them.
func (w *worker) pass(n int) {
	s := &w.rxs
	copy(s.spill[s.heldIn:], s.spill[:n-s.heldIn])
	gather(s.spill[:0], s.iov, s.heldIn)
	s.heldIn = 0
	w.giveBack(s.blocked + 1 - s.head)
}

// giveBack gives the first n chains back empty.
func (w *worker) giveBack(n int) {
	s := &w.rxs
	for range n {
		c := &s.batch.Chains[s.head]
		if reason, bad := w.unusable(c); bad {
			w.rx.c.drop(reason, 1)
		}
		w.rx.q.Complete(c, 0)
		s.head++
	}
}

// header completes the virtio-net header of a frame of n bytes in the driver's memory: flags only as
// negotiated, num_buffers always (virtio 1.4, "Processing of Incoming Packets").
func (w *worker) header(n, used int) bool {
	s := &w.rxs
	first := s.iov[0]
	split := len(first) < w.hdrLen
	if split {
		first = gather(s.peek[:0], s.iov, w.hdrLen)
	}
	if first[0] != 0 || first[1] != 0 {
		var h virtio.NetHeader
		h.Decode(first[:w.hdrLen])
		if f := h.CheckRX(w.guest); f != 0 {
			w.rx.c.drop(dropHeader, 1)
			w.rx.c.headerFaults[f].add(1)
			return false
		}
		h.Encode(first[:w.hdrLen])
		w.rx.c.offloads.add(h.Flags, h.GSOType, n-w.hdrLen)
	}
	if w.hdrLen >= virtio.NetHeaderLen {
		binary.LittleEndian.PutUint16(first[10:], uint16(used))
	}
	if w.hdrLen > virtio.NetHeaderLen {
		virtio.PutHash(first, s.hash, s.report)
	}
	if split {
		scatter(s.iov, 0, first[:w.hdrLen])
	}
	return true
}

// gather copies the first n bytes of a list into dst.
func gather(dst []byte, list [][]byte, n int) []byte {
	for _, b := range list {
		dst = append(dst, b[:min(len(b), n-len(dst))]...)
		if len(dst) == n {
			break
		}
	}
	return dst
}

// scatter copies src into a list of buffers from byte off on.
func scatter(list [][]byte, off int, src []byte) {
	for _, b := range list {
		if off >= len(b) {
			off -= len(b)
			continue
		}
		n := copy(b[off:], src)
		src, off = src[n:], 0
		if len(src) == 0 {
			return
		}
	}
}
