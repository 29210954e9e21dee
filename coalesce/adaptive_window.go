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
	beginPackets, endPackets = 5, 3
	// Nobody asks or answers in segments that long: they are bulk at any rate, and
	// fewer suffice.
	longPackets, beginLong, endLong = 512, 2, 1
	// A trial that failed is not repeated before this, in ns, growing up to the
	// maximum; after calmWindows without a failure it begins anew.
	minBackoff, maxBackoff, growBackoff = 2 * window, 512 * window, 4
	calmWindows                         = 64
	// Shorter waits are kept for so many windows, doubling up to the maximum.
	firstRelax, maxRelax = 512, 4096
	// A rate that has changed by this factor makes other traffic of it, for which
	// the failure does not count.
	otherTraffic = 2.0
	// firstProbe is after how many windows of waiting one without comes, doubling
	// up to lastProbe.
	firstProbe, lastProbe = 32, 1024
	// probeLength is how many windows a probe lasts. Whoever waits for an answer
	// before going on needs a while to become faster, so the first does not count.
	probeLength = 3
	// beside is how many windows on each side a probe is compared with, and
	// minPairs how many comparisons there must be.
	beside, minPairs = 4, 3
	// The pace has suffered if it is lower by a part in slowerShare and by more
	// than noise standard deviations of a Poisson process.
	slowerShare = 0.03
	noise       = 3.0
	// plainLoss is a difference that the first comparison suffices for: the sender
	// has fallen to two thirds when waiting began.
	plainLoss = 0.5
	// memory is over how many comparisons their result is averaged, and rateMemory
	// over how many windows the usual rate.
	memory, rateMemory = 16.0, 8.0
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
	// becauseCeiling: the driver's limits, or the ring, end most waits.
	becauseCeiling = "ceiling"
	// becauseProbe: no waiting for some windows, to compare.
	becauseProbe = "probe"
	// becauseBackoff: waiting has failed for such traffic a short while ago.
	becauseBackoff = "backoff"
)

// adaptiveWindow is what was counted since start.
type adaptiveWindow struct {
	start                                    int64
	packets, bytes                           uint64
	notifiedN, suppressedN, wakeups, entries uint64
	// close counts notifications that came no later after the last one than they
	// would with waiting, cuts waits that something else has ended.
	close, cuts uint64
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

// comparison is how the rate of packets does without waiting compared with the
// windows next to it. Traffic that becomes faster or slower by itself is no
// difference: it is the same in all three.
type comparison struct {
	// before and after are the sums of the rates of up to beside windows of waiting
	// before and after a window without it.
	before, after   float64
	nBefore, nAfter int
	probe           float64
	probed          bool
	// plain is the difference to what was before waiting began.
	plain float64
	// n, mean and spread are of the relative differences, averaged over the last
	// ones; spread is the sum of the squares of their deviations from the mean.
	n, mean, spread float64
}

// waited counts a window of waiting in.
func (c *comparison) waited(rate float64) {
	switch {
	case !c.probed && c.nBefore < beside:
		c.before += rate
		c.nBefore++
	case !c.probed:
		c.before += rate - c.before/beside
	default:
		c.after += rate
		if c.nAfter++; c.nAfter == beside || c.nBefore == 0 && c.nAfter == beside/2 {
			c.pair()
		}
	}
}

// without counts a window without waiting in.
func (c *comparison) without(rate float64) { c.probe, c.probed = rate, true }

// pair adds what a probe and its neighbours say.
func (c *comparison) pair() {
	next := c.after / float64(c.nAfter)
	if c.nBefore > 0 {
		next = (next + c.before/float64(c.nBefore)) / 2
	}
	if d := min((c.probe-next)/max(next, c.probe/2), 1); c.nBefore == 0 {
		// Waiting has just begun, often because the traffic has changed: that says
		// something only if it is plain.
		c.plain = d
	} else {
		if c.n >= memory {
			c.spread *= (memory - 1) / memory
			c.n--
		}
		c.n++
		delta := d - c.mean
		c.mean += delta / c.n
		c.spread += delta * (d - c.mean)
	}
	c.before, c.nBefore = c.after, c.nAfter
	c.after, c.nAfter, c.probed = 0, 0, false
}

// lost is which part of the rate waiting costs, 0 unless that is beyond noise,
// which is at least that of packets at random.
func (c *comparison) lost(packetsPerWindow float64) float64 {
	switch {
	case c.n == 0 && c.plain > plainLoss:
		return c.plain / (1 + c.plain)
	case c.n < minPairs || c.mean <= slowerShare:
		return 0
	}
	variance := max(c.spread/(c.n-1), 1/max((probeLength-1)*packetsPerWindow, 1))
	if c.mean*c.mean <= noise*noise*variance/c.n {
		return 0
	}
	return c.mean / (1 + c.mean)
}

// adaptiveTrial is what is known of how waiting fares.
type adaptiveTrial struct {
	compare comparison
	// rate is the usual one without waiting, pace that of the last window, packets
	// a ns.
	rate, pace float64
	// confirmed: the window before asked for waiting, too.
	confirmed bool
	// retry is when waiting may be tried again, backoff how much later next time,
	// and failed the rate, packets a ns, at which it did not work; 0: it did.
	retry, backoff int64
	failed         float64
	// windows counts those since waiting began, sinceProbe those since the last
	// probe, which are due every probeEvery, and sparse those in a row in which
	// waiting did not pay.
	windows, sinceProbe, probeEvery, sparse int
	// probeWindows counts those of the probe that is under way, and probeRate is
	// the sum of their rates but for the first.
	probeWindows int
	probeRate    float64
	// shift divides the budget by a power of two; it is tried again with a smaller
	// one after relax windows.
	shift, relax int
}

// decide closes a window.
func (a *adaptive) decide(o *Observation) {
	now := a.now
	ns, packets := float64(now-a.start), float64(a.packets)
	rate := packets / ns
	if ns < longWindow && (!a.waiting || a.probing) {
		if a.rate == 0 {
			a.rate = rate
		}
		a.rate += (rate - a.rate) / rateMemory
	}
	spacing := a.space()
	a.pace = rate
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
	return min(a.cost*costShare, a.budget)
}

// consider decides whether to begin waiting.
func (a *adaptive) consider(ns, packets float64, spacing int64) string {
	rate := packets / ns
	if a.failed != 0 && (rate > a.failed*otherTraffic || rate*otherTraffic < a.failed) {
		a.retry, a.backoff, a.failed = a.now, minBackoff, 0
	}
	confirmed := a.confirmed
	a.confirmed = false
	switch {
	case rate*float64(min(spacing, a.longest())) < a.enough(beginPackets, beginLong):
		return becauseSparse
	case 2*a.close < a.notifiedN || a.notifiedN == 0:
		// Most come no closer than they would with waiting.
		return becauseBusy
	case a.now < a.retry:
		return becauseBackoff
	case !confirmed:
		a.confirmed = true
		return becauseConfirm
	}
	a.waiting, a.worth = true, gainUnit
	a.shift, a.relax = 0, firstRelax
	a.renew()
	a.compare.without(a.rate)
	return becauseRate
}

// enough is how many packets must come in the time that one can be held back.
func (a *adaptive) enough(packets, segments float64) float64 {
	if a.bytes > longPackets*a.packets {
		return segments
	}
	return packets
}

// review decides whether to go on waiting.
func (a *adaptive) review(ns, packets float64, spacing int64) string {
	if a.windows++; a.windows >= firstRelax {
		a.backoff = minBackoff
	}
	if a.sparse++; packets/ns*float64(min(spacing, a.longest())) >= a.enough(endPackets, endLong) {
		a.sparse = 0
	}
	if 2*a.cuts > a.notifiedN && a.sparse == 0 {
		// It says nothing of waits that somebody else ends.
		return becauseCeiling
	}
	probed := a.probing
	switch {
	case probed:
		if ns >= longWindow {
			a.probing, a.sinceProbe = false, 0 // no traffic to compare
			break
		}
		if a.probeWindows++; a.probeWindows == 1 {
			return becauseProbe // what it meets is still of the time before
		}
		if a.probeRate += packets / ns; a.probeWindows < probeLength {
			return becauseProbe
		}
		a.probing, a.sinceProbe = false, 0
		a.compare.without(a.probeRate / (probeLength - 1))
		if a.compare.n >= minPairs {
			a.probeEvery = min(2*a.probeEvery, lastProbe)
		}
	default:
		a.sinceProbe++
		if ns < longWindow {
			a.compare.waited(packets / ns)
		}
	}
	switch {
	case a.sparse >= calmWindows, a.sparse > 0 && ns > float64(calmWindows*window):
		a.stop()
		return becauseSparse
	case a.sparse > 0:
		return becauseSparse
	case a.slower(packets):
		return becauseSlower
	case a.shift > 0 && a.windows >= a.relax:
		// Has the traffic become another one?
		a.shift--
		a.renew()
		a.relax = min(2*a.relax, maxRelax)
		return becauseRelax
	case a.sinceProbe >= a.probeEvery:
		a.probing, a.probeWindows, a.probeRate = true, 0, 0
		return becauseProbe
	}
	return becauseRate
}

// slower compares the pace with and without waiting, and shortens the waits or
// ends them if they cost throughput. How much that is tells how much shorter
// they have to be.
func (a *adaptive) slower(packets float64) bool {
	lost := a.compare.lost(packets)
	if lost == 0 {
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
	a.compare = comparison{}
	a.windows, a.sparse, a.sinceProbe, a.probeEvery = 0, 0, 0, firstProbe
}

// fail ends waiting, for some time.
func (a *adaptive) fail(now int64, reason string) {
	if a.failed = a.rate; a.failed == 0 {
		a.failed = 1 / float64(a.gap)
	}
	a.stop()
	a.retry = now + a.backoff
	a.backoff = min(growBackoff*a.backoff, maxBackoff)
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
