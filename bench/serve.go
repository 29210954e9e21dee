package main

import (
	"context"
	"errors"
	"os/signal"

	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/netdev"
	"github.com/vhostnet/vhostnet/port"
	"github.com/vhostnet/vhostnet/port/builtin"
	"github.com/vhostnet/vhostnet/vhostuser"
)

// serveArgs are the command line of the back-end whose port copies what it drops.
type serveArgs struct {
	Socket string `required:""`
}

// Run serves until SIGTERM.
func (a *serveArgs) Run(s *streams) error {
	ctx, stop := signal.NotifyContext(s.ctx, unix.SIGTERM)
	defer stop()
	return serve(ctx, vhostuser.Endpoint{Path: a.Socket})
}

// serve runs a device with a copying sink.
func serve(ctx context.Context, e vhostuser.Endpoint) error {
	null, err := builtin.Null(1)
	if err != nil {
		return err
	}
	p := newCopySink(null)
	dev, err := netdev.New(netdev.Config{Name: "bench", QueuePairs: 1, Log: quiet()}, p)
	if err != nil {
		return errors.Join(err, p.Close())
	}
	err = vhostuser.Run(ctx, e, dev, vhostuser.Options{Log: quiet()})
	return errors.Join(err, dev.Close(), p.Close())
}

const (
	// copyBuffers are two of DPDK's bursts, one of vhostnet's: a core's cache in front of
	// a pool of mbufs is a stack, so that a burst gets the buffers that the one before
	// it gave back. copyBytes is the size of one.
	copyBuffers = 64
	copyBytes   = 2048
	// copyStride is from one buffer to the next, as in such a pool: 64 bytes of an
	// element, 128 of an mbuf, 128 of headroom. An odd number of cache lines; with a
	// power of two all beginnings share a few sets of the caches.
	copyStride = 64 + 128 + 128 + copyBytes
)

var _ port.BurstQueue = (*copyQueue)(nil)

// copySink is the port null, but for a copy of each frame.
type copySink struct {
	port.Port
	queue copyQueue
}

func newCopySink(null port.Port) *copySink {
	return &copySink{null, copyQueue{BurstQueue: null.Queue(0).(port.BurstQueue), mem: make([]byte, copyBuffers*copyStride)}}
}

func (s *copySink) Queue(int) port.PortQueue { return &s.queue }

// copyQueue copies frames into buffers that it uses one after the other.
type copyQueue struct {
	port.BurstQueue
	mem  []byte
	next int
}

func (q *copyQueue) Send(bufs [][]byte) error {
	to := q.mem[q.next : q.next+copyBytes]
	if q.next += copyStride; q.next == len(q.mem) {
		q.next = 0
	}
	for _, b := range bufs {
		to = to[copy(to, b):]
	}
	return nil
}

func (q *copyQueue) ReadsFrames() bool { return true }

func (q *copyQueue) SendBurst(frames [][]byte) int {
	next := q.next
	for _, f := range frames {
		f = f[:min(len(f), copyBytes)]
		builtin.CopyFrame(q.mem[next:next+copyBytes], f)
		if next += copyStride; next == len(q.mem) {
			next = 0
		}
	}
	q.next = next
	return len(frames)
}
