package netdev

import (
	"errors"

	"github.com/vhostnet/vhostnet/guestmem"
	"github.com/vhostnet/vhostnet/port"
	"github.com/vhostnet/vhostnet/vring"
)

// While a guest migrates, every write to its memory is noted in the front-end's
// dirty log: behind the write, and before the driver is told of it. What the ring
// itself writes, the ring notes. Buffers are noted where they are written: by what
// stands in for the port and for the queue while there is a log, so that without one
// no frame has to ask.

// SetLog implements [vhostuser.Backend].
func (d *Device) SetLog(l *guestmem.Log) {
	d.mu.Lock()
	old := d.dirty
	d.dirty = l.Retain()
	for _, w := range d.pairs {
		_ = w.post(func() { w.setLog(l) })
	}
	d.mu.Unlock()
	_ = d.control.post(func() { d.control.setLog(l) })
	old.Release()
}

// logged is how a ring is logged.
type logged struct {
	on   bool   // VHOST_VRING_F_LOG
	addr uint64 // where its device area is then
}

// setLog changes where the ring's writes are noted, and those to its buffers. batch
// is where its chains are.
func (r *ring) setLog(l *guestmem.Log, batch *vring.Batch) {
	if r.q == nil {
		return
	}
	if q, ok := r.q.(*loggedQueue); ok {
		r.q = q.Queue
	}
	r.q.SetLog(vring.Logging{Log: l, Ring: r.logged.on, Addr: r.logged.addr})
	if l != nil && batch != nil {
		r.q = &loggedQueue{r.q, batch}
	}
}

// setLog goes on with another log, nil is none.
func (w *worker) setLog(l *guestmem.Log) {
	w.dirty = l
	if p, ok := w.pq.(*loggedPort); ok {
		w.pq = p.PortQueue
	}
	if l != nil {
		w.pq = &loggedPort{w.pq, w}
	}
	w.rx.setLog(l, w.rxs.batch)
	w.tx.setLog(l, nil) // whose buffers are only read
}

// dirtied notes the first n bytes of a list of buffers.
func (w *worker) dirtied(list [][]byte, n int) {
	for _, b := range list {
		b = b[:min(len(b), n)]
		w.rx.q.Dirty(b)
		if n -= len(b); n == 0 {
			return
		}
	}
}

// loggedQueue notes what was written to chains when they are completed.
type loggedQueue struct {
	vring.Queue
	batch *vring.Batch
}

// Complete implements [vring.Queue].
func (q *loggedQueue) Complete(c *vring.Chain, written uint32) {
	left := uint64(written)
	for _, b := range q.batch.WritableOf(c) {
		if left == 0 {
			break
		}
		b = b[:min(uint64(len(b)), left)]
		left -= uint64(len(b))
		q.Dirty(b)
	}
	q.Queue.Complete(c, written)
}

// loggedPort notes what a port reads into the driver's buffers, whether or not the
// driver gets to see it.
type loggedPort struct {
	port.PortQueue
	w *worker
}

// Recv implements [port.PortQueue].
func (p *loggedPort) Recv(bufs [][]byte) (int, error) {
	n, err := p.PortQueue.Recv(bufs)
	switch {
	case p.w.rx.q == nil:
		// There is no ring, so it went into the worker's own memory.
	case err == nil:
		p.w.dirtied(bufs, n)
	case !errors.Is(err, port.ErrWouldBlock):
		// It may have got anywhere.
		p.w.dirtied(bufs, int(^uint(0)>>1))
	}
	return n, err
}

// setLog goes on with another log, nil is none.
func (k *controller) setLog(l *guestmem.Log) {
	k.dirty = l
	k.ring.setLog(l, k.batch)
}
