package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"slices"
	"time"

	"github.com/vhostnet/vhostnet/bench/peer"
)

// site is a guest on a back-end, with servers on the host side. One goroutine uses
// it.
type site interface {
	// Guest runs a program in the guest and returns what it printed.
	Guest(ctx context.Context, program string, args ...string) (string, error)
	// Segmentation tells the stacks on either side of the device whether they may
	// hand on segments larger than a frame, which they may in a new site.
	Segmentation(ctx context.Context, on bool) error
	// Resume comes before a load, Pause after it: between them only may a back-end
	// poll.
	Resume(ctx context.Context) error
	Pause(ctx context.Context) error
	// CPU is the processor time of what is compared.
	CPU() (time.Duration, error)
	// Calls is how often the back-end has notified the guest; false if nobody
	// counts.
	Calls(ctx context.Context) (uint64, bool, error)
	// Close ends everything.
	Close() error
}

// lane is a kind of guest with the back-ends that it is put in front of.
type lane struct {
	name string
	// backEnds are their names, the one first that ratios are to.
	backEnds []string
	open     func(ctx context.Context, backEnd string) (site, error)
	// alone: the machine is too small for two of these guests.
	alone bool
	// emulated: the guest's processor is.
	emulated bool
	// cores bounds the processor time of what is compared, 0 for no bound. A
	// back-end that polls is busy before and after the load, too.
	cores float64
}

// comparison measures one lane.
type comparison struct {
	o        *options
	lane     *lane
	plan     plan
	progress io.Writer
	report   *report
}

func (c *comparison) run(ctx context.Context) error {
	loads := slices.DeleteFunc(slices.Clone(c.plan.loads), func(l load) bool { return l.native && c.lane.emulated })
	names := slices.Clone(c.lane.backEnds[:1])
	for _, name := range c.lane.backEnds[1:] {
		if c.plan.backEnds.MatchString(name) {
			names = append(names, name)
		}
	}
	to := c.report.lane(c.lane, loads)
	for l := range c.o.Launches {
		fmt.Fprintf(c.progress, "lane %s: launch %d of %d\n", c.lane.name, l+1, c.o.Launches)
		var groups [][]string
		if c.lane.alone {
			for i := range names {
				groups = append(groups, []string{names[(i+l)%len(names)]})
			}
		} else {
			groups = [][]string{names}
		}
		for _, group := range groups {
			if err := c.launch(ctx, l, group, loads, to); err != nil {
				return err
			}
		}
	}
	return nil
}

// contender is a site with its back-end's name.
type contender struct {
	name string
	site
}

// launch measures back-ends in turns. What fails is out for the rest of the launch;
// only an interruption is an error.
func (c *comparison) launch(ctx context.Context, number int, names []string, loads []load, to *laneResult) error {
	var list []contender
	defer func() {
		for _, b := range list {
			if err := b.Close(); err != nil && ctx.Err() == nil {
				c.report.fail(to.Lane, "end", b.name, err)
			}
		}
	}()
	for _, name := range names {
		s, err := c.lane.open(ctx, name)
		if ctx.Err() != nil {
			return context.Cause(ctx)
		}
		if err != nil {
			c.report.fail(to.Lane, "start", name, err)
			continue
		}
		list = append(list, contender{name, s})
	}
	out := map[string]bool{}
	for n := range c.o.Rounds {
		for i, l := range loads {
			for j := range list {
				// Nobody is always the one that comes after a certain other one.
				b := list[(j+n)%len(list)]
				if out[b.name+" "+l.name] {
					continue
				}
				s, err := c.window(ctx, b, l)
				switch {
				case ctx.Err() != nil:
					return context.Cause(ctx)
				case err != nil:
					c.report.fail(to.Lane, l.name, b.name, err)
					out[b.name+" "+l.name] = true
				default:
					s.turn = turn{number, n}
					to.Loads[i].add(b.name, s)
				}
			}
		}
	}
	return nil
}

// patience is how much longer than the load a program may take.
const patience = 8 * time.Second

const (
	// probe is for how long others are looked for before a window.
	probe = 100 * time.Millisecond
	// disturbance is the share of the processors from which on somebody else is
	// there; half as much can be an error of the measurement, for which see
	// [peer.Idle].
	disturbance = 0.2
)

// others is the share of the processors that other programs have while everything
// of ours sleeps.
func others(ctx context.Context, length time.Duration) (float64, error) {
	before, err := peer.Idle()
	if err != nil {
		return 0, err
	}
	start := time.Now()
	select {
	case <-ctx.Done():
		return 0, context.Cause(ctx)
	case <-time.After(length):
	}
	took := time.Since(start)
	after, err := peer.Idle()
	if err != nil {
		return 0, err
	}
	var idle time.Duration
	for core := range after {
		idle += after[core] - before[core]
	}
	return max(0, 1-float64(idle)/float64(took*time.Duration(len(after)))), nil
}

// window runs one load on one back-end.
func (c *comparison) window(ctx context.Context, b site, l load) (s sample, err error) {
	ctx, cancel := context.WithTimeout(ctx, time.Duration(c.o.Seconds)*time.Second+patience)
	defer cancel()
	if l.frames {
		if err := b.Segmentation(ctx, false); err != nil {
			return s, err
		}
		defer func() { err = errors.Join(err, b.Segmentation(ctx, true)) }()
	}
	if s.Others, err = others(ctx, probe); err != nil {
		return s, err
	}
	if err := b.Resume(ctx); err != nil {
		return s, err
	}
	defer func() {
		if perr := b.Pause(ctx); err == nil {
			err = perr
		}
	}()
	before, counted, err := b.Calls(ctx)
	if err != nil {
		return s, err
	}
	cpu0, err := b.CPU()
	if err != nil {
		return s, err
	}
	if s.outcome, err = l.run(ctx, b, c.o.Seconds); err != nil {
		return s, err
	}
	cpu1, err := b.CPU()
	if err != nil {
		return s, err
	}
	after, _, err := b.Calls(ctx)
	if err != nil {
		return s, err
	}
	s.CPUSeconds = (cpu1 - cpu0).Seconds()
	if c.lane.cores > 0 {
		s.CPUSeconds = min(s.CPUSeconds, c.lane.cores*s.AllSeconds)
	}
	if s.Counted = counted; counted {
		s.Calls = float64(after - before)
	}
	return s, nil
}
