package main

import (
	"errors"
	"fmt"

	"github.com/vhostnet/vhostnet/vhostuser"
)

// maxPath is the longest path of a Unix socket (unix(7)).
const maxPath = 107

// endpoint is where the front-end is found: at a path, or on a descriptor if there
// is one.
func endpoint(path string, fd *int, client bool) (vhostuser.Endpoint, error) {
	if fd == nil {
		if n := len(path); n == 0 || n > maxPath {
			return vhostuser.Endpoint{}, usageError{fmt.Errorf("--socket-path has %d bytes: want 1 to %d", n, maxPath)}
		}
		return vhostuser.Endpoint{Path: path, FD: -1, Client: client}, nil
	}
	switch {
	case client:
		return vhostuser.Endpoint{}, usageError{errors.New("--client needs --socket-path: a descriptor cannot be dialled")}
	case *fd < 0:
		return vhostuser.Endpoint{}, usageError{fmt.Errorf("--fd %d: want the number of an open descriptor", *fd)}
	case path != "":
		return vhostuser.Endpoint{}, usageError{errors.New("--socket-path and --fd exclude each other")}
	}
	return vhostuser.Endpoint{FD: *fd}, nil
}
