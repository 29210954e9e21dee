package main

import (
	"slices"
	"strings"

	"github.com/vhostnet/vhostnet/bench/stat"
)

// summaryText is how to read the summary.
const summaryText = `
## Summary

Medians over workloads, of their medians, with [min–max] of the workloads. Bulk is all that goes in one direction; notifications
per packet are also given for those alone in which ` + "`off`" + ` has at least 0.05. Throughput leaves out workloads whose rate is given.
A ratio of latency below 1 is better than ` + "`off`" + `.

`

var headOfSummary = []string{
	"lane", "engine", "notifications/packet, bulk", "where there are some to cut", "for the same work, bulk", "throughput, bulk", "requests/s", "ping-pong latency",
}

// summarizeLanes writes a row for each lane and engine.
func summarizeLanes(w *strings.Builder, list []*laneReport) {
	var all [][]string
	for _, r := range list {
		all = append(all, summaryOf(r.Lane, rowsOf(r.Samples, r.info))...)
	}
	if len(all) > 0 {
		w.WriteString(summaryText)
		table(w, headOfSummary, all)
	}
}

func summaryOf(lane string, rows []row) (table [][]string) {
	var variants []string
	for _, r := range rows {
		if r.variant != baseline && !slices.Contains(variants, r.variant) {
			variants = append(variants, r.variant)
		}
	}
	for _, v := range variants {
		over := func(value func(row) stat.Spread, has func(row) bool) stat.Spread {
			var medians []float64
			for _, r := range rows {
				if s := value(r); r.variant == v && has(r) && s.N > 0 {
					medians = append(medians, s.Median)
				}
			}
			return stat.Of(medians)
		}
		change := func(r row) stat.Spread { return r.change }
		ratio := func(r row) stat.Spread { return r.ratio }
		bulk := func(r row) bool { return r.Kind == kindBulk }
		table = append(table, []string{
			lane, v, percentText(over(change, bulk)),
			percentText(over(change, func(r row) bool { return bulk(r) && !r.few })),
			percentText(over(func(r row) stat.Spread { return r.workChange }, bulk)),
			ratioText(over(ratio, func(r row) bool { return bulk(r) && !r.Paced })),
			ratioText(over(ratio, func(r row) bool { return r.Kind == kindRequests })),
			ratioText(over(func(r row) stat.Spread { return r.latencyRatio }, func(r row) bool { return r.Kind == kindPingPong })),
		})
	}
	return table
}
