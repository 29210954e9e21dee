package main

import (
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"text/tabwriter"

	"github.com/vhostnet/vhostnet/coalesce"
	"github.com/vhostnet/vhostnet/coalesce/sim"
	"github.com/vhostnet/vhostnet/coalesce/sim/chart"
)

// simCmd runs the simulator.
type simCmd struct {
	Engine    []engine `placeholder:"ENGINE" sep:"none" help:"Only this engine, written as for serve's --rx-moderation. May be repeated. Default: all, and a grid of fixed limits."`
	Workload  []string `placeholder:"NAME" sep:"none" help:"Only this workload. May be repeated. Default: all, or none with --trace."`
	Trace     string   `placeholder:"FILE" help:"Also replay recorded arrivals: lines of CSV (t_ns,packets,bytes) or JSON objects with these fields, or what serve --trace has written. - is standard input. A device records when it has delivered, so its own delays are in the arrivals."`
	Queue     int      `name:"trace-queue" default:"-1" placeholder:"N" help:"The virtqueue of the trace, 0 to 255; its direction is the trace's. Default: the one with the most packets."`
	Replay    bool     `help:"Instead of running the guest's model, feed what serve --trace has recorded to the engines as it is, and print what each would have decided. Default: all engines that learn."`
	Seed      uint64   `default:"1" placeholder:"N" help:"Where chance begins; the same number gives the same result. Default 1."`
	GuestDIM  bool     `name:"guest-dim" help:"The guest moderates too, as Linux does after ethtool -C adaptive-rx on; its limits are a ceiling for the engine's."`
	Dominance bool     `help:"Also print for each workload how adaptive does against net-dim and rdma-dim."`
	Plot      string   `placeholder:"DIR" help:"Write DIR/WORKLOAD.svg with delay against notifications for each workload."`
	JSON      bool     `name:"json" help:"Print one JSON object a line, for each workload and engine. Other tables go to standard error then."`
}

// Help is shown by --help.
func (*simCmd) Help() string {
	var b strings.Builder
	b.WriteString(`Runs moderation engines in virtual time against a model of a device, a guest and their traffic, and prints what each workload would be like: the delay from a packet's arrival until the guest has taken it (tx: until it has its buffer back), notifications per packet, throughput in comparison with engine "off", and the share of a processor that the guest needs for it. Nothing of this machine is measured.

Workloads:
`)
	for _, w := range sim.Workloads() {
		fmt.Fprintf(&b, "\n    %-14s %s", w.Name, w.Help)
	}
	return b.String()
}

// Run prints the results as they come.
func (c *simCmd) Run(env environment) error {
	if err := c.check(); err != nil {
		return err
	}
	if c.Replay {
		return c.replay(env)
	}
	workloads, err := c.workloads()
	if err != nil {
		return err
	}
	specs, err := c.engines(sim.DefaultEngines()...)
	if err != nil {
		return err
	}
	if c.Plot != "" {
		if err := os.MkdirAll(c.Plot, 0o755); err != nil {
			return fmt.Errorf("sim: %w", err)
		}
	}
	tables := env.stdout
	if c.JSON {
		tables = env.stderr
	}
	table := newSimTable(env.stdout)
	lines := json.NewEncoder(env.stdout)
	var all []sim.Result
	err = sim.Suite(env.ctx, specs, workloads, sim.Config{Seed: c.Seed, GuestDIM: c.GuestDIM}, func(r sim.Result) error {
		all = append(all, r)
		if c.JSON {
			return lines.Encode(r)
		}
		last := len(all)%len(specs) == 0
		return table.row(r, len(all)%len(specs) == 1 || len(specs) == 1, last)
	})
	if env.ctx.Err() != nil && errors.Is(err, env.ctx.Err()) {
		return errors.New("sim: interrupted")
	}
	if err != nil {
		return err
	}
	if c.Dominance {
		if err := writeDominance(tables, all); err != nil {
			return err
		}
	}
	if c.Plot != "" {
		return c.plot(all, len(specs))
	}
	return nil
}

// workloads are those that were asked for, in the simulator's order.
func (c *simCmd) workloads() ([]sim.Workload, error) {
	all := sim.Workloads()
	var names []string
	for _, w := range all {
		names = append(names, w.Name)
	}
	for _, name := range c.Workload {
		if !slices.Contains(names, name) {
			return nil, usageError{fmt.Errorf("--workload %s: want one of %s", name, strings.Join(names, ", "))}
		}
	}
	if len(c.Workload) > 0 || c.Trace != "" {
		all = slices.DeleteFunc(all, func(w sim.Workload) bool { return !slices.Contains(c.Workload, w.Name) })
	}
	if c.Trace == "" {
		return all, nil
	}
	var w sim.Workload
	err := c.openTrace(func(in io.Reader, name string) (err error) {
		w, err = sim.ReadTrace(in, name, c.Queue)
		return err
	})
	return append(all, w), err
}

// engines are those that were asked for, once each, or the defaults.
func (c *simCmd) engines(names ...string) (specs []coalesce.EngineSpec, err error) {
	if len(c.Engine) > 0 {
		names = nil
		for _, e := range c.Engine {
			names = append(names, string(e))
		}
	}
	for _, name := range names {
		s, err := coalesce.ParseEngine(name, coalesce.RX)
		if err != nil {
			return nil, err
		}
		if !slices.Contains(specs, s) {
			specs = append(specs, s)
		}
	}
	return specs, nil
}

func (c *simCmd) plot(all []sim.Result, each int) error {
	for rs := range slices.Chunk(all, each) {
		f, err := os.Create(filepath.Join(c.Plot, chart.FileName(rs[0].Workload)))
		if err != nil {
			return fmt.Errorf("sim: %w", err)
		}
		if err := errors.Join(chart.WriteSVG(f, rs), f.Close()); err != nil {
			return fmt.Errorf("sim: %w", err)
		}
	}
	return nil
}

// simTable prints results as they come, a block for each workload.
type simTable struct {
	w     io.Writer
	t     *tabwriter.Writer
	begun bool
}

func newSimTable(w io.Writer) *simTable {
	return &simTable{w: w, t: tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)}
}

func (t *simTable) row(r sim.Result, first, last bool) error {
	if first {
		if t.begun {
			fmt.Fprintln(t.t)
		}
		t.begun = true
		fmt.Fprintf(t.t, "%-14s\t%-14s\t p50 us\t p99 us\tnotif/packet\tthroughput\tguest CPU\t\n", "workload", "engine")
	}
	fmt.Fprintf(t.t, "%-14s\t%-14s\t%.1f\t%.1f\t%.4f\t%.3f\t%.1f%%\t\n",
		r.Workload, r.Engine, r.P50, r.P99, r.NotificationsPerPacket, r.ThroughputRatio, 100*r.GuestCPU)
	if last {
		return t.t.Flush()
	}
	return nil
}

// writeDominance prints how adaptive does against the published algorithms.
func writeDominance(w io.Writer, all []sim.Result) error {
	subject := coalesce.EngineAdaptive.String()
	count := map[sim.Standing]int{}
	t := tabwriter.NewWriter(w, 0, 0, 2, ' ', tabwriter.AlignRight)
	fmt.Fprintf(t, "\n%-14s\t%-14s\tp99 us\tof rival\tnotif/packet\tof rival\tthroughput\tof rival\t%-10s\t\n", "workload", "against", "adaptive")
	for _, c := range sim.Dominance(all, subject, coalesce.EngineNetDim.String(), coalesce.EngineRDMADim.String()) {
		s := c.Standing()
		count[s]++
		fmt.Fprintf(t, "%-14s\t%-14s\t%.1f\t%.1f\t%.4f\t%.4f\t%.3f\t%.3f\t%-10s\t\n", c.Workload, c.Rival.Engine,
			c.Subject.P99, c.Rival.P99, c.Subject.NotificationsPerPacket, c.Rival.NotificationsPerPacket,
			c.Subject.ThroughputRatio, c.Rival.ThroughputRatio, s)
	}
	if err := t.Flush(); err != nil {
		return err
	}
	_, err := fmt.Fprintf(w, "adaptive dominates %d times, is equal %d times, trades one for the other %d times, is dominated %d times\n",
		count[sim.Dominates], count[sim.Equal], count[sim.Trades], count[sim.Dominated])
	return err
}
