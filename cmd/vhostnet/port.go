package main

import (
	"errors"
	"fmt"
	"slices"
	"strconv"
	"strings"

	"github.com/vhostnet/vhostnet/port"
	"github.com/vhostnet/vhostnet/port/afpacket"
	"github.com/vhostnet/vhostnet/port/builtin"
	"github.com/vhostnet/vhostnet/port/pcap"
	"github.com/vhostnet/vhostnet/port/vswitch"
	"github.com/vhostnet/vhostnet/tap"
)

// tapIO are the values of --tap-io.
var tapIO = map[string]tap.IO{"": tap.IOAuto, "auto": tap.IOAuto, "readv": tap.IOSingle, "io_uring": tap.IOBatch}

// switches are the process's: devices meet there by name.
var switches vswitch.Set

// checkPort finds what is wrong with the notation of a port.
func checkPort(text string) error {
	spec, err := port.Parse(text)
	if err != nil {
		return usageError{err}
	}
	if spec.Kind == "tap" {
		if spec.Args == "" {
			return usageError{fmt.Errorf("--port %s: want tap:NAME", text)}
		}
		return nil
	}
	if spec.Kind == "tap-fd" {
		_, err := descriptors(spec.Args)
		if err != nil {
			return usageError{fmt.Errorf("--port %s: %w", text, err)}
		}
		return nil
	}
	if spec.Kind == "af-packet" {
		if err := afpacket.Check(spec.Args); err != nil {
			return usageError{fmt.Errorf("--port %s: %w", text, err)}
		}
		return nil
	}
	if spec.Kind == "pcap" {
		if _, err := pcap.Parse(spec.Args); err != nil {
			return usageError{fmt.Errorf("--port %s: %w", text, err)}
		}
		return nil
	}
	if spec.Kind == "switch" {
		if err := vswitch.Check(spec.Args); err != nil {
			return usageError{fmt.Errorf("--port %s: %w", text, err)}
		}
		return nil
	}
	return builtinError(text, builtin.Check(spec.Kind, spec.Args))
}

// openPort opens "KIND:ARGS" with the given number of queues. how is for TAPs.
func openPort(text string, queues int, how tap.IO) (port.Port, error) {
	if err := checkPort(text); err != nil {
		return nil, err
	}
	spec, err := port.Parse(text)
	if err != nil {
		return nil, usageError{err}
	}
	if spec.Kind == "tap" {
		p, err := tap.Open(spec.Args, tap.Options{Queues: queues, CreateIfMissing: true, IO: how})
		if err != nil {
			return nil, fmt.Errorf("--port %s: %w", text, err)
		}
		return p, nil
	}
	if spec.Kind == "tap-fd" {
		fds, err := descriptors(spec.Args)
		if err == nil && len(fds) != queues {
			err = fmt.Errorf("there are %d queue pairs: want a descriptor for each", queues)
		}
		if err != nil {
			return nil, usageError{fmt.Errorf("--port %s: %w", text, err)}
		}
		p, err := tap.Adopt(fds, tap.Options{IO: how})
		if err != nil {
			return nil, fmt.Errorf("--port %s: %w", text, err)
		}
		return p, nil
	}
	if spec.Kind == "af-packet" {
		p, err := afpacket.Open(spec.Args, afpacket.Options{Queues: queues})
		if err != nil {
			return nil, fmt.Errorf("--port %s: %w", text, err)
		}
		return p, nil
	}
	if spec.Kind == "pcap" {
		o, err := pcap.Parse(spec.Args)
		if err != nil {
			return nil, usageError{fmt.Errorf("--port %s: %w", text, err)}
		}
		p, err := pcap.Open(o, queues)
		if err != nil {
			return nil, fmt.Errorf("--port %s: %w", text, err)
		}
		return p, nil
	}
	if spec.Kind == "switch" {
		p, err := switches.Open(spec.Args, queues)
		if err != nil {
			return nil, fmt.Errorf("--port %s: %w", text, err)
		}
		return p, nil
	}
	p, err := builtin.Open(spec.Kind, spec.Args, queues)
	return p, builtinError(text, err)
}

// descriptors reads the numbers of tap-fd:N,N,... .
func descriptors(text string) (fds []int, err error) {
	for word := range strings.SplitSeq(text, ",") {
		n, err := strconv.ParseUint(word, 10, 31)
		if err != nil {
			return nil, fmt.Errorf("%q: want the numbers of open descriptors: tap-fd:N, or tap-fd:N,N for two queue pairs", text)
		}
		if slices.Contains(fds, int(n)) {
			return nil, fmt.Errorf("descriptor %d is there twice", n)
		}
		fds = append(fds, int(n))
	}
	return fds, nil
}

// tapDescriptors are those of a port that was checked, none if it has none.
func tapDescriptors(text string) []int {
	spec, err := port.Parse(text)
	if err != nil || spec.Kind != "tap-fd" {
		return nil
	}
	fds, _ := descriptors(spec.Args)
	return fds
}

// builtinError says that an error is one of usage.
func builtinError(text string, err error) error {
	switch {
	case errors.Is(err, builtin.ErrKind):
		return usageError{fmt.Errorf("--port %s: no such kind: want tap:NAME, tap-fd:N, af-packet:IFACE, switch:NAME, pcap:record=FILE or replay=FILE, null, source[:SIZE] or echo", text)}
	case err != nil:
		return usageError{fmt.Errorf("--port %s: %w", text, err)}
	}
	return nil
}
