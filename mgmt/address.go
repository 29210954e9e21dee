package mgmt

import (
	"errors"
	"fmt"
	"math"
	"strconv"
	"strings"
)

// Networks that an [Address] can name.
const (
	NetworkUnix  = "unix"
	NetworkVsock = "vsock"
)

// Context identifiers with a meaning of their own (vsock(7)).
const (
	// CIDAny is every context identifier of this machine; it can be listened
	// on and not dialled.
	CIDAny = math.MaxUint32
	// CIDLocal is this machine itself; it needs the module vsock_loopback.
	CIDLocal = 1
	// CIDHost is the host of the guest that dials it.
	CIDHost = 2
)

// maxUnixPath is what sockaddr_un holds, less the terminating zero (unix(7)).
const maxUnixPath = 107

// ErrAddress is wrapped by errors about the text of an address.
var ErrAddress = errors.New("mgmt: address")

// Address is where the API listens or is found.
type Address struct {
	// Network is NetworkUnix or NetworkVsock.
	Network string
	// Path is the socket's path, 1 to 107 bytes; NetworkUnix only.
	Path string
	// CID is the context identifier, CIDAny if none was given; NetworkVsock only.
	CID uint32
	// Port is 1 to 4294967294; NetworkVsock only.
	Port uint32
}

// ParseAddress reads "unix:PATH", "vsock:PORT" or "vsock:CID:PORT". Its errors
// wrap [ErrAddress].
func ParseAddress(s string) (Address, error) {
	network, rest, found := strings.Cut(s, ":")
	switch {
	case found && network == NetworkUnix:
		return parseUnix(s, rest)
	case found && network == NetworkVsock:
		return parseVsock(s, rest)
	}
	return Address{}, fmt.Errorf("%w %q: want unix:PATH, vsock:PORT or vsock:CID:PORT", ErrAddress, s)
}

func parseUnix(s, path string) (Address, error) {
	switch {
	case path == "":
		return Address{}, fmt.Errorf("%w %q: the path is missing", ErrAddress, s)
	case len(path) > maxUnixPath:
		return Address{}, fmt.Errorf("%w %q: the path has %d bytes, a Unix socket's can have %d",
			ErrAddress, s, len(path), maxUnixPath)
	case path[0] == '@' || strings.ContainsRune(path, 0):
		// Abstract sockets have no permissions.
		return Address{}, fmt.Errorf("%w %q: abstract sockets are not supported, use a path", ErrAddress, s)
	}
	return Address{Network: NetworkUnix, Path: path}, nil
}

func parseVsock(s, rest string) (Address, error) {
	a := Address{Network: NetworkVsock, CID: CIDAny}
	port := rest
	if cid, p, found := strings.Cut(rest, ":"); found {
		n, err := strconv.ParseUint(cid, 10, 32)
		if err != nil {
			return Address{}, fmt.Errorf("%w %q: the context identifier is not a number of 0 to %d", ErrAddress, s, uint32(CIDAny))
		}
		a.CID, port = uint32(n), p
	}
	n, err := strconv.ParseUint(port, 10, 32)
	// The last number is the kernel's wildcard (VMADDR_PORT_ANY).
	if err != nil || n == 0 || n == math.MaxUint32 {
		return Address{}, fmt.Errorf("%w %q: the port is not a number of 1 to %d", ErrAddress, s, uint32(math.MaxUint32-1))
	}
	a.Port = uint32(n)
	return a, nil
}

// String gives the text that [ParseAddress] reads.
func (a Address) String() string {
	switch {
	case a.Network == NetworkUnix:
		return "unix:" + a.Path
	case a.CID == CIDAny:
		return fmt.Sprintf("vsock:%d", a.Port)
	}
	return fmt.Sprintf("vsock:%d:%d", a.CID, a.Port)
}
