package mgmt

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"os"
	"path/filepath"
	"sync"
	"time"

	"github.com/mdlayher/vsock"
	"golang.org/x/net/netutil"
	"golang.org/x/sys/unix"
)

// maxConns bounds the connections of one listener: each costs a file
// descriptor, and over AF_VSOCK a guest decides how many it opens. Further
// connections wait in the listener's backlog.
const maxConns = 64

// probeTimeout bounds the question whether somebody answers on a socket, and
// the wait for another process that is about to listen in the same directory.
const probeTimeout = time.Second

var (
	// ErrInUse means that another process answers on the address.
	ErrInUse = errors.New("another process listens there")
	// ErrNotSocket means that the path exists and is not a socket.
	ErrNotSocket = errors.New("the path exists and is not a socket")
)

// ListenError is an address that cannot be listened on.
type ListenError struct {
	Addr Address
	Err  error
	// Hint says what to do about it; it may be empty.
	Hint string
}

// Error gives "mgmt: listen on ADDRESS: cause (hint)".
func (e *ListenError) Error() string {
	s := fmt.Sprintf("mgmt: listen on %s: %v", e.Addr, e.Err)
	if e.Hint != "" {
		s += " (" + e.Hint + ")"
	}
	return s
}

// Unwrap returns the cause.
func (e *ListenError) Unwrap() error { return e.Err }

// Listen opens a listener. A Unix socket's file that a dead process left behind
// is replaced; one on which somebody answers is not. The file goes away with
// the listener. Errors are [*ListenError] with a hint.
func Listen(a Address) (net.Listener, error) {
	var l net.Listener
	var err error
	switch a.Network {
	case NetworkUnix:
		l, err = listenUnix(a.Path)
	case NetworkVsock:
		// The library's plain Listen binds to this machine's own identifier,
		// which leaves CIDLocal out and needs /dev/vsock.
		l, err = vsock.ListenContextID(a.CID, a.Port, nil)
	default:
		err = ErrAddress
	}
	if err != nil {
		return nil, &ListenError{Addr: a, Err: unwrapOp(err), Hint: hint(a, err)}
	}
	return netutil.LimitListener(l, maxConns), nil
}

// unwrapOp drops net's wrapping, which repeats the address.
func unwrapOp(err error) error {
	var op *net.OpError
	if errors.As(err, &op) {
		return op.Err
	}
	return err
}

// hint says what can be done about an error of Listen.
func hint(a Address, err error) string {
	vs := a.Network == NetworkVsock
	switch {
	case vs && (errors.Is(err, unix.EAFNOSUPPORT) || errors.Is(err, unix.ENODEV) || errors.Is(err, fs.ErrNotExist)):
		return "the kernel has no AF_VSOCK: modprobe vsock, with vhost_vsock on a host or vsock_loopback for this machine alone; or use unix:PATH"
	case vs && errors.Is(err, unix.EADDRNOTAVAIL):
		return fmt.Sprintf("this machine does not have the context identifier %d: vsock:PORT listens on all it has, and 1 needs modprobe vsock_loopback", a.CID)
	case vs && (errors.Is(err, unix.EACCES) || errors.Is(err, unix.EPERM)):
		return "ports below 1024 need CAP_NET_BIND_SERVICE"
	case errors.Is(err, ErrInUse), errors.Is(err, unix.EADDRINUSE):
		return "end that process or choose another address"
	case errors.Is(err, ErrNotSocket):
		return "choose another path; only sockets are replaced"
	case errors.Is(err, fs.ErrNotExist):
		return "make the directory " + filepath.Dir(a.Path) + " first"
	case errors.Is(err, fs.ErrPermission):
		return "this user may not use " + a.Path + " or write to its directory"
	}
	return ""
}

// listenUnix replaces a stale socket file. Asking whether somebody answers,
// removing the file and binding are several steps; the lock on the directory
// keeps two processes that start at once from removing each other's socket.
func listenUnix(path string) (net.Listener, error) {
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
	return &unixListener{UnixListener: l, path: path, file: fi}, nil
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

// unixListener removes its own socket file, and no other, when it closes.
type unixListener struct {
	*net.UnixListener
	path string
	file fs.FileInfo
	once sync.Once
	err  error
}

// Close removes the file before it stops listening: as long as somebody
// answers, no other process puts a socket of its own there.
func (l *unixListener) Close() error {
	l.once.Do(func() {
		if fi, err := os.Lstat(l.path); err == nil && os.SameFile(fi, l.file) {
			_ = os.Remove(l.path)
		}
		l.err = l.UnixListener.Close()
	})
	return l.err
}
