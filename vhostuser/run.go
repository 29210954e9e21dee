package vhostuser

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/internal/unixsock"
)

// redial is how long a client waits between two attempts to reach a front-end.
const redial = 200 * time.Millisecond

// Endpoint says where front-ends come from.
type Endpoint struct {
	// Path is a Unix socket's path; FD is used if it is empty.
	Path string
	// FD is an open socket, listening or connected.
	FD int
	// Client makes Run dial Path instead of listening on it.
	Client bool
	// Listener, if set, is what Run serves instead, and closes. Path is its name
	// in the log.
	Listener Listener
}

// Listen listens on a Unix socket. A socket file that is left over is replaced,
// one on which somebody answers is not: the error is an [ErrInUse] then. Closing
// the listener removes the file.
func Listen(path string) (*unixsock.Listener, error) {
	l, err := unixsock.Listen(path)
	if err != nil {
		return nil, fmt.Errorf("vhostuser: listen on %s: %w", path, err)
	}
	return l, nil
}

// Run serves front-ends on b, one at a time, until ctx is done; then it returns
// nil. As a server it listens again as soon as a front-end has hung up, and turns
// away others while one is served; as a client it dials until it gets through.
// On a connected descriptor it returns when that connection ends.
func Run(ctx context.Context, e Endpoint, b Backend, opts Options) error {
	opts = opts.withDefaults()
	switch {
	case e.Listener != nil:
		opts.Log.Info("waiting for a front-end", "socket", e.Path)
		return runServer(ctx, e.Listener, b, opts)
	case e.Path != "" && e.Client:
		return runClient(ctx, e.Path, b, opts)
	case e.Path != "":
		l, err := Listen(e.Path)
		if err != nil {
			return err
		}
		opts.Log.Info("waiting for a front-end", "socket", e.Path)
		return runServer(ctx, l, b, opts)
	}
	return runFD(ctx, e.FD, b, opts)
}

// runFD serves a socket that was opened by who started the process.
func runFD(ctx context.Context, fd int, b Backend, opts Options) error {
	listening, err := unix.GetsockoptInt(fd, unix.SOL_SOCKET, unix.SO_ACCEPTCONN)
	if err != nil {
		return fmt.Errorf("vhostuser: descriptor %d: %w", fd, err)
	}
	f := os.NewFile(uintptr(fd), "vhost-user")
	defer func() { _ = f.Close() }()
	if listening != 0 {
		l, err := net.FileListener(f)
		if err != nil {
			return fmt.Errorf("vhostuser: descriptor %d: %w", fd, err)
		}
		u, ok := l.(*net.UnixListener)
		if !ok {
			return errors.Join(fmt.Errorf("vhostuser: descriptor %d is not a Unix socket", fd), l.Close())
		}
		return runServer(ctx, u, b, opts)
	}
	c, err := net.FileConn(f)
	if err != nil {
		return fmt.Errorf("vhostuser: descriptor %d: %w", fd, err)
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		return errors.Join(fmt.Errorf("vhostuser: descriptor %d is not a Unix socket", fd), c.Close())
	}
	return Serve(ctx, u, b, opts)
}

func runClient(ctx context.Context, path string, b Backend, opts Options) error {
	opts.Log.Info("dialling the front-end", "socket", path)
	var d net.Dialer
	failed := ""
	for ctx.Err() == nil {
		c, err := d.DialContext(ctx, "unix", path)
		if err == nil {
			failed = ""
			serveOne(ctx, c.(*net.UnixConn), b, opts)
		} else if text := err.Error(); text != failed && ctx.Err() == nil {
			// The same failure is worth one line, however often it comes.
			failed = text
			opts.Log.Info("no front-end yet; trying on", "error", err)
		}
		select {
		case <-ctx.Done():
		case <-time.After(redial):
		}
	}
	return nil
}

// Listener is a [net.UnixListener], or one that does more when it is closed.
type Listener interface {
	AcceptUnix() (*net.UnixConn, error)
	Close() error
}

func runServer(ctx context.Context, l Listener, b Backend, opts Options) error {
	stop := context.AfterFunc(ctx, func() { _ = l.Close() })
	defer stop()
	defer func() { _ = l.Close() }()
	var current *net.UnixConn
	ended := make(chan struct{}) // closed when the session on current is over
	close(ended)
	defer func() { <-ended }()
	told := false
	for {
		c, err := l.AcceptUnix()
		switch {
		case ctx.Err() != nil:
			if c != nil {
				_ = c.Close()
			}
			return nil
		case err != nil:
			// Out of descriptors, for one, passes.
			opts.Log.Warn("accepting a front-end", "error", err)
			if errors.Is(err, net.ErrClosed) {
				return fmt.Errorf("vhostuser: accept: %w", err)
			}
			select {
			case <-ctx.Done():
			case <-time.After(redial):
			}
			continue
		}
		select {
		case <-ended:
		default:
			if !ending(current) {
				opts.Counters.Rejected.Add(1)
				_ = c.Close()
				if !told {
					// Whoever can dial can do so for ever; one line a session is enough.
					told = true
					opts.Log.Warn("a second front-end was turned away while one is connected")
				}
				continue
			}
			// The one before has gone and its rings are being stopped. A front-end
			// that was started anew may not try twice, so it is kept waiting.
			select {
			case <-ended:
			case <-ctx.Done():
				_ = c.Close()
				return nil
			}
		}
		told = false
		done := make(chan struct{})
		current, ended = c, done
		go func() {
			defer close(done)
			serveOne(ctx, c, b, opts)
		}()
	}
}

// ending tells whether the session on c is about to end: the front-end has hung
// up, or the session has closed c.
func ending(c *net.UnixConn) bool {
	raw, err := c.SyscallConn()
	if err != nil {
		return true
	}
	gone := false
	err = raw.Control(func(fd uintptr) {
		p := []unix.PollFd{{Fd: int32(fd), Events: unix.POLLRDHUP}}
		for {
			n, perr := unix.Poll(p, 0)
			if perr != unix.EINTR {
				gone = perr == nil && n > 0
				return
			}
		}
	})
	return err != nil || gone
}

func serveOne(ctx context.Context, c *net.UnixConn, b Backend, opts Options) {
	opts.Log.Info("front-end connected")
	if err := Serve(ctx, c, b, opts); err != nil {
		opts.Log.Warn("front-end connection ended", "error", err)
		return
	}
	opts.Log.Info("front-end disconnected")
}
