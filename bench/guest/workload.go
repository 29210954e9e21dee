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

// Kinds of workloads, each with tables of its own.
const (
	// kindBulk goes in one direction.
	kindBulk = "bulk"
	// kindRequests is questions and answers of many connections.
	kindRequests = "requests"
	// kindPingPong is questions and answers one after the other.
	kindPingPong = "ping-pong"
	// kindCost is another workload with a price for each interrupt.
	kindCost = "interrupt cost"
)

// workload is a load that can be measured.
type workload struct {
	name, about, kind string
	// direction is "rx", "tx" or "both": whose notifications and packets count.
	direction string
	// paced is whether the rate is given: it tells only what got lost.
	paced bool
	// base is of which other workload this one is a variation.
	base string
	// guest is how the guest has to be set up.
	guest guestConfig
	// quick is whether a quick look has it.
	quick bool
	// idle is for about how long the program does not load the device, for the
	// estimate.
	idle time.Duration
	// lanes are where it can run; nil is everywhere.
	lanes []string
	// prepare starts what the load needs, if that is not there yet.
	prepare func(ctx context.Context, b *bench) error
	// run runs the load to its end.
	run func(ctx context.Context, b *bench, l load) (outcome, error)
}

func (w workload) info() workloadInfo {
	return workloadInfo{Name: w.name, About: w.about, Kind: w.kind, Direction: w.direction, Paced: w.paced, Base: w.base}
}

// in keeps a workload to some lanes.
func (w workload) in(lanes ...string) workload {
	w.lanes = lanes
	return w
}

// whole keeps a workload out of a quick look.
func (w workload) whole() workload {
	w.quick = false
	return w
}

// orphaned is a workload in which the guest transmits without NAPI. A native
// guest's stack does not notice how: it has got rid of a frame when the driver has
// read it from the TAP.
func (w workload) orphaned() workload {
	w.base, w.name = w.name, w.name+"-orphan"
	w.about += "; the guest transmits without NAPI (napi_tx=0)"
	w.guest.orphan = true
	return w.in(slices.DeleteFunc(slices.Clone(laneNames), func(lane string) bool {
		return lane == "native" || w.lanes != nil && !slices.Contains(w.lanes, lane)
	})...)
}

// costly is a workload in which each interrupt keeps the guest's processor busy,
// as one of a virtual machine does; in the native lane they are cheap otherwise.
func (w workload) costly(cost time.Duration) workload {
	w.base, w.name = w.name, fmt.Sprintf("%s-irq%d", w.name, cost.Microseconds())
	w.about += fmt.Sprintf("; each interrupt keeps the guest's processor busy for %d us more", cost.Microseconds())
	w.kind, w.guest.interruptCost = kindCost, cost
	return w.in("native")
}

// Sizes of TCP messages in bytes: those that the reports on virtio-net's
// moderation have, and fewer for a quick look.
var (
	allSizes   = []int{14, 100, 500, 1400, 2048, 4096}
	quickSizes = []int{100, 1400}
)

// costlySize is the size of TCP messages with a price for interrupts; it is one of
// both lists.
const costlySize = 100

// allWorkloads is every workload in the order in which they run. Those that need
// the guest set up anew, which takes time, stand at the end.
func allWorkloads(quick bool) []workload {
	sizes := allSizes
	if quick {
		sizes = quickSizes
	}
	var all []workload
	for _, direction := range []string{"tx", "rx"} {
		for _, size := range sizes {
			all = append(all, sockperfTCP(size, direction))
		}
	}
	all = append(all,
		sockperfPingPong("udp"), sockperfPingPong("tcp").whole(),
		sockperfUDP("rx"), pacedUDP(), rawRX(),
		redis("set"), redis("get").whole(), nginx(),
		sockperfUDP("tx"), pktgen(),
		sockperfUDP("tx").orphaned(), pktgen().orphaned(),
		pacedUDP().costly(10*time.Microsecond).whole(), pacedUDP().costly(30*time.Microsecond),
		sockperfTCP(costlySize, "rx").costly(30*time.Microsecond),
	)
	if quick {
		all = slices.DeleteFunc(all, func(w workload) bool { return !w.quick })
	}
	return all
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

// variantsOf are those that a lane can do: with netdev, QEMU answers the control
// queue itself, and vhostnet never hears of the guest's limits.
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
