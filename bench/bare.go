package main

import (
	"context"
	"errors"
	"fmt"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/bench/peer"
	"github.com/vhostnet/vhostnet/tap"
	"github.com/vhostnet/vhostnet/virtio"
)

// bareArgs are the command line of a program that does with a TAP what a device's
// host side does, without a device: a system call for each frame. It is what a TAP
// can do if nothing else is to be done.
type bareArgs struct {
	Tap  string `required:"" help:"Name of the TAP, which is made."`
	Mode string `enum:"sink,echo" required:""`
	Size int    `required:""`
}

// Run measures whenever it is told to.
func (a *bareArgs) Run(s *streams) (err error) {
	p, err := tap.Open(a.Tap, tap.Options{CreateIfMissing: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, p.Close()) }()
	b, err := newBare(p.Queue(0).FD(), a.Mode, a.Size)
	if err != nil {
		return err
	}
	return serveOrders(s.ctx, s.in, s.out, b.measure)
}

// bare is the loop. Its calls do not go through Go's scheduler: it is as fast as it
// would be in C.
type bare struct {
	fd   int
	echo bool
	// frame has a virtio-net header that asks for nothing in front.
	frame, room []byte
}

func newBare(fd int, mode string, size int) (*bare, error) {
	f, err := frame(size)
	if err != nil {
		return nil, err
	}
	return &bare{
		fd: fd, echo: mode == "echo",
		frame: append(make([]byte, virtio.NetHeaderLen), f...), room: make([]byte, virtio.NetHeaderLen+len(f)+1),
	}, nil
}

func (b *bare) measure(ctx context.Context, o peer.Order) (w peer.Window, err error) {
	if _, _, err := b.run(ctx, o.WarmUp); err != nil {
		return w, err
	}
	cpu0, err := peer.CPUTime(o.BackEnd)
	if err != nil {
		return w, err
	}
	frames, took, err := b.run(ctx, o.Length)
	if err != nil {
		return w, err
	}
	cpu1, err := peer.CPUTime(o.BackEnd)
	return peer.Window{Packets: float64(frames), Seconds: took.Seconds(), CPUSeconds: (cpu1 - cpu0).Seconds()}, err
}

// run sends frames for a while, and fetches each one that comes back in an echo.
func (b *bare) run(ctx context.Context, length time.Duration) (frames int, took time.Duration, err error) {
	start := time.Now()
	for i := 1; ; i++ {
		if err := b.write(); err != nil {
			return 0, 0, err
		}
		got := 1
		if b.echo {
			if got, err = b.read(); err != nil {
				return 0, 0, err
			}
		}
		frames += got
		if i%64 != 0 {
			continue
		}
		if took = time.Since(start); took >= length {
			return frames, took, nil
		}
		if err := ctx.Err(); err != nil {
			return 0, 0, err
		}
	}
}

func (b *bare) write() error {
	if n, errno := rawWrite(b.fd, b.frame); errno != 0 || n != len(b.frame) {
		return fmt.Errorf("writing a frame of %d bytes to the TAP: %d, %w", len(b.frame), n, errno)
	}
	return nil
}

// read returns how many frames there were, 0 or 1.
func (b *bare) read() (int, error) {
	switch n, errno := rawRead(b.fd, b.room); {
	case errno == unix.EAGAIN:
		return 0, nil
	case errno != 0:
		return 0, fmt.Errorf("reading from the TAP: %w", errno)
	case n != len(b.frame):
		return 0, fmt.Errorf("a frame of %d bytes came back, of %d", n, len(b.frame))
	}
	return 1, nil
}

// alone is what measures without a back-end: there is one process.
type alone struct{ peer.FrontEnd }

// Socket returns nothing: nobody connects.
func (alone) Socket() string { return "" }

// Resume does nothing: it does not poll.
func (alone) Resume(context.Context) error { return nil }

// Pause does nothing.
func (alone) Pause(context.Context) error { return nil }

// Close does nothing: the process is the front-end's to end.
func (alone) Close() error { return nil }
