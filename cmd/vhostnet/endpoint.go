package main

import (
	"errors"
	"fmt"

	"github.com/vhostnet/vhostnet/vhostuser"
)

// endpoint is where the front-end is found.
func (c *serveCmd) endpoint() (vhostuser.Endpoint, error) {
	if c.FD == nil {
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
