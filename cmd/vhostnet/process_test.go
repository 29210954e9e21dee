package main

import (
	"bufio"
	"bytes"
	"errors"
	"net"
	"os"
	"os/exec"
	"path/filepath"
	"strconv"
	"strings"
	"sync"
	"syscall"
	"testing"
	"time"

	"github.com/vhostnet/vhostnet/vhostuser"
	"github.com/vhostnet/vhostnet/virtio"
)

// reexec in the environment makes the test binary be vhostnet.
const reexec = "VHOSTNET_TEST_IS_COMMAND=1"

func TestMain(m *testing.M) {
	name, value, _ := strings.Cut(reexec, "=")
	if os.Getenv(name) == value {
		main()
		panic("main returned")
	}
	os.Exit(m.Run())
}

// hangs bounds every wait in these tests. It is no measurement: what has to be
// there in 2 s, the command itself enforces and reports by its exit code.
const hangs = 60 * time.Second

// process is a vhostnet of its own.
type process struct {
	t   *testing.T
	cmd *exec.Cmd

	mu    sync.Mutex
	lines []string
	more  *sync.Cond
	ended bool // no more lines

	done chan struct{} // closed when it has been waited for
}

// prepare makes the command; extra become its descriptors from 3 on.
func prepare(t *testing.T, extra []*os.File, args ...string) *exec.Cmd {
	t.Helper()
	self, err := os.Executable()
	if err != nil {
		t.Fatal(err)
	}
	cmd := exec.Command(self, args...)
	// The race detector would sleep for a second at each exit.
	cmd.Env = append(os.Environ(), reexec, "GORACE=atexit_sleep_ms=0")
	cmd.ExtraFiles = extra
	return cmd
}

// spawn starts vhostnet; it is killed at the end of the test.
func spawn(t *testing.T, args ...string) *process { return launch(t, prepare(t, nil, args...)) }

func launch(t *testing.T, cmd *exec.Cmd) *process {
	t.Helper()
	p := &process{t: t, cmd: cmd, done: make(chan struct{})}
	p.more = sync.NewCond(&p.mu)
	stderr, err := cmd.StderrPipe()
	if err != nil {
		t.Fatal(err)
	}
	if err := cmd.Start(); err != nil {
		t.Fatal(err)
	}
	go func() {
		for sc := bufio.NewScanner(stderr); sc.Scan(); {
			p.mu.Lock()
			p.lines = append(p.lines, sc.Text())
			p.more.Broadcast()
			p.mu.Unlock()
		}
		p.mu.Lock()
		p.ended = true
		p.more.Broadcast()
		p.mu.Unlock()
		_ = cmd.Wait() // the exit code is looked at in code
		close(p.done)
	}()
	t.Cleanup(func() {
		_ = cmd.Process.Kill()
		<-p.done
		if t.Failed() {
			t.Logf("%v:\n%s", cmd.Args[1:], p.log())
		}
		for _, bad := range []string{"DATA RACE", "panic:", "fatal error:"} {
			if strings.Contains(p.log(), bad) {
				t.Errorf("%q on standard error:\n%s", bad, p.log())
			}
		}
	})
	return p
}

func (p *process) log() string {
	p.mu.Lock()
	defer p.mu.Unlock()
	return strings.Join(p.lines, "\n")
}

// await waits until n lines contain the text.
func (p *process) await(text string, n int) {
	p.t.Helper()
	hung := time.AfterFunc(hangs, func() { _ = p.cmd.Process.Signal(syscall.SIGQUIT) })
	defer hung.Stop()
	p.mu.Lock()
	defer p.mu.Unlock()
	for {
		count := 0
		for _, l := range p.lines {
			if strings.Contains(l, text) {
				count++
			}
		}
		if count >= n {
			return
		}
		if p.ended {
			p.t.Fatalf("ended with %d of %d lines with %q", count, n, text)
		}
		p.more.Wait()
	}
}

// code waits for the end and returns the exit code, -1 for a signal.
func (p *process) code() int {
	p.t.Helper()
	select {
	case <-p.done:
	case <-time.After(hangs):
		_ = p.cmd.Process.Signal(syscall.SIGQUIT)
		<-p.done
		p.t.Fatal("it hangs")
	}
	return p.cmd.ProcessState.ExitCode()
}

// end sends a signal and expects exit code 0 and no file at the paths.
func (p *process) end(sig os.Signal, paths ...string) {
	p.t.Helper()
	if err := p.cmd.Process.Signal(sig); err != nil {
		p.t.Fatal(err)
	}
	if code := p.code(); code != exitOK {
		p.t.Errorf("exit code %d after %v", code, sig)
	}
	for _, path := range paths {
		if _, err := os.Lstat(path); !errors.Is(err, os.ErrNotExist) {
			p.t.Errorf("%s is still there: %v", path, err)
		}
	}
}

// fds counts the process's open descriptors.
func (p *process) fds() int {
	p.t.Helper()
	entries, err := os.ReadDir("/proc/" + strconv.Itoa(p.cmd.Process.Pid) + "/fd")
	if err != nil {
		p.t.Fatal(err)
	}
	return len(entries)
}

// failure runs vhostnet to its end and returns exit code and standard error.
func failure(t *testing.T, extra []*os.File, args ...string) (int, string) {
	t.Helper()
	p := launch(t, prepare(t, extra, args...))
	code := p.code()
	return code, p.log()
}

// mapped counts the process's mappings of guest memory.
func (p *process) mapped() int {
	p.t.Helper()
	b, err := os.ReadFile("/proc/" + strconv.Itoa(p.cmd.Process.Pid) + "/maps")
	if err != nil {
		p.t.Fatal(err)
	}
	return bytes.Count(b, []byte("/memfd:"))
}

func socket(t *testing.T) string {
	t.Helper()
	return filepath.Join(t.TempDir(), "s")
}

func dial(t *testing.T, path string) *net.UnixConn {
	t.Helper()
	c, err := net.DialUnix("unix", nil, &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		t.Fatal(err)
	}
	t.Cleanup(func() { _ = c.Close() })
	if err := c.SetDeadline(time.Now().Add(hangs)); err != nil {
		t.Fatal(err)
	}
	return c
}

// answers expects a back-end at the other end.
func answers(t *testing.T, c *net.UnixConn) {
	t.Helper()
	features, err := tryAnswer(c)
	if err != nil {
		t.Fatal("no back-end answers:", err)
	}
	if features == 0 {
		t.Fatal("the back-end offers nothing")
	}
}

// inProcess runs a command line in this process.
func inProcess(t *testing.T, args ...string) (code int, stdout, stderr string) {
	t.Helper()
	var out, errs bytes.Buffer
	code = run(t.Context(), args, &out, &errs)
	return code, out.String(), errs.String()
}

// tryAnswer asks for the features; the error says that nobody serves c.
func tryAnswer(c *net.UnixConn) (virtio.Features, error) {
	return vhostuser.NewFrontend(c).GetFeatures()
}
