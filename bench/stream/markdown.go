package main

import (
	"bufio"
	"fmt"
	"io"
	"maps"
	"slices"

	"github.com/vhostnet/vhostnet/bench/stat"
)

// laneTitles are the headings of lanes, and what there is to know about one.
var laneTitles = map[string][2]string{
	laneNative: {
		"Native guest",
		"A network stack of the host's kernel behind the embedded driver, which sleeps when it is idle. Guest and client have core 0, " +
			"the back-end core 1. Processor time is the back-end's.",
	},
	laneMachine: {
		"Machine",
		"The same kernel in QEMU with an emulated processor, one guest at a time. Behind vhostnet its network device is " +
			"`-netdev vhost-user`, otherwise `-netdev tap,vhost=off`. Processor time is QEMU's and vhostnet's, guest included.",
	},
}

// markdown writes the report as tables.
func (r *report) markdown(out io.Writer) error {
	w := bufio.NewWriter(out)
	m := r.Machine
	fmt.Fprintf(w, "# vhostnet and others under a network stack\n\n")
	fmt.Fprintf(w, "%s; %s, %d cores (%s); Linux %s; %s", r.Time.Format("2006-01-02"), m.CPU, m.Cores, m.Arch, m.Kernel, m.Go)
	for _, name := range slices.Sorted(maps.Keys(r.Versions)) {
		fmt.Fprintf(w, "; %s %s", name, r.Versions[name])
	}
	fmt.Fprintf(w, ". %d launches of %d rounds, windows of %d s in turns; median [range].\n", r.Launches, r.Rounds, r.Seconds)
	fmt.Fprintf(w, "\nRatios are to the first back-end of a table, in windows of the same turn. TCP is %s on both sides.\n", congestionControl)
	if r.HostCore >= 0 {
		fmt.Fprintf(w, "In the native lane the host's programs have core %d.\n", r.HostCore)
	} else {
		fmt.Fprintf(w, "In the native lane the host's programs have the core that the kernel chooses.\n")
	}
	for _, n := range r.Notes {
		fmt.Fprintf(w, "Note: %s.\n", n)
	}
	for _, f := range r.Failures {
		fmt.Fprintf(w, "Not measured: %s.\n", f)
	}
	for _, l := range r.Lanes {
		fmt.Fprintf(w, "\n## %s\n\n%s\n", laneTitles[l.Lane][0], laneTitles[l.Lane][1])
		for _, t := range tables {
			t.write(w, l)
		}
	}
	return w.Flush()
}

// table shows the loads of some kind.
type table struct {
	kind    string
	columns []column
}

// column is a value of a back-end, in some unit.
type column struct {
	title  string
	format string
	unit   float64
	value  func(b *backEndResult) *stat.Spread
}

const (
	bytesPerGbit = 1e9 / 8
	kilo         = 1e3
	percent      = 0.01
)

var tables = []table{
	{kindTCP, []column{
		{"Gbit/s", "%.2f", bytesPerGbit, func(b *backEndResult) *stat.Spread { return b.Rate }},
		{"ratio", "%.2f", 1, func(b *backEndResult) *stat.Spread { return b.Ratio }},
		{"CPU ns/byte", "%.3f", 1, func(b *backEndResult) *stat.Spread { return b.CPUNanoseconds }},
		{"calls/MB", "%.1f", 1e-6, func(b *backEndResult) *stat.Spread { return b.Calls }},
		{"retransmits/s", "%.0f", 1, func(b *backEndResult) *stat.Spread { return b.Retransmits }},
	}},
	{kindUDP, []column{
		{"kpps", "%.0f", kilo, func(b *backEndResult) *stat.Spread { return b.Rate }},
		{"ratio", "%.2f", 1, func(b *backEndResult) *stat.Spread { return b.Ratio }},
		{"CPU ns/packet", "%.0f", 1, func(b *backEndResult) *stat.Spread { return b.CPUNanoseconds }},
		{"calls/packet", "%.3f", 1, func(b *backEndResult) *stat.Spread { return b.Calls }},
		{"lost %", "%.0f", percent, func(b *backEndResult) *stat.Spread { return b.Lost }},
	}},
	{kindPingPong, []column{
		{"p50 us", "%.0f", 1, func(b *backEndResult) *stat.Spread { return b.P50 }},
		{"p50 ratio", "%.2f", 1, func(b *backEndResult) *stat.Spread { return b.P50Ratio }},
		{"p99 us", "%.0f", 1, func(b *backEndResult) *stat.Spread { return b.P99 }},
		{"CPU us/round trip", "%.1f", kilo, func(b *backEndResult) *stat.Spread { return b.CPUNanoseconds }},
	}},
}

func (t table) write(w io.Writer, l *laneResult) {
	first := true
	for _, load := range l.Loads {
		if load.Kind != t.kind || len(load.BackEnds) == 0 {
			continue
		}
		if first {
			first = false
			fmt.Fprintf(w, "\n| load | back-end |")
			for _, c := range t.columns {
				fmt.Fprintf(w, " %s |", c.title)
			}
			fmt.Fprint(w, "\n|---|---|")
			for range t.columns {
				fmt.Fprint(w, "---|")
			}
			fmt.Fprintln(w)
		}
		for _, b := range load.BackEnds {
			fmt.Fprintf(w, "| %s | %s |", load.Name, b.Name)
			for _, c := range t.columns {
				fmt.Fprintf(w, " %s |", c.value(b).In(c.unit).Ranged(c.format))
			}
			fmt.Fprintln(w)
		}
	}
	if first {
		return
	}
	fmt.Fprintln(w)
	for _, load := range l.Loads {
		if load.Kind == t.kind && len(load.BackEnds) > 0 {
			fmt.Fprintf(w, "- %s: %s.\n", load.Name, load.About)
		}
	}
}
