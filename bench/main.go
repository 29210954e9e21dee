package main

import (
	"context"
	"encoding/json"
	"fmt"
	"io"
	"log/slog"
	"os"
	"os/signal"
	"path/filepath"
	"time"

	"github.com/alecthomas/kong"
)

// options are the command line.
type options struct {
	Quick    bool          `help:"Three short repeats: to see that it works, not to compare."`
	Out      string        `help:"Folder for bench.json and bench.md; the table goes to standard output in any case." placeholder:"DIR"`
	Device   string        `help:"Where the device runs: in a child process, or in this one." enum:"child,inproc" default:"child"`
	Repeats  int           `help:"How often each case is measured." default:"7"`
	Duration time.Duration `help:"How long each measurement takes." default:"1s"`
	Serve    string        `hidden:"" help:"Be the child process: serve a device with this port on file descriptor 3." placeholder:"PORT"`
}

func main() {
	var o options
	kong.Parse(&o, kong.Name("bench"), kong.Description("Packets per second of the device with the embedded driver."))
	if o.Quick {
		o.Repeats, o.Duration = 3, 200*time.Millisecond
	}
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := run(ctx, &o, os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench:", err)
		os.Exit(1)
	}
}

func run(ctx context.Context, o *options, out, progress io.Writer) error {
	if o.Serve != "" {
		return serveChild(o.Serve)
	}
	if o.Repeats < 1 || o.Duration <= 0 {
		return fmt.Errorf("%d repeats of %v: want at least one of some length", o.Repeats, o.Duration)
	}
	r := newReport(o)
	cases := allCases()
	r.Cases = make([]caseResult, len(cases))
	for i, c := range cases {
		r.Cases[i] = newCaseResult(c)
	}
	for n := range o.Repeats {
		fmt.Fprintf(progress, "round %d of %d: %d cases of %v each\n", n+1, o.Repeats, len(cases), o.Duration)
		for i, c := range cases {
			s, err := measure(ctx, o, c)
			if err != nil {
				return fmt.Errorf("%s: %w", c, err)
			}
			r.Cases[i].add(s)
		}
	}
	r.finish()
	if err := r.markdown(out); err != nil {
		return err
	}
	return r.save(o.Out)
}

// save writes the report's files into a folder.
func (r *report) save(dir string) error {
	if dir == "" {
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	if err := os.WriteFile(filepath.Join(dir, "bench.json"), append(b, '\n'), 0o644); err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(dir, "bench.md"))
	if err != nil {
		return err
	}
	if err := r.markdown(f); err != nil {
		_ = f.Close()
		return err
	}
	return f.Close()
}

// quiet is the logger of devices and drivers: errors only.
func quiet() *slog.Logger {
	return slog.New(slog.NewTextHandler(os.Stderr, &slog.HandlerOptions{Level: slog.LevelError}))
}
