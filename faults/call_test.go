package faults

import (
	"errors"
	"fmt"
	"sync/atomic"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/internal/scripted"
	"github.com/vhostnet/vhostnet/virtio"
)

// consumer receives as a driver does that sleeps until it is called. The call
// descriptor may be replaced while it sleeps, as that of an interrupt is.
type consumer struct {
	g  *scripted.Guest
	ep int
	// dry makes it post no more buffers.
	dry      atomic.Bool
	received atomic.Uint64
	done     chan error
}

// watch adds a call descriptor to those that wake the consumer.
func (c *consumer) watch(fd int) error {
	return unix.EpollCtl(c.ep, unix.EPOLL_CTL_ADD, fd, &unix.EpollEvent{Events: unix.EPOLLIN, Fd: int32(fd)})
}

// run ends when there are no buffers left, or with an error if it sleeps while
// frames wait for it.
func (c *consumer) run() error {
	r := c.g.Ring(0)
	var last uint64
	for {
		for {
			if r.Outstanding() == 0 {
				return nil
			}
			if r.UsedIdx() == r.Seen {
				// Announce the next one, and look again: it may have come meanwhile.
				r.SetUsedEvent(r.Seen)
				if r.UsedIdx() == r.Seen {
					break
				}
			}
			_, f, err := c.g.TryReceive(0)
			if err != nil {
				return err
			}
			if seq := scripted.Seq(f); c.received.Add(1) > 1 && seq <= last {
				return fmt.Errorf("frame %d after frame %d", seq, last)
			} else {
				last = seq
			}
			if c.dry.Load() {
				continue
			}
			if err := c.g.PostQuietly(0, 1); err != nil {
				return err
			}
			if err := r.Notify(); err != nil {
				return err
			}
		}
		events := make([]unix.EpollEvent, 4)
		n, err := unix.EpollWait(c.ep, events, 5000)
		switch {
		case errors.Is(err, unix.EINTR):
		case err != nil:
			return err
		case n == 0 && r.UsedIdx() != r.Seen:
			return fmt.Errorf("asleep with frames used: %d, seen %d", r.UsedIdx(), r.Seen)
		}
		for _, e := range events[:max(n, 0)] {
			if _, err := scripted.Drain(int(e.Fd)); err != nil {
				return err
			}
		}
	}
}

// P14: the call descriptor is replaced while notifications are on their way. None
// is lost, and none goes to a descriptor that has got the old one's number.
func TestP14CallReplaced(t *testing.T) {
	c := scripted.Serve(t, "source:60")
	g := c.Dial(t)
	g.Hello(virtio.FeatureEventIdx)
	g.Start(0, 1)
	ep, err := unix.EpollCreate1(unix.EPOLL_CLOEXEC)
	g.Must(err)
	defer func() { _ = unix.Close(ep) }()
	con := &consumer{g: g, ep: ep, done: make(chan error, 1)}
	g.Must(con.watch(g.Ring(0).Call))
	g.Post(0, 256)
	before := c.FDs()
	go func() { con.done <- con.run() }()

	var pipe [2]int
	g.Must(unix.Pipe2(pipe[:], unix.O_CLOEXEC|unix.O_NONBLOCK))
	defer func() { _, _ = unix.Close(pipe[0]), unix.Close(pipe[1]) }()
	var fds []int
	defer func() {
		for _, fd := range fds {
			_ = unix.Close(fd)
		}
	}()
	for i := range 2000 {
		fd, err := unix.Eventfd(0, unix.EFD_CLOEXEC|unix.EFD_NONBLOCK)
		g.Must(err)
		g.Must(con.watch(fd))
		g.Must(g.SetVringCall(0, fd))
		g.Must(g.SetVringErr(1, pipe[1]))
		// The old ones are watched on: what was signalled before the swap counts.
		fds = append(fds, fd)
		if i%50 == 0 {
			n := con.received.Load()
			scripted.Until(t, "frames go on", func() bool { return con.received.Load() > n+10 || len(con.done) > 0 })
		}
		if n, err := unix.Read(pipe[0], make([]byte, 8)); !errors.Is(err, unix.EAGAIN) {
			t.Fatalf("swap %d: %d bytes in a pipe that took over the number: %v", i, n, err)
		}
	}
	con.dry.Store(true)
	select {
	case err := <-con.done:
		if err != nil {
			t.Error(err)
		}
	case <-time.After(scripted.Hang):
		t.Fatal("the last frames are not announced")
	}
	if after := c.FDs(); after != before+1 { // the pipe
		t.Errorf("%d descriptors, had %d", after, before)
	}
	c.Alive(g)
}
