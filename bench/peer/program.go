package peer

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os/exec"
	"strings"
)

// Run runs a program at a place to its end and returns what it wrote to standard
// output.
func Run(ctx context.Context, name string, cmd *exec.Cmd, at Place) (string, error) {
	var out, errs bytes.Buffer
	cmd.Stdout, cmd.Stderr = &out, &errs
	p, err := start(name, cmd, at)
	if err != nil {
		return "", err
	}
	<-p.done
	if err := context.Cause(ctx); err != nil {
		return "", err
	}
	if p.err != nil {
		// Some say on standard output what went wrong.
		return out.String(), fmt.Errorf("peer: %s: %w: %s %s", name, p.err, strings.TrimSpace(errs.String()), lastOf(out.String()))
	}
	return out.String(), nil
}

// lastOf is the end of a text, for errors.
func lastOf(s string) string {
	const most = 300
	if s = strings.TrimSpace(s); len(s) > most {
		s = "..." + s[len(s)-most:]
	}
	return s
}

// Server is a program that runs until Close.
type Server struct {
	*Process
	log bytes.Buffer // the process's until it has ended
}

// Serve starts a program that serves until SIGTERM.
func Serve(name string, cmd *exec.Cmd, at Place) (*Server, error) {
	s := &Server{}
	cmd.Stdout, cmd.Stderr = &s.log, &s.log
	var err error
	if s.Process, err = start(name, cmd, at); err != nil {
		return nil, err
	}
	return s, nil
}

// Close ends it. The error is that of a program that has ended before.
func (s *Server) Close() error {
	if err := s.ended(); err != nil {
		return errors.Join(err, errors.New(lastOf(s.log.String())))
	}
	return s.stop()
}

// GuestCounters are what a native guest has counted since it began.
type GuestCounters struct {
	// Calls are the back-end's writes to the call eventfds, Kicks the driver's to
	// the kick eventfds.
	Calls uint64 `json:"calls"`
	Kicks uint64 `json:"kicks"`
	// Lost are frames that the guest's stack did not take.
	Lost uint64 `json:"lost"`
	// Error is set when the guest is no more.
	Error string `json:"error,omitempty"`
}

// NativeGuest is a program with a driver and a network stack behind it.
type NativeGuest struct{ *console }

// StartGuest starts a program that is a native guest at a place. It prints
// [DriverPrompt] when it is connected, and answers each line with its
// [GuestCounters] in JSON.
func StartGuest(ctx context.Context, cmd *exec.Cmd, at Place) (*NativeGuest, error) {
	c, _, err := startConsole(ctx, "native guest", DriverPrompt, cmd, at)
	if err != nil {
		return nil, err
	}
	return &NativeGuest{c}, nil
}

// Counters asks the guest.
func (g *NativeGuest) Counters(ctx context.Context) (c GuestCounters, err error) {
	s, err := g.do(ctx, "counters")
	if err != nil {
		return c, err
	}
	if err := json.Unmarshal([]byte(s), &c); err != nil {
		return c, fmt.Errorf("peer: %s: answer %q: %w", g.name, s, err)
	}
	if c.Error != "" {
		return c, fmt.Errorf("peer: %s: %s", g.name, c.Error)
	}
	return c, nil
}

// Close ends it.
func (g *NativeGuest) Close() error { return g.quit("") }
