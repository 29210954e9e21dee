package coalesce

const (
	// maxPatience is to what power of two the silence that ends a wait is
	// multiplied at most; the budget ends it in any case.
	maxPatience = 4
	// exploreEvery is how many waits that silence has ended come to one that goes on
	// for twice as long, to see whether something would have come.
	exploreEvery = 8
	// evidence is how many waits more than not must have profited from more
	// patience, or not from what there is, for it to change.
	evidence = 3
)

// adaptivePatience is how long a silence has to be for a wait to end. Usually
// a few gaps mean that the burst is over, and that whoever sent it waits, too.
// But where packets come at random, or in bursts that do not depend on each
// other, the next one comes however long the silence is, and what looks like the
// end would cut most waits short. So every now and then a wait goes on for
// longer, and what it brings decides.
type adaptivePatience struct {
	patience int
	// explores: this wait goes on for longer than usual. broken: a packet has
	// come in what it is longer by.
	explores, broken bool
	// ended counts waits that silence has ended since the last exploration.
	ended int
	// longer is by how many explorations brought something more than did not, and
	// less by how many waits did not need the patience more than did.
	longer, less int
}

// silence is after how long without a packet a wait ends.
func (a *adaptive) silence() int64 {
	p := a.patience
	if a.explores {
		p++
	}
	return overGaps * a.gap << p
}

// persist begins a wait.
func (a *adaptive) persist() {
	a.explores, a.broken = a.ended >= exploreEvery && a.patience < maxPatience, false
	if a.explores {
		a.ended = 0
	}
}

// waited: a packet has come during a wait, after that much silence.
func (a *adaptive) waited(silence int64) {
	usual := overGaps * a.gap << a.patience
	if a.explores && silence > usual {
		a.broken = true
	}
	if a.patience > 0 && silence > usual/2 && !a.explores {
		a.less = max(a.less-1, -evidence)
	}
}

// resigned: a wait has ended after that much silence.
func (a *adaptive) resigned(silence int64) {
	usual := overGaps * a.gap << a.patience
	switch {
	case a.explores && a.broken:
		if a.longer++; a.longer >= evidence {
			a.patience++
			a.longer, a.less = 0, 0
		}
	case a.explores:
		a.longer = max(a.longer-1, -evidence)
	case silence >= usual:
		a.ended++
	}
	if a.patience > 0 && silence > usual/2 && !a.explores {
		if a.less++; a.less >= evidence {
			a.patience--
			a.longer, a.less = 0, 0
		}
	}
}
