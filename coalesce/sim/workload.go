package sim

import (
	"math"
	"math/rand/v2"
	"slices"
	"strings"

	"github.com/vhostnet/vhostnet/coalesce"
)

// Workload is a kind of traffic.
type Workload struct {
	// Name has no spaces; Help is a line.
	Name, Help string
	Direction  coalesce.Direction
	// Queues is how many virtqueues there are, each with the same traffic, a
	// device and a guest's processor of its own.
	Queues int
	// Duration is until when there is traffic, Warmup from when on it is
	// measured, Step how often it changes for good, 0 for never, all in
	// nanoseconds; it repeats after Phases of them.
	Duration, Warmup, Step int64
	Phases                 int
	// Steady traffic is the same all the time, but for chance.
	Steady bool

	source func(q *queue, r *rand.Rand) source
}

func openLoop(next func(r *rand.Rand) func(int64) (int64, int, uint32, bool)) func(*queue, *rand.Rand) source {
	return func(q *queue, r *rand.Rand) source { return &open{q: q, next: next(r)} }
}

func constantly(perSecond int) func(*queue, *rand.Rand) source {
	return openLoop(func(*rand.Rand) func(int64) (int64, int, uint32, bool) { return every(perSecond, 200) })
}

func atRandom(perSecond int) func(*queue, *rand.Rand) source {
	return openLoop(func(r *rand.Rand) func(int64) (int64, int, uint32, bool) { return poisson(r, perSecond, 200) })
}

func inBursts(packets int, gap, pause int64) func(*queue, *rand.Rand) source {
	return openLoop(func(r *rand.Rand) func(int64) (int64, int, uint32, bool) {
		return bursts(r, packets, gap, pause, 1400)
	})
}

func stepping(length int64, rates ...int) func(*queue, *rand.Rand) source {
	return openLoop(func(r *rand.Rand) func(int64) (int64, int, uint32, bool) { return steps(r, length, 200, rates...) })
}

func asking(clients int, think int64) func(*queue, *rand.Rand) source {
	return func(q *queue, r *rand.Rand) source {
		return &ask{q: q, r: r, clients: clients, bytes: 100, answer: 15 * microsecond, think: think}
	}
}

func inBulk(window int) func(*queue, *rand.Rand) source {
	return func(q *queue, _ *rand.Rand) source {
		return &bulk{q: q, window: window, bytes: 1500, send: 2000, answer: 20 * microsecond}
	}
}

func sending(window, perSecond int) func(*queue, *rand.Rand) source {
	return func(q *queue, r *rand.Rand) source {
		s := &sender{q: q, window: window, bytes: 1500}
		if perSecond > 0 {
			mean := float64(second) / float64(perSecond)
			s.gap = func() int64 { return int64(math.Ceil(r.ExpFloat64() * mean)) }
		}
		return s
	}
}

// Workloads returns all kinds of traffic, in the order of tables.
func Workloads() []Workload {
	const warm = 100 * millisecond
	ws := []Workload{
		{Name: "constant-1k", Help: "1,000 packets/s, evenly", source: constantly(1000), Duration: 2 * second},
		{Name: "constant-20k", Help: "20,000 packets/s, evenly", source: constantly(20_000), Duration: second},
		{Name: "constant-100k", Help: "100,000 packets/s, evenly", source: constantly(100_000)},
		{Name: "constant-400k", Help: "400,000 packets/s, evenly", source: constantly(400_000)},
		{Name: "poisson-500k", Help: "500,000 packets/s at random, three quarters of what the guest can take", source: atRandom(500_000)},
		{Name: "overload", Help: "1,000,000 packets/s, which is more than the guest can take", source: constantly(1_000_000), Duration: 250 * millisecond},
		{Name: "poisson-5k", Help: "5,000 packets/s at random", source: atRandom(5000), Duration: 2 * second},
		{Name: "poisson-50k", Help: "50,000 packets/s at random", source: atRandom(50_000), Duration: second},
		{Name: "poisson-200k", Help: "200,000 packets/s at random", source: atRandom(200_000)},
		{Name: "bursts-16", Help: "bursts of 16 packets 1 us apart, each 0.5 ms on average", source: inBursts(16, microsecond, 500*microsecond), Duration: second},
		{Name: "bursts-256", Help: "bursts of 256 packets 2 us apart, each 2.5 ms on average", source: inBursts(256, 2*microsecond, 2*millisecond), Duration: second},
		{Name: "on-off", Help: "250,000 packets/s for 10 ms, nothing for 10 ms", source: inBursts(2500, 4*microsecond, 10*millisecond), Duration: second},
		{Name: "rr-1", Help: "one client: request, answer, next request at once", source: asking(1, 0)},
		{Name: "rr-16", Help: "16 clients that think 50 us", source: asking(16, 50*microsecond)},
		{Name: "rr-256", Help: "256 clients that think 1 ms", source: asking(256, millisecond)},
		{Name: "bulk-32", Help: "a sender with a window of 32 packets", source: inBulk(32)},
		{Name: "bulk-256", Help: "a sender with a window of 256 packets", source: inBulk(256)},
		{
			Name: "steps", Help: "10,000, 300,000, 30,000 and 150,000 packets/s at random, 50 ms each, over and over",
			Step: 50 * millisecond, Phases: 4, Duration: 1800 * millisecond, Warmup: 200 * millisecond,
			source: stepping(50*millisecond, 10_000, 300_000, 30_000, 150_000),
		},
		{Name: "idle-64", Help: "64 queues with 200 packets/s at random each", Queues: 64, source: atRandom(200), Duration: 2 * second},
		{Name: "tx-20k", Help: "the guest sends 20,000 packets/s at random", Direction: coalesce.TX, source: sending(256, 20_000), Duration: second},
		{Name: "tx-200k", Help: "the guest sends 200,000 packets/s at random", Direction: coalesce.TX, source: sending(256, 200_000)},
		{Name: "tx-window-32", Help: "the guest sends as fast as it can, 32 packets unreclaimed at most", Direction: coalesce.TX, source: sending(32, 0)},
		{Name: "tx-bulk", Help: "the guest sends as fast as it can", Direction: coalesce.TX, source: sending(math.MaxInt, 0)},
	}
	for i := range ws {
		w := &ws[i]
		if w.Duration == 0 {
			w.Duration = 500 * millisecond
		}
		w.Steady = w.Step == 0 && !strings.HasPrefix(w.Name, "bursts-") && w.Name != "on-off"
		if w.Warmup == 0 {
			w.Warmup = warm
		}
		w.Queues = max(w.Queues, 1)
	}
	return ws
}

// FindWorkload returns the workload of that name.
func FindWorkload(name string) (Workload, bool) {
	ws := Workloads()
	i := slices.IndexFunc(ws, func(w Workload) bool { return w.Name == name })
	if i < 0 {
		return Workload{}, false
	}
	return ws[i], true
}
