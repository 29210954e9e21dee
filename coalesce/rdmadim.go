package coalesce

// rdmaDimProfile are the limits that rdma-dim steps through.
var rdmaDimProfile = [...]Limits{
	{1, 1}, {1, 4}, {2, 4}, {2, 8}, {4, 8}, {16, 8}, {16, 16}, {32, 16}, {32, 32},
}

// rdmaDimFew is how many packets per 100 notifications each step above the first
// limits must bring: half a packet a notification.
const rdmaDimFew = 50

// rdmaDim is the dynamic moderation of RDMA completion queues as a host's
// engine, with packets for completions: a walk over nine limits that never
// parks.
//
// Every 64 notifications it computes the packets per millisecond and per 100
// notifications, see dimMeter, and compares them with those of the window
// before. The first that differs by more than 10 % decides, and more is better.
// If it got better the engine takes a step the same way, if worse it turns round
// and takes one; at either end of the limits it turns round without one. If
// nothing changed it stays, unless a notification brings no more than half a
// packet for each step that the engine stands above the first limits: then they
// are too high for this traffic, and it goes back to the first at once.
//
// It starts on the first limits, going up. After a window without packets any
// other counts as no change.
type rdmaDim struct {
	meter dimMeter
	prev  dimStats
	// down: the next step leads to less moderation.
	down bool
	// step is the index of the limits in force.
	step int
	last Decision
}

func newRDMADim() *rdmaDim {
	d := &rdmaDim{}
	d.Reset()
	return d
}

func (d *rdmaDim) Name() string { return engineNames[EngineRDMADim] }

func (d *rdmaDim) Reset() {
	*d = rdmaDim{last: Decision{Limits: rdmaDimProfile[0], Reason: becauseStart}}
}

func (d *rdmaDim) Decision() Decision { return d.last }

func (d *rdmaDim) Tick(int64) Advice { return Advice{Limits: rdmaDimProfile[d.step]} }

func (d *rdmaDim) Observe(o *Observation) Advice {
	if s, ok := d.meter.add(o); ok {
		d.decide(o.Now, s)
	}
	return Advice{Limits: rdmaDimProfile[d.step]}
}

// decide takes the decision that the end of a window calls for.
func (d *rdmaDim) decide(now int64, s dimStats) {
	step := d.step
	reason := d.next(s)
	d.prev = s
	if d.step != step {
		d.meter.close()
	} else {
		d.meter.restart()
	}
	d.last = Decision{At: now, Limits: rdmaDimProfile[d.step], Reason: reason, Step: d.step, Inputs: s.inputs()}
}

// next moves the state machine on and returns why it went where it went.
func (d *rdmaDim) next(s dimStats) string {
	reason := becauseBetter
	switch d.compare(s) {
	case dimSame:
		if d.step == 0 || s.packetsPer100Events > uint64(rdmaDimFew*d.step) {
			return becauseSame
		}
		d.step = 0
		return becauseFew
	case dimWorse:
		d.down = !d.down
		reason = becauseTurned
	}
	switch {
	case d.down && d.step == 0, !d.down && d.step == len(rdmaDimProfile)-1:
		d.down = !d.down
		return becauseEdge
	case d.down:
		d.step--
	default:
		d.step++
	}
	return reason
}

// compare relies on nothing being different from a rate of 0.
func (d *rdmaDim) compare(s dimStats) dimVerdict {
	p := &d.prev
	switch {
	case dimDiffer(s.ppms, p.ppms):
		return moreIsBetter(s.ppms, p.ppms)
	case dimDiffer(s.packetsPer100Events, p.packetsPer100Events):
		return moreIsBetter(s.packetsPer100Events, p.packetsPer100Events)
	}
	return dimSame
}
