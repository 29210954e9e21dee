package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"slices"
	"strconv"
	"strings"
	"time"

	"github.com/vhostnet/vhostnet/bench/peer"
)

// servers are the programs of a host side.
type servers struct{ list []*peer.Server }

// serve starts those that loads need in a host's namespace.
func (s *starter) serve(ctx context.Context, at peer.Place) (_ *servers, err error) {
	v := &servers{}
	defer func() {
		if err != nil {
			err = errors.Join(err, v.close())
		}
	}()
	for _, p := range []struct {
		name string
		port int
		args []string
	}{
		// Their answers to datagrams have to come from the address that was asked.
		{"iperf3", iperfPort, []string{"--server", "--bind", peer.HostIP, "--port", strconv.Itoa(iperfPort)}},
		{"sockperf", sockperfPort, []string{"server", "-i", peer.HostIP, "-p", strconv.Itoa(sockperfPort)}},
	} {
		if !slices.ContainsFunc(s.loads, func(l load) bool { return l.program == p.name }) {
			continue
		}
		// It is ended by close, and not by the context, whose end is no failure of it.
		one, err := peer.Serve(p.name, s.tool(context.WithoutCancel(ctx), p.name, p.args...), at)
		if err != nil {
			return nil, err
		}
		v.list = append(v.list, one)
		if err := waitPort(ctx, at.Net, p.port); err != nil {
			return nil, err
		}
	}
	return v, nil
}

func (v *servers) close() error {
	if v == nil {
		return nil
	}
	var err error
	for _, s := range v.list {
		err = errors.Join(err, s.Close())
	}
	return err
}

// socketLists are where the kernel lists sockets of the reader's namespace.
var socketLists = []string{"/proc/thread-self/net/tcp", "/proc/thread-self/net/tcp6", "/proc/thread-self/net/udp"}

// waitPort waits until something listens on a port.
func waitPort(ctx context.Context, n *peer.Network, port int) error {
	ctx, cancel := context.WithTimeoutCause(ctx, patience, fmt.Errorf("nobody listens on port %d", port))
	defer cancel()
	want := fmt.Sprintf(":%04X ", port)
	for {
		found := false
		err := n.Do(func() error {
			for _, list := range socketLists {
				b, err := os.ReadFile(list)
				if err != nil && !errors.Is(err, os.ErrNotExist) {
					return err
				}
				found = found || strings.Contains(string(b), want)
			}
			return nil
		})
		if err != nil || found {
			return err
		}
		select {
		case <-ctx.Done():
			return context.Cause(ctx)
		case <-time.After(10 * time.Millisecond):
		}
	}
}
