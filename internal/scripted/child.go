package scripted

import (
	"bufio"
	"bytes"
	"fmt"
	"io"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"golang.org/x/sys/unix"
)

// program is the path of the built program, and sources are what it was built of.
var (
	program string
	sources []string
)

// vhostnet is the program's package.
const vhostnet = "github.com/vhostnet/vhostnet/cmd/vhostnet"

// Build builds vhostnet into a folder, with the race detector if this machine
// has a C compiler for it. TestMain calls it once, before [Serve].
func Build(dir string) error {
	args := []string{"build", "-o", filepath.Join(dir, "vhostnet")}
	if raceable() {
		args = append(args, "-race")
	}
	out, err := exec.Command("go", append(args, vhostnet)...).CombinedOutput()
	if err != nil {
		return fmt.Errorf("go %s: %w\n%s", strings.Join(args, " "), err, out)
	}
	const list = `{{$d := .Dir}}{{if not .Standard}}{{range .GoFiles}}{{$d}}/{{.}}
{{end}}{{range .SFiles}}{{$d}}/{{.}}
{{end}}{{end}}`
	if out, err = exec.Command("go", "list", "-deps", "-f", list, vhostnet).Output(); err != nil {
		return fmt.Errorf("go list: %w", err)
	}
	sources = strings.Fields(string(out))
	program = filepath.Join(dir, "vhostnet")
	return nil
}

// depend makes what comes of the tests depend on the program's sources. go test would
// else take old results for those of a program that has changed: it looks at files that
// tests have looked at, while they ran.
var depend = sync.OnceFunc(func() {
	for _, name := range sources {
		_, _ = os.Stat(name)
	}
})

func raceable() bool {
	out, err := exec.Command("go", "env", "CGO_ENABLED", "CC").Output()
	fields := strings.Fields(string(out))
	if err != nil || len(fields) < 2 || fields[0] != "1" {
		return false
	}
	_, err = exec.LookPath(fields[1])
	return err == nil
}

// Main is TestMain for packages whose tests run the program.
func Main(m *testing.M) {
	os.Exit(func() int {
		dir, err := os.MkdirTemp("", "vhostnet")
		if err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		defer func() { _ = os.RemoveAll(dir) }()
		if err := Build(dir); err != nil {
			fmt.Fprintln(os.Stderr, err)
			return 1
		}
		return m.Run()
	}())
}

// Child is a vhostnet process.
type Child struct {
	// Path is its vhost-user socket.
	Path string
	// Host is the other end of its TAP, if it has one; Alive uses it.
	Host *Host

	tb    testing.TB
	kind  string // of its port
	cmd   *exec.Cmd
	done  chan struct{} // closed when it has been waited for
	fds   int           // when nobody is connected
	mu    sync.Mutex
	lines []string // guarded by mu
}

// Lines of the log that tell what has become of a connection.
const (
	lineListening = "waiting for a front-end"
	lineServed    = `msg="front-end connected"`
	lineOver      = "front-end disconnected"
)

// Serve starts vhostnet on a port ("echo", "tap:vn0", ...), with more arguments,
// and waits until it listens. It is killed when the test ends, which fails if it
// has crashed or reported a data race.
func Serve(tb testing.TB, port string, args ...string) *Child {
	tb.Helper()
	return ServeAt(tb, filepath.Join(tb.TempDir(), "s"), port, args...)
}

// ServeAt is Serve on a socket of the test's choice.
func ServeAt(tb testing.TB, path, port string, args ...string) *Child {
	tb.Helper()
	c := Launch(tb, append([]string{"serve", "--socket-path", path, "--port", port}, args...)...)
	c.Path = path
	c.kind, _, _ = strings.Cut(port, ":")
	c.Await(lineListening, 1)
	// What a first connection makes the runtime open belongs to the baseline.
	g := c.Dial(tb)
	if _, err := g.GetFeatures(); err != nil {
		tb.Fatal(err)
	}
	if err := g.Close(); err != nil {
		tb.Fatal(err)
	}
	c.Await(lineOver, 1)
	c.fds = len(c.openFiles())
	return c
}

// Launch starts vhostnet with any arguments.
func Launch(tb testing.TB, args ...string) *Child {
	tb.Helper()
	if program == "" {
		tb.Fatal("scripted.Build was not called")
	}
	depend()
	c := &Child{tb: tb, cmd: exec.Command(program, args...), done: make(chan struct{})}
	// The race detector would sleep for a second at each exit.
	c.cmd.Env = append(os.Environ(), "GORACE=atexit_sleep_ms=0", "GOTRACEBACK=all")
	stderr, err := c.cmd.StderrPipe()
	if err != nil {
		tb.Fatal(err)
	}
	if err := c.cmd.Start(); err != nil {
		tb.Fatal(err)
	}
	go c.follow(stderr)
	tb.Cleanup(func() {
		c.Kill()
		if tb.Failed() {
			tb.Logf("%v:\n%s", args, tail(c.Log(), 60))
		}
		c.sound()
	})
	return c
}

func (c *Child) follow(stderr io.Reader) {
	defer close(c.done)
	for sc := bufio.NewScanner(stderr); sc.Scan(); {
		c.mu.Lock()
		c.lines = append(c.lines, sc.Text())
		c.mu.Unlock()
	}
	_ = c.cmd.Wait() // its exit code is looked at in Exit
}

func tail(s string, n int) string {
	lines := strings.Split(s, "\n")
	return strings.Join(lines[max(0, len(lines)-n):], "\n")
}

// Log is what it has written to standard error.
func (c *Child) Log() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	return strings.Join(c.lines, "\n")
}

// Lines counts the lines of the log that contain any of the texts.
func (c *Child) Lines(texts ...string) (n int) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, l := range c.lines {
		for _, t := range texts {
			if strings.Contains(l, t) {
				n++
				break
			}
		}
	}
	return n
}

// Await waits until n lines of the log contain the text.
func (c *Child) Await(text string, n int) {
	c.tb.Helper()
	Until(c.tb, fmt.Sprintf("%d lines with %q", n, text), func() bool {
		if c.Lines(text) >= n {
			return true
		}
		select {
		case <-c.done:
			if c.Lines(text) < n {
				c.tb.Fatalf("it has ended without a line %q:\n%s", text, c.Log())
			}
		default:
		}
		return false
	})
}

// sound expects nothing on standard error that a correct program does not write.
func (c *Child) sound() {
	c.tb.Helper()
	log := c.Log()
	for _, bad := range []string{"DATA RACE", "panic", "fatal error", "goroutine ", "SIGSEGV", "SIGBUS"} {
		if strings.Contains(log, bad) {
			c.tb.Errorf("%q on standard error:\n%s", bad, tail(log, 200))
			return
		}
	}
}

// PID is its process id.
func (c *Child) PID() int { return c.cmd.Process.Pid }

// Signal sends it a signal.
func (c *Child) Signal(s syscall.Signal) {
	c.tb.Helper()
	if err := c.cmd.Process.Signal(s); err != nil {
		c.tb.Fatal(err)
	}
}

// Kill kills it and waits for its end.
func (c *Child) Kill() {
	_ = c.cmd.Process.Kill() // it may have ended
	<-c.done
}

// Exit waits for its end and returns the exit code, -1 for a signal.
func (c *Child) Exit() int {
	c.tb.Helper()
	select {
	case <-c.done:
	case <-time.After(Hang):
		_ = c.cmd.Process.Signal(syscall.SIGQUIT)
		<-c.done
		c.tb.Fatal("it does not end:\n" + tail(c.Log(), 200))
	}
	return c.cmd.ProcessState.ExitCode()
}

// Dial connects a guest with memory of its own, and waits until it is served.
func (c *Child) Dial(tb testing.TB) *Guest {
	tb.Helper()
	return c.DialWith(tb, NewMemory(tb))
}

// DialWith connects a guest with this memory, and waits until it is served.
func (c *Child) DialWith(tb testing.TB, m *Memory) *Guest {
	tb.Helper()
	deadline := time.Now().Add(Hang)
	for time.Now().Before(deadline) {
		served := c.Lines(lineServed)
		conn := c.DialRaw(tb)
		Until(tb, "the connection is looked at", func() bool {
			return c.Lines(lineServed) > served || hungUp(tb, conn)
		})
		if c.Lines(lineServed) > served {
			return NewGuest(tb, conn, m)
		}
		// It was turned away: the session before this one was about to end.
		_ = conn.Close()
	}
	tb.Fatal("no connection is served:\n" + tail(c.Log(), 20))
	return nil
}

// hungUp tells whether the other end is closed.
func hungUp(tb testing.TB, c *net.UnixConn) bool {
	tb.Helper()
	raw, err := c.SyscallConn()
	if err != nil {
		tb.Fatal(err)
	}
	p := []unix.PollFd{{Events: unix.POLLRDHUP}}
	if err := raw.Control(func(fd uintptr) {
		p[0].Fd = int32(fd)
		_, _ = unix.Poll(p, 0) // what it does not tell is asked again
	}); err != nil {
		tb.Fatal(err)
	}
	return p[0].Revents != 0
}

// DialRaw connects, and does not wait whether it is served.
func (c *Child) DialRaw(tb testing.TB) *net.UnixConn {
	tb.Helper()
	conn, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: c.Path, Net: "unix"})
	if err != nil {
		tb.Fatal(err)
	}
	tb.Cleanup(func() { _ = conn.Close() })
	if err := conn.SetDeadline(time.Now().Add(4 * Hang)); err != nil {
		tb.Fatal(err)
	}
	return conn
}

// openFiles are its open descriptors, by what they are.
func (c *Child) openFiles() (files []string) {
	c.tb.Helper()
	dir := fmt.Sprintf("/proc/%d/fd", c.PID())
	entries, err := os.ReadDir(dir)
	if err != nil {
		c.tb.Fatal(err)
	}
	for _, e := range entries {
		if to, err := os.Readlink(filepath.Join(dir, e.Name())); err == nil {
			files = append(files, e.Name()+" "+to)
		}
	}
	return files
}

// FDs counts its open descriptors.
func (c *Child) FDs() int { c.tb.Helper(); return len(c.openFiles()) }

// Mapped counts its mappings of guest memory.
func (c *Child) Mapped() int {
	c.tb.Helper()
	b, err := os.ReadFile(fmt.Sprintf("/proc/%d/maps", c.PID()))
	if err != nil {
		c.tb.Fatal(err)
	}
	return bytes.Count(b, []byte("/memfd:"))
}

// Idle waits until everything that connections have brought is gone.
func (c *Child) Idle() {
	c.tb.Helper()
	for deadline := time.Now().Add(Hang); ; time.Sleep(time.Millisecond) {
		files, mapped := c.openFiles(), c.Mapped()
		if len(files) <= c.fds && mapped == 0 {
			// The first count can have had one that is open for a moment only: a port
			// that has been told of its link asks what it is.
			c.fds = len(files)
			return
		}
		if time.Now().After(deadline) {
			c.tb.Fatalf("%d descriptors, had %d; %d mappings:\n%s", len(files), c.fds, mapped, strings.Join(files, "\n"))
		}
	}
}

// Alive ends a case: the connections of these guests are closed; nothing of them
// is left and nothing has crashed; a fresh connection carries a frame each way,
// and leaves nothing either.
func (c *Child) Alive(guests ...*Guest) {
	c.tb.Helper()
	for _, g := range guests {
		_ = g.Close() // the device may have ended it
	}
	c.Idle()
	g := c.Dial(c.tb)
	g.Hello(0)
	g.Start(0, 1)
	c.RoundTrip(g)
	if err := g.Close(); err != nil {
		c.tb.Fatal(err)
	}
	c.Idle()
	c.sound()
}

// RoundTrip carries one frame each way, as far as the port has two ways.
func (c *Child) RoundTrip(g *Guest) {
	c.tb.Helper()
	f := g.Frame(60)
	if c.kind != "null" && g.Ring(0).Outstanding() == 0 {
		g.Post(0, 1)
	}
	g.Transmit(1, f)
	switch c.kind {
	case "null":
	case "source":
		g.Receive(0)
	case "echo":
		_, got := g.Receive(0)
		want := append(append(bytes.Clone(f[6:12]), f[:6]...), f[12:]...)
		if !bytes.Equal(got, want) {
			c.tb.Fatalf("echo of\n% x is\n% x", f, got)
		}
	default:
		c.overTAP(g, f)
	}
}

// overTAP expects f to come out of the TAP, and sends one in.
func (c *Child) overTAP(g *Guest, f []byte) {
	c.tb.Helper()
	got, err := c.Host.Receive()
	if err != nil || !bytes.Equal(got, f) {
		c.tb.Fatalf("the TAP carries % x, %v: want % x", got, err, f)
	}
	f = g.Frame(60)
	if err := c.Host.Send(f); err != nil {
		c.tb.Fatal(err)
	}
	if _, got := g.Receive(0); !bytes.Equal(got, f) {
		c.tb.Fatalf("the guest gets % x: want % x", got, f)
	}
}
