package main

import (
	"context"
	"fmt"
	"regexp"
	"slices"
	"time"
)

// load says for how long a workload has to run.
type load struct {
	// seconds includes settle, the time before the counters are read.
	seconds float64
	settle  time.Duration
	variant string
}

// outcome is what a workload's program reports.
type outcome struct {
	// rate is 0 for packets of the workload's direction, as the device counts them.
	rate    float64
	unit    string
	latency *latency
	extra   map[string]float64
}

// workload is a load that can be measured.
type workload struct {
	name, about string
	// direction is "rx" or "tx": whose notifications count.
	direction string
	// orphan is whether the guest transmits without NAPI.
	orphan bool
	// lanes are where it can run; nil is everywhere.
	lanes []string
	// prepare starts what the load needs, if that is not there yet.
	prepare func(ctx context.Context, b *bench) error
	// run runs the load to its end.
	run func(ctx context.Context, b *bench, l load) (outcome, error)
}

// Sizes of TCP messages in bytes: those that the reports on virtio-net's
// moderation have, and fewer for a quick look.
var (
	allSizes   = []int{14, 100, 500, 1400, 2048, 4096}
	quickSizes = []int{100, 1400, 4096}
)

// allWorkloads is every workload in the order in which they run. Those without
// NAPI stand together, as the guest has to load its driver anew for them.
func allWorkloads(sizes []int) []workload {
	var all []workload
	for _, direction := range []string{"tx", "rx"} {
		for _, size := range sizes {
			all = append(all, sockperfTCP(size, direction))
		}
	}
	return append(all,
		sockperfPingPong("udp"), sockperfPingPong("tcp"),
		sockperfUDP("rx", false), rawRX(),
		redis("set"), redis("get"), nginx(),
		sockperfUDP("tx", false), pktgen(false),
		sockperfUDP("tx", true), pktgen(true),
	)
}

// choose keeps the workloads that a lane has and the pattern matches.
func choose(all []workload, lane string, pattern *regexp.Regexp) (chosen []workload) {
	for _, w := range all {
		if (w.lanes == nil || slices.Contains(w.lanes, lane)) && pattern.MatchString(w.name) {
			chosen = append(chosen, w)
		}
	}
	return chosen
}

// variant is who moderates.
type variant struct {
	name string
	// engine is the host's, in both directions.
	engine string
	// guest is the guest's own moderation.
	guest bool
}

// guestVariant is the guest's own moderation, with none on the host.
const guestVariant = "guest-adaptive"

// parseVariants makes variants of names: engines as in --rx-moderation, and
// guestVariant. What the others are compared with is always one of them.
func parseVariants(names []string) ([]variant, error) {
	list := []variant{{name: baseline, engine: "off"}}
	for _, name := range names {
		v := variant{name: name, engine: name}
		if name == guestVariant {
			v.engine, v.guest = "off", true
		}
		if name == "" {
			return nil, fmt.Errorf("a variant without a name")
		}
		if !slices.ContainsFunc(list, func(o variant) bool { return o.name == name }) {
			list = append(list, v)
		}
	}
	return list, nil
}

// variantsOf are those that a lane can do.
func variantsOf(list []variant, lane string) []variant {
	return slices.DeleteFunc(slices.Clone(list), func(v variant) bool { return v.guest && lane == "netdev" })
}

// orderOf is the order of n variants in a round: each round begins with the next,
// so that none always runs on what another left behind, or at the same distance
// from what it is compared with.
func orderOf(n, round int) []int {
	order := make([]int, n)
	for i := range order {
		order[i] = (i + round) % n
	}
	return order
}
