package vhostuser

import (
	"bytes"
	"context"
	"errors"
	"io"
	"log/slog"
	"net"
	"os"
	"path/filepath"
	"strings"
	"sync"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

func addr(path string) *net.UnixAddr { return &net.UnixAddr{Name: path, Net: "unix"} }

func TestListen(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	l, err := Listen(path)
	if err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(path); !errors.Is(err, ErrInUse) {
		t.Error("somebody is there:", err)
	}
	l.SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if l, err = Listen(path); err != nil {
		t.Fatal("the file is left over:", err)
	}
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Error("the file is still there:", err)
	}
	if err := os.WriteFile(path, []byte("precious"), 0o600); err != nil {
		t.Fatal(err)
	}
	if _, err := Listen(path); err == nil || errors.Is(err, ErrInUse) {
		t.Error("a regular file:", err)
	}
	if b, err := os.ReadFile(path); err != nil || string(b) != "precious" {
		t.Error("a regular file was touched:", err)
	}
}

// server runs a fake on a socket.
type server struct {
	t      *testing.T
	path   string
	b      *fake
	c      Counters
	cancel context.CancelFunc
	done   chan error
	mu     sync.Mutex
	log    bytes.Buffer // guarded by mu
}

func (s *server) Write(b []byte) (int, error) {
	s.mu.Lock()
	defer s.mu.Unlock()
	return s.log.Write(b)
}

func (s *server) logged(text string) int {
	s.mu.Lock()
	defer s.mu.Unlock()
	return strings.Count(s.log.String(), text)
}

func run(t *testing.T, e Endpoint) *server {
	t.Helper()
	ctx, cancel := context.WithCancel(t.Context())
	s := &server{t: t, path: e.Path, b: newFake(), cancel: cancel, done: make(chan error, 1)}
	go func() {
		s.done <- Run(ctx, e, s.b, Options{Counters: &s.c, Log: slog.New(slog.NewTextHandler(s, nil))})
	}()
	t.Cleanup(s.stop)
	return s
}

func (s *server) stop() {
	s.t.Helper()
	s.cancel()
	select {
	case err := <-s.done:
		s.done <- err
		if err != nil {
			s.t.Error(err)
		}
	case <-time.After(hangs):
		s.t.Fatal("it does not end")
	}
	if len(s.b.bad) > 0 {
		s.t.Errorf("%q", s.b.bad)
	}
}

func until(t *testing.T, what string, cond func() bool) {
	t.Helper()
	for deadline := time.Now().Add(hangs); !cond(); time.Sleep(time.Millisecond) {
		if time.Now().After(deadline) {
			t.Fatal("never: ", what)
		}
	}
}

// dial connects; a server that is not there yet is waited for.
func (s *server) dial() *Frontend {
	s.t.Helper()
	var c *net.UnixConn
	until(s.t, "it listens", func() (ok bool) {
		var err error
		c, err = net.DialUnix("unix", nil, addr(s.path))
		return err == nil
	})
	s.t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(hangs)); err != nil {
		s.t.Fatal(err)
	}
	return NewFrontend(c)
}

// served connects until it is served: the session before may be about to end.
func (s *server) served() *Frontend {
	s.t.Helper()
	var f *Frontend
	until(s.t, "it is served", func() bool {
		f = s.dial()
		_, err := f.GetFeatures()
		if err != nil {
			_ = f.Close()
		}
		return err == nil
	})
	return f
}

func TestRunServer(t *testing.T) {
	a, b := pair(t) // what the runtime opens for itself is open then
	_, _ = a.Close(), b.Close()
	path := filepath.Join(t.TempDir(), "s")
	before := openFDs(t)
	s := run(t, Endpoint{Path: path})
	for range 100 {
		f := s.served()
		if err := f.Close(); err != nil {
			t.Fatal(err)
		}
	}
	first := s.served()
	rejected := s.c.Rejected.Load()
	second := s.dial()
	if _, err := second.GetFeatures(); err == nil {
		t.Error("a second front-end is served")
	}
	_ = second.Close()
	if n := s.c.Rejected.Load() - rejected; n != 1 {
		t.Errorf("%d turned away", n)
	}
	if _, err := first.GetFeatures(); err != nil {
		t.Error("the first front-end was disturbed:", err)
	}
	s.stop() // with a front-end connected
	if _, err := first.GetFeatures(); err == nil {
		t.Error("the session outlives the server")
	}
	if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
		t.Error("the file is still there:", err)
	}
	_ = first.Close()
	until(t, "no descriptor is left", func() bool { return openFDs(t) == before })
}

// A front-end that breaks the rules ends its own session only.
func TestRunServerAfterViolation(t *testing.T) {
	s := run(t, Endpoint{Path: filepath.Join(t.TempDir(), "s")})
	for range 20 {
		f := s.served()
		if err := f.SendRaw(Header{1, 0, 0}, nil, nil); err != nil {
			t.Fatal(err)
		}
		if _, _, _, err := f.RecvRaw(time.Now().Add(hangs)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
			t.Fatal("the session goes on:", err)
		}
	}
	s.served()
	if n := s.c.ProtocolErrors.Load(); n != 20 {
		t.Errorf("%d protocol errors", n)
	}
}

func TestRunClient(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	s := run(t, Endpoint{Path: path, Client: true})
	until(t, "it says that nobody is there", func() bool { return s.logged("no front-end yet") > 0 })
	for range 3 {
		l, err := net.ListenUnix("unix", addr(path))
		if err != nil {
			t.Fatal(err)
		}
		for range 2 {
			c, err := l.AcceptUnix()
			if err != nil {
				t.Fatal(err)
			}
			if _, err := NewFrontend(c).GetFeatures(); err != nil {
				t.Error(err)
			}
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
		}
		if err := l.Close(); err != nil {
			t.Fatal(err)
		}
	}
	s.stop()
	if n := s.c.Connections.Load(); n < 6 {
		t.Errorf("%d connections", n)
	}
}

// A client ends while it waits, while nobody accepts, and while it is served.
func TestRunClientEnds(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	run(t, Endpoint{Path: path, Client: true}).stop()
	l, err := net.ListenUnix("unix", addr(path))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	run(t, Endpoint{Path: path, Client: true}).stop()
	s := run(t, Endpoint{Path: path, Client: true})
	until(t, "it has connected", func() bool { return s.c.Connections.Load() == 1 })
	s.stop()
}

func TestRunDescriptor(t *testing.T) {
	near, far := pair(t)
	f, err := far.File()
	if err != nil {
		t.Fatal(err)
	}
	_ = far.Close()
	fd, err := dupFD(f)
	if err != nil {
		t.Fatal(err)
	}
	s := run(t, Endpoint{FD: fd})
	if _, err := NewFrontend(near).GetFeatures(); err != nil {
		t.Error(err)
	}
	_ = near.Close()
	if err := <-s.done; err != nil { // ends with its connection
		t.Error(err)
	}
	s.done <- nil

	path := filepath.Join(t.TempDir(), "s")
	l, err := net.ListenUnix("unix", addr(path))
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	lf, err := l.File()
	if err != nil {
		t.Fatal(err)
	}
	if fd, err = dupFD(lf); err != nil {
		t.Fatal(err)
	}
	s = run(t, Endpoint{FD: fd})
	s.path = path
	for range 3 {
		if err := s.served().Close(); err != nil {
			t.Fatal(err)
		}
	}
	s.stop()

	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _, _ = r.Close(), w.Close() }()
	if fd, err = dupFD(r); err != nil {
		t.Fatal(err)
	}
	if err := Run(t.Context(), Endpoint{FD: fd}, newFake(), Options{}); err == nil || errors.Is(err, io.EOF) {
		t.Error("a pipe is served:", err)
	}
}

// dupFD gives away a copy of a file's descriptor and closes the file.
func dupFD(f *os.File) (int, error) {
	fd, err := unix.FcntlInt(f.Fd(), unix.F_DUPFD_CLOEXEC, 0)
	return fd, errors.Join(err, f.Close())
}
