package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"github.com/vhostnet/vhostnet/bench/stat"
)

// legend is how to read the tables.
const legend = `A row is a workload under one engine: host engines are set for both directions, ` + "`guest-adaptive`" + ` is the guest's own
` + "`adaptive-rx on`" + ` with none on the host. Each engine's sample is compared with the one of ` + "`off`" + ` in the same round; a ratio or
change is the median of these comparisons, with [min–max] of all rounds. Other values are medians.

- Notifications per packet are those of the table's direction; notifications and guest interrupts per second are of both directions.
- "For the same work" is the change of notifications of both directions per unit of the rate (message bytes, packets, requests): how
  large the packets of TCP are depends on when it is told of the last ones, which the number per packet does not see.
- CPU is the processor time of the vhostnet process: percent of one core, and microseconds for each packet of the direction.
- Latencies are those of whole round trips, in microseconds: avg / p50 / p99 / p99.9.
- † marks workloads in which ` + "`off`" + ` has less than 0.05 notifications per packet already: the driver polls nearly all the time, and
  there is next to nothing to leave out. What is different there is noise, or the cost of an engine.
- Ranges tell how much a difference is worth: where they include 1, or 0 %, there may be none.
`

// laneNotes are what is special in a lane.
var laneNotes = map[string]string{
	"native": "There is no virtual machine: a notification costs neither an exit nor an injected interrupt, only the wake-up of a thread. " +
		"The guest and its programs have one processor, vhostnet and the host's programs the other.",
	"uml": "User-Mode Linux does not notice a notification that comes in the moment in which it goes to sleep until its next timer interrupt, " +
		"up to tens of milliseconds later. Loads with pauses stall at random because of that, `raw-rx-60` most of all, " +
		"and an engine gains by notifying at other moments.",
	"netdev": "The guest's processor is emulated (TCG) and nearly always what is slowest. QEMU answers the control queue itself, " +
		"so the guest's own moderation does not reach the device.",
	"test-device": "The guest's processor is emulated (TCG) and nearly always what is slowest.",
}

// section is a table of a lane.
type section struct {
	title, text string
	has         func(row) bool
}

var sections = []section{
	{"Host to guest", "", func(r row) bool { return r.Kind == kindBulk && r.Direction == "rx" }},
	{"Guest to host", "", func(r row) bool { return r.Kind == kindBulk && r.Direction == "tx" }},
	{
		"Requests and round trips", "Notifications per packet are those of both directions.",
		func(r row) bool { return r.Kind == kindRequests || r.Kind == kindPingPong },
	},
	{
		"The price of an interrupt", "The same workload with interrupts that keep the guest's processor busy for a while, as they do in a virtual machine.",
		func(r row) bool { return r.Kind == kindCost },
	},
}

// markdown renders the results of lanes.
func markdown(list []*laneReport) string {
	var w strings.Builder
	w.WriteString("# Moderation engines under real programs in guests\n\n" + legend)
	summarizeLanes(&w, list)
	for _, r := range list {
		r.markdown(&w)
	}
	return w.String()
}

func (r *laneReport) markdown(w *strings.Builder) {
	fmt.Fprintf(w, "\n## Lane %s\n\n", r.Lane)
	if r.Title != "" {
		fmt.Fprintf(w, "%s\n\n", r.Title)
	}
	r.describe(w)
	if note := laneNotes[r.Lane]; note != "" {
		fmt.Fprintf(w, "- %s\n", note)
	}
	fmt.Fprintf(w, "\n![rate and notifications per packet, against off](guest-%s.svg)\n", r.Lane)
	rows := rowsOf(r.Samples, r.info)
	for _, s := range sections {
		if list := r.rowsIn(s, rows); len(list) > 0 {
			fmt.Fprintf(w, "\n### %s: %s\n\n", r.Lane, s.title)
			if s.text != "" {
				w.WriteString(s.text + "\n\n")
			}
			table(w, headOfRows, cells(list))
		}
	}
	w.WriteString("\n")
	for _, i := range r.Workloads {
		fmt.Fprintf(w, "- %s: %s.\n", i.Name, i.About)
	}
	for _, row := range rows {
		if row.failed > 0 {
			fmt.Fprintf(w, "- %s, %s: %d of %d samples failed, the first with: %s\n", row.Name, row.variant,
				row.failed, row.failed+row.rate.N, oneLine(row.firstError))
		}
	}
}

// rowsIn are a section's; what is a variation of another workload is shown with
// that one.
func (r *laneReport) rowsIn(s section, rows []row) (list []row) {
	var shown []string
	for _, row := range rows {
		if !s.has(row) {
			continue
		}
		if row.Kind == kindCost && !slices.Contains(shown, row.Base) {
			shown = append(shown, row.Base)
			for _, base := range rows {
				if base.Name == row.Base {
					list = append(list, base)
				}
			}
		}
		list = append(list, row)
	}
	return list
}

// describe says on what and how a lane was measured.
func (r *laneReport) describe(w *strings.Builder) {
	m := r.Machine
	fmt.Fprintf(w, "- Machine: %s, %d cores, Linux %s, %s\n", m.CPU, m.Cores, m.Kernel, m.Go)
	fmt.Fprintf(w, "- %s: %d interleaved rounds, in which the engines take turns; %g s a sample, after %g s to settle\n",
		r.Time.Format("2006-01-02"), r.Rounds, r.Seconds, r.Settle)
	var versions []string
	for _, name := range slices.Sorted(maps.Keys(r.Versions)) {
		versions = append(versions, name+" "+r.Versions[name])
	}
	fmt.Fprintf(w, "- %s\n", strings.Join(versions, "; "))
	switch done := r.done(); {
	case r.Failure != "":
		fmt.Fprintf(w, "- **The run did not come to its end**, in round %d of %d: %s\n", done, r.Rounds, oneLine(r.Failure))
	case done < r.Rounds:
		fmt.Fprintf(w, "- **The run did not come to its end**: there are %d of %d rounds\n", done, r.Rounds)
	}
}

// headOfRows are the columns of cells.
var headOfRows = []string{
	"workload", "engine", "rate", "rate, ratio to off", "notifications/packet", "change against off", "notifications/s",
	"for the same work", "guest interrupts/s", "CPU", "latency", "avg latency, ratio to off",
}

func cells(rows []row) (table [][]string) {
	for _, r := range rows {
		table = append(table, r.cells())
	}
	return table
}

// title is the workload's name, with a mark if there is nothing to leave out.
func (r row) title() string {
	if r.few {
		return r.Name + " †"
	}
	return r.Name
}

func (r row) cells() []string {
	if r.rate.N == 0 {
		return append([]string{r.title(), r.variant, "failed"}, make([]string, len(headOfRows)-3)...)
	}
	lat := ""
	if r.latencyAvg.N > 0 {
		lat = fmt.Sprintf("%.0f / %s / %s / %s", r.latencyAvg.Median, known(r.latency50), known(r.latency99), known(r.l999))
	}
	list := []string{
		r.title(), r.variant, significant(r.rate.Median) + " " + r.unit, ratioText(r.ratio),
		fmt.Sprintf("%.4f", r.perPacket.Median), percentText(r.change), fmt.Sprintf("%.0f", r.notifications.Median),
		percentText(r.workChange),
		fmt.Sprintf("%.0f", r.interrupts.Median), fmt.Sprintf("%.0f %%, %s us", 100*r.cpu.Median, significant(r.cpuPerPacket.Median)),
		lat, ratioText(r.latencyRatio),
	}
	if r.variant == baseline {
		list[3], list[5], list[7], list[11] = "", "", "", "" // of itself
	}
	return list
}

// table writes a table, without the columns that have nothing in any row.
func table(w *strings.Builder, head []string, rows [][]string) {
	var keep []int
	for i := range head {
		if slices.ContainsFunc(rows, func(r []string) bool { return r[i] != "" }) {
			keep = append(keep, i)
		}
	}
	line := func(cells []string) {
		for _, i := range keep {
			w.WriteString("| " + cells[i] + " ")
		}
		w.WriteString("|\n")
	}
	line(head)
	w.WriteString(strings.Repeat("|---", len(keep)) + "|\n")
	for _, r := range rows {
		line(r)
	}
}

// ratioText is the median and the range, nothing without values.
func ratioText(s stat.Spread) string {
	if s.N == 0 {
		return ""
	}
	return fmt.Sprintf("%.2f [%.2f–%.2f]", s.Median, s.Min, s.Max)
}

// percentText is the same for a change, in percent.
func percentText(s stat.Spread) string {
	if s.N == 0 {
		return ""
	}
	return fmt.Sprintf("%+.0f %% [%+.0f–%+.0f]", 100*s.Median, 100*s.Min, 100*s.Max)
}

// known is a latency that not every program reports.
func known(s stat.Spread) string {
	if s.Median == 0 {
		return "-"
	}
	return fmt.Sprintf("%.0f", s.Median)
}

func significant(v float64) string {
	if v < 100 {
		return fmt.Sprintf("%.3g", v)
	}
	return fmt.Sprintf("%.0f", v)
}

// oneLine is the first part of a text that may have many lines.
func oneLine(text string) string {
	const most = 200
	text = strings.ReplaceAll(strings.Join(strings.Fields(text), " "), "|", "/")
	if len(text) > most {
		text = text[:most] + "..."
	}
	return text
}
