package main

import (
	"slices"
	"time"

	"github.com/vhostnet/vhostnet/bench/stat"
	"github.com/vhostnet/vhostnet/netdev"
	qemutest "github.com/vhostnet/vhostnet/qemu-test"
)

// sample is one measurement: a workload under a variant. Rates are per second of
// the time in which the counters were read; what the load's own program reports
// is of all of its run.
type sample struct {
	Workload string `json:"workload"`
	Variant  string `json:"variant"`
	// Round and Position say when it was taken: in which round, and as which of
	// the workload's variants.
	Round    int `json:"round"`
	Position int `json:"position"`
	// Error is why there are no numbers.
	Error string `json:"error,omitempty"`
	// Rate is what the workload is about, in Unit.
	Rate    float64  `json:"rate,omitempty"`
	Unit    string   `json:"unit,omitempty"`
	Latency *latency `json:"latency_us,omitempty"`
	// Seconds is for how long the counters were watched.
	Seconds float64 `json:"seconds,omitempty"`
	RX      flow    `json:"rx"`
	TX      flow    `json:"tx"`
	// Interrupts is what the guest took, per second.
	Interrupts float64 `json:"guest_interrupts"`
	// CPU is how much of one processor the vhostnet process used.
	CPU float64 `json:"backend_cpu"`
	// Extra is what else is known, by name and unit.
	Extra map[string]float64 `json:"extra,omitempty"`
}

// latency is in microseconds; a value that a program does not report is 0.
type latency struct {
	Avg  float64 `json:"avg"`
	P50  float64 `json:"p50,omitempty"`
	P99  float64 `json:"p99,omitempty"`
	P999 float64 `json:"p99.9,omitempty"`
}

// flow is what the device did in one direction, per second.
type flow struct {
	Packets    float64 `json:"packets"`
	Bytes      float64 `json:"bytes"`
	Calls      float64 `json:"notifications"`
	Suppressed float64 `json:"suppressed"`
	Kicks      float64 `json:"kicks"`
	Drops      float64 `json:"drops,omitempty"`
	// CallsPerPacket is notifications per packet, 0 without packets.
	CallsPerPacket float64 `json:"notifications_per_packet"`
}

// reading is what is known at one moment.
type reading struct {
	at     time.Time
	device netdev.DeviceSnapshot
	cpu    time.Duration
}

// since is what the device did since an earlier reading.
func (r reading) since(old reading, kind string) flow {
	seconds := r.at.Sub(old.at).Seconds()
	d := qemutest.Sum(r.device, kind).Minus(qemutest.Sum(old.device, kind))
	f := flow{
		Packets: float64(d.Packets) / seconds, Bytes: float64(d.Bytes) / seconds,
		Calls: float64(d.Calls) / seconds, Suppressed: float64(d.Suppressed) / seconds,
		Kicks: float64(d.Kicks) / seconds,
		Drops: float64(drops(r.device, kind)-drops(old.device, kind)) / seconds,
	}
	if d.Packets > 0 {
		f.CallsPerPacket = float64(d.Calls) / float64(d.Packets)
	}
	return f
}

func drops(d netdev.DeviceSnapshot, kind string) (sum uint64) {
	for _, q := range d.Queues {
		if q.Kind != kind {
			continue
		}
		for _, n := range q.Drops {
			sum += n
		}
	}
	return sum
}

func packets(d netdev.DeviceSnapshot) uint64 {
	return qemutest.Sum(d, "rx").Packets + qemutest.Sum(d, "tx").Packets
}

func calls(d netdev.DeviceSnapshot) uint64 {
	return qemutest.Sum(d, "rx").Calls + qemutest.Sum(d, "tx").Calls
}

// row is all samples of a workload under one variant, against those without
// moderation.
type row struct {
	workloadInfo
	variant, unit string
	// rate, and ratio: the same divided by that of `off` in the same round.
	rate, ratio stat.Spread
	// perPacket is notifications per packet of the workload's direction, and change
	// by how much that is more or less than with `off` in the same round: -1 for
	// none at all.
	perPacket, change stat.Spread
	// workChange is that of notifications of both directions for the same work.
	workChange                       stat.Spread
	notifications, kicks, interrupts stat.Spread
	// cpu is the share of a processor, and cpuPerPacket its time in microseconds.
	cpu, cpuPerPacket                      stat.Spread
	latencyRatio                           stat.Spread
	latencyAvg, latency50, latency99, l999 stat.Spread
	// few is whether there are next to no notifications even without moderation.
	few        bool
	failed     int
	firstError string
}

// baseline is the variant that the others are compared with.
const baseline = "off"

// fewPerPacket is below how many notifications per packet there is nothing to
// leave out: the driver polls nearly all the time.
const fewPerPacket = 0.05

// rowsOf summarizes samples, in the order in which workloads and variants first
// occur.
func rowsOf(samples []sample, info func(workload string) workloadInfo) []row {
	type key struct{ workload, variant string }
	byKey := map[key][]sample{}
	base := map[string]map[int]sample{}
	var workloads, variants []string
	for _, s := range samples {
		k := key{s.Workload, s.Variant}
		byKey[k] = append(byKey[k], s)
		if !slices.Contains(workloads, s.Workload) {
			workloads = append(workloads, s.Workload)
			base[s.Workload] = map[int]sample{}
		}
		if !slices.Contains(variants, s.Variant) {
			variants = append(variants, s.Variant)
		}
		if s.Variant == baseline && s.Error == "" {
			base[s.Workload][s.Round] = s
		}
	}
	var rows []row
	for _, w := range workloads {
		i := info(w)
		off := rowOf(byKey[key{w, baseline}], base[w], i)
		for _, v := range variants {
			if list := byKey[key{w, v}]; list != nil {
				r := rowOf(list, base[w], i)
				r.variant, r.few = v, off.perPacket.N > 0 && off.perPacket.Median < fewPerPacket
				rows = append(rows, r)
			}
		}
	}
	return rows
}

func rowOf(samples []sample, base map[int]sample, i workloadInfo) row {
	r := row{workloadInfo: i}
	var c columns
	for _, s := range samples {
		if s.Error != "" {
			if r.failed++; r.firstError == "" {
				r.firstError = s.Error
			}
			continue
		}
		r.unit = s.Unit
		b, compare := base[s.Round]
		c.add(s, b, compare, i.Direction)
	}
	r.rate, r.ratio, r.perPacket, r.change = stat.Of(c.rate), stat.Of(c.ratio), stat.Of(c.perPacket), stat.Of(c.change)
	r.workChange = stat.Of(c.workChange)
	r.notifications, r.kicks = stat.Of(c.notifications), stat.Of(c.kicks)
	r.interrupts, r.cpu, r.cpuPerPacket = stat.Of(c.interrupts), stat.Of(c.cpu), stat.Of(c.cpuPerPacket)
	r.latencyRatio, r.latencyAvg = stat.Of(c.latencyRatio), stat.Of(c.avg)
	r.latency50, r.latency99, r.l999 = stat.Of(c.p50), stat.Of(c.p99), stat.Of(c.p999)
	return r
}

// columns are the values behind a row.
type columns struct {
	rate, ratio, perPacket, change, notifications, kicks, interrupts, cpu, cpuPerPacket []float64
	workChange, latencyRatio, avg, p50, p99, p999                                       []float64
}

func (c *columns) add(s, base sample, compare bool, direction string) {
	f := s.flow(direction)
	c.rate, c.perPacket = append(c.rate, s.Rate), append(c.perPacket, f.CallsPerPacket)
	c.notifications = append(c.notifications, s.RX.Calls+s.TX.Calls)
	c.kicks = append(c.kicks, s.RX.Kicks+s.TX.Kicks)
	c.interrupts = append(c.interrupts, s.Interrupts)
	c.cpu = append(c.cpu, s.CPU)
	if f.Packets > 0 {
		const us = 1e6
		c.cpuPerPacket = append(c.cpuPerPacket, s.CPU*us/f.Packets)
	}
	if l := s.Latency; l != nil {
		c.avg, c.p50, c.p99 = append(c.avg, l.Avg), append(c.p50, l.P50), append(c.p99, l.P99)
		if l.P999 > 0 {
			c.p999 = append(c.p999, l.P999)
		}
	}
	if !compare {
		return
	}
	if base.Rate > 0 {
		c.ratio = append(c.ratio, s.Rate/base.Rate)
		if old := base.perWork(); old > 0 && s.Rate > 0 {
			c.workChange = append(c.workChange, s.perWork()/old-1)
		}
	}
	if b := base.flow(direction); b.CallsPerPacket > 0 {
		c.change = append(c.change, f.CallsPerPacket/b.CallsPerPacket-1)
	}
	if s.Latency != nil && base.Latency != nil && base.Latency.Avg > 0 {
		c.latencyRatio = append(c.latencyRatio, s.Latency.Avg/base.Latency.Avg)
	}
}

// perWork is notifications of both directions for each unit of the rate.
func (s sample) perWork() float64 { return (s.RX.Calls + s.TX.Calls) / s.Rate }

// flow is what the device did in a workload's direction.
func (s sample) flow(direction string) flow {
	switch direction {
	case "rx":
		return s.RX
	case "tx":
		return s.TX
	}
	return s.RX.plus(s.TX)
}

func (f flow) plus(o flow) flow {
	f.Packets += o.Packets
	f.Bytes += o.Bytes
	f.Calls += o.Calls
	f.Suppressed += o.Suppressed
	f.Kicks += o.Kicks
	f.Drops += o.Drops
	f.CallsPerPacket = 0
	if f.Packets > 0 {
		f.CallsPerPacket = f.Calls / f.Packets
	}
	return f
}
