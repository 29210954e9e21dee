package main

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// legend is how to read the tables.
const legend = `Each row is a workload under one engine: host engines are set for both directions, ` + "`guest-adaptive`" + ` is the
guest's own ` + "`adaptive-rx on`" + ` with none on the host. Values are medians over the rounds. A ratio is that to ` + "`off`" + ` in the
same round, with the range of all rounds. Notifications per packet are those of the workload's direction, "cut" is how many of
them are left out against ` + "`off`" + `; notifications per second and the guest's interrupts are those of both directions. CPU is
the processor time of the vhostnet process, 100 % for one core. Latencies are of the whole round trip.
`

// markdown renders the results of lanes.
func markdown(list []*laneReport) string {
	var w strings.Builder
	w.WriteString("# Moderation engines under real programs in guests\n\n" + legend)
	for _, r := range list {
		r.markdown(&w)
	}
	return w.String()
}

func (r *laneReport) markdown(w *strings.Builder) {
	m := r.Machine
	fmt.Fprintf(w, "\n## Lane %s\n\n", r.Lane)
	if r.Title != "" {
		fmt.Fprintf(w, "%s\n\n", r.Title)
	}
	fmt.Fprintf(w, "%s; %s, %d cores; Linux %s; %s; %d interleaved rounds, %g s a sample.", r.Time.Format("2006-01-02"),
		m.CPU, m.Cores, m.Kernel, m.Go, r.Rounds, r.Seconds)
	for _, name := range slices.Sorted(maps.Keys(r.Versions)) {
		fmt.Fprintf(w, " %s %s;", name, r.Versions[name])
	}
	fmt.Fprintf(w, "\n\n![ratio of throughput, and cut of notifications](guest-%s.svg)\n\n", r.Lane)
	if r.Failure != "" {
		fmt.Fprintf(w, "The run did not come to its end: %s\n\n", oneLine(r.Failure))
	}
	w.WriteString("| workload | engine | rate | ratio | notifications/packet | cut | notifications/s | guest IRQ/s | CPU | latency avg / p50 / p99 / p99.9, us | ratio of avg |\n" +
		"|---|---|---|---|---|---|---|---|---|---|---|\n")
	rows := rowsOf(r.Samples, r.direction)
	for _, row := range rows {
		row.markdown(w)
	}
	w.WriteString("\n")
	for _, i := range r.Workloads {
		fmt.Fprintf(w, "- %s: %s.\n", i.Name, i.About)
	}
	for _, row := range rows {
		if row.failed > 0 {
			fmt.Fprintf(w, "- %s, %s: %d of %d samples failed, the first with: %s\n", row.workload, row.variant,
				row.failed, row.failed+row.rate.N, oneLine(row.firstError))
		}
	}
}

func (r row) markdown(w *strings.Builder) {
	if r.rate.N == 0 {
		fmt.Fprintf(w, "| %s | %s | failed | | | | | | | | |\n", r.workload, r.variant)
		return
	}
	cut := ""
	if r.cut.N > 0 && r.variant != baseline {
		cut = fmt.Sprintf("%.0f %%", 100*r.cut.Median)
	}
	ratio, latencyRatio := r.ratio, r.latencyRatio
	if r.variant == baseline {
		ratio, latencyRatio = spread{}, spread{}
	}
	lat := ""
	if r.latencyAvg.N > 0 {
		lat = fmt.Sprintf("%.1f / %s / %s / %s", r.latencyAvg.Median, known(r.latency50), known(r.latency99), known(r.l999))
	}
	fmt.Fprintf(w, "| %s | %s | %s %s | %s | %.4f | %s | %.0f | %.0f | %.0f %% | %s | %s |\n", r.workload, r.variant,
		significant(r.rate.Median), r.unit, ratio.text(), r.perPacket.Median, cut,
		r.notifications.Median, r.interrupts.Median, 100*r.cpu.Median, lat, latencyRatio.text())
}

// text is the median and the range, nothing without values.
func (s spread) text() string {
	if s.N == 0 {
		return ""
	}
	return fmt.Sprintf("%.3f [%.2f-%.2f]", s.Median, s.Min, s.Max)
}

// known is a latency that not every program reports.
func known(s spread) string {
	if s.Median == 0 {
		return "-"
	}
	return fmt.Sprintf("%.1f", s.Median)
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
