package main

import (
	"context"
	"errors"
	"fmt"
	"log/slog"

	"github.com/vhostnet/vhostnet/ctrlq"
	"github.com/vhostnet/vhostnet/internal/unixsock"
	"github.com/vhostnet/vhostnet/netdev"
	"github.com/vhostnet/vhostnet/port/builtin"
	"github.com/vhostnet/vhostnet/vhostuser"
	"github.com/vhostnet/vhostnet/virtio"
)

// offer is what a device has to offer a front-end.
type offer struct {
	features virtio.Features
	protocol vhostuser.ProtocolFeatures
}

// registry is what this device has: without options, and with all of them.
type registry struct{ plain, all offer }

// ask asks devices for their offers. Their ports can do whatever a port can.
func ask() (r registry, err error) {
	var available virtio.Features
	if r.plain, available, err = askDevice(netdev.Config{}); err != nil {
		return r, err
	}
	r.all, _, err = askDevice(netdev.Config{QueuePairs: 2, MAC: [6]byte{2}, MTU: 1500, Speed: 10000, With: available})
	return r, err
}

// askDevice makes a device and asks it over a socket: part of the offer is the
// session's.
func askDevice(cfg netdev.Config) (o offer, available virtio.Features, err error) {
	cfg.Log = slog.New(slog.DiscardHandler)
	p, err := builtin.Null(2)
	if err != nil {
		return o, 0, err
	}
	d, err := netdev.New(cfg, p)
	if err != nil {
		return o, 0, err
	}
	ours, theirs, err := unixsock.Pair()
	if err != nil {
		return o, 0, errors.Join(err, d.Close())
	}
	served := make(chan error, 1)
	go func() { served <- vhostuser.Serve(context.Background(), theirs, d, vhostuser.Options{}) }()
	f := vhostuser.NewFrontend(ours)
	var errs [4]error
	o.features, errs[0] = f.GetFeatures()
	o.protocol, errs[1] = f.GetProtocolFeatures()
	errs[2] = f.Close()
	errs[3] = <-served
	return o, d.Available(), errors.Join(errors.Join(errs[:]...), d.Close())
}

// bit is the state of one bit in offers.
func bit[F ~uint64](n int, plain, all F) state {
	switch {
	case n > 63:
		return no
	case plain>>n&1 != 0:
		return yes
	case all>>n&1 != 0:
		return onRequest
	}
	return no
}

// commands is the state of a class of control commands, of which it has so many.
func commands(class, count int) state {
	known := 0
	for c := range count {
		// Nothing is negotiated, so that nothing is carried out.
		res := ctrlq.Dispatch(0, struct{ ctrlq.Handler }{}, []byte{byte(class), byte(c)}, [][]byte{make([]byte, 1)})
		if !errors.Is(res.Err, ctrlq.ErrUnknown) {
			known++
		}
	}
	switch known {
	case 0:
		return no
	case count:
		return yes
	}
	return part
}

// together is the state of a row of several bits.
func together(states []state) state {
	for _, s := range states[1:] {
		if s != states[0] {
			return part
		}
	}
	return states[0]
}

// tables are peers.txt with what this device has, and what that is.
func tables() (list []section, reg registry, err error) {
	if list, err = parse(peersText); err != nil {
		return nil, reg, err
	}
	if reg, err = ask(); err != nil {
		return nil, reg, fmt.Errorf("featuretable: %w", err)
	}
	for i := range list {
		s := &list[i]
		for j := range s.rows {
			r := &s.rows[j]
			r.ours = about[s.name][r.name]
			r.state = reg.state(s.name, r)
		}
	}
	return list, reg, nil
}

func (reg registry) state(section string, r *row) state {
	switch section {
	case "control":
		return commands(r.bits[0], countCommands(r.name))
	case "operations":
		if r.has == "no" {
			return no
		}
		return yes
	}
	states := make([]state, len(r.bits))
	for i, n := range r.bits {
		if section == "protocol" {
			states[i] = bit(n, reg.plain.protocol, reg.all.protocol)
		} else {
			states[i] = bit(n, reg.plain.features, reg.all.features)
		}
	}
	return together(states)
}
