package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/vhostnet/vhostnet/bench/stat"
)

// report is what stream.json contains.
type report struct {
	Time    time.Time    `json:"time"`
	Machine stat.Machine `json:"machine"`
	// Versions are Debian's, of what vhostnet is compared with and of guests.
	Versions map[string]string `json:"versions,omitempty"`
	Launches int               `json:"launches"`
	Rounds   int               `json:"rounds_per_launch"`
	Seconds  int               `json:"seconds_per_window"`
	HostCore int               `json:"host_core"`
	Lanes    []*laneResult     `json:"lanes"`
	// Notes are about what was measured, Failures about what was not.
	Notes    []string `json:"notes,omitempty"`
	Failures []string `json:"failures,omitempty"`
}

// laneResult is the outcome of a lane.
type laneResult struct {
	Lane      string        `json:"lane"`
	Reference string        `json:"reference"`
	Loads     []*loadResult `json:"loads"`
}

// loadResult is the outcome of a load.
type loadResult struct {
	Name     string           `json:"name"`
	Kind     string           `json:"kind"`
	About    string           `json:"about"`
	BackEnds []*backEndResult `json:"back_ends"`
}

// turn names the windows that are compared with each other.
type turn struct {
	Launch int `json:"launch"`
	Round  int `json:"round"`
}

// sample is one window of one back-end.
type sample struct {
	turn
	outcome
	// CPUSeconds is the processor time of what is compared.
	CPUSeconds float64 `json:"cpu_seconds"`
	// Counted says that Calls, the back-end's notifications, were counted.
	Counted bool    `json:"counted"`
	Calls   float64 `json:"calls"`
	// Others is the share of the processors that other programs had just before.
	Others float64 `json:"others"`
}

// backEndResult is the outcome of one back-end under a load. Rates are bytes,
// packets or round trips per second, and Calls and CPUNanoseconds are for each
// of these; P50 and P99 are microseconds. Pointers are nil where there is nothing to
// say.
type backEndResult struct {
	Name           string       `json:"name"`
	Rate           *stat.Spread `json:"rate"`
	Ratio          *stat.Spread `json:"ratio_to_reference,omitempty"`
	P50            *stat.Spread `json:"p50_us,omitempty"`
	P99            *stat.Spread `json:"p99_us,omitempty"`
	P50Ratio       *stat.Spread `json:"p50_ratio_to_reference,omitempty"`
	Lost           *stat.Spread `json:"lost,omitempty"`
	Retransmits    *stat.Spread `json:"retransmits_per_second,omitempty"`
	Calls          *stat.Spread `json:"calls,omitempty"`
	CPUNanoseconds *stat.Spread `json:"cpu_ns"`
	Samples        []sample     `json:"samples"`
}

func newReport(o *options, notes []string) *report {
	r := &report{
		Time: time.Now().UTC().Truncate(time.Second), Machine: stat.ThisMachine(),
		Launches: o.Launches, Rounds: o.Rounds, Seconds: o.Seconds, HostCore: o.HostCore, Notes: slices.Clone(notes),
	}
	if o.Quick {
		r.Notes = append(r.Notes, "a quick run: it shows that everything works, its figures are no comparison")
	}
	return r
}

// lane adds one.
func (r *report) lane(l *lane, loads []load) *laneResult {
	to := &laneResult{Lane: l.name, Reference: l.backEnds[0]}
	for _, w := range loads {
		to.Loads = append(to.Loads, &loadResult{Name: w.name, Kind: w.kind, About: w.about})
	}
	r.Lanes = append(r.Lanes, to)
	return to
}

// add keeps a window.
func (l *loadResult) add(name string, s sample) {
	b := l.find(name)
	if b == nil {
		b = &backEndResult{Name: name}
		l.BackEnds = append(l.BackEnds, b)
	}
	b.Samples = append(b.Samples, s)
}

func (l *loadResult) find(name string) *backEndResult {
	for _, b := range l.BackEnds {
		if b.Name == name {
			return b
		}
	}
	return nil
}

// fail notes what could not be measured, once.
func (r *report) fail(lane, what, name string, err error) {
	s := fmt.Sprintf("%s, %s, %s: %s", lane, what, name, strings.Join(strings.Fields(err.Error()), " "))
	if !slices.Contains(r.Failures, s) {
		r.Failures = append(r.Failures, s)
	}
}

// failed is an error if anything could not be measured.
func (r *report) failed() error {
	if n := len(r.Failures); n > 0 {
		return fmt.Errorf("%d measurements failed, the first: %s", n, r.Failures[0])
	}
	return nil
}

// finish computes what the samples say.
func (r *report) finish() {
	disturbed, all := 0, 0
	for _, lane := range r.Lanes {
		for _, l := range lane.Loads {
			reference := map[turn]sample{}
			if b := l.find(lane.Reference); b != nil {
				for _, s := range b.Samples {
					reference[s.turn] = s
				}
			}
			// The order of a table is not that of the first launch.
			slices.SortStableFunc(l.BackEnds, func(a, b *backEndResult) int {
				return rank(a.Name, lane.Reference) - rank(b.Name, lane.Reference)
			})
			for _, b := range l.BackEnds {
				b.finish(l.Kind, reference, b.Name == lane.Reference)
				for _, s := range b.Samples {
					if all++; s.Others > disturbance {
						disturbed++
					}
				}
			}
		}
	}
	if disturbed > 0 {
		r.Notes = append(r.Notes, fmt.Sprintf("other programs had more than %.0f %% of the processors before %d of %d windows",
			100*disturbance, disturbed, all))
	}
}

// rank has the reference before the others.
func rank(name, reference string) int {
	if name == reference {
		return 0
	}
	return 1
}

func (b *backEndResult) finish(kind string, reference map[turn]sample, itself bool) {
	var rates, ratios, p50, p99, p50Ratios, lost, retransmits, calls, cpu []float64
	for _, s := range b.Samples {
		rates = append(rates, s.rate())
		cpu = append(cpu, s.CPUSeconds*1e9/s.AllAmount)
		switch kind {
		case kindTCP:
			retransmits = append(retransmits, s.Retransmits/s.Seconds)
		case kindUDP:
			lost = append(lost, s.Lost)
		case kindPingPong:
			p50, p99 = append(p50, s.P50), append(p99, s.P99)
		}
		if s.Counted {
			calls = append(calls, s.Calls/s.AllAmount)
		}
		if of, ok := reference[s.turn]; ok && !itself {
			ratios = append(ratios, s.rate()/of.rate())
			if kind == kindPingPong {
				p50Ratios = append(p50Ratios, s.P50/of.P50)
			}
		}
	}
	b.Rate, b.Ratio, b.CPUNanoseconds, b.Calls = stat.If(rates), stat.If(ratios), stat.If(cpu), stat.If(calls)
	b.P50, b.P99, b.P50Ratio = stat.If(p50), stat.If(p99), stat.If(p50Ratios)
	b.Lost, b.Retransmits = stat.If(lost), stat.If(retransmits)
}

// save writes the report's files into a folder.
func (r *report) save(dir string) error {
	if dir == "" {
		return nil
	}
	if err := os.MkdirAll(dir, 0o755); err != nil {
		return err
	}
	b, err := json.MarshalIndent(r, "", "  ")
	if err != nil {
		return err
	}
	var text bytes.Buffer
	return errors.Join(
		r.markdown(&text),
		os.WriteFile(filepath.Join(dir, "stream.json"), append(b, '\n'), 0o644),
		os.WriteFile(filepath.Join(dir, "stream.md"), text.Bytes(), 0o644),
	)
}
