package afpacket

import (
	"errors"
	"fmt"
	"syscall"

	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/port"
)

var (
	// ErrMissing means that there is no interface of that name.
	ErrMissing = errors.New("no such interface")
	// ErrNotEthernet means that the interface's frames have another header.
	ErrNotEthernet = errors.New("not an Ethernet interface")
	// ErrName means that no interface can have that name.
	ErrName = errors.New("bad interface name")
	// ErrGone means that the interface was deleted, or has moved to another network
	// namespace. The port does not come back.
	ErrGone = errors.New("the interface is gone")
)

// failed gives an error of [Open] the operation, the name and a hint.
func failed(name, op string, err error) error {
	hint := ""
	switch {
	case errors.Is(err, unix.EPERM):
		hint = " (needs CAP_NET_RAW)"
	case errors.Is(err, ErrName):
		hint = fmt.Sprintf(" (1 to %d bytes, no slash, colon or white space)", unix.IFNAMSIZ-1)
	case errors.Is(err, unix.EINVAL) && op == "fanout":
		hint = " (before Linux 6.11, several queues need a link that is up)"
	}
	return fmt.Errorf("afpacket: open %s: %s: %w%s", name, op, err, hint)
}

// dropError is a frame's end: it wraps [port.ErrDropped] and the cause. All of them
// are made beforehand, since a hostile driver decides how many it gets.
type dropError struct {
	text  string
	wraps []error
}

func (e *dropError) Error() string   { return e.text }
func (e *dropError) Unwrap() []error { return e.wraps }

func newDropError(cause error) *dropError {
	return &dropError{text: "afpacket: frame dropped: " + cause.Error(), wraps: []error{port.ErrDropped, cause}}
}

var (
	// dropErrors has one error per errno; the largest that Linux has is 133.
	dropErrors = func() (t [134]*dropError) {
		for i := range t {
			t[i] = newDropError(syscall.Errno(i))
		}
		return t
	}()
	errShort   = newDropError(errors.New("short write"))
	errOffload = newDropError(errors.New("offload that cannot be done in software"))
)

func dropped(errno syscall.Errno) error {
	if int(errno) < len(dropErrors) {
		return dropErrors[errno]
	}
	return dropErrors[unix.EIO]
}
