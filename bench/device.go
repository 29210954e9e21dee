package main

import (
	"context"
	"errors"
	"fmt"
	"net"
	"os"
	"os/exec"
	"strconv"
	"strings"

	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/netdev"
	"github.com/vhostnet/vhostnet/port/builtin"
	"github.com/vhostnet/vhostnet/vhostuser"
)

// connFD is where the child process finds its end of the connection.
const connFD = 3

// portOf names the port for a case as KIND[:ARG].
func (c benchCase) port() string {
	switch c.Mode {
	case "sink":
		return "null"
	case "source":
		return "source:" + strconv.Itoa(c.Size)
	}
	return "echo"
}

// startDevice starts a device and returns the front-end's end of the connection.
// The device ends when that is closed, which wait then waits for.
func startDevice(ctx context.Context, o *options, c benchCase) (conn *net.UnixConn, wait func() error, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("socket pair: %w", err)
	}
	front, back := os.NewFile(uintptr(fds[0]), "front"), os.NewFile(uintptr(fds[1]), "back")
	defer func() { _, _ = front.Close(), back.Close() }()
	if conn, err = unixConn(front); err != nil {
		return nil, nil, err
	}
	if o.Device == "child" {
		wait, err = startChild(ctx, c, back)
	} else {
		wait, err = startInProcess(ctx, c, back)
	}
	if err != nil {
		return nil, nil, errors.Join(err, conn.Close())
	}
	return conn, wait, nil
}

func startChild(ctx context.Context, c benchCase, back *os.File) (func() error, error) {
	self, err := os.Executable()
	if err != nil {
		return nil, fmt.Errorf("own program: %w", err)
	}
	cmd := exec.CommandContext(ctx, self, "--serve", c.port())
	cmd.Stderr = os.Stderr
	cmd.ExtraFiles = []*os.File{back}
	if err := cmd.Start(); err != nil {
		return nil, fmt.Errorf("child process: %w", err)
	}
	return cmd.Wait, nil
}

func startInProcess(ctx context.Context, c benchCase, back *os.File) (func() error, error) {
	conn, err := unixConn(back)
	if err != nil {
		return nil, err
	}
	done := make(chan error, 1)
	go func() { done <- serve(ctx, c.port(), conn) }()
	return func() error { return <-done }, nil
}

// serveChild is the child process. It ends with its connection only, so that an
// interrupt from the keyboard, which goes to both processes, is the parent's affair.
func serveChild(port string) error {
	f := os.NewFile(connFD, "connection")
	conn, err := unixConn(f)
	_ = f.Close()
	if err != nil {
		return err
	}
	return serve(context.Background(), port, conn)
}

// serve runs a device until its connection ends.
func serve(ctx context.Context, name string, conn *net.UnixConn) error {
	kind, arg, _ := strings.Cut(name, ":")
	p, err := builtin.Open(kind, arg, 1)
	if err != nil {
		return errors.Join(err, conn.Close())
	}
	dev, err := netdev.New(netdev.Config{Name: "bench", QueuePairs: 1, Log: quiet()}, p)
	if err != nil {
		return errors.Join(err, p.Close(), conn.Close())
	}
	err = vhostuser.Serve(ctx, conn, dev, vhostuser.Options{Log: quiet()})
	return errors.Join(err, dev.Close(), p.Close())
}

func unixConn(f *os.File) (*net.UnixConn, error) {
	c, err := net.FileConn(f)
	if err != nil {
		return nil, fmt.Errorf("connection: %w", err)
	}
	u, ok := c.(*net.UnixConn)
	if !ok {
		return nil, errors.Join(errors.New("connection: not a Unix socket"), c.Close())
	}
	return u, nil
}
