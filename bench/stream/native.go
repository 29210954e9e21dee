package main

import (
	"context"
	"errors"
	"fmt"
	"os/exec"
	"path/filepath"
	"time"

	"github.com/vhostnet/vhostnet/bench/peer"
)

const (
	// hostTap and guestTap are the TAPs of a back-end and of a native guest, each in
	// a namespace of its own.
	hostTap  = "vn0"
	guestTap = "eth0"
	// passtMTU is what passt tells a guest that asks (DHCP), in bytes. It makes
	// large segments of TCP where the others have offloads.
	passtMTU = 65520
	// frameMTU is Ethernet's, in bytes.
	frameMTU = 1500
	// congestionControl is what Linux has by default, which this machine may not. BBR
	// for one takes every delay beyond the shortest for a queue.
	congestionControl = "cubic"
)

// nativeSite is a native guest.
type nativeSite struct {
	s            *starter
	backEnd      string
	host, inside *peer.Network
	back         peer.BackEnd
	guest        *peer.NativeGuest
	servers      *servers
}

// native starts a back-end and a native guest on it.
func (s *starter) native(ctx context.Context, backEnd string) (_ site, err error) {
	n := &nativeSite{s: s, backEnd: backEnd}
	defer func() {
		if err != nil {
			err = errors.Join(err, n.Close())
		}
	}()
	dir, err := s.folder()
	if err != nil {
		return nil, err
	}
	if n.host, err = peer.NewNetwork(); err != nil {
		return nil, err
	}
	if n.inside, err = peer.NewStack(); err != nil {
		return nil, err
	}
	if n.back, err = s.backEnd(ctx, backEnd, dir, peer.Place{Core: backCore, Net: n.host}); err != nil {
		return nil, err
	}
	// One that is paused may be stopped altogether.
	if err := n.Resume(ctx); err != nil {
		return nil, err
	}
	mtu := 0
	if backEnd == passt {
		mtu = passtMTU
	} else if err := n.host.Guest(hostTap, false); err != nil {
		return nil, err
	}
	cmd := exec.CommandContext(ctx, s.self, "guest", "--socket", n.back.Socket(), "--tap", guestTap)
	if n.guest, err = peer.StartGuest(ctx, cmd, peer.Place{Core: guestCore, Net: n.inside}); err != nil {
		return nil, err
	}
	if err := n.inside.Join(guestTap, mtu); err != nil {
		return nil, err
	}
	if err := errors.Join(n.host.SetCongestion(congestionControl), n.inside.SetCongestion(congestionControl)); err != nil {
		return nil, err
	}
	if n.servers, err = s.serve(ctx, peer.Place{Core: s.o.HostCore, Net: n.host}); err != nil {
		return nil, err
	}
	return n, n.Pause(ctx)
}

// backEnd starts one whose host side is a TAP, or sockets.
func (s *starter) backEnd(ctx context.Context, name, dir string, at peer.Place) (b peer.BackEnd, err error) {
	switch name {
	case vhostnet:
		socket := filepath.Join(dir, "vhostnet.sock")
		cmd := exec.CommandContext(ctx, s.binary, "serve", "--socket-path", socket, "--port", "tap:"+hostTap, "--log-level", "warn")
		b, err = peer.Daemon(ctx, name, cmd, socket, at)
	case netVhostTap:
		b, err = s.kit.NetVhostTap(ctx, dir, hostTap, at)
	case passt:
		b, err = s.kit.Passt(ctx, dir, at)
	case ovsTap:
		b, err = s.kit.OVS(ctx, s.ovs, dir, hostTap, at)
	default:
		err = fmt.Errorf("no back-end %q", name)
	}
	if err != nil {
		return nil, err // and not an interface that holds a nil
	}
	return b, nil
}

func (n *nativeSite) Guest(ctx context.Context, program string, args ...string) (string, error) {
	return peer.Run(ctx, program, n.s.tool(ctx, program, args...), peer.Place{Core: guestCore, Net: n.inside})
}

// Segmentation switches what there is of it. passt offers none: segments have the
// guest's MTU as their bound. The others neither, and what they make of a TAP has none.
func (n *nativeSite) Segmentation(ctx context.Context, on bool) error {
	state, mtu := "off", frameMTU
	if on {
		state, mtu = "on", passtMTU
	}
	switch n.backEnd {
	case passt:
		return n.inside.SetMTU(guestTap, mtu)
	case vhostnet:
		return errors.Join(n.offload(ctx, n.inside, guestTap, state), n.offload(ctx, n.host, hostTap, state))
	}
	return nil
}

func (n *nativeSite) offload(ctx context.Context, net *peer.Network, name, state string) error {
	_, err := peer.Run(ctx, "ethtool", n.s.tool(ctx, "ethtool", "-K", name, "tso", state), peer.Place{Core: guestCore, Net: net})
	return err
}

func (n *nativeSite) Resume(ctx context.Context) error { return n.back.Resume(ctx) }

func (n *nativeSite) Pause(ctx context.Context) error { return n.back.Pause(ctx) }

func (n *nativeSite) CPU() (time.Duration, error) { return peer.CPUTime(n.back.PID()) }

func (n *nativeSite) Calls(ctx context.Context) (uint64, bool, error) {
	c, err := n.guest.Counters(ctx)
	return c.Calls, true, err
}

func (n *nativeSite) Close() error {
	err := n.servers.close()
	if n.back != nil {
		// Its part in the guest's end; it may be running already.
		_ = n.Resume(context.Background())
	}
	if n.guest != nil {
		err = errors.Join(err, n.guest.Close())
	}
	if n.back != nil {
		err = errors.Join(err, n.back.Close())
	}
	return errors.Join(err, n.inside.Close(), n.host.Close())
}
