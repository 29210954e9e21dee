package qemutest

import (
	"context"
	"fmt"
	"io"
	"regexp"
	"strings"
	"sync"
)

// Console collects what a program prints, line by line. It is an io.Writer.
type Console struct {
	// Echo receives every whole line as it comes, if set before the first write.
	Echo io.Writer

	mu      sync.Mutex
	lines   []string
	partial []byte
	changed chan struct{} // closed and replaced when a line was added
	closed  bool
}

// Write adds output.
func (c *Console) Write(b []byte) (int, error) {
	c.mu.Lock()
	defer c.mu.Unlock()
	for _, ch := range b {
		switch ch {
		case '\n':
			line := string(c.partial)
			c.partial = c.partial[:0]
			c.lines = append(c.lines, line)
			if c.Echo != nil {
				fmt.Fprintln(c.Echo, line)
			}
		case '\r', 0:
		default:
			c.partial = append(c.partial, ch)
		}
	}
	c.wake()
	return len(b), nil
}

// end wakes the waiters for good: no more output will come.
func (c *Console) end() {
	c.mu.Lock()
	defer c.mu.Unlock()
	c.closed = true
	c.wake()
}

func (c *Console) wake() {
	if c.changed != nil {
		close(c.changed)
		c.changed = nil
	}
}

// Lines is how many lines there are; it is a position for WaitFrom.
func (c *Console) Lines() int {
	c.mu.Lock()
	defer c.mu.Unlock()
	return len(c.lines)
}

// WaitFor waits for a line that matches and returns its submatches.
func (c *Console) WaitFor(ctx context.Context, pattern string) ([]string, error) {
	return c.WaitFrom(ctx, 0, pattern)
}

// WaitFrom is WaitFor for lines from a position on.
func (c *Console) WaitFrom(ctx context.Context, line int, pattern string) ([]string, error) {
	re, err := regexp.Compile(pattern)
	if err != nil {
		return nil, fmt.Errorf("qemutest: %w", err)
	}
	for {
		c.mu.Lock()
		for ; line < len(c.lines); line++ {
			if m := re.FindStringSubmatch(c.lines[line]); m != nil {
				c.mu.Unlock()
				return m, nil
			}
		}
		closed := c.closed
		if c.changed == nil {
			c.changed = make(chan struct{})
		}
		changed := c.changed
		c.mu.Unlock()
		if closed {
			return nil, fmt.Errorf("qemutest: the program ended without %q; last output:\n%s", pattern, c.Tail(20))
		}
		select {
		case <-changed:
		case <-ctx.Done():
			return nil, fmt.Errorf("qemutest: waiting for %q: %w; last output:\n%s", pattern, context.Cause(ctx), c.Tail(20))
		}
	}
}

// Tail is the last n lines with what follows them.
func (c *Console) Tail(n int) string {
	c.mu.Lock()
	defer c.mu.Unlock()
	lines := c.lines
	if len(lines) > n {
		lines = lines[len(lines)-n:]
	}
	text := strings.Join(lines, "\n")
	if len(c.partial) > 0 {
		text += "\n" + string(c.partial)
	}
	return text
}

// String is everything.
func (c *Console) String() string { return c.Tail(int(^uint(0) >> 1)) }
