package mgmt

import (
	"errors"
	"fmt"
	"io/fs"
	"net"
	"path/filepath"

	"github.com/mdlayher/vsock"
	"golang.org/x/net/netutil"
	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/internal/unixsock"
)

// maxConns bounds the connections of one listener: each costs a file
// descriptor, and over AF_VSOCK a guest decides how many it opens. Further
// connections wait in the listener's backlog.
const maxConns = 64

var (
	// ErrInUse means that another process answers on the address.
	ErrInUse = unixsock.ErrInUse
	// ErrNotSocket means that the path exists and is not a socket.
	ErrNotSocket = unixsock.ErrNotSocket
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
		l, err = unixsock.Listen(a.Path)
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
