package main

import (
	"errors"
	"fmt"
	"io"
	"os"

	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/demo"
)

// demoCmd runs the demonstration.
type demoCmd struct {
	Seconds float64 `default:"10" placeholder:"N" help:"How long it takes altogether, in seconds, at least 1. Default 10."`
	JSON    bool    `name:"json" help:"Print the result as one JSON object in one line on standard output; the table goes to standard error."`

	logFlags
}

// Help is shown by --help.
func (*demoCmd) Help() string {
	return `A device with the echo port and an embedded guest talk over a socket pair in this process. The guest sets coalescing through the control queue, step by step; each row shows packets and notifications per second, packets per notification, and the round-trip time of single frames.`
}

// Run prints the table while it measures.
func (c *demoCmd) Run(env environment) error {
	if !(c.Seconds >= 1 && c.Seconds <= 3600) {
		return usageError{fmt.Errorf("--seconds %g: want 1 to 3600", c.Seconds)}
	}
	log, err := c.logger(env.stderr)
	if err != nil {
		return err
	}
	out := env.stdout
	if c.JSON {
		out = env.stderr
	}
	r, err := demo.Run(env.ctx, demo.Config{Seconds: c.Seconds, Out: out, Live: terminal(out), Log: log})
	if env.ctx.Err() != nil && errors.Is(err, env.ctx.Err()) {
		// Not a success: there is no result.
		return errors.New("demo: interrupted")
	}
	if err != nil || !c.JSON {
		return err
	}
	return r.WriteJSON(env.stdout)
}

// terminal tells whether a row can be drawn again in place.
func terminal(w io.Writer) bool {
	f, ok := w.(*os.File)
	if !ok {
		return false
	}
	_, err := unix.IoctlGetTermios(int(f.Fd()), unix.TCGETS)
	return err == nil
}
