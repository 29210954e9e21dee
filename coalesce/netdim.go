package coalesce

// netDimProfiles are the limits net-dim steps through, from the least
// moderation to the most: by direction, then by whether the device's timer runs
// from the first event (EQE) or restarts with each completion (CQE).
var netDimProfiles = [2][2][NetDimSteps]Limits{
	RX: {
		{{1, 256}, {8, 256}, {64, 256}, {128, 256}, {256, 256}},
		{{2, 256}, {8, 128}, {16, 64}, {32, 64}, {64, 64}},
	},
	TX: {
		{{1, 128}, {8, 128}, {32, 128}, {64, 128}, {128, 128}},
		{{5, 128}, {8, 64}, {16, 32}, {32, 32}, {64, 32}},
	},
}

// netDimTired is after how many steps of one search net-dim gives up, and for
// how many windows it then rests: time enough to walk through all profiles
// twice.
const netDimTired = 2 * NetDimSteps

// netDimState is what net-dim is about to do with the next window.
type netDimState uint8

const (
	// parkedOnTop: stay until the traffic changes.
	parkedOnTop netDimState = iota
	// parkedTired: stay for netDimTired windows.
	parkedTired
	// goingRight and goingLeft: try more, or less, moderation.
	goingRight
	goingLeft
)

// netDim is the dynamic interrupt moderation of Linux's network drivers as a
// host's engine: a hill climb over five limits in order of moderation.
//
// Every 64 notifications it computes the rates of packets, bytes and
// notifications per millisecond, see dimMeter, and compares them with those of
// the window before. The first of these that differs by more than 10 % decides:
// more bytes are better, more packets are better, fewer notifications are
// better. As long as it gets better the engine takes a step per window the same
// way, otherwise it turns round. It parks when it has just passed a top (two or
// more steps one way, and one step back made it better), when there is no
// further step, or, tired, after ten steps of search. Parked on a top it keeps
// the rates with which it arrived and starts again once a window differs from
// them; tired it looks at nothing for ten windows. A search that starts again
// begins with less moderation, except from the first limits.
//
// It starts parked on the first limits without any rates, so the first window
// with traffic is a change and moves it to the second ones.
//
// The events are notifications that were sent: while the driver wants none, no
// window ends and the limits stay.
type netDim struct {
	profile [NetDimSteps]Limits
	meter   dimMeter
	prev    dimStats
	state   netDimState
	// step is the index of the limits in force.
	step int
	// left and right count steps since the last turn that way, tired all steps
	// since the search began; at rest, tired counts down the windows.
	left, right, tired int
	last               Decision
}

func newNetDim(profile [NetDimSteps]Limits) *netDim {
	d := &netDim{profile: profile}
	d.Reset()
	return d
}

func (d *netDim) Name() string { return engineNames[EngineNetDim] }

func (d *netDim) Reset() {
	*d = netDim{profile: d.profile}
	d.last = Decision{Limits: d.profile[0], Reason: becauseStart}
}

func (d *netDim) Decision() Decision { return d.last }

func (d *netDim) Tick(int64) Advice { return Advice{Limits: d.profile[d.step]} }

func (d *netDim) Observe(o *Observation) Advice {
	if s, ok := d.meter.add(o); ok {
		d.decide(o.Now, s)
	}
	return Advice{Limits: d.profile[d.step]}
}

// decide takes the decision that the end of a window calls for.
func (d *netDim) decide(now int64, s dimStats) {
	state, step := d.state, d.step
	reason := d.next(s)
	if state != parkedOnTop || d.state != parkedOnTop {
		// While it stays parked it compares with the traffic of its arrival, so a
		// slow drift adds up to a change.
		d.prev = s
	}
	if d.step != step {
		d.meter.close()
	} else {
		d.meter.restart()
	}
	d.last = Decision{At: now, Limits: d.profile[d.step], Reason: reason, Step: d.step, Inputs: s.inputs()}
}

// next moves the state machine on and returns why it went where it went.
func (d *netDim) next(s dimStats) string {
	switch d.state {
	case parkedOnTop:
		if d.compare(s) == dimSame {
			return becauseParked
		}
		return d.unpark(becauseChanged)
	case parkedTired:
		if d.tired--; d.tired > 0 {
			return becauseResting
		}
		return d.unpark(becauseRested)
	}
	reason := becauseBetter
	if d.compare(s) != dimBetter {
		d.turn()
		reason = becauseTurned
	}
	if d.onTop() {
		d.park()
		return becauseTop
	}
	return d.walk(reason)
}

func (d *netDim) compare(s dimStats) dimVerdict {
	p := &d.prev
	switch {
	case p.bpms == 0 && s.bpms != 0:
		return dimBetter
	case p.bpms == 0:
		return dimSame
	case dimDiffer(s.bpms, p.bpms):
		return moreIsBetter(s.bpms, p.bpms)
	case p.ppms == 0 && s.ppms != 0:
		return dimBetter
	case p.ppms == 0:
		return dimSame
	case dimDiffer(s.ppms, p.ppms):
		return moreIsBetter(s.ppms, p.ppms)
	case dimDiffer(s.epms, p.epms):
		return moreIsBetter(p.epms, s.epms)
	}
	return dimSame
}

// unpark begins a search.
func (d *netDim) unpark(reason string) string {
	d.state = goingRight
	if d.step > 0 {
		d.state = goingLeft
	}
	return d.walk(reason)
}

// walk takes a step, or parks when there is none to take. It is not called on
// a parked engine.
func (d *netDim) walk(reason string) string {
	switch {
	case d.tired == netDimTired:
		d.state, d.left, d.right = parkedTired, 0, 0
		return becauseTired
	case d.state == goingRight && d.step == NetDimSteps-1, d.state == goingLeft && d.step == 0:
		d.park()
		return becauseEdge
	case d.state == goingRight:
		d.step++
		d.right++
	default:
		d.step--
		d.left++
	}
	d.tired++
	return reason
}

func (d *netDim) turn() {
	if d.state == goingRight {
		d.state, d.left = goingLeft, 0
	} else {
		d.state, d.right = goingRight, 0
	}
}

// onTop tells whether the step that was just found good led back to limits
// from which the search had gone on too far.
func (d *netDim) onTop() bool {
	if d.state == goingRight {
		return d.left > 1 && d.right == 1
	}
	return d.right > 1 && d.left == 1
}

func (d *netDim) park() { d.state, d.left, d.right, d.tired = parkedOnTop, 0, 0, 0 }
