package tap

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/port"
)

var (
	// ErrNotTAP means that the name belongs to an interface of another kind.
	ErrNotTAP = errors.New("not a TAP interface")
	// ErrQueues means that the TAP has one queue and several were asked for.
	ErrQueues = errors.New("the TAP is not multi_queue")
	// ErrBusy means that another process is attached to the TAP.
	ErrBusy = errors.New("the TAP is in use")
	// ErrExists means that the interface is there already.
	ErrExists = errors.New("the interface exists")
	// ErrMissing means that there is no interface of that name.
	ErrMissing = errors.New("no such interface")
	// ErrName means that no interface can have that name.
	ErrName = errors.New("bad interface name")
	// ErrFlags means that the kernel attached the queue in another mode than
	// the one that was asked for.
	ErrFlags = errors.New("the kernel gave other flags than asked for")
	// ErrGone means that the interface was deleted while the port was open. It
	// is for good: no call on that port's queues succeeds any more.
	ErrGone = errors.New("tap: the interface is gone")
)

// Error is what [Open], [Create] and [Delete] return: what failed, on which
// interface, why, and where it is known what to do about it.
type Error struct {
	// Op is the step that failed, such as "attach".
	Op string
	// Name is the interface's name.
	Name string
	// Err is the cause: one of this package's errors or an errno.
	Err error
	// Hint says what to do about it; it may be empty.
	Hint string
}

// Error gives "tap: operation name: cause (hint)".
func (e *Error) Error() string {
	s := "tap: " + e.Op
	if e.Name != "" {
		s += " " + e.Name
	}
	s += ": " + e.Err.Error()
	if e.Hint != "" {
		s += " (" + e.Hint + ")"
	}
	return s
}

// Unwrap returns the cause.
func (e *Error) Unwrap() error { return e.Err }

// failed makes an [Error], with the hint that goes with the cause.
func failed(op, name string, err error) error {
	var done *Error
	if errors.As(err, &done) {
		return err
	}
	return &Error{Op: op, Name: name, Err: err, Hint: hint(op, err)}
}

func hint(op string, err error) string {
	switch {
	case op == "open /dev/net/tun":
		switch {
		case errors.Is(err, unix.ENOENT), errors.Is(err, unix.ENODEV), errors.Is(err, unix.ENXIO):
			return "load the kernel module: modprobe tun; in a container, pass the device in"
		case errors.Is(err, unix.EACCES), errors.Is(err, unix.EPERM):
			return "the device file must be readable and writable for this user"
		}
	case errors.Is(err, unix.EPERM):
		return "needs CAP_NET_ADMIN, or a persistent TAP that this user owns: vhostnet tap create --owner"
	case errors.Is(err, unix.EBUSY), errors.Is(err, ErrBusy):
		return "another process is attached to it; offloads and header size cannot be shared"
	case errors.Is(err, ErrQueues):
		return "use one queue pair, or make it anew with several queues: vhostnet tap create"
	case errors.Is(err, ErrMissing) && op == "open":
		return "make it with: vhostnet tap create"
	case errors.Is(err, ErrName):
		return fmt.Sprintf("1 to %d bytes, no slash, colon or white space", unix.IFNAMSIZ-1)
	case errors.Is(err, ErrFlags):
		return "another process may have attached to it at the same time"
	case errors.Is(err, unix.EINVAL) && op == "attach":
		return "the interface is no TAP, or its multi_queue flag changed meanwhile"
	case errors.Is(err, unix.E2BIG):
		return fmt.Sprintf("the kernel allows %d queues", MaxQueues)
	}
	return ""
}

// dropError is a frame's end: it wraps [port.ErrDropped] and the errno. All of
// them are made beforehand, since a hostile driver decides how many it gets.
type dropError struct {
	text  string
	wraps []error
}

func (e *dropError) Error() string   { return e.text }
func (e *dropError) Unwrap() []error { return e.wraps }

func newDropError(cause error) *dropError {
	return &dropError{
		text:  "tap: frame dropped: " + cause.Error(),
		wraps: []error{port.ErrDropped, cause},
	}
}

var (
	// dropErrors has one error per errno; the largest that Linux has is 133.
	dropErrors = func() (t [134]*dropError) {
		for i := range t {
			t[i] = newDropError(syscall.Errno(i))
		}
		return t
	}()
	// errShort is for a write of which the kernel took a part only. A TAP never
	// does; the rest must not be sent as a frame of its own.
	errShort = newDropError(errors.New("short write"))
)

// dropped returns the error for an errno that costs the frame.
func dropped(errno syscall.Errno) error {
	if int(errno) < len(dropErrors) {
		return dropErrors[errno]
	}
	return dropErrors[unix.EIO]
}
