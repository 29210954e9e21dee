package main

import (
	"bufio"
	"encoding/json"
	"errors"
	"io"
	"log/slog"
	"os"

	"github.com/vhostnet/vhostnet/bench/peer"
	"github.com/vhostnet/vhostnet/driver"
	"github.com/vhostnet/vhostnet/nativeguest"
	"github.com/vhostnet/vhostnet/tap"
)

// guestArgs are the command line of a native guest. It belongs in the namespace
// whose stack is the guest's, and on the guest's processor.
type guestArgs struct {
	Socket string `required:""`
	Tap    string `required:"" help:"Name of the TAP, which is made."`
}

// Run is a guest until standard input ends.
func (a *guestArgs) Run(s *streams) (err error) {
	port, err := tap.Open(a.Tap, tap.Options{CreateIfMissing: true})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, port.Close()) }()
	d, err := driver.Dial(a.Socket, driver.Config{
		Features: nativeguest.Features, RXBufferSize: nativeguest.BufferSize, TXBufferSize: nativeguest.BufferSize,
		Log: slog.New(slog.NewTextHandler(s.err, &slog.HandlerOptions{Level: slog.LevelError})),
	})
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, d.Close()) }()
	g, err := nativeguest.New(d, port, nativeguest.Config{CPU: -1})
	if err != nil {
		return err
	}
	ran := make(chan error, 1)
	go func() { ran <- g.Run() }()
	defer func() {
		g.Stop()
		err = errors.Join(err, <-ran, g.Close())
	}()
	return answer(s.in, s.out, func() (c peer.GuestCounters) {
		rx, tx := d.Counters()
		c = peer.GuestCounters{Calls: rx.Notifications + tx.Notifications, Kicks: rx.Kicks + tx.Kicks, Lost: g.Counters().Lost}
		select {
		case err := <-ran:
			ran <- err
			if err == nil {
				err = os.ErrClosed
			}
			c.Error = err.Error()
		default:
		}
		return c
	})
}

// answer answers each line with the counters.
func answer(in io.Reader, out io.Writer, counters func() peer.GuestCounters) error {
	lines := bufio.NewScanner(in)
	for {
		if _, err := io.WriteString(out, peer.DriverPrompt); err != nil {
			return err
		}
		if !lines.Scan() {
			return lines.Err()
		}
		if err := json.NewEncoder(out).Encode(counters()); err != nil {
			return err
		}
	}
}
