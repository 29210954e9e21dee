package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"slices"
	"time"

	"github.com/alecthomas/kong"
	"golang.org/x/sys/unix"
)

// Exit codes.
const (
	exitOK     = 0
	exitFailed = 1
	exitUsage  = 2
)

// stopTimeout bounds the time from a signal to the end of the process. A
// supervisor that follows QEMU's conventions sends SIGKILL after some seconds;
// the promise is 2 s.
const stopTimeout = 1800 * time.Millisecond

func main() {
	ctx, stop := signal.NotifyContext(context.Background(), unix.SIGTERM, unix.SIGINT)
	code := run(ctx, os.Args[1:], os.Stdout, os.Stderr)
	stop()
	os.Exit(code)
}

// environment is what a subcommand has of the world.
type environment struct {
	ctx            context.Context
	stdout, stderr io.Writer
}

// usageError is a mistake in the command line that only shows when the values
// are used together.
type usageError struct{ error }

func (e usageError) Unwrap() error { return e.error }

// exit is how kong ends the program after --help.
type exit int

// run carries out a command line and returns the exit code. When ctx ends, it
// returns within stopTimeout.
func run(ctx context.Context, args []string, stdout, stderr io.Writer) (code int) {
	// The conventions want all other options and arguments ignored, also those
	// that are wrong.
	if slices.Contains(args, printCapabilities) {
		return finish(stderr, writeCapabilities(stdout))
	}
	defer func() {
		if r := recover(); r != nil {
			e, ours := r.(exit)
			if !ours {
				panic(r)
			}
			code = int(e)
		}
	}()
	var c cli
	parser, err := kong.New(&c, options(stdout, stderr)...)
	if err != nil {
		return finish(stderr, err)
	}
	parsed, err := parser.Parse(args)
	if err != nil {
		return finish(stderr, usageError{err})
	}
	done := make(chan error, 1)
	go func() { done <- parsed.Run(environment{ctx: ctx, stdout: stdout, stderr: stderr}) }()
	select {
	case err = <-done:
	case <-ctx.Done():
		select {
		case err = <-done:
		case <-time.After(stopTimeout):
			err = fmt.Errorf("not finished %v after the signal to end", stopTimeout)
		}
	}
	return finish(stderr, err)
}

func finish(stderr io.Writer, err error) int {
	if err == nil {
		return exitOK
	}
	_, _ = fmt.Fprintln(stderr, "vhostnet:", explain(err))
	var usage usageError
	if errors.As(err, &usage) {
		_, _ = fmt.Fprintln(stderr, `See "vhostnet --help".`)
		return exitUsage
	}
	return exitFailed
}
