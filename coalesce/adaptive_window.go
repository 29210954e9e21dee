package coalesce

const (
	// window is how long, in ns, a measurement lasts at least: long enough for
	// some tens of packets at the rates at which moderation pays.
	window = int64(1_000_000)
	// longWindow is a window in which the traffic has paused.
	longWindow = 4 * window
	// Waiting begins when the packets that come within a spacing exceed
	// beginPackets, and ends when they fall below endPackets.
	beginPackets, endPackets = 2.5, 1.5
	// A trial that failed is not repeated before this, in ns, doubling up to the
	// maximum; after calmWindows without a failure it begins anew.
	minBackoff, maxBackoff = 2 * window, 256 * window
	calmWindows            = 64
	// A rate that has changed by this factor makes other traffic of it, for which
	// the failure does not count.
	otherTraffic = 2.0
	// firstProbe is after how many windows of waiting one without comes, doubling
	// up to lastProbe.
	firstProbe, lastProbe = 16, 64
	// The pace has suffered if it is lower by a part in slowerShare and by more
	// than noise standard deviations of a Poisson process.
	slowerShare = 0.05
	noise       = 3.0
	// memory bounds, in ns, what a rate is averaged over.
	memory = float64(16 * window)
)

// Reasons of adaptive's decisions, apart from "start".
const (
	// becauseSparse: too few packets come within the spacing.
	becauseSparse = "sparse"
	// becauseBusy: the driver is awake most of the time by itself.
	becauseBusy = "driver_busy"
	// becauseRate: waiting pays at this rate.
	becauseRate = "rate"
	// becauseConfirm: it seems to pay; one more window will tell.
	becauseConfirm = "confirm"
	// becauseFutile: nothing came during the waits.
	becauseFutile = "futile"
	// becauseSlower: the sender was slower while the engine waited.
	becauseSlower = "slower"
	// becauseProbe: no waiting for one window, to compare.
	becauseProbe = "probe"
	// becauseBackoff: waiting has failed for such traffic a short while ago.
	becauseBackoff = "backoff"
)

// adaptiveWindow is what was counted since start.
type adaptiveWindow struct {
	start                                    int64
	packets, bytes                           uint64
	notifiedN, suppressedN, wakeups, entries uint64
}

func (w *adaptiveWindow) count(o *Observation) {
	w.packets += uint64(o.Packets)
	w.bytes += o.Bytes
	w.notifiedN += uint64(o.Notified)
	w.suppressedN += uint64(o.Suppressed)
	w.entries += uint64(o.Consumed)
	if o.Idle {
		w.wakeups++
	}
}

// pace is a rate of packets, averaged over what was added lately.
type pace struct{ packets, ns float64 }

func (p *pace) add(packets, ns float64) {
	if p.ns > memory {
		p.packets /= 2
		p.ns /= 2
	}
	p.packets += packets
	p.ns += ns
}

func (p *pace) rate() float64 { return p.packets / p.ns }

// adaptiveTrial is what is known of how waiting fares.
type adaptiveTrial struct {
	// with and without are the pace of the traffic with and without waiting.
	with, without pace
	// confirmed: the window before asked for waiting, too.
	confirmed bool
	// retry is when waiting may be tried again, backoff how much later next time,
	// and failed the rate, packets a ns, at which it did not work; 0: it did.
	retry, backoff int64
	failed         float64
	// windows counts those since waiting began, sinceProbe those since the last
	// probe, which are due every probeEvery.
	windows, sinceProbe, probeEvery int
}

// decide closes a window.
func (a *adaptive) decide(o *Observation) {
	now := a.now
	ns, packets := float64(now-a.start), float64(a.packets)
	rate := packets / ns
	spacing := a.space()
	reason := becauseSparse
	switch {
	case now-a.start > longWindow:
		// The traffic paused: what was measured before is no comparison.
		a.with, a.without = pace{}, pace{}
		a.confirmed = false
		if a.waiting && rate*float64(spacing) < endPackets {
			a.stop()
		}
	case a.waiting:
		reason = a.review(ns, packets, spacing)
	default:
		reason = a.consider(ns, packets, spacing)
	}
	a.set(spacing, o)
	a.record(o, reason, rate, ns)
	a.adaptiveWindow = adaptiveWindow{start: now}
}

// space is the spacing that the cost asks for.
func (a *adaptive) space() int64 {
	if a.cost == 0 || a.cost > a.budget/costShare || a.blind >= blindAfter {
		return a.budget
	}
	return a.cost * costShare
}

// consider decides whether to begin waiting.
func (a *adaptive) consider(ns, packets float64, spacing int64) string {
	rate := packets / ns
	a.without.add(packets, ns)
	if a.failed != 0 && (rate > a.failed*otherTraffic || rate*otherTraffic < a.failed) {
		a.retry, a.backoff, a.failed = a.now, minBackoff, 0
	}
	confirmed := a.confirmed
	a.confirmed = false
	switch {
	case rate*float64(spacing) < beginPackets:
		return becauseSparse
	case float64(a.notifiedN)*float64(spacing) < ns*1.25:
		// They come no closer than they would when spaced out.
		return becauseBusy
	case a.now < a.retry:
		return becauseBackoff
	case !confirmed:
		a.confirmed = true
		return becauseConfirm
	}
	a.waiting, a.worth = true, gainUnit
	a.with = pace{}
	a.windows, a.sinceProbe, a.probeEvery = 0, 0, firstProbe
	a.spacing = spacing
	return becauseRate
}

// review decides whether to go on waiting.
func (a *adaptive) review(ns, packets float64, spacing int64) string {
	if a.windows++; a.windows >= calmWindows {
		a.backoff = minBackoff
	}
	if a.probing {
		a.probing = false
		a.without.add(packets, ns)
		a.sinceProbe = 0
		a.probeEvery = min(2*a.probeEvery, lastProbe)
	} else {
		a.with.add(packets, ns)
		a.sinceProbe++
	}
	switch {
	case packets/ns*float64(spacing) < endPackets:
		a.stop()
		return becauseSparse
	case a.slower():
		a.fail(a.now, becauseSlower)
		return becauseSlower
	case a.sinceProbe >= a.probeEvery:
		a.probing = true
		// Only what is measured now is a comparison.
		a.without = pace{}
		return becauseProbe
	}
	return becauseRate
}

// slower compares the pace with and without waiting.
func (a *adaptive) slower() bool {
	if a.with.ns == 0 || a.without.ns == 0 {
		return false
	}
	with, without := a.with.rate(), a.without.rate()
	d := without - with
	return d > slowerShare*without && d*d > noise*noise*(with/a.with.ns+without/a.without.ns)
}

// fail ends waiting, for some time.
func (a *adaptive) fail(now int64, reason string) {
	if a.failed = a.with.rateOr(a.without); a.failed == 0 {
		a.failed = 1 / float64(a.gap)
	}
	a.stop()
	a.retry = now + a.backoff
	a.backoff = min(2*a.backoff, maxBackoff)
	if reason == becauseFutile {
		a.limits = everyPacket
		a.last = Decision{
			At: now, Limits: a.limits, Reason: reason, Step: -1,
			Inputs: Inputs{GapUS: float64(a.gap) / 1000, ServiceUS: float64(a.cost) / 1000},
		}
	}
}

func (p *pace) rateOr(other pace) float64 {
	switch {
	case p.ns > 0:
		return p.rate()
	case other.ns > 0:
		return other.rate()
	}
	return 0
}

func (a *adaptive) stop() {
	a.waiting, a.probing, a.hold, a.confirmed = false, false, false, false
}

// set puts the limits in force. The spacing falls at once and rises slowly.
func (a *adaptive) set(spacing int64, o *Observation) {
	if !a.waiting {
		a.limits = everyPacket
		return
	}
	switch {
	case spacing > a.spacing:
		a.spacing = min(spacing, a.spacing+a.spacing/4+1000)
	case spacing < a.spacing-a.spacing/5:
		a.spacing = spacing
	}
	packets := o.Size / pressureShare
	if o.Size == 0 {
		packets = 64
	}
	a.limits = Limits{Usecs: uint32(max(a.spacing/1000, 1)), Packets: max(packets, 2)}
}

func (a *adaptive) record(o *Observation, reason string, rate, ns float64) {
	in := Inputs{
		WindowUS: ns / 1000, PPMS: rate * 1e6, BPMS: float64(a.bytes) * 1e6 / ns, EPMS: float64(a.notifiedN) * 1e6 / ns,
		ServiceUS: float64(a.cost) / 1000, GapUS: float64(a.gap) / 1000,
		Backlog: o.Backlog, Free: o.Free, Size: o.Size,
	}
	if a.notifiedN > 0 {
		in.Ratio = float64(a.packets) / float64(a.notifiedN)
	}
	if a.wakeups > 0 {
		in.Consumed = float64(a.entries) / float64(a.wakeups)
	}
	if n := a.notifiedN + a.suppressedN; n > 0 {
		in.SuppressedRatio = float64(a.suppressedN) / float64(n)
	}
	a.last = Decision{At: a.now, Limits: a.limits, Reason: reason, Step: -1, Inputs: in}
}
