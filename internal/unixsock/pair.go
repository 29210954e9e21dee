package unixsock

import (
	"errors"
	"fmt"
	"net"
	"os"

	"golang.org/x/sys/unix"
)

// Pair returns the two ends of a stream connection.
func Pair() (a, b *net.UnixConn, err error) {
	fds, err := unix.Socketpair(unix.AF_UNIX, unix.SOCK_STREAM|unix.SOCK_CLOEXEC, 0)
	if err != nil {
		return nil, nil, fmt.Errorf("unixsock: pair: %w", err)
	}
	a, errA := conn(fds[0])
	b, errB := conn(fds[1])
	if err := errors.Join(errA, errB); err != nil {
		for _, c := range []*net.UnixConn{a, b} {
			if c != nil {
				_ = c.Close()
			}
		}
		return nil, nil, fmt.Errorf("unixsock: pair: %w", err)
	}
	return a, b, nil
}

// conn turns a descriptor into a connection.
func conn(fd int) (*net.UnixConn, error) {
	f := os.NewFile(uintptr(fd), "unixsock")
	defer func() { _ = f.Close() }() // FileConn has duplicated it
	c, err := net.FileConn(f)
	if err != nil {
		return nil, err
	}
	return c.(*net.UnixConn), nil
}
