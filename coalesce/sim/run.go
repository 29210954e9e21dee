package sim

import (
	"hash/fnv"
	"math/rand/v2"

	"github.com/vhostnet/vhostnet/coalesce"
)

// Config says what to run.
type Config struct {
	// Engine is the engine; its direction is the workload's.
	Engine   coalesce.EngineSpec
	Workload Workload
	// Params are the costs; the zero value stands for [DefaultParams].
	Params Params
	Seed   uint64
	// Limits are what the driver asked for, Strict is as in
	// [coalesce.Effective], and GuestDIM lets the driver run net-dim of its own.
	Limits   coalesce.Limits
	Strict   bool
	GuestDIM bool
	// Trace, if set, is called for everything that an engine that learns is told,
	// with its last decision and its answer, as a device does it: a call of Tick
	// comes as an observation of the time alone. It must not keep o.
	Trace func(queue int, o *coalesce.Observation, d coalesce.Decision, a coalesce.Advice)
	// Watch, if set, is called when a virtqueue's limits have changed: what the
	// driver asks for, what the engine wants, or what is in force.
	Watch func(queue int, at int64, l InForce)
}

// InForce is who wants which limits of a virtqueue, and what follows from it.
type InForce struct{ Guest, Host, Limits coalesce.Limits }

// Result is what a run was like. Delays are from the arrival of a packet at the
// device until the guest has taken it; for tx from when it was sent until the
// guest has reclaimed its buffer.
type Result struct {
	Engine   string `json:"engine"`
	Workload string `json:"workload"`
	// P50, P99, P999, Mean and Max are delays in microseconds.
	P50 float64 `json:"p50_us"`
	P99 float64 `json:"p99_us"`
	// NotificationsPerPacket counts those that were sent.
	NotificationsPerPacket float64 `json:"notifications_per_packet"`
	// ThroughputRatio is the packets taken in comparison with "off"; [Run] leaves
	// it 0.
	ThroughputRatio float64 `json:"throughput_ratio"`
	P999            float64 `json:"p999_us"`
	Mean            float64 `json:"mean_us"`
	Max             float64 `json:"max_us"`
	// PacketsPerSecond counts those that the guest took, Lost those for which the
	// device had no room in time.
	PacketsPerSecond       float64 `json:"packets_per_second"`
	NotificationsPerSecond float64 `json:"notifications_per_second"`
	Lost                   uint64  `json:"lost"`
	// GuestCPU and HostCPU are the shares of a processor, 0 to 1 for each queue.
	GuestCPU float64 `json:"guest_cpu"`
	HostCPU  float64 `json:"host_cpu"`
	// LimitChanges is how often a second the engine changed a queue's limits, Flips
	// how often it changed the time limit by more than a quarter and then went
	// straight back.
	LimitChanges float64 `json:"limit_changes_per_second"`
	Flips        float64 `json:"flips_per_second"`
	// Settling is the longest time, in milliseconds, from a step of the traffic
	// until the notifications per packet are within a quarter of what they come
	// to and stay there four fifths of the time, on average over the repetitions
	// of the step. It is 0 for traffic without steps.
	Settling float64 `json:"settling_ms"`

	// Arrived, Taken and Dropped count all packets, to the end.
	Arrived uint64 `json:"-"`
	Taken   uint64 `json:"-"`
	Dropped uint64 `json:"-"`
	// MaxHold is the longest time in nanoseconds from when a packet was visible to
	// the guest until a decision about a notification, MaxExcess the same beyond
	// the limit in force, MaxAfter the longest from a decision until the guest
	// had taken the packet, without the work for it and those before it.
	MaxHold   int64 `json:"-"`
	MaxExcess int64 `json:"-"`
	MaxAfter  int64 `json:"-"`
	// Ticks counts the engine's timers, Spurious the notifications that reached a
	// driver that was polling.
	Ticks    uint64 `json:"-"`
	Spurious uint64 `json:"-"`
	// Reasons counts decisions by why they were due.
	Reasons [coalesce.NumReasons]uint64 `json:"-"`
	// Changes are the engine's limits as they changed, for a single queue.
	Changes []Change `json:"-"`
}

// Change is a change of an engine's limits.
type Change struct {
	At     int64 // ns
	Limits coalesce.Limits
}

// Label is how tables call an engine.
func Label(s coalesce.EngineSpec) string { return s.String() }

// Known tells whether this build has the engine.
func Known(s coalesce.EngineSpec) bool { return s.New().Name() == s.Kind.String() }

// Run runs one engine under one workload.
func Run(c Config) Result {
	if c.Params == (Params{}) {
		c.Params = DefaultParams()
	}
	wl := c.Workload
	spec := c.Engine
	spec.Direction = wl.Direction
	w := &world{}
	m := newMeter(wl)
	var qs []*queue
	for i := range max(wl.Queues, 1) {
		q := newQueue(w, &c.Params, m, wl.Direction, c.engine(spec, i), spec.Kind > coalesce.EngineFixed, c)
		q.end = wl.Duration
		q.source = wl.source(q, rand.New(rand.NewPCG(c.Seed, streamOf(wl.Name, i))))
		q.source.start()
		qs = append(qs, q)
	}
	if c.Watch != nil {
		w.watch = watch(w, qs, c.Watch)
	}
	// What is under way when the traffic ends comes to its end too; an engine
	// that never stops asking for its timer does not.
	w.run(wl.Duration + 10*second)
	return m.result(spec, wl)
}

// engine makes the engine of the i-th virtqueue.
func (c *Config) engine(s coalesce.EngineSpec, i int) coalesce.Engine {
	e := s.New()
	if c.Trace == nil {
		return e
	}
	return &traced{e, 2*i + int(s.Direction), c.Trace}
}

// traced is an engine that is watched.
type traced struct {
	coalesce.Engine
	queue int
	trace func(int, *coalesce.Observation, coalesce.Decision, coalesce.Advice)
}

func (t *traced) Observe(o *coalesce.Observation) coalesce.Advice {
	a := t.Engine.Observe(o)
	t.trace(t.queue, o, t.Decision(), a)
	return a
}

func (t *traced) Tick(now int64) coalesce.Advice {
	a := t.Engine.Tick(now)
	t.trace(t.queue, &coalesce.Observation{Now: now}, t.Decision(), a)
	return a
}

// watch returns what reports the changes of limits, with what they were at first.
func watch(w *world, qs []*queue, report func(int, int64, InForce)) func() {
	last := make([]InForce, len(qs))
	look := func() {
		for i, q := range qs {
			d := &q.device
			if l := (InForce{d.guestLimits, d.host, d.mod.Limits()}); l != last[i] {
				last[i] = l
				report(2*i+int(q.dir), w.now, l)
			}
		}
	}
	look()
	return look
}

// streamOf gives each queue of each workload random numbers of its own.
func streamOf(name string, queue int) uint64 {
	h := fnv.New64a()
	_, _ = h.Write([]byte(name))
	return h.Sum64() + uint64(queue)
}

func (m *meter) result(spec coalesce.EngineSpec, wl Workload) Result {
	us := func(ns int64) float64 { return float64(ns) / float64(microsecond) }
	seconds := float64(m.to-m.from) / float64(second)
	queues := float64(max(wl.Queues, 1))
	r := Result{
		Engine: Label(spec), Workload: wl.Name,
		P50: us(m.delays.ValueAtQuantile(50)), P99: us(m.delays.ValueAtQuantile(99)), P999: us(m.delays.ValueAtQuantile(99.9)),
		Mean: m.delays.Mean() / float64(microsecond), Max: us(m.delays.Max()),
		PacketsPerSecond: float64(m.packets) / seconds, NotificationsPerSecond: float64(m.notified) / seconds,
		Lost:     m.dropped,
		GuestCPU: float64(m.guestBusy) / float64(m.to-m.from) / queues,
		HostCPU:  float64(m.hostBusy) / float64(m.to-m.from) / queues,
		Arrived:  m.arrived, Taken: m.taken, Dropped: m.lost,
		MaxHold: m.maxHold, MaxExcess: m.maxExcess, MaxAfter: m.maxAfterwake,
		Ticks: m.ticks, Spurious: m.spurious, Reasons: m.reasons,
	}
	if m.packets > 0 {
		r.NotificationsPerPacket = float64(m.notified) / float64(m.packets)
	}
	if wl.Queues > 1 {
		for _, c := range m.changes {
			if m.counts(c.at) {
				r.LimitChanges += 1 / seconds / queues
			}
		}
		return r
	}
	var kept []coalesce.Limits
	for _, c := range m.changes {
		r.Changes = append(r.Changes, Change{c.at, c.limits})
		if m.counts(c.at) {
			r.LimitChanges += 1 / seconds
		}
		n := len(kept)
		if n > 0 && near(kept[n-1], c.limits) {
			continue
		}
		if n > 1 && near(kept[n-2], c.limits) && m.counts(c.at) {
			r.Flips += 1 / seconds
		}
		kept = append(kept, c.limits)
	}
	r.Settling = float64(m.settling()) / float64(millisecond)
	return r
}

// near tells whether the delays that limits allow differ by a quarter at most.
func near(a, b coalesce.Limits) bool {
	x, y := limitOf(a), limitOf(b)
	return 4*max(x, y) <= 5*min(x, y) || max(x, y) <= 2*microsecond
}
