package faults

import (
	"errors"
	"net"
	"os"
	"path/filepath"
	"sync"
	"syscall"
	"testing"

	"github.com/vhostnet/vhostnet/internal/scripted"
)

// flood sends frames into the TAP until the test ends.
func flood(t *testing.T, h *scripted.Host) {
	quit := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for seq := uint64(1); ; seq++ {
			select {
			case <-quit:
				return
			default:
			}
			if err := h.Send(scripted.Frame(seq, 200)); err != nil {
				return // the interface is down: the process has ended
			}
		}
	})
	t.Cleanup(func() { close(quit); wg.Wait() })
}

// L02: front-ends come and go at any point, with traffic from the host.
func TestL02ConnectCycles(t *testing.T) {
	h := scripted.NewHost(t, 1)
	c := h.ServeTAP(t)
	mem := scripted.NewMemory(t)
	stop := make(chan struct{})
	var wg sync.WaitGroup
	wg.Go(func() {
		for seq := uint64(1); ; seq++ {
			select {
			case <-stop:
				return
			default:
				_ = h.Send(scripted.Frame(seq, 200)) // its queue may be detached just now
			}
		}
	})
	for i := range 2000 {
		g := c.DialWith(t, mem)
		for _, step := range []func(){
			func() { g.Greet(scripted.Default) },
			func() { g.Hello(0) },
			func() { g.Start(0) },
			func() { g.Start(1) },
			func() { g.Post(0, 100) },
			func() { g.Receive(0) },
			func() { g.Transmit(1, g.Frame(60)) },
			func() { g.Must(g.SetVringEnable(0, false)) },
			func() { _, err := g.GetVringBase(0); g.Must(err) },
			func() { g.SendPiece([]byte{1, 0, 0, 0, 1}) },
		}[:i%11] {
			step()
		}
		g.Must(g.Close())
		if i%10 == 0 {
			c.Idle()
		}
	}
	close(stop)
	wg.Wait()
	c.Idle()
	discard(h)
	// What the flood has left in the TAP's queue comes first.
	g := c.Dial(t)
	g.Hello(0)
	g.Start(0, 1)
	f := g.Frame(60)
	f[len(f)-1] ^= 0xFF
	g.Must(h.Send(f))
	for {
		if _, got := g.Receive(0); len(got) == 60 {
			break
		}
	}
	c.Alive(g)
}

// discard takes what has come out of the TAP.
func discard(h *scripted.Host) {
	for {
		if _, err := h.ReceiveWithin(0); err != nil {
			return
		}
	}
}

// L02: a second front-end, and a second process, leave the first alone.
func TestL02Second(t *testing.T) {
	c := scripted.Serve(t, "echo")
	g := c.Dial(t)
	g.Hello(0)
	g.Start(0, 1)
	for range 50 {
		second := scripted.NewGuest(t, c.DialRaw(t), g.Mem)
		second.Ended()
		second.Must(second.Close())
		c.RoundTrip(g)
	}
	other := scripted.Launch(t, "serve", "--socket-path", c.Path, "--port=null")
	if code := other.Exit(); code == 0 {
		t.Error("a second process was happy with the same socket")
	}
	c.RoundTrip(g)
	c.Alive(g)
}

// gone expects an end with exit code 0 and no socket.
func gone(t *testing.T, c *scripted.Child, path string) {
	t.Helper()
	c.Signal(syscall.SIGTERM)
	if code := c.Exit(); code != 0 {
		t.Errorf("exit code %d", code)
	}
	if _, err := os.Lstat(path); path != "" && !errors.Is(err, os.ErrNotExist) {
		t.Errorf("%s is left: %v", path, err)
	}
}

// L02: the end under load. The next process finds everything as the first did.
func TestL02EndUnderLoad(t *testing.T) {
	h := scripted.NewHost(t, 1)
	path := filepath.Join(t.TempDir(), "s")
	flood(t, h)
	for range 5 {
		c := scripted.ServeAt(t, path, "tap:"+scripted.TAP)
		g := c.Dial(t)
		g.Hello(0)
		g.Start(0, 1)
		g.Post(0, 200)
		for range 50 {
			g.Receive(0)
		}
		gone(t, c, path)
		g.Ended()
		g.Must(g.Close())
	}
}

// L02: the process is killed at any point, with traffic from the host, and the next
// one takes its place on the socket file that is left.
func TestL02Killed(t *testing.T) {
	h := scripted.NewHost(t, 1)
	path := filepath.Join(t.TempDir(), "s")
	flood(t, h)
	mem := scripted.NewMemory(t)
	for i := range 12 {
		c := scripted.ServeAt(t, path, "tap:"+scripted.TAP)
		g := c.DialWith(t, mem)
		for _, step := range []func(){
			func() { g.Greet(scripted.Default) },
			func() { g.Hello(0) },
			func() { g.Start(0, 1); g.Post(0, 100) },
			func() { g.Receive(0) },
			func() { g.Transmit(1, g.Frame(60)) },
		}[:i%6] {
			step()
		}
		c.Kill()
		if _, err := os.Lstat(path); err != nil {
			t.Fatal("no socket file is left to replace:", err)
		}
		g.Ended()
		g.Must(g.Close())
	}
	c := scripted.ServeAt(t, path, "tap:"+scripted.TAP)
	g := c.DialWith(t, mem)
	g.Hello(0)
	g.Start(0, 1)
	for range 50 {
		g.Receive(0)
		g.Transmit(1, g.Frame(60))
	}
	g.Must(g.Close())
	c.Idle()
	gone(t, c, path)
}

// L02: a client whose server is not there, or never accepts.
func TestL02Client(t *testing.T) {
	path := filepath.Join(t.TempDir(), "s")
	c := scripted.Launch(t, "serve", "--client", "--socket-path", path, "--port=null")
	c.Await("no front-end yet", 1)
	gone(t, c, "")

	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	defer func() { _ = l.Close() }()
	c = scripted.Launch(t, "serve", "--client", "--socket-path", path, "--port=null")
	c.Await("front-end connected", 1) // to a server that accepts nobody
	gone(t, c, "")

	c = scripted.Launch(t, "serve", "--client", "--socket-path", path, "--port=echo")
	// The connection of the one before is still in the queue.
	for range 4 {
		conn, err := l.AcceptUnix()
		if err != nil {
			t.Fatal(err)
		}
		g := scripted.NewGuest(t, conn, scripted.NewMemory(t))
		if _, err := g.GetFeatures(); err == nil {
			g.Hello(0)
			g.Start(0, 1)
			g.Transmit(1, g.Frame(60))
			g.Receive(0)
		}
		g.Must(g.Close())
	}
	gone(t, c, "")
}
