package netdev

import (
	"encoding/binary"

	"github.com/vhostnet/vhostnet/internal/prefetch"
	"github.com/vhostnet/vhostnet/port"
	"github.com/vhostnet/vhostnet/virtio"
)

// plainScratch is what a short way for plain frames needs: those that lie in one
// buffer of the driver's and whose header asks for nothing. There, a burst costs a
// call of the ring and one of the port, instead of some for each frame. Whatever
// is not plain is left to the long way.
type plainScratch struct {
	port  port.BurstQueue // nil if the port has no such way
	reads bool            // the port reads what is sent
	ids   [2 * burst]uint16
	bufs  [2 * burst][]byte
	lens  [burst]uint32
	// rx and tx tell whether it pays to look.
	rx, tx plainLuck
}

func (p *plainScratch) forget() { clear(p.bufs[:]) }

// plainLuck keeps the short way from being tried all the time by traffic that is
// not plain.
type plainLuck struct{ skip, missed int }

// maxMissed bounds how many bursts go the long way before the short one is tried
// again.
const maxMissed = 64

// try tells whether to try the short way.
func (l *plainLuck) try() bool {
	if l.skip > 0 {
		l.skip--
		return false
	}
	return true
}

// found notes whether there was anything plain where there was something.
func (l *plainLuck) found(any bool) {
	if any {
		l.missed = 0
		return
	}
	l.missed = min(2*l.missed+1, maxMissed)
	l.skip = l.missed
}

// transmitPlain is transmit for the plain frames at the head of the ring. It
// returns false if there are none, or if the port takes none: transmit finds out
// why.
func (w *worker) transmitPlain() bool {
	r, p := &w.tx, &w.plain
	if p.port == nil || !r.enabled || !p.tx.try() {
		return false
	}
	k := r.q.PopPlain(p.ids[:burst], p.bufs[:burst], false)
	if k == 0 {
		if r.q.AvailCount() > 0 {
			p.tx.found(false)
		}
		return false
	}
	r.disableKicks()
	hdr, bytes, n := w.hdrLen, 0, 0
	frames := p.bufs[:k]
	if p.reads {
		prefetch.Read(frames) // headers are read now in any case
	}
	for ; n < len(frames); n++ {
		b := frames[n]
		// The driver may change its header at any time, so what is read here must
		// not be read again: the port gets the frame without it.
		if len(b) < hdr+ethHeader || len(b) > hdr+maxFrame || binary.LittleEndian.Uint16(b) != plainHeader {
			break
		}
		frames[n] = b[hdr:]
		bytes += len(b) - hdr
	}
	sent := 0
	if n > 0 {
		sent = p.port.SendBurst(frames[:n])
	}
	for _, f := range frames[sent:n] {
		bytes -= len(f)
	}
	r.q.CompletePlain(p.ids[:sent], nil)
	r.q.Unpop(k - sent)
	if p.tx.found(n > 0); sent == 0 {
		return false
	}
	w.sent(sent, uint64(sent), uint64(bytes), sent, sent == k && k < burst)
	return true
}

// plainHeader is flags and gso_type of a header whose other fields mean nothing
// on transmission.
const plainHeader = 0

// plainHeaders writes the headers of received frames: all zero but num_buffers, if
// there is that. Stores to memory that the driver has touched last are what
// receiving costs, so there are as few as can be.
func plainHeaders(frames [][]byte, hdr int) {
	if hdr < virtio.NetHeaderLen {
		for _, b := range frames {
			*(*[virtio.NetHeaderLenLegacy]byte)(b) = [virtio.NetHeaderLenLegacy]byte{}
		}
		return
	}
	for _, b := range frames {
		if len(b) < virtio.NetHeaderLen {
			continue // RecvBurst does not
		}
		binary.LittleEndian.PutUint64(b, 0)
		binary.LittleEndian.PutUint32(b[8:], 1<<16) // num_buffers
	}
}

// receivePlain is receive for the plain frames at the head of the port's queue. It
// returns how many there were and their bytes without headers; none may mean that
// receive has to look.
func (w *worker) receivePlain() (got int, bytes uint64) {
	r, s, p := &w.rx, &w.rxs, &w.plain
	if p.port == nil || w.filter != nil || w.steer != nil || w.hdrLen > virtio.NetHeaderLen || s.held != 0 || !w.portReady || !p.rx.try() {
		return 0, 0
	}
	if n := len(s.batch.Chains) - s.head; n > 0 {
		r.q.Unpop(n)
	}
	s.batch.Reset()
	s.head = 0
	k := r.q.PopPlain(p.ids[:], p.bufs[:], true)
	if k == 0 {
		if r.q.AvailCount() > 0 {
			p.rx.found(false)
		}
		return 0, 0
	}
	hdr := w.hdrLen
	all := p.bufs[:k]
	bufs, lens := all[:min(k, burst)], p.lens[:min(k, burst)]
	got, more := p.port.RecvBurst(bufs, hdr, lens)
	for _, n := range lens[:got] {
		bytes += uint64(n)
	}
	bytes -= uint64(got) * uint64(hdr)
	plainHeaders(bufs[:got], hdr)
	if w.dirty != nil {
		for i, n := range lens[:got] {
			r.q.Dirty(bufs[i][:n])
		}
	}
	// Buffers of the next burst are on their way while this one is published, and
	// others are sent.
	prefetch.Write(all[got:min(k, got+burst)])
	r.q.CompletePlain(p.ids[:got], lens[:got])
	r.q.Unpop(k - got)
	if !more {
		w.portReady = false
	}
	p.rx.found(got > 0 || !more)
	return got, bytes
}
