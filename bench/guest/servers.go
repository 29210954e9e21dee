package main

import (
	"context"
	"fmt"
	"os"
	"strings"
	"time"
)

// StartGuest starts a server in the guest's namespace.
func (s *nativeSite) StartGuest(ctx context.Context, name string, args ...string) (stop func(), err error) {
	p, err := s.inside.Start(name, bound(ctx, guestCPU, s.assets.Tool(ctx, name, args...)))
	if err != nil {
		return nil, err
	}
	return p.Kill, nil
}

// readyTimeout bounds the start of a server.
const readyTimeout = 20 * time.Second

// socketLists are where the kernel lists TCP and UDP sockets of the reader's
// namespace.
var socketLists = []string{"/proc/thread-self/net/tcp", "/proc/thread-self/net/udp"}

// waitHostPort waits until something on the host side listens on a port.
func waitHostPort(ctx context.Context, s site, port int) error {
	want := fmt.Sprintf(":%04X ", port)
	for end := time.Now().Add(readyTimeout); time.Now().Before(end); {
		var found bool
		err := s.Namespace().Do(func() error {
			for _, list := range socketLists {
				raw, err := os.ReadFile(list)
				if err != nil {
					return err
				}
				found = found || strings.Contains(string(raw), want)
			}
			return nil
		})
		if err != nil || found {
			return err
		}
		if err := pause(ctx, 20*time.Millisecond); err != nil {
			return err
		}
	}
	return fmt.Errorf("nobody listens on port %d of the host side after %v", port, readyTimeout)
}

// waitGuestPort waits until something in the guest listens on a port.
func waitGuestPort(ctx context.Context, s site, port int) error {
	_, err := s.Guest(ctx, fmt.Sprintf(
		`n=0; until cat /proc/net/tcp /proc/net/udp | grep -q ':%04X '; do n=$((n+1)); [ $n -lt %d ] || { cat /tmp/server*.log; exit 1; }; sleep 0.1; done`,
		port, int(readyTimeout/(100*time.Millisecond))))
	if err != nil {
		return fmt.Errorf("nobody listens on port %d of the guest: %w", port, err)
	}
	return nil
}
