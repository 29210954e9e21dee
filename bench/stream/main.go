package main

import (
	"context"
	"errors"
	"fmt"
	"io"
	"os"
	"os/signal"
	"regexp"
	"slices"
	"strings"

	"github.com/alecthomas/kong"
)

// Lanes.
const (
	laneNative  = "native"
	laneMachine = "machine"
)

// laneNames are the lanes that there are.
var laneNames = []string{laneNative, laneMachine}

// options are the command line.
type options struct {
	Quick    bool     `help:"One launch with one short round: to see that it works, not to compare."`
	Lanes    []string `help:"Lanes to measure: native, machine." default:"native,machine"`
	Loads    string   `help:"Only loads whose name matches: tcp-out, tcp-in, udp-out, udp-in, ping-pong." placeholder:"REGEXP"`
	BackEnds string   `help:"Only back-ends whose name matches; the one that ratios are to is always measured." placeholder:"REGEXP"`
	Out      string   `help:"Folder for stream.json and stream.md; the tables go to standard output in any case." default:"bench/results" placeholder:"DIR"`
	Launches int      `help:"How often the processes, and machines, are started." default:"3"`
	Rounds   int      `help:"Measurements of each back-end under each load in a launch." default:"2"`
	Seconds  int      `help:"How long each takes, in whole seconds as the programs have it." default:"2"`
	HostCore int      `help:"Processor of the host's programs in the native lane; negative: the kernel chooses." default:"-1"`
}

// commands are what the program can be; the second is its own child.
type commands struct {
	Compare options   `cmd:"" default:"withargs" help:"Compare vhostnet with others under network stacks."`
	Guest   guestArgs `cmd:"" hidden:"" help:"Be a native guest."`
}

func main() {
	var c commands
	k := kong.Parse(&c, kong.Name("stream"), kong.Description("vhostnet and others with a network stack as the guest."))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt)
	err := k.Run(&streams{ctx, os.Stdin, os.Stdout, os.Stderr})
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench/stream:", err)
		os.Exit(1)
	}
}

// streams are what a command works with.
type streams struct {
	ctx      context.Context
	in       io.Reader
	out, err io.Writer
}

// plan is what to measure, checked.
type plan struct {
	loads    []load
	backEnds *regexp.Regexp
}

func (o *options) plan() (p plan, err error) {
	if o.Quick {
		o.Launches, o.Rounds, o.Seconds = 1, 1, 1
	}
	if o.Launches < 1 || o.Rounds < 1 || o.Seconds < 1 || o.Seconds > 60 {
		return p, fmt.Errorf("%d launches of %d rounds of %d s: want at least one of 1 to 60 s", o.Launches, o.Rounds, o.Seconds)
	}
	for _, lane := range o.Lanes {
		if !slices.Contains(laneNames, lane) {
			return p, fmt.Errorf("no lane %q: there are %s", lane, strings.Join(laneNames, ", "))
		}
	}
	which, err := regexp.Compile(o.Loads)
	if err != nil {
		return p, fmt.Errorf("loads: %w", err)
	}
	p.loads = slices.DeleteFunc(allLoads(), func(l load) bool { return !which.MatchString(l.name) })
	if len(p.loads) == 0 {
		return p, fmt.Errorf("no load matches %q", o.Loads)
	}
	if p.backEnds, err = regexp.Compile(o.BackEnds); err != nil {
		return p, fmt.Errorf("back-ends: %w", err)
	}
	return p, nil
}

// Run compares.
func (o *options) Run(s *streams) (err error) {
	p, err := o.plan()
	if err != nil {
		return err
	}
	if os.Geteuid() != 0 {
		return errors.New("it needs root, for network namespaces")
	}
	st, err := newStarter(s.ctx, o, p.loads, s.err)
	if err != nil {
		return err
	}
	defer func() { err = errors.Join(err, st.close()) }()
	r := newReport(o, st.notes)
	r.Versions = st.versions()
	for _, lane := range o.Lanes {
		c := &comparison{o: o, lane: st.lane(lane), plan: p, progress: s.err, report: r}
		if err := c.run(s.ctx); err != nil {
			return fmt.Errorf("lane %s: %w", lane, err)
		}
	}
	r.finish()
	if err := errors.Join(r.markdown(s.out), r.save(o.Out)); err != nil {
		return err
	}
	return r.failed()
}
