package main

import (
	"context"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"strings"
	"time"

	"github.com/vishvananda/netlink"

	"github.com/vhostnet/vhostnet/bench/peer"
	qemutest "github.com/vhostnet/vhostnet/qemu-test"
)

// bootTime bounds the start of a machine with an emulated processor.
const bootTime = time.Minute

// machineSite is a guest in QEMU.
type machineSite struct {
	host    *peer.Network
	back    peer.BackEnd // nil where QEMU is the device
	guest   *qemutest.Guest
	servers *servers
}

// machine boots a guest on vhostnet, or on QEMU's own device. Both have a TAP of the
// same kind in a namespace of the same kind.
func (s *starter) machine(ctx context.Context, backEnd string) (_ site, err error) {
	m := &machineSite{}
	defer func() {
		if err != nil {
			err = errors.Join(err, m.Close())
		}
	}()
	dir, err := s.folder()
	if err != nil {
		return nil, err
	}
	if m.host, err = peer.NewNetwork(); err != nil {
		return nil, err
	}
	at := peer.Place{Core: -1, Net: m.host}
	c := qemutest.Config{
		Lane: qemutest.LaneNetdev, Assets: s.assets, Dir: filepath.Join(dir, "guest"), Agent: s.agent,
		Address: peer.GuestIP + "/24",
	}
	if err := os.Mkdir(c.Dir, 0o755); err != nil {
		return nil, err
	}
	if backEnd == vhostnet {
		if m.back, err = s.backEnd(ctx, backEnd, dir, at); err != nil {
			return nil, err
		}
		c.Socket = m.back.Socket()
	} else {
		c.Lane = qemutest.LaneTAP
		if c.TAP, err = openTAP(m.host); err != nil {
			return nil, err
		}
		defer c.TAP.Close()
	}
	if err := errors.Join(m.host.Guest(hostTap, false), m.host.SetCongestion(congestionControl)); err != nil {
		return nil, err
	}
	if m.servers, err = s.serve(ctx, at); err != nil {
		return nil, err
	}
	boot, cancel := context.WithTimeoutCause(ctx, bootTime, errors.New("the guest did not boot"))
	defer cancel()
	m.guest, err = qemutest.Boot(boot, c)
	return m, err
}

// openTAP makes a TAP in a namespace that lives until its descriptor is closed.
func openTAP(n *peer.Network) (f *os.File, err error) {
	err = n.Do(func() error {
		t := &netlink.Tuntap{
			LinkAttrs: netlink.LinkAttrs{Name: hostTap}, Mode: netlink.TUNTAP_MODE_TAP, Queues: 1, NonPersist: true,
			Flags: netlink.TUNTAP_NO_PI | netlink.TUNTAP_VNET_HDR,
		}
		if err := netlink.LinkAdd(t); err != nil {
			return fmt.Errorf("TAP %s: %w", hostTap, err)
		}
		f = t.Fds[0]
		return nil
	})
	return f, err
}

func (m *machineSite) Guest(ctx context.Context, program string, args ...string) (string, error) {
	r, err := m.guest.Run(ctx, program+" "+strings.Join(args, " "))
	if err == nil && r.Exit != 0 {
		err = fmt.Errorf("%s in the guest: exit status %d: %s", program, r.Exit, tailOf(r.Output))
	}
	return r.Output, err
}

// Segmentation fails: its loads are for native guests.
func (m *machineSite) Segmentation(context.Context, bool) error { return errors.ErrUnsupported }

func (m *machineSite) Resume(context.Context) error { return nil }

func (m *machineSite) Pause(context.Context) error { return nil }

// CPU is of QEMU, whose threads are the guest's processor and, where it is the
// device, its back-end, and of vhostnet.
func (m *machineSite) CPU() (time.Duration, error) {
	sum, err := peer.CPUTime(m.guest.Process().PID())
	if err != nil || m.back == nil {
		return sum, err
	}
	back, err := peer.CPUTime(m.back.PID())
	return sum + back, err
}

func (m *machineSite) Calls(context.Context) (uint64, bool, error) { return 0, false, nil }

func (m *machineSite) Close() error {
	err := m.servers.close()
	if m.guest != nil {
		m.guest.Close()
	}
	if m.back != nil {
		err = errors.Join(err, m.back.Close())
	}
	return errors.Join(err, m.host.Close())
}
