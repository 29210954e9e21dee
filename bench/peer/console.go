package peer

import (
	"bytes"
	"context"
	"fmt"
	"io"
	"os"
	"os/exec"
	"strings"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// console is a program that is told what to do on its standard input. Its output
// goes to a terminal, since to a pipe it would come in blocks of 4 KiB.
type console struct {
	*Process
	in     io.WriteCloser
	master *os.File
	prompt string

	mu   sync.Mutex
	text bytes.Buffer  // guarded by mu
	more chan struct{} // has something when text has grown, or ends
	over chan struct{} // closed when there will be no more text
}

// startConsole runs a command and waits for its prompt. It returns what it wrote
// before.
func startConsole(ctx context.Context, name, prompt string, cmd *exec.Cmd, at Place) (_ *console, greeting string, err error) {
	master, slave, err := terminal()
	if err != nil {
		return nil, "", fmt.Errorf("peer: %s: terminal: %w", name, err)
	}
	c := &console{master: master, prompt: prompt, more: make(chan struct{}, 1), over: make(chan struct{})}
	cmd.Stdout, cmd.Stderr = slave, slave
	if c.in, err = cmd.StdinPipe(); err == nil {
		c.Process, err = start(name, cmd, at)
	}
	_ = slave.Close() // the child has it: when that ends, so does what can be read
	if err != nil {
		_ = master.Close()
		return nil, "", err
	}
	go c.read()
	if greeting, err = c.reply(ctx); err != nil {
		_ = c.kill()
		return nil, "", err
	}
	return c, greeting, nil
}

// terminal returns the two ends of a pseudo terminal that changes nothing.
func terminal() (master, slave *os.File, err error) {
	// Not os.File.Fd: it would make reads impossible to interrupt.
	fd, err := unix.Open("/dev/ptmx", unix.O_RDWR|unix.O_NOCTTY|unix.O_CLOEXEC|unix.O_NONBLOCK, 0)
	if err != nil {
		return nil, nil, err
	}
	master = os.NewFile(uintptr(fd), "ptmx")
	defer func() {
		if err != nil {
			_ = master.Close()
		}
	}()
	if err := unix.IoctlSetPointerInt(fd, unix.TIOCSPTLCK, 0); err != nil {
		return nil, nil, err
	}
	n, err := unix.IoctlGetUint32(fd, unix.TIOCGPTN)
	if err != nil {
		return nil, nil, err
	}
	if slave, err = os.OpenFile(fmt.Sprintf("/dev/pts/%d", n), unix.O_RDWR|unix.O_NOCTTY, 0); err != nil {
		return nil, nil, err
	}
	t, err := unix.IoctlGetTermios(int(slave.Fd()), unix.TCGETS)
	if err == nil {
		t.Oflag &^= unix.OPOST
		t.Lflag &^= unix.ECHO | unix.ICANON
		err = unix.IoctlSetTermios(int(slave.Fd()), unix.TCSETS, t)
	}
	if err != nil {
		_ = slave.Close()
		return nil, nil, err
	}
	return master, slave, nil
}

// read collects the output until the program has closed its end.
func (c *console) read() {
	defer close(c.over)
	b := make([]byte, 4096)
	for {
		n, err := c.master.Read(b)
		c.mu.Lock()
		c.text.Write(b[:n])
		c.mu.Unlock()
		select {
		case c.more <- struct{}{}:
		default:
		}
		if err != nil {
			return // EIO: nobody has the other end
		}
	}
}

// take cuts the output at the first prompt and returns what is before it.
func (c *console) take() (string, bool) {
	c.mu.Lock()
	defer c.mu.Unlock()
	i := bytes.Index(c.text.Bytes(), []byte(c.prompt))
	if i < 0 {
		return "", false
	}
	s := string(c.text.Next(i + len(c.prompt)))
	return s[:i], true
}

// reply waits for the prompt and returns what was written before it.
func (c *console) reply(ctx context.Context) (string, error) {
	timeout := time.After(patience)
	for {
		if s, ok := c.take(); ok {
			return s, nil
		}
		select {
		case <-c.more:
		case <-c.over:
			if s, ok := c.take(); ok {
				return s, nil
			}
			return "", fmt.Errorf("peer: %s has ended: %s", c.name, c.tail())
		case <-timeout:
			return "", fmt.Errorf("peer: %s did not answer in %v: %s", c.name, patience, c.tail())
		case <-ctx.Done():
			return "", context.Cause(ctx)
		}
	}
}

// tail returns the last lines of what was not understood.
func (c *console) tail() string {
	c.mu.Lock()
	defer c.mu.Unlock()
	s := strings.TrimSpace(c.text.String())
	if len(s) > 600 {
		s = "..." + s[len(s)-600:]
	}
	return s
}

// do gives a command and returns what is written until the next prompt.
func (c *console) do(ctx context.Context, command string) (string, error) {
	if _, err := io.WriteString(c.in, command+"\n"); err != nil {
		return "", fmt.Errorf("peer: %s: %s: %w: %s", c.name, command, err, c.tail())
	}
	s, err := c.reply(ctx)
	if err != nil {
		return "", fmt.Errorf("%s: %w", command, err)
	}
	return s, nil
}

// quit gives the last command, "" for none, and waits for the end.
func (c *console) quit(command string) error {
	if command != "" {
		_, _ = io.WriteString(c.in, command+"\n") // it may have ended already
	}
	_ = c.in.Close()
	return c.finish(c.await())
}

func (c *console) kill() error {
	_ = c.cmd.Process.Kill()
	return c.finish(c.await())
}

func (c *console) finish(err error) error {
	_ = c.master.Close()
	<-c.over
	return err
}
