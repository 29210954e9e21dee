package trace

import (
	"cmp"
	"slices"

	"github.com/vhostnet/vhostnet/coalesce"
)

// Share is for how much of the time limits held.
type Share struct {
	Limits coalesce.Limits `json:"limits"`
	// Share is 0 to 1.
	Share float64 `json:"share"`
}

// Replayed is what an engine made of a trace.
type Replayed struct {
	Engine    string `json:"engine"`
	Queue     int    `json:"queue"`
	Direction string `json:"direction"`
	// Records and Packets are the trace's, Seconds how long it is.
	Records int     `json:"records"`
	Packets uint64  `json:"packets"`
	Seconds float64 `json:"seconds"`
	// Decisions is how often the engine decided, Changes how often its limits
	// changed, Flushes how often it asked to announce what was pending.
	Decisions int `json:"decisions"`
	Changes   int `json:"changes"`
	Flushes   int `json:"flushes"`
	// LastReason is that of its last decision.
	LastReason string `json:"last_reason"`
	// Agreement is the share of records, 0 to 1, after which its limits were the
	// recorded engine's. It is 1 for that engine itself.
	Agreement float64 `json:"agreement"`
	// Shares are all limits that it had, those that held longest first.
	Shares []Share `json:"shares"`
}

// Replay feeds the observations of one virtqueue to an engine and tells what it
// would have decided. The guest that was recorded reacted to the decisions of its
// own engine, so this says how an engine judges, not how it would have fared.
//
// A timer that an engine asks for and that the trace does not have is called
// when it is due. Where the recorded engine began anew, since its virtqueue was
// restarted, the engine does too.
func Replay(rs []Record, s coalesce.EngineSpec) Replayed {
	out := Replayed{Engine: s.String(), Records: len(rs)}
	if len(rs) == 0 {
		return out
	}
	out.Queue, out.Direction = rs[0].Queue, rs[0].Direction
	s.Direction = direction(out.Queue)
	held := map[coalesce.Limits]int64{}
	length := rs[len(rs)-1].TNS - rs[0].TNS
	out.Seconds = float64(length) / 1e9
	same := 0
	replay(rs, s, &out, func(i int, l coalesce.Limits) {
		out.Packets += uint64(rs[i].Packets)
		if l == rs[i].Limits {
			same++
		}
		if i+1 < len(rs) {
			held[l] += rs[i+1].TNS - rs[i].TNS
		} else if length == 0 {
			held[l], length = 1, 1
		}
	})
	out.Agreement = float64(same) / float64(len(rs))
	for l, ns := range held {
		out.Shares = append(out.Shares, Share{l, float64(ns) / float64(length)})
	}
	slices.SortFunc(out.Shares, func(a, b Share) int {
		return cmp.Or(cmp.Compare(b.Share, a.Share), cmp.Compare(a.Limits.Usecs, b.Limits.Usecs), cmp.Compare(a.Limits.Packets, b.Limits.Packets))
	})
	return out
}

// replay runs the engine and calls each with its limits after every record.
func replay(rs []Record, s coalesce.EngineSpec, out *Replayed, each func(i int, l coalesce.Limits)) {
	e := s.New()
	last := e.Decision()
	limits := last.Limits
	// next is when the engine wants to be called; synced: so does the recorded
	// one, whose calls are in the trace as they came.
	next, synced := int64(0), true
	follow := func(a coalesce.Advice) {
		next = a.Next
		if a.Limits != limits {
			limits = a.Limits
			out.Changes++
		}
		if a.Flush {
			out.Flushes++
		}
		if d := e.Decision(); d != last {
			last = d
			out.Decisions++
		}
	}
	for i := range rs {
		r := &rs[i]
		if i > 0 && begins(&rs[i-1], r) {
			e.Reset()
			last = e.Decision()
			limits = last.Limits
			next, synced = 0, true
		}
		// An engine may ask again at once, for the same moment.
		for calls := 0; !synced && next != 0 && next < r.TNS && calls < 4; calls++ {
			follow(e.Tick(next))
		}
		switch {
		case !r.Tick:
			o := r.Observation()
			follow(e.Observe(&o))
		case next != 0 && next <= r.TNS:
			follow(e.Tick(r.TNS))
		}
		synced = next == r.Next
		each(i, limits)
	}
	out.LastReason = last.Reason
}

// start is the reason of all engines that learn until they decide something.
const start = "start"

// begins tells whether the recorded engine was reset or replaced before r.
func begins(before, r *Record) bool { return r.Reason == start && before.Reason != start }
