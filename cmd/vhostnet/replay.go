package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"strings"
	"text/tabwriter"

	"github.com/vhostnet/vhostnet/coalesce/sim"
	"github.com/vhostnet/vhostnet/coalesce/trace"
)

// check refuses flags that say nothing together.
func (c *simCmd) check() error {
	var wrong string
	switch {
	case c.Queue < sim.BusiestQueue || c.Queue > 255:
		wrong = fmt.Sprintf("--trace-queue %d: want 0 to 255", c.Queue)
	case c.Trace == "" && c.Queue != sim.BusiestQueue:
		wrong = "--trace-queue needs --trace"
	case !c.Replay:
	case c.Trace == "":
		wrong = "--replay needs --trace"
	case len(c.Workload) > 0 || c.Plot != "" || c.Dominance || c.GuestDIM:
		wrong = "--replay runs no simulation: leave out --workload, --plot, --dominance and --guest-dim"
	}
	if wrong != "" {
		return usageError{errors.New(wrong)}
	}
	return nil
}

// openTrace gives the file of --trace to a function, with a name for it.
func (c *simCmd) openTrace(read func(in io.Reader, name string) error) error {
	in, name := io.Reader(os.Stdin), "trace"
	if c.Trace != "-" {
		f, err := os.Open(c.Trace)
		if err != nil {
			return fmt.Errorf("sim: %w", err)
		}
		defer func() { _ = f.Close() }()
		in, name = f, "trace:"+filepath.Base(c.Trace)
	}
	if err := read(in, name); err != nil {
		return fmt.Errorf("%s: %w", c.Trace, err)
	}
	return nil
}

// replay prints what engines would have decided.
func (c *simCmd) replay(env environment) error {
	specs, err := c.engines("net-dim", "rdma-dim", "adaptive")
	if err != nil {
		return err
	}
	var queues map[int][]trace.Record
	err = c.openTrace(func(in io.Reader, _ string) (err error) {
		queues, err = trace.Read(in)
		return err
	})
	if err != nil {
		return err
	}
	queue := c.Queue
	if queue == sim.BusiestQueue {
		queue = trace.Busiest(queues)
	}
	records := queues[queue]
	if len(records) == 0 {
		return fmt.Errorf("%s: nothing of virtqueue %d in it", c.Trace, queue)
	}
	var all []trace.Replayed
	for _, s := range specs {
		if env.ctx.Err() != nil {
			return errors.New("sim: interrupted")
		}
		all = append(all, trace.Replay(records, s))
	}
	if c.JSON {
		lines := json.NewEncoder(env.stdout)
		for i := range all {
			if err := lines.Encode(&all[i]); err != nil {
				return err
			}
		}
		return nil
	}
	return writeReplayed(env.stdout, all)
}

// shownShares is how many limits the table has a place for.
const shownShares = 4

func writeReplayed(w io.Writer, all []trace.Replayed) error {
	first := &all[0]
	if _, err := fmt.Fprintf(w, "virtqueue %d (%s): %d records, %d packets, %.3f s\n\n", first.Queue, first.Direction, first.Records, first.Packets, first.Seconds); err != nil {
		return err
	}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', 0)
	fmt.Fprintln(t, "engine\tdecisions\tchanges\tas recorded\tlast reason\tlimits, and for how much of the time")
	for i := range all {
		r := &all[i]
		var shares []string
		for _, s := range r.Shares[:min(len(r.Shares), shownShares)] {
			shares = append(shares, fmt.Sprintf("%v %.1f%%", s.Limits, 100*s.Share))
		}
		if n := len(r.Shares) - shownShares; n > 0 {
			shares = append(shares, fmt.Sprintf("%d more", n))
		}
		fmt.Fprintf(t, "%s\t%d\t%d\t%.1f%%\t%s\t%s\n", r.Engine, r.Decisions, r.Changes, 100*r.Agreement, r.LastReason, strings.Join(shares, ", "))
	}
	return t.Flush()
}
