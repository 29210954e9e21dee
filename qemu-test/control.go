package qemutest

import (
	"bufio"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"math"
	"os"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// ErrGuestGone is returned for what was asked of a guest that has ended.
var ErrGuestGone = errors.New("qemutest: the guest has ended")

// Result is what a script in the guest did.
type Result struct {
	// Output is standard output and standard error.
	Output string
	// Exit is the exit status, -1 if it was ended.
	Exit int
	// Error says why it could not be run to its end.
	Error string
}

// control talks to the guest's init over a socket pair whose other end is the
// guest's second serial line.
type control struct {
	line  *os.File
	ready chan float64 // uptime at each start of the guest's init

	mu      sync.Mutex
	next    uint64
	waiting map[uint64]chan Result
	gone    bool
}

// wire is a line of the control protocol in both directions; package guest
// has the other half.
type wire struct {
	ID      uint64  `json:"id,omitempty"`
	Script  string  `json:"script,omitempty"`
	Stop    string  `json:"stop,omitempty"`
	Seconds int     `json:"seconds,omitempty"`
	Ready   bool    `json:"ready,omitempty"`
	Uptime  float64 `json:"uptime,omitempty"`
	Output  string  `json:"output,omitempty"`
	Exit    int     `json:"exit,omitempty"`
	Error   string  `json:"error,omitempty"`
}

// socketPair returns two connected sockets, ours first.
func socketPair(name string) (ours, theirs *os.File, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("qemutest: socket pair: %w", err)
	}
	// Only our half is non-blocking, so that Close wakes its reader.
	if err := unix.SetNonblock(fds[0], true); err != nil {
		return nil, nil, fmt.Errorf("qemutest: socket pair: %w", err)
	}
	return os.NewFile(uintptr(fds[0]), name), os.NewFile(uintptr(fds[1]), name), nil
}

func newControl(line *os.File) *control {
	c := &control{line: line, ready: make(chan float64, 16), waiting: map[uint64]chan Result{}}
	go c.read()
	return c
}

func (c *control) read() {
	in := bufio.NewReader(c.line)
	for {
		raw, err := in.ReadBytes('\n')
		if err != nil {
			break
		}
		var w wire
		if json.Unmarshal(raw, &w) != nil {
			continue // firmware and boot noise on the line
		}
		if w.Ready {
			select {
			case c.ready <- w.Uptime:
			default:
			}
			continue
		}
		c.mu.Lock()
		if ch := c.waiting[w.ID]; ch != nil {
			delete(c.waiting, w.ID)
			ch <- Result{Output: w.Output, Exit: w.Exit, Error: w.Error}
		}
		c.mu.Unlock()
	}
	c.mu.Lock()
	defer c.mu.Unlock()
	c.gone = true
	for id, ch := range c.waiting {
		delete(c.waiting, id)
		close(ch)
	}
}

// send writes one request and returns where its reply will come.
func (c *control) send(w wire) (<-chan Result, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	if c.gone {
		return nil, ErrGuestGone
	}
	c.next++
	w.ID = c.next
	raw, err := json.Marshal(w)
	if err != nil {
		return nil, fmt.Errorf("qemutest: control: %w", err)
	}
	ch := make(chan Result, 1)
	c.waiting[w.ID] = ch
	if _, err := c.line.Write(append(raw, '\n')); err != nil {
		delete(c.waiting, w.ID)
		return nil, fmt.Errorf("%w: %w", ErrGuestGone, err)
	}
	return ch, nil
}

// Command is a script that runs in the guest.
type Command struct {
	script string
	reply  <-chan Result
}

// Wait returns what the script did. A status other than 0 is no error.
func (c *Command) Wait(ctx context.Context) (Result, error) {
	select {
	case r, ok := <-c.reply:
		if !ok {
			return Result{Exit: -1}, fmt.Errorf("%w during %q", ErrGuestGone, c.script)
		}
		if r.Error != "" {
			return r, fmt.Errorf("qemutest: guest: %q: %s\n%s", c.script, r.Error, r.Output)
		}
		return r, nil
	case <-ctx.Done():
		return Result{Exit: -1}, fmt.Errorf("qemutest: guest: %q: %w", c.script, context.Cause(ctx))
	}
}

// start runs a script; the guest ends it after the limit.
func (c *control) start(script string, limit time.Duration) (*Command, error) {
	ch, err := c.send(wire{Script: script, Seconds: int(math.Ceil(limit.Seconds()))})
	if err != nil {
		return nil, err
	}
	return &Command{script: script, reply: ch}, nil
}
