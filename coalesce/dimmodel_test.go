package coalesce_test

import (
	"math/rand/v2"
	"strings"
	"testing"

	"github.com/vhostnet/vhostnet/coalesce"
)

// The slow models: the descriptions of net-dim and rdma-dim put down once more
// with other means. They keep no counters but the observations of the window
// themselves, no step counters but the text of all moves since the search began,
// and find rates, differences and tops by looking at these.

type modelRates struct{ us, packets, bytes, events, ratio uint64 }

// modelWindow is what was observed after the window was opened at from.
type modelWindow struct {
	open bool
	from int64
	seen []coalesce.Observation
}

func (w *modelWindow) openAt(now int64) { *w = modelWindow{open: true, from: now, seen: w.seen[:0]} }

func (w *modelWindow) observe(o coalesce.Observation) (modelRates, bool) {
	if !w.open || o.Now < w.from {
		w.openAt(o.Now)
		return modelRates{}, false
	}
	w.seen = append(w.seen, o)
	var packets, bytes, events uint64
	for _, o := range w.seen {
		packets = (packets + uint64(o.Packets)) % (1 << 32)
		bytes = (bytes + o.Bytes%(1<<32)) % (1 << 32)
		events = (events + uint64(o.Notified)) % (1 << 16)
	}
	us := uint64(o.Now-w.from) / 1000 % (1 << 32)
	if events < 64 || us == 0 {
		return modelRates{}, false
	}
	rate := func(n uint64) uint64 {
		whole, rest := n*1000/us, n*1000%us
		if rest != 0 {
			whole++
		}
		return whole
	}
	r := modelRates{us: us, packets: rate(packets), bytes: rate(bytes), events: rate(64)}
	for r.ratio*r.events <= 100*r.packets && r.ratio < 1000 {
		r.ratio++
	}
	if r.ratio == 1000 {
		r.ratio = 100 * r.packets / r.events
	} else {
		r.ratio--
	}
	return r, true
}

// modelCompare goes through pairs of rates, earlier ones first; sign is +1 when
// more is better and -1 when less is. A pair that began at zero ends the matter.
func modelCompare(pairs ...[3]int64) int64 {
	for _, p := range pairs {
		prev, cur, sign := p[0], p[1], p[2]
		if prev == 0 {
			if sign > 0 && cur > 0 {
				return 1
			}
			return 0
		}
		if up := cur - prev; up*100 >= 11*prev {
			return sign
		} else if -up*100 >= 11*prev {
			return -sign
		}
	}
	return 0
}

type modelDecision struct {
	at     int64
	reason string
	rates  modelRates
}

type netModel struct {
	modelWindow
	windows int
	arrived modelRates // that the next window is compared with
	// phase is "top", "rest" or "search". A search began at step base, and moves
	// are its steps, R and L, with a blank for each turn; heading is the next one.
	phase   string
	base    int
	moves   string
	heading string
	restEnd int
	last    modelDecision
}

func newNetModel() *netModel { return &netModel{phase: "top", last: modelDecision{reason: "start"}} }

func (m *netModel) step() int {
	return m.base + strings.Count(m.moves, "R") - strings.Count(m.moves, "L")
}

func (m *netModel) stop(phase string) { m.base, m.moves, m.phase = m.step(), "", phase }

func (m *netModel) begin() {
	m.stop("search")
	m.heading = "R"
	if m.base > 0 {
		m.heading = "L"
	}
	m.moves = m.heading
}

func (m *netModel) observe(o coalesce.Observation) {
	r, ok := m.modelWindow.observe(o)
	if !ok {
		return
	}
	m.windows++
	before := m.step()
	verdict := modelCompare(
		[3]int64{int64(m.arrived.bytes), int64(r.bytes), 1},
		[3]int64{int64(m.arrived.packets), int64(r.packets), 1},
		[3]int64{int64(m.arrived.events), int64(r.events), -1},
	)
	stayed := false
	m.last = modelDecision{at: o.Now, rates: r}
	switch m.phase {
	case "top":
		if stayed = verdict == 0; stayed {
			m.last.reason = "parked"
		} else {
			m.last.reason = "changed"
			m.begin()
		}
	case "rest":
		m.last.reason = "resting"
		if m.windows == m.restEnd {
			m.last.reason = "rested"
			m.begin()
		}
	case "search":
		m.last.reason = "better"
		if verdict <= 0 {
			m.last.reason = "turned"
			m.moves += " "
			m.heading = map[string]string{"R": "L", "L": "R"}[m.heading]
		}
		steps := len(strings.ReplaceAll(m.moves, " ", ""))
		edge := map[string]int{"R": 4, "L": 0}[m.heading]
		switch {
		case strings.HasSuffix(m.moves, "RR L"), strings.HasSuffix(m.moves, "LL R"):
			m.last.reason = "top"
			m.stop("top")
		case steps == 10:
			m.last.reason = "tired"
			m.stop("rest")
			m.restEnd = m.windows + 10
		case m.step() == edge:
			m.last.reason = "edge"
			m.stop("top")
		default:
			m.moves += m.heading
		}
	}
	if !stayed {
		m.arrived = r
	}
	if m.open = m.step() == before; m.open {
		m.openAt(o.Now)
	}
}

// rdmaModel walks round a ring of places: up through the limits and down again.
// Place p < 9 is limit p on the way up, 17-p otherwise.
type rdmaModel struct {
	modelWindow
	place int
	prev  modelRates
	last  modelDecision
}

func (m *rdmaModel) step() int { return min(m.place, 17-m.place) }

func (m *rdmaModel) observe(o coalesce.Observation) {
	r, ok := m.modelWindow.observe(o)
	if !ok {
		return
	}
	before := m.step()
	m.last = modelDecision{at: o.Now, rates: r}
	verdict := modelCompare(
		[3]int64{int64(m.prev.packets), int64(r.packets), 1},
		[3]int64{int64(m.prev.ratio), int64(r.ratio), 1},
	)
	if m.prev.packets == 0 {
		verdict = 0 // here nothing is no measure
	}
	switch verdict {
	case 0:
		m.last.reason = "same"
		if 2*int(r.ratio) <= 100*before && before > 0 {
			m.last.reason = "few_per_notification"
			m.place = map[bool]int{true: 0, false: 17}[m.place < 9]
		}
	case -1:
		m.place = 17 - m.place
		m.last.reason = "turned"
	case 1:
		m.last.reason = "better"
	}
	if verdict != 0 {
		// From an end of the limits one place on is the way back on the same step.
		if m.place = (m.place + 1) % 18; m.step() == before && m.place%9 == 0 {
			m.last.reason = "edge"
		}
	}
	m.prev = r
	if m.open = m.step() == before; m.open {
		m.openAt(o.Now)
	}
}

// traffic makes observations at random that visit the corners: rates that are
// the same, exactly 10 % apart and just over, wrapping counters and clocks.
type traffic struct {
	*rand.Rand
	now     int64
	left    int // observations until the kind of traffic changes
	coarse  bool
	loose   bool // bytes do not depend on packets
	scale   uint64
	meanUS  int64
	packets uint32
	size    uint64
	drift   uint64
}

func newTraffic(seed uint64) *traffic {
	return &traffic{Rand: rand.New(rand.NewPCG(seed, 8)), scale: 1000, drift: 1000}
}

func pick[T any](r *traffic, of ...T) T { return of[r.IntN(len(of))] }

func (r *traffic) next() coalesce.Observation {
	if r.left--; r.left < 0 {
		r.left = 10 + r.IntN(400)
		r.coarse = r.IntN(3) > 0
		r.loose = r.IntN(8) == 0
		r.meanUS = pick[int64](r, 1, 20, 1000, 100_000)
		r.packets = pick[uint32](r, 0, 1, 10, 1000, 10_000)
		r.size = pick[uint64](r, 0, 64, 1500, 1<<20)
		r.drift = pick[uint64](r, 1000, 1000, 1200, 800, 0)
		r.scale = 1000
	}
	switch r.drift {
	case 0:
		r.scale = pick[uint64](r, 1000, 1000, 1000, 1020, 1090, 1100, 1109, 1110, 1111, 1120, 2000, 500, 890, 899, 900, 0)
	case 1000:
	default:
		r.scale = min(max(r.scale*r.drift/1000, 10), 100_000)
	}
	o := coalesce.Observation{
		Packets:    uint32(uint64(r.packets) * r.scale / 1000),
		Suppressed: uint32(r.IntN(2)), Idle: r.IntN(2) == 0, PortEmpty: r.IntN(2) == 0,
		Free: uint32(r.IntN(257)), Size: 256,
	}
	if r.coarse {
		// A window per observation.
		o.Notified = 64
		r.now += r.meanUS * 1000 * pick[int64](r, 1, 1, 1, 1, 2)
	} else {
		o.Notified = uint32(r.IntN(6))
		r.now += r.Int64N(2000 * r.meanUS)
	}
	if r.IntN(500) == 0 {
		o.Packets = r.Uint32()
		o.Notified = pick[uint32](r, 63, 64, 65, 1<<16-1, 1<<16, 1<<16+64, 1<<32-1, 1<<32-65)
	}
	if r.IntN(500) == 0 {
		const wrap = int64(1<<32) * 1000
		r.now += pick(r, -1, -1000, -r.Int64N(1<<50), -1500*r.meanUS, wrap, wrap+999, wrap-1, wrap+1000, 5*wrap+7777)
		if r.now > 1<<60 || r.now < -1<<60 {
			r.now = 0
		}
	}
	o.Now = r.now
	o.Bytes = uint64(o.Packets) * r.size
	if r.loose {
		o.Bytes = r.size
	}
	if r.IntN(1000) == 0 {
		o.Bytes = r.Uint64()
	}
	return o
}

// against drives an engine and a model with a million random observations.
func against(t *testing.T, e coalesce.Engine, limits []coalesce.Limits, reasons string,
	observe func(coalesce.Observation), model func() (int, modelDecision),
) {
	t.Helper()
	r := newTraffic(0x5eed)
	seen := map[string]int{}
	at := int64(0)
	for i := range 1_000_000 {
		o := r.next()
		advice := e.Observe(&o)
		observe(o)
		step, d := model()
		m := d.rates
		want := coalesce.Decision{
			At: d.at, Limits: limits[step], Reason: d.reason, Step: step,
			Inputs: coalesce.Inputs{
				WindowUS: float64(m.us), PPMS: float64(m.packets), BPMS: float64(m.bytes), EPMS: float64(m.events),
				Ratio: float64(m.ratio) / 100,
			},
		}
		if got := e.Decision(); got != want || advice != (coalesce.Advice{Limits: limits[step]}) {
			t.Fatalf("observation %d %+v:\n got %+v, %+v\nwant %+v", i, o, advice, got, want)
		}
		if d.at != at {
			at = d.at
			seen[d.reason]++
		}
	}
	for _, reason := range strings.Fields(reasons) {
		if seen[reason] < 500 {
			t.Errorf("%q was decided %d times: the traffic does not reach it", reason, seen[reason])
		}
	}
	t.Log(seen)
}

func TestNetDimAgainstModel(t *testing.T) {
	m := newNetModel()
	against(t, engine(t, "net-dim", coalesce.RX),
		[]coalesce.Limits{lim(1, 256), lim(8, 256), lim(64, 256), lim(128, 256), lim(256, 256)},
		"parked changed resting rested better turned top tired edge",
		m.observe, func() (int, modelDecision) { return m.step(), m.last })
}

func TestRDMADimAgainstModel(t *testing.T) {
	m := &rdmaModel{last: modelDecision{reason: "start"}}
	against(t, engine(t, "rdma-dim", coalesce.RX),
		[]coalesce.Limits{
			lim(1, 1), lim(1, 4), lim(2, 4), lim(2, 8), lim(4, 8), lim(16, 8), lim(16, 16), lim(32, 16), lim(32, 32),
		},
		"same few_per_notification better turned edge",
		m.observe, func() (int, modelDecision) { return m.step(), m.last })
}

func engine(t testing.TB, spec string, dir coalesce.Direction) coalesce.Engine {
	t.Helper()
	s, err := coalesce.ParseEngine(spec, dir)
	if err != nil {
		t.Fatal(err)
	}
	return s.New()
}
