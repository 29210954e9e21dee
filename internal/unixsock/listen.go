package unixsock

import (
	"errors"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"golang.org/x/sys/unix"
)

// probeTimeout bounds the question whether somebody answers on a socket, and
// the wait for another process that is about to listen in the same directory.
const probeTimeout = time.Second

var (
	// ErrInUse means that another process answers on the socket.
	ErrInUse = errors.New("another process listens there")
	// ErrNotSocket means that the path exists and is not a socket.
	ErrNotSocket = errors.New("the path exists and is not a socket")
)

// Listen listens on a Unix socket. The file of a process that has died is
// replaced; one on which somebody answers is not. The file goes away with the
// listener. Errors are those of the system, ErrInUse and ErrNotSocket.
//
// Asking whether somebody answers, removing the file and binding are several
// steps; the lock on the directory keeps two processes that start at once from
// removing each other's socket.
func Listen(path string) (*Listener, error) {
	unlock := lockDir(filepath.Dir(path))
	defer unlock()
	if err := removeStale(path); err != nil {
		return nil, err
	}
	l, err := net.ListenUnix("unix", &net.UnixAddr{Name: path, Net: "unix"})
	if err != nil {
		return nil, err
	}
	// Close must not remove a socket that somebody else put there meanwhile.
	l.SetUnlinkOnClose(false)
	fi, err := os.Lstat(path)
	if err != nil {
		_ = l.Close()
		return nil, err
	}
	return &Listener{UnixListener: l, path: path, file: fi}, nil
}

// removeStale removes a socket file on which nobody answers.
func removeStale(path string) error {
	fi, err := os.Lstat(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil
	}
	if err != nil {
		return err
	}
	if fi.Mode()&fs.ModeSocket == 0 {
		return ErrNotSocket
	}
	c, err := net.DialTimeout("unix", path, probeTimeout)
	switch {
	case err == nil:
		_ = c.Close()
		return ErrInUse
	case errors.Is(err, unix.ECONNREFUSED):
		return os.Remove(path)
	case errors.Is(err, fs.ErrNotExist):
		return nil
	case errors.Is(err, unix.EAGAIN), errors.Is(err, unix.EPROTOTYPE):
		// A full backlog, or a socket of another type: somebody's.
		return ErrInUse
	}
	return err
}

// lockDir takes the directory's lock, and goes on without it where that is
// impossible: it guards against a race only.
func lockDir(dir string) (unlock func()) {
	fd, err := unix.Open(dir, unix.O_RDONLY|unix.O_DIRECTORY|unix.O_CLOEXEC, 0)
	if err != nil {
		return func() {}
	}
	for end := time.Now().Add(probeTimeout); time.Now().Before(end); time.Sleep(time.Millisecond) {
		if unix.Flock(fd, unix.LOCK_EX|unix.LOCK_NB) == nil {
			break
		}
	}
	return func() { _ = unix.Close(fd) }
}

// Listener is a listening Unix socket that removes its own socket file, and no other, when it closes.
type Listener struct {
	*net.UnixListener
	path string
	file fs.FileInfo
	once sync.Once
	err  error
}

// Close removes the file before it stops listening: as long as somebody
// answers, no other process puts a socket of its own there.
func (l *Listener) Close() error {
	l.once.Do(func() {
		if fi, err := os.Lstat(l.path); err == nil && os.SameFile(fi, l.file) {
			_ = os.Remove(l.path)
		}
		l.err = l.UnixListener.Close()
	})
	return l.err
}
