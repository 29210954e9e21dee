package main

import (
	"errors"
	"fmt"

	"github.com/vhostnet/vhostnet/vhostuser"
)

// maxPath is the longest path of a Unix socket (unix(7)).
const maxPath = 107

// endpoint is where the front-end is found.
func (c *serveCmd) endpoint() (vhostuser.Endpoint, error) {
	if c.FD == nil {
		if n := len(c.SocketPath); n == 0 || n > maxPath {
			if n == 0 {
				return vhostuser.Endpoint{}, usageError{fmt.Errorf("no socket: want --socket-path with 1 to %d bytes, or --fd", maxPath)}
			}
			return vhostuser.Endpoint{}, usageError{fmt.Errorf("--socket-path has %d bytes: want 1 to %d", n, maxPath)}
		}
		return vhostuser.Endpoint{Path: c.SocketPath, FD: -1, Client: c.Client}, nil
	}
	switch {
	case c.Client:
		return vhostuser.Endpoint{}, usageError{errors.New("--client needs --socket-path: a descriptor cannot be dialled")}
	case *c.FD < 0:
		return vhostuser.Endpoint{}, usageError{fmt.Errorf("--fd %d: want the number of an open descriptor", *c.FD)}
	}
	return vhostuser.Endpoint{FD: *c.FD}, nil
}
