package coalesce

const (
	// window is how long, in ns, a measurement lasts at least: long enough for
	// some tens of packets at the rates at which moderation pays.
	window = int64(1_000_000)
	// longWindow is a window in which the traffic has paused.
	longWindow = float64(4 * window)
	// Waiting begins when more than beginPackets come in the time that one can be
	// held back, and ends when for calmWindows fewer than endPackets did. Until
	// then sparse traffic is not held back either, so there is no hurry.
	beginPackets, endPackets = 3, 2
	// A trial that failed is not repeated before this, in ns, doubling up to the
	// maximum; after calmWindows without a failure it begins anew.
	minBackoff, maxBackoff = 2 * window, 256 * window
	calmWindows            = 64
	maxRelax               = 16 * calmWindows
	// A rate that has changed by this factor makes other traffic of it, for which
	// the failure does not count.
	otherTraffic = 2.0
	// firstProbe is after how many windows of waiting one without comes, doubling
	// up to lastProbe.
	firstProbe, lastProbe = 8, 32
	// The pace has suffered if it is lower by a part in slowerShare and by more
	// than noise standard deviations of a Poisson process.
	slowerShare = 0.03
	noise       = 3.0
	// memory is how many windows a rate is averaged over.
	memory = 32.0
	// maxShift is to what power of two the budget is divided at most. A wait that
	// costs throughput even then does not pay.
	maxShift = 2
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
	// becauseRelax: longer waits are tried again.
	becauseRelax = "relax"
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
	// close counts notifications that came well within the spacing.
	close uint64
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

// pace is the rate of packets in windows, averaged over the last ones.
type pace struct {
	n, mean float64 // windows and packets a ns
	// spread is the sum of squares of the windows' deviations from the mean.
	spread float64
}

// add counts a window in.
func (p *pace) add(rate float64) {
	if p.n >= memory {
		p.spread *= (memory - 1) / memory
		p.n--
	}
	p.n++
	d := rate - p.mean
	p.mean += d / p.n
	p.spread += d * (rate - p.mean)
}

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
	// probe, which are due every probeEvery, and
	// sparse those in a row in which waiting did not pay.
	windows, sinceProbe, probeEvery, sparse int
	// shift divides the budget by a power of two; it is tried again with a smaller
	// one after relax windows.
	shift, relax int
}

// decide closes a window.
func (a *adaptive) decide(o *Observation) {
	now := a.now
	ns, packets := float64(now-a.start), float64(a.packets)
	rate := packets / ns
	spacing := a.space()
	var reason string
	if a.waiting {
		reason = a.review(ns, packets, spacing)
	} else {
		reason = a.consider(ns, packets, spacing)
	}
	a.set(spacing, o)
	a.record(o, reason, rate, ns)
	a.adaptiveWindow = adaptiveWindow{start: now}
}

// space is the spacing that the cost asks for.
func (a *adaptive) space() int64 {
	if a.cost == 0 || a.blind >= blindAfter {
		return a.budget
	}
	return min(a.cost*costShare, maxSpacings*a.budget)
}

// consider decides whether to begin waiting.
func (a *adaptive) consider(ns, packets float64, spacing int64) string {
	rate := packets / ns
	if ns < longWindow {
		a.without.add(rate)
	}
	if a.failed != 0 && (rate > a.failed*otherTraffic || rate*otherTraffic < a.failed) {
		a.retry, a.backoff, a.failed = a.now, minBackoff, 0
	}
	confirmed := a.confirmed
	a.confirmed = false
	switch {
	case rate*float64(min(spacing, a.longest())) < beginPackets:
		return becauseSparse
	case 2*a.close < a.notifiedN || a.notifiedN == 0:
		// They come no closer than they would when spaced out.
		return becauseBusy
	case a.now < a.retry:
		return becauseBackoff
	case !confirmed:
		a.confirmed = true
		return becauseConfirm
	}
	a.waiting, a.worth = true, gainUnit
	a.shift, a.relax = 0, calmWindows
	a.renew()
	return becauseRate
}

// review decides whether to go on waiting.
func (a *adaptive) review(ns, packets float64, spacing int64) string {
	if a.windows++; a.windows >= calmWindows {
		a.backoff = minBackoff
	}
	if a.sparse++; packets/ns*float64(min(spacing, a.longest())) >= endPackets {
		a.sparse = 0
	}
	rate, probed := packets/ns, a.probing
	switch {
	case probed:
		a.probing = false
		a.sinceProbe = 0
		a.probeEvery = min(2*a.probeEvery, lastProbe)
		if ns < longWindow {
			a.without.add(rate)
		}
	default:
		a.sinceProbe++
		if ns < longWindow {
			a.with.add(rate)
		}
	}
	switch {
	case a.sparse >= calmWindows, a.sparse > 0 && ns > float64(calmWindows*window):
		a.stop()
		return becauseSparse
	case a.sparse > 0:
		return becauseSparse
	case (probed || a.windows <= firstProbe) && a.slower(ns):
		return becauseSlower
	case a.shift > 0 && a.windows >= a.relax:
		// Has the traffic become another one?
		a.shift--
		a.renew()
		a.relax = min(2*a.relax, maxRelax)
		return becauseRelax
	case a.sinceProbe >= a.probeEvery:
		a.probing = true
		return becauseProbe
	}
	return becauseRate
}

// slower compares the pace with and without waiting, and shortens the waits or
// ends them if they cost throughput. How much that is tells how much shorter
// they have to be.
func (a *adaptive) slower(ns float64) bool {
	w, wo := &a.with, &a.without
	if w.n == 0 || wo.n == 0 {
		return false
	}
	lost := (wo.mean - w.mean) / wo.mean
	variance := max((w.spread+wo.spread)/max(w.n+wo.n-2, 1), w.mean/ns)
	if lost <= slowerShare || (wo.mean-w.mean)*(wo.mean-w.mean) <= noise*noise*variance*(1/w.n+1/wo.n) {
		return false
	}
	for ; lost > slowerShare; lost /= 2 {
		a.shift++
	}
	if a.shift > maxShift {
		a.shift = 0
		a.fail(a.now, becauseSlower)
		return true
	}
	a.renew()
	return true
}

// renew begins to compare anew.
func (a *adaptive) renew() {
	a.with = pace{}
	a.windows, a.sparse, a.sinceProbe, a.probeEvery = 0, 0, 0, firstProbe
}

// fail ends waiting, for some time.
func (a *adaptive) fail(now int64, reason string) {
	if a.failed = a.without.mean; a.failed == 0 {
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

func (a *adaptive) stop() {
	a.waiting, a.probing, a.hold, a.confirmed = false, false, false, false
}

// set puts the limits in force. The spacing falls at once and rises slowly.
func (a *adaptive) set(spacing int64, o *Observation) {
	switch {
	case spacing > a.spacing:
		a.spacing = min(spacing, a.spacing+a.spacing/4+1000)
	case spacing < a.spacing-a.spacing/5:
		a.spacing = spacing
	}
	if !a.waiting {
		a.limits = everyPacket
		return
	}
	// Half of the ring leaves the driver as much for while it wakes up.
	packets := o.Size / 2
	if o.Size == 0 {
		packets = 64
	}
	a.limits = Limits{Usecs: uint32(max(min(a.spacing, a.longest())/1000, 1)), Packets: max(packets, 2)}
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
