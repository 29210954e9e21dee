package main

import (
	"context"
	"errors"
	"io"
	"net"
	"os"
	"path/filepath"
	"strings"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/mgmt"
)

// These are the cases of fault case L02 that need a process of its own.

// listening is the session package's message once clients can connect.
const listening = "waiting for a front-end"

// A back-end that was killed leaves its socket file; the next one replaces it.
func TestKilledAndRestartedOnTheSamePath(t *testing.T) {
	path := socket(t)
	for range 3 {
		p := spawn(t, "--socket-path="+path, "--port=null")
		p.await(listening, 1)
		answers(t, dial(t, path))
		if err := p.cmd.Process.Kill(); err != nil {
			t.Fatal(err)
		}
		p.code()
		if _, err := os.Lstat(path); err != nil {
			t.Fatal("the case is about a file that is left:", err)
		}
	}
	p := spawn(t, "--socket-path="+path, "--port=echo")
	p.await(listening, 1)
	answers(t, dial(t, path))
	p.end(syscall.SIGTERM, path)
}

// A socket file on which nobody answers is replaced, whoever made it.
func TestStaleSocketFile(t *testing.T) {
	path := socket(t)
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	l.SetUnlinkOnClose(false)
	if err := l.Close(); err != nil {
		t.Fatal(err)
	}
	p := spawn(t, "--socket-path="+path)
	p.await(listening, 1)
	answers(t, dial(t, path))
	p.end(syscall.SIGINT, path)
}

// A second back-end leaves the first one's socket alone.
func TestSecondBackendOnALivePath(t *testing.T) {
	path := socket(t)
	p := spawn(t, "serve", "--socket-path", path, "--port", "null")
	p.await(listening, 1)
	code, text := failure(t, nil, "serve", "--socket-path", path, "--port", "null")
	if code != exitFailed || !strings.Contains(text, path) || !strings.Contains(text, "another") {
		t.Errorf("exit code %d: %s", code, text)
	}
	// Asking whether somebody is there was a connection, too.
	reconnect(t, path)
	p.end(syscall.SIGTERM, path)
}

// While a front-end is served, the second one is turned away and does no harm.
func TestSecondClient(t *testing.T) {
	path := socket(t)
	p := spawn(t, "--socket-path", path)
	p.await(listening, 1)
	first := dial(t, path)
	answers(t, first)
	second := dial(t, path)
	if n, err := second.Read(make([]byte, 1)); err == nil || errors.Is(err, os.ErrDeadlineExceeded) {
		t.Fatalf("the second client got %d bytes, %v", n, err)
	}
	answers(t, first)
	p.end(syscall.SIGTERM, path)
}

// At each of these points SIGTERM ends the process with exit code 0, within the
// time that run enforces, and nothing is left behind.
func TestSIGTERM(t *testing.T) {
	for name, reach := range map[string]func(t *testing.T, p *process, path, api string){
		"starting": func(_ *testing.T, p *process, _, _ string) { p.await("starting", 1) },
		"listening": func(_ *testing.T, p *process, _, _ string) {
			p.await(listening, 1)
		},
		"front-end silent": func(t *testing.T, p *process, path, _ string) {
			p.await(listening, 1)
			dial(t, path)
		},
		"front-end negotiating": func(t *testing.T, p *process, path, _ string) {
			p.await(listening, 1)
			answers(t, dial(t, path))
		},
		"front-end within a header": func(t *testing.T, p *process, path, _ string) {
			p.await(listening, 1)
			c := dial(t, path)
			answers(t, c)
			write(t, c, "\x01\x00\x00\x00\x01")
		},
		"front-end within a payload": func(t *testing.T, p *process, path, _ string) {
			p.await(listening, 1)
			c := dial(t, path)
			answers(t, c)
			write(t, c, "\x02\x00\x00\x00\x01\x00\x00\x00\x08\x00\x00\x00\x01")
		},
		"front-end does not read": func(t *testing.T, p *process, path, _ string) {
			p.await(listening, 1)
			flood(t, dial(t, path))
		},
		"second client": func(t *testing.T, p *process, path, _ string) {
			p.await(listening, 1)
			answers(t, dial(t, path))
			dial(t, path)
		},
		"API connection idle": func(t *testing.T, p *process, _, api string) {
			p.await(listening, 1)
			dial(t, api)
		},
		"API request incomplete": func(t *testing.T, p *process, _, api string) {
			p.await(listening, 1)
			write(t, dial(t, api), "GET /v1/devices HTTP/1.1\r\nHost")
		},
	} {
		t.Run(name, func(t *testing.T) {
			path := socket(t)
			api := filepath.Join(filepath.Dir(path), "api")
			p := spawn(t, "--socket-path", path, "--port=source:64", "--queue-pairs=4", "--api=unix:"+api)
			reach(t, p, path, api)
			p.end(syscall.SIGTERM, path, api)
		})
	}
}

func write(t *testing.T, c net.Conn, s string) {
	t.Helper()
	if _, err := io.WriteString(c, s); err != nil {
		t.Fatal(err)
	}
}

// flood asks until the back-end is stuck in writing answers that nobody reads.
func flood(t *testing.T, c *net.UnixConn) {
	t.Helper()
	const getFeatures = "\x01\x00\x00\x00\x01\x00\x00\x00\x00\x00\x00\x00"
	raw, err := c.SyscallConn()
	if err != nil {
		t.Fatal(err)
	}
	batch := []byte(strings.Repeat(getFeatures, 64))
	for {
		var werr error
		err := raw.Write(func(fd uintptr) bool {
			_, werr = unix.Write(int(fd), batch)
			return true // full is what this is after
		})
		if err != nil {
			t.Fatal(err)
		}
		if errors.Is(werr, unix.EAGAIN) && full(t, raw) {
			return
		}
		if werr != nil && !errors.Is(werr, unix.EAGAIN) {
			t.Fatal(werr)
		}
	}
}

// full tells whether answers wait to be read and questions to be taken: both
// directions are stuck when a poll says that nothing can be written.
func full(t *testing.T, raw syscall.RawConn) bool {
	t.Helper()
	var n int
	var perr error
	err := raw.Control(func(fd uintptr) {
		n, perr = unix.Poll([]unix.PollFd{{Fd: int32(fd), Events: unix.POLLOUT}}, 200)
	})
	if err != nil {
		t.Fatal(err)
	}
	return perr == nil && n == 0
}

// In client mode there may be nobody, somebody who never accepts, somebody who
// hangs up at once; SIGTERM ends the process in each case.
func TestClientMode(t *testing.T) {
	listen := func(t *testing.T, path string) *net.UnixListener {
		t.Helper()
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = l.Close() })
		return l
	}
	accept := func(t *testing.T, l *net.UnixListener) *net.UnixConn {
		t.Helper()
		if err := l.SetDeadline(time.Now().Add(hangs)); err != nil {
			t.Fatal(err)
		}
		c, err := l.AcceptUnix()
		if err != nil {
			t.Fatal(err)
		}
		t.Cleanup(func() { _ = c.Close() })
		return c
	}
	t.Run("no server", func(t *testing.T) {
		path := socket(t)
		p := spawn(t, "--client", "--socket-path", path)
		p.await("starting", 1)
		p.end(syscall.SIGTERM, path)
	})
	t.Run("server comes later", func(t *testing.T) {
		path := socket(t)
		p := spawn(t, "--client", "--socket-path", path)
		p.await("starting", 1)
		answers(t, accept(t, listen(t, path)))
		p.end(syscall.SIGTERM)
	})
	t.Run("server never accepts", func(t *testing.T) {
		path := socket(t)
		fd, err := unix.Socket(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = unix.Close(fd) }()
		if err := errors.Join(unix.Bind(fd, &unix.SockaddrUnix{Name: path}), unix.Listen(fd, 0)); err != nil {
			t.Fatal(err)
		}
		dial(t, path) // takes the only place in the backlog
		p := spawn(t, "--client", "--socket-path", path)
		p.await("starting", 1)
		p.end(syscall.SIGTERM)
		if _, err := os.Lstat(path); err != nil {
			t.Error("the socket is the server's:", err)
		}
	})
	t.Run("server hangs up and comes back", func(t *testing.T) {
		path := socket(t)
		l := listen(t, path)
		p := spawn(t, "--client", "--socket-path", path)
		for range 3 {
			c := accept(t, l)
			answers(t, c)
			if err := c.Close(); err != nil {
				t.Fatal(err)
			}
		}
		answers(t, accept(t, l))
		p.end(syscall.SIGTERM)
	})
}

// After each hang-up the next front-end is served, and nothing of the last one
// is left: descriptors are back to what they were.
func TestManyConnections(t *testing.T) {
	path := socket(t)
	p := spawn(t, "--socket-path", path, "--port=echo", "--queue-pairs=2")
	p.await(listening, 1)
	_ = reconnect(t, path).Close()
	base := 0
	for i := range 200 {
		// The answer comes from a session: the one before is gone by then.
		c := reconnect(t, path)
		if n := p.fds(); i == 0 {
			base = n
		} else if n != base {
			t.Fatalf("%d descriptors in connection %d, %d in the first", n, i, base)
		}
		if i%2 == 0 { // in the middle of a message
			write(t, c, "\x05\x00\x00\x00")
		}
		if err := c.Close(); err != nil {
			t.Fatal(err)
		}
	}
	p.end(syscall.SIGTERM, path)
}

// reconnect dials until it is served: as long as the back-end has not seen the
// last hang-up, it turns a client away.
func reconnect(t *testing.T, path string) *net.UnixConn {
	t.Helper()
	ctx, cancel := context.WithTimeout(t.Context(), hangs)
	defer cancel()
	for ctx.Err() == nil {
		c := dial(t, path)
		if f, err := tryAnswer(c); err == nil && f != 0 {
			return c
		}
		_ = c.Close()
	}
	t.Fatal("not served again")
	return nil
}

// The conventions' --fd: a connected socket, which ends the process when it
// closes, and a listening one.
func TestFD(t *testing.T) {
	t.Run("connected", func(t *testing.T) {
		ours, theirs := pair(t)
		p := launch(t, prepare(t, []*os.File{theirs}, "--fd=3", "--port=null"))
		_ = theirs.Close()
		answers(t, ours)
		if err := ours.Close(); err != nil {
			t.Fatal(err)
		}
		if code := p.code(); code != exitOK {
			t.Errorf("exit code %d after the connection's end", code)
		}
	})
	t.Run("connected, SIGTERM", func(t *testing.T) {
		ours, theirs := pair(t)
		p := launch(t, prepare(t, []*os.File{theirs}, "--fd", "3"))
		_ = theirs.Close()
		answers(t, ours)
		p.end(syscall.SIGTERM)
	})
	t.Run("listening", func(t *testing.T) {
		path := socket(t)
		l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
		if err != nil {
			t.Fatal(err)
		}
		l.SetUnlinkOnClose(false)
		f, err := l.File()
		if err != nil {
			t.Fatal(err)
		}
		_ = l.Close()
		p := launch(t, prepare(t, []*os.File{f}, "--fd=3"))
		_ = f.Close()
		for range 3 {
			_ = reconnect(t, path).Close()
		}
		p.end(syscall.SIGTERM)
		if _, err := os.Lstat(path); err != nil {
			t.Error("the socket file is the parent's:", err)
		}
	})
	t.Run("not open", func(t *testing.T) {
		code, text := failure(t, nil, "--fd=99")
		if code != exitFailed || !strings.Contains(text, "99") {
			t.Errorf("exit code %d: %s", code, text)
		}
	})
	t.Run("not a socket", func(t *testing.T) {
		f, err := os.Open(os.DevNull)
		if err != nil {
			t.Fatal(err)
		}
		defer func() { _ = f.Close() }()
		code, text := failure(t, []*os.File{f}, "--fd=3")
		if code != exitFailed || !strings.Contains(text, "Unix stream socket") {
			t.Errorf("exit code %d: %s", code, text)
		}
	})
}

// Whoever reads the log may go away.
func TestLogReaderGone(t *testing.T) {
	r, w, err := os.Pipe()
	if err != nil {
		t.Fatal(err)
	}
	_ = r.Close()
	defer func() { _ = w.Close() }()
	ours, theirs := pair(t)
	cmd := prepare(t, []*os.File{theirs}, "--fd=3", "--log-level=trace")
	cmd.Stderr = w
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	_ = theirs.Close()
	answers(t, ours)
	if err := cmd.Process.Signal(syscall.SIGTERM); err != nil {
		t.Fatal(err)
	}
	if err := cmd.Wait(); err != nil {
		t.Error(err)
	}
}

// pair makes a connected pair of sockets: one for us, one to hand down.
func pair(t *testing.T) (*net.UnixConn, *os.File) {
	t.Helper()
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		t.Fatal(err)
	}
	theirs := os.NewFile(uintptr(fds[1]), "theirs")
	t.Cleanup(func() { _ = theirs.Close() })
	f := os.NewFile(uintptr(fds[0]), "ours")
	defer func() { _ = f.Close() }()
	c, err := net.FileConn(f)
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(hangs)); err != nil {
		t.Fatal(err)
	}
	return c.(*net.UnixConn), theirs
}

// What the status API says of a device follows the connection.
func TestStatusAPI(t *testing.T) {
	path := socket(t)
	dir := filepath.Dir(path)
	one, two := "unix:"+filepath.Join(dir, "one"), "unix:"+filepath.Join(dir, "two")
	p := spawn(t, "--socket-path", path, "--port=source:128", "--name=vm7", "--queue-pairs=2", "--rx-coalesce=64/32",
		"--features=-csum", "--api", one, "--api", two)
	p.await(listening, 1)
	for _, a := range []string{one, two} {
		c, err := mgmt.Dial(t.Context(), a)
		if err != nil {
			t.Fatal(err)
		}
		d, err := c.Device(t.Context(), "vm7")
		if err != nil {
			t.Fatal(err)
		}
		if d.PortKind != "source" || d.QueuePairs != 2 || len(d.Queues) != 5 || d.FrontEnd.Connected ||
			d.Queues[0].Coalesce.Host.Usecs != 64 || d.Queues[0].Coalesce.Host.Packets != 32 {
			t.Errorf("%+v", d)
		}
		for _, f := range d.OfferedFeatures {
			if f == "VIRTIO_NET_F_CSUM" {
				t.Error("offers what --features took out:", d.OfferedFeatures)
			}
		}
		c.Close()
	}
	answers(t, dial(t, path))
	c, err := mgmt.Dial(t.Context(), one)
	if err != nil {
		t.Fatal(err)
	}
	defer c.Close()
	d, err := c.Device(t.Context(), "vm7")
	if err != nil {
		t.Fatal(err)
	}
	if !d.FrontEnd.Connected || d.FrontEnd.Connections != 1 {
		t.Errorf("front-end %+v", d.FrontEnd)
	}
	p.end(syscall.SIGTERM, path, filepath.Join(dir, "one"), filepath.Join(dir, "two"))
}
