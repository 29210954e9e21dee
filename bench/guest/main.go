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
	"time"

	"github.com/alecthomas/kong"
	"golang.org/x/sys/unix"

	"github.com/vhostnet/vhostnet/qemu-test/provision"
)

// settle is for how long a load runs before its counters are read.
const settle = 300 * time.Millisecond

// options are the command line.
type options struct {
	Lanes     []string `help:"Lanes to measure: native, uml, netdev, test-device." default:"native,uml,netdev"`
	Rounds    int      `help:"How often each workload is measured under each variant." default:"5"`
	Seconds   float64  `help:"For how long the counters are watched in each sample; programs run for whole seconds, of which 0.3 are to settle." default:"0.6"`
	Quick     bool     `help:"Two rounds, and fewer workloads."`
	Workloads string   `help:"Measure only workloads whose name matches." placeholder:"REGEXP"`
	Variants  []string `help:"Host engines as for --rx-moderation, and guest-adaptive; off is always measured." default:"off,fixed:64/64,net-dim,adaptive,guest-adaptive"`
	Out       string   `help:"Folder for the results." default:"bench/results" placeholder:"DIR"`
	Title     string   `help:"What the report says that this run was."`
	Render    string   `help:"Measure nothing: make tables and plots of the results in DIR again." placeholder:"DIR"`
	List      bool     `help:"Print the workloads."`
}

func main() {
	var o options
	kong.Parse(&o, kong.Name("guest"), kong.Description("Moderation engines under real programs in guests."))
	ctx, stop := signal.NotifyContext(context.Background(), os.Interrupt, unix.SIGTERM)
	err := run(ctx, &o, os.Stdout, os.Stderr)
	stop()
	if err != nil {
		fmt.Fprintln(os.Stderr, "bench/guest:", err)
		os.Exit(1)
	}
}

// plan is what to measure, checked.
type plan struct {
	all      []workload
	pattern  *regexp.Regexp
	variants []variant
}

func (o *options) plan() (p plan, err error) {
	if o.Quick {
		o.Rounds = min(o.Rounds, 2)
	}
	if o.Rounds < 1 || o.Seconds < 0.1 || o.Seconds > 60 {
		return p, fmt.Errorf("%d rounds of %v s: want at least one of 0.1 to 60 s", o.Rounds, o.Seconds)
	}
	for _, lane := range o.Lanes {
		if !slices.Contains(laneNames, lane) {
			return p, fmt.Errorf("no lane %q: there are %s", lane, strings.Join(laneNames, ", "))
		}
	}
	p.all = allWorkloads(o.Quick)
	if p.pattern, err = regexp.Compile(o.Workloads); err != nil {
		return p, err
	}
	p.variants, err = parseVariants(o.Variants)
	return p, err
}

func run(ctx context.Context, o *options, out, progress io.Writer) error {
	if o.Render != "" {
		return render(o.Render)
	}
	p, err := o.plan()
	if err != nil {
		return err
	}
	if o.List {
		for _, w := range p.all {
			fmt.Fprintf(out, "%-20s %s\n", w.name, w.about)
		}
		return nil
	}
	if os.Geteuid() != 0 {
		return errors.New("it needs root, for network namespaces")
	}
	assets, err := provision.EnsureBench(ctx, provision.Options{
		Log: func(format string, args ...any) { fmt.Fprintf(progress, format+"\n", args...) },
	})
	if err != nil {
		return err
	}
	dir, err := os.MkdirTemp("", "vhostnet-bench-")
	if err != nil {
		return err
	}
	defer os.RemoveAll(dir)
	programs, err := build(ctx, dir)
	if err != nil {
		return err
	}
	vhostnet := revision(ctx)
	var problems []error
	for _, lane := range o.Lanes {
		b := &bench{
			lane: lane, rounds: o.Rounds, seconds: o.Seconds,
			all: choose(p.all, lane, p.pattern), variants: variantsOf(p.variants, lane),
			settle: settle, progress: progress, versions: versionsOf(lane, assets, vhostnet),
			start: func(ctx context.Context) (site, error) { return newSite(ctx, lane, assets, programs) },
			save:  func(r *laneReport) error { return errors.Join(r.save(o.Out), render(o.Out)) },
		}
		problems = append(problems, b.measure(ctx, o))
		if ctx.Err() != nil {
			break
		}
	}
	if err := errors.Join(problems...); err != nil {
		// What there is can be looked at.
		return errors.Join(err, render(o.Out))
	}
	if err := render(o.Out); err != nil {
		return err
	}
	fmt.Fprintf(out, "%s/guest.md\n", o.Out)
	return nil
}

// measure measures a lane and keeps what came out. The error is that of a lane or
// of whole workloads; single samples that failed are in the results only.
func (b *bench) measure(ctx context.Context, o *options) error {
	if len(b.all) == 0 {
		return fmt.Errorf("lane %s: no workload matches %q", b.lane, o.Workloads)
	}
	r := newLaneReport(o, b.lane, b.all)
	err := b.run(ctx, r)
	if err != nil {
		r.Failure = err.Error()
	} else if names := r.failed(); len(names) > 0 {
		err = fmt.Errorf("lane %s: no sample of %s succeeded", b.lane, strings.Join(names, ", "))
	}
	// A lane that does not start must not take the place of older results.
	if len(r.Samples) > 0 {
		err = errors.Join(err, r.save(o.Out))
	}
	return err
}
