package sim

// Standing is how one engine does in comparison with another one.
type Standing int

const (
	// Dominates: not worse in delay nor in notifications, and better in one.
	Dominates Standing = iota
	// Equal: no difference that counts.
	Equal
	// Trades: better in one and worse in the other.
	Trades
	// Dominated: worse in one and not better in the other.
	Dominated
)

// String returns the word that tables use.
func (s Standing) String() string {
	return [...]string{"dominates", "equal", "trades", "dominated"}[s]
}

// Comparison is how an engine does against another one under one workload.
type Comparison struct {
	Workload string
	// Subject is the engine that is judged.
	Subject, Rival Result
	// Delay and Notifications are -1 where the subject is better, 1 where it is
	// worse. Delay is the 99th percentile.
	Delay, Notifications int
}

// Standing joins both axes.
func (c Comparison) Standing() Standing {
	switch {
	case c.Delay == 0 && c.Notifications == 0:
		return Equal
	case c.Delay <= 0 && c.Notifications <= 0:
		return Dominates
	case c.Delay >= 0 && c.Notifications >= 0:
		return Dominated
	}
	return Trades
}

// What counts as a difference: 2 %, and no less than the resolution that makes
// sense for the value.
const (
	tolerance      = 0.02
	leastDelay     = 0.5   // us
	leastPerPacket = 0.001 // notifications
)

// Dominance compares the subject with each rival, by the results' engine, under
// each workload for which there are results of both.
func Dominance(results []Result, subject string, rivals ...string) (cs []Comparison) {
	type key struct{ engine, workload string }
	of := map[key]Result{}
	for _, r := range results {
		of[key{r.Engine, r.Workload}] = r
	}
	for _, r := range results {
		if r.Engine != subject {
			continue
		}
		for _, name := range rivals {
			rival, ok := of[key{name, r.Workload}]
			if !ok {
				continue
			}
			cs = append(cs, Comparison{
				Workload: r.Workload, Subject: r, Rival: rival,
				Delay:         compare(r.P99, rival.P99, leastDelay),
				Notifications: compare(r.NotificationsPerPacket, rival.NotificationsPerPacket, leastPerPacket),
			})
		}
	}
	return cs
}

// compare returns -1 if a is less than b by more than what counts, 1 if more.
func compare(a, b, least float64) int {
	switch by := max(least, tolerance*b); {
	case a < b-by:
		return -1
	case a > b+by:
		return 1
	}
	return 0
}
