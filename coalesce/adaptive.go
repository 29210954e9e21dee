package coalesce

// Defaults of [AdaptiveOptions]. With 512 us for tx a native guest that sends a
// stream is notified less by a third again, but one that serves nginx loses a tenth
// of its requests, probably since a driver that is awake for what it has sent also
// finds what it has received, and that is rarer then.
const (
	adaptiveRX = 200 // us
	adaptiveTX = 256 // us
)

// AdaptiveOptions are the parameters of the adaptive engine.
type AdaptiveOptions struct {
	Direction Direction
	// MaxLatency is the budget: for how long, in microseconds, a packet may wait
	// to be announced. 0 stands for 200 us (rx) or 256 us (tx): nobody waits for
	// a transmitted packet, its driver only wants the space back.
	MaxLatency uint32
}

// adaptive chooses moments, not limits. A notification costs something only when
// the driver sleeps, so it asks two questions whenever packets are pending for a
// driver that does: is this a stream, and would waiting gather anything?
//
// Spacing. The engine sees when the driver's event index moves, so it knows what
// a notification costs: the shortest time, lately, from one to the movement that
// says that the driver has woken, looked and gone idle again. Notifications take
// no more than one part in costShare of the time if they are spacing = costShare *
// cost apart. This is computed, not searched for, and what it asks for is bounded
// by the latency budget. That is how long a packet may wait, unless it comes after
// a silence of that length: then it is announced at once. That is why sparse
// traffic and the first packet of a burst are never delayed, without a
// classification that could be wrong. The silence is of packets, not of
// notifications: a driver that has worked off a backlog for longer than the spacing
// has had no notification all the time, and the stream goes on.
//
// Worth. The end of a burst is the moment to announce unless more is expected: the
// wait has to last for worthGaps usual gaps between bursts, or for one if there was
// enough traffic in the last window, since then it comes in bursts. One that has
// begun ends with the spacing, at the packet limit, or when overGaps usual gaps have
// brought nothing, since then the burst is over. So the timer is only the upper
// bound. How many gaps that takes is learnt: see adaptivePatience.
//
// Plenty. What a further packet saves falls with the square of how many there are
// already, and what it costs, its own delay, does not. So a receive queue's wait
// ends a fifth early where that gathers plenty, by the rate of the last window.
//
// A driver that is awake wants no notification. Everything pending is declared
// announced at once then, which costs nothing and leaves no timer behind. The
// same goes for a ring under pressure, which costs more than any notification.
//
// None of this can tell a stream from the ping-pong of a peer that waits for the
// answer: its packets, too, come at a steady pace, but they stop coming for as
// long as one of them is held back. The engine has two ways to notice.
//
// Gain. It counts what arrives while it waits. If a wait brings less than one
// further burst on average it stops waiting (reason futile) and tries again
// later: after growBackoff times the time each time that it fails, up to
// maxBackoff, but at once when the traffic has become something else. One ping-pong
// packet in thousands is late by a few gaps; the median does not move.
//
// Pace. Several requests in flight, or a sender with a window, bring a gain and
// are slowed down all the same. So every now and then the engine does not wait for
// a few windows (probe) and compares their rate of packets with that of their
// neighbours on both sides, since traffic that changes by itself does so in all of
// them. A mean difference beyond both noise and slowerShare means that the sender
// waits for the driver, and that waiting costs throughput (slower). The loss is
// about proportional to the wait, so it also says how much shorter the waits have
// to be: the budget is divided by that power of two, or given up for some time if
// it is beyond maxShift. A sender that falls to two thirds as soon as waiting
// begins needs no second comparison. Where the driver's processor is the bottleneck
// the difference has the other sign, and waiting goes on.
//
// Ceiling. A driver's own limits, and a ring that runs low, cut waits short, of
// which the engine sees only that a decision came early. What has not come by then
// is no evidence against waiting, and while most waits end so (ceiling) nothing is
// judged: or else a driver with small limits and an engine that therefore finds
// waiting futile would keep each other where they are, and so would the driver's
// own DIM and this one.
//
// Windows last window of wall-clock time, so the engine reacts to a step within
// two of them however few notifications there are. Towards low latency one
// window, or a few waits that failed, are enough; it takes two windows in a row
// that ask for it to begin waiting, and the spacing shrinks at once but grows by a
// quarter a window at most. The limits are the longest wait and a share of the
// ring while waiting can pay, {0, 1} while it cannot, and neither follows the
// noise in between: since sparse traffic is not held back in any case, they stay
// through the pauses of traffic that comes and goes.
//
// A tx ring differs in that only its driver's space is at stake. Its event index
// moves as the driver sends and is usually ahead, so it says neither that the
// driver sleeps nor what a notification costs: the spacing is the budget, and
// every wait lasts as long.
//
// Without EVENT_IDX the driver's state is unknown, which shows in notifications
// without a movement between them. Then it is taken to sleep all the time, and
// the spacing to be the budget.
type adaptive struct {
	dir Direction
	// budget, in ns, is for how long a packet may be held back.
	budget  int64
	started bool
	now     int64 // of the last observation

	// awake: notified, and the event index has not moved since.
	awake    bool
	blind    uint8 // notifications in a row without a movement before them
	notified int64 // when the last notification was sent
	cost     int64 // of a notification, ns, 0: unknown

	arrived int64 // when packets came last
	more    bool  // there were more behind them
	gap     int64 // usual time between bursts, ns
	pause   int64 // between the last two, ns

	// waiting: limits are above every packet.
	waiting bool
	limits  Limits
	spacing int64 // ns
	// hold: packets are being held back, at most until due.
	hold bool
	due  int64
	// asked: this engine has ended the hold, nobody else.
	asked bool
	// gained counts the bursts that came during the hold, worth is its average
	// in 1/gainUnit of a burst.
	gained, worth int32
	probing       bool

	adaptivePatience
	adaptiveWindow
	adaptiveTrial
	last Decision
}

const (
	// costShare is the reciprocal of the share of time that notifications may take.
	costShare = 16
	// worthGaps is how many usual gaps must fit in a wait for it to begin, or one
	// while there is enough traffic, and overGaps how many without a packet end it.
	worthGaps, overGaps = 3, 3
	// plenty is how many packets a wait need not exceed.
	plenty = 32
	// clampGap is by what factor a gap between bursts may exceed the usual one to
	// count in full.
	clampGap = 4
	gainUnit = 16
	// maxGap is above any spacing that makes sense, so longer pauses make no
	// difference. maxGained keeps one long burst from outweighing the rest.
	maxGap    = int64(2_000_000)
	maxGained = 8
	// blindAfter is how many notifications without a movement between them tell
	// that there is no event index. One can happen by race.
	blindAfter = 4
	// clockBound, in ns, is 73 years.
	clockBound = int64(1) << 61
	// pressureShare is the reciprocal of the share of the ring that the driver
	// should have left.
	pressureShare = 4
)

func newAdaptive(o AdaptiveOptions) Engine {
	usecs := o.MaxLatency
	switch {
	case usecs != 0:
	case o.Direction == TX:
		usecs = adaptiveTX
	default:
		usecs = adaptiveRX
	}
	a := &adaptive{dir: o.Direction, budget: int64(usecs) * 1000}
	a.Reset()
	return a
}

func (a *adaptive) Name() string { return engineNames[EngineAdaptive] }

func (a *adaptive) Decision() Decision { return a.last }

func (a *adaptive) Reset() {
	*a = adaptive{dir: a.dir, budget: a.budget, limits: everyPacket, gap: maxGap, spacing: a.budget}
	a.backoff = minBackoff
	a.last = Decision{Limits: everyPacket, Reason: becauseStart, Step: -1}
}

// everyPacket is also what the driver gets if it asked for coalescing: a host
// may always be sooner.
var everyPacket = Limits{Usecs: 0, Packets: 1}

func (a *adaptive) Observe(o *Observation) Advice {
	before, first := a.now, !a.started
	now := a.clock(o.Now)
	if before = min(before, now); first {
		before = now
	}
	// A decision that left this burst undecided is from before it, so it is older
	// than what the event index says now. Otherwise it is the newest.
	older := o.Backlog != 0
	if older {
		a.decided(o, before)
	}
	if o.Idle || o.Consumed != 0 {
		a.slept(now)
	}
	if o.Packets != 0 {
		took := min(now-a.arrived, maxGap)
		a.pause = took
		if a.more {
			// That was no pause, but work.
			took /= int64(o.Packets)
		}
		// A pause among bursts is not the pace within them.
		a.gap += (min(took, clampGap*a.gap+1000) - a.gap) / 8
		if a.hold {
			a.gained = min(a.gained+1, maxGained)
			a.waited(now - a.arrived)
		}
		a.arrived, a.more = now, !o.PortEmpty
	}
	if !older {
		a.decided(o, now)
	}
	a.count(o)
	if now-a.start >= window {
		a.decide(o)
	}
	return a.advise(o, now)
}

// Tick is asked for only while something is held.
func (a *adaptive) Tick(at int64) Advice {
	now := a.clock(at)
	adv := Advice{Limits: a.limits}
	if a.hold {
		a.until(now, &adv)
	}
	return adv
}

// clock takes the time over. It bounds it, so that differences fit, and a step
// backwards takes along what was remembered: no wait becomes longer by it.
func (a *adaptive) clock(at int64) int64 {
	at = min(max(at, -clockBound), clockBound)
	if at < a.now || !a.started {
		a.notified, a.arrived = at-a.budget, at
		a.adaptiveWindow = adaptiveWindow{start: at}
		a.due, a.retry, a.started = at, at, true
	}
	a.now = at
	return at
}

// slept: the driver's event index has moved.
func (a *adaptive) slept(now int64) {
	a.blind = 0
	if !a.awake {
		return
	}
	a.awake = false
	// The index of a tx ring moves as its driver sends, and a driver that finds
	// what was held back has service to do on top of waking up.
	if a.dir == TX || a.waiting && !a.probing {
		return
	}
	took := max(now-a.notified, 1)
	if a.cost == 0 || took < a.cost {
		a.cost = min(took, maxGap)
		return
	}
	// Follows a driver that has become slower. That it slept was seen late if
	// traffic is sparse, so a long time says little.
	a.cost += (min(took, 4*a.cost) - a.cost) / 64
}

// decided: the worker has taken a decision, if any.
func (a *adaptive) decided(o *Observation, at int64) {
	switch {
	case o.Notified != 0:
		a.woken(at)
	case o.Suppressed != 0:
		a.hold = false
	}
}

// woken: a notification was sent.
func (a *adaptive) woken(now int64) {
	if a.awake && a.blind < blindAfter {
		a.blind++
	}
	if now-a.notified < a.spacing+a.spacing/4 {
		a.close++
	}
	a.awake, a.notified = true, now
	if !a.hold {
		return
	}
	a.hold = false
	a.resigned(now - a.arrived)
	if !a.asked && now+1000 < a.due {
		// The driver's ceiling, or the ring, has cut it short. That nothing had come
		// until then says nothing.
		if a.cuts++; a.gained == 0 {
			return
		}
	}
	if a.worth += (a.gained*gainUnit - a.worth) / 4; a.worth < gainUnit {
		a.fail(now, becauseFutile)
	}
}

// advise says what to do about what is pending.
func (a *adaptive) advise(o *Observation, now int64) Advice {
	adv := Advice{Limits: a.limits}
	if o.Backlog == 0 || !a.waiting {
		a.hold = false
		return adv
	}
	left := min(a.spacing, a.longest())
	if a.dir == RX && a.pace > 0 {
		// There is little to win beyond what is plenty.
		left = min(left, max(int64(plenty/a.pace), left-left/5))
	}
	if a.dir == RX && a.pause >= a.spacing {
		left = 0
	}
	switch {
	case a.dir == RX && a.awake && a.blind < blindAfter, a.probing, pressed(o):
		adv.Flush = true
	case a.hold:
		a.until(now, &adv)
	case left <= 0, o.PortEmpty && left < a.worthwhile():
		adv.Flush = true
	default:
		a.hold, a.gained, a.due, a.asked = true, 0, now+left, false
		a.persist()
		a.until(now, &adv)
	}
	return adv
}

// until ends the hold, or says when to ask again.
func (a *adaptive) until(now int64, adv *Advice) {
	at := min(a.due, a.arrived+a.silence())
	if now < at {
		adv.Next = at
		return
	}
	adv.Flush, a.asked = true, true
}

// worthwhile is how long a wait must be to begin at the end of a burst. While
// there is enough traffic, one more burst is enough: it has many packets.
func (a *adaptive) worthwhile() int64 {
	if a.sparse == 0 {
		return a.gap
	}
	return worthGaps * a.gap
}

// longest is for how long a packet may be held back.
func (a *adaptive) longest() int64 { return a.budget >> a.shift }

// pressed tells whether the driver is about to run out of buffers (rx) or space
// (tx). What is pending is free, but a driver does not know that yet.
func pressed(o *Observation) bool {
	if o.Size == 0 {
		return false
	}
	return o.Free < o.Size/pressureShare
}
