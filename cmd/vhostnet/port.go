package main

import (
	"errors"
	"fmt"

	"github.com/vhostnet/vhostnet/port"
	"github.com/vhostnet/vhostnet/port/builtin"
	"github.com/vhostnet/vhostnet/tap"
)

// tapIO are the values of --tap-io.
var tapIO = map[string]tap.IO{"": tap.IOAuto, "auto": tap.IOAuto, "readv": tap.IOSingle, "io_uring": tap.IOBatch}

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
	p, err := builtin.Open(spec.Kind, spec.Args, queues)
	return p, builtinError(text, err)
}

// builtinError says that an error is one of usage.
func builtinError(text string, err error) error {
	switch {
	case errors.Is(err, builtin.ErrKind):
		return usageError{fmt.Errorf("--port %s: no such kind: want tap:NAME, null, source[:SIZE] or echo", text)}
	case err != nil:
		return usageError{fmt.Errorf("--port %s: %w", text, err)}
	}
	return nil
}
