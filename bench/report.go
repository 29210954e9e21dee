package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"maps"
	"os"
	"path/filepath"
	"slices"
	"strings"
	"time"

	"github.com/vhostnet/vhostnet/bench/peer"
	"github.com/vhostnet/vhostnet/bench/stat"
)

// report is what bench.json contains.
type report struct {
	Time    time.Time    `json:"time"`
	Machine stat.Machine `json:"machine"`
	// PeerVersions are Debian's versions of the peers.
	PeerVersions map[string]string `json:"peer_versions,omitempty"`
	Launches     int               `json:"launches"`
	Windows      int               `json:"windows_per_launch"`
	Seconds      float64           `json:"seconds_per_window"`
	Rows         []*rowResult      `json:"rows"`
	// Notes are about what was measured, Failures about what was not.
	Notes    []string `json:"notes,omitempty"`
	Failures []string `json:"failures,omitempty"`
}

// turn names the windows that are compared with each other.
type turn struct {
	Launch int `json:"launch"`
	Window int `json:"window"`
}

// sample is one window of one back-end.
type sample struct {
	turn
	peer.Window
	// Others is the share of the time in which others had one of the processors.
	Others float64 `json:"others"`
}

func (s sample) disturbed() bool { return s.Others > disturbance }

func (s sample) rate() float64 { return s.Packets / s.Seconds }

// rowResult is the outcome of a row.
type rowResult struct {
	row
	Reference string `json:"reference"`
	// Distances are nanoseconds from processor to processor, of each launch.
	Distances []float64        `json:"core_to_core_ns"`
	BackEnds  []*backEndResult `json:"back_ends"`
}

// backEndResult is the outcome of one back-end in a row. Pointers are nil where
// there is nothing to say.
type backEndResult struct {
	Name             string       `json:"name"`
	PacketsPerSecond stat.Spread  `json:"packets_per_second"`
	Ratio            *stat.Spread `json:"ratio_to_reference,omitempty"`
	// Turns is how many windows the ratio is of.
	Turns          int          `json:"turns"`
	CallsPerPacket *stat.Spread `json:"calls_per_packet,omitempty"`
	KicksPerPacket *stat.Spread `json:"kicks_per_packet,omitempty"`
	CPUNanoseconds stat.Spread  `json:"back_end_cpu_ns_per_packet"`
	Samples        []sample     `json:"samples"`
}

func newReport(o *options, notes []string) *report {
	r := &report{
		Time: time.Now().UTC().Truncate(time.Second), Machine: stat.ThisMachine(),
		Launches: o.Launches, Windows: o.Windows, Seconds: o.Duration.Seconds(), Notes: slices.Clone(notes),
	}
	if o.Quick {
		r.Notes = append(r.Notes, "a quick run: it shows that everything works, its figures are no comparison")
	}
	return r
}

func newRowResult(r row) *rowResult { return &rowResult{row: r, Reference: r.reference()} }

// add keeps a window.
func (r *rowResult) add(name string, s sample) {
	b := r.find(name)
	if b == nil {
		b = &backEndResult{Name: name}
		r.BackEnds = append(r.BackEnds, b)
	}
	b.Samples = append(b.Samples, s)
}

func (r *rowResult) find(name string) *backEndResult {
	for _, b := range r.BackEnds {
		if b.Name == name {
			return b
		}
	}
	return nil
}

// fail notes what could not be measured, once.
func (r *report) fail(w row, name string, err error) {
	s := fmt.Sprintf("%s, %s: %s", w, name, strings.Join(strings.Fields(err.Error()), " "))
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

func (r *report) finish() {
	disturbed, all := 0, 0
	for _, w := range r.Rows {
		reference := map[turn]float64{}
		if b := w.find(w.Reference); b != nil {
			for _, s := range b.quiet() {
				reference[s.turn] = s.rate()
			}
		}
		for _, b := range w.BackEnds {
			b.finish(reference, b.Name == w.Reference)
			all += len(b.Samples)
			for _, s := range b.Samples {
				if s.disturbed() {
					disturbed++
				}
			}
		}
	}
	if disturbed > 0 {
		r.Notes = append(r.Notes, fmt.Sprintf(
			"others had a core for more than %.0f %% of %d of %d windows; those count only in rows that have no others",
			100*disturbance, disturbed, all))
	}
}

// quiet are the windows that no other program disturbed, all if there is none.
func (b *backEndResult) quiet() []sample {
	q := slices.DeleteFunc(slices.Clone(b.Samples), sample.disturbed)
	if len(q) == 0 {
		return b.Samples
	}
	return q
}

// finish computes what the samples say. reference has the rates of the back-end to
// compare with.
func (b *backEndResult) finish(reference map[turn]float64, itself bool) {
	var rates, ratios, calls, kicks, cpu []float64
	for _, s := range b.quiet() {
		rates = append(rates, s.rate())
		cpu = append(cpu, s.CPUSeconds*1e9/s.Packets)
		if s.Counted {
			calls = append(calls, s.Calls/s.Packets)
			kicks = append(kicks, s.Kicks/s.Packets)
		}
		if of, ok := reference[s.turn]; ok && !itself {
			ratios = append(ratios, s.rate()/of)
		}
	}
	b.PacketsPerSecond, b.CPUNanoseconds = stat.Of(rates), stat.Of(cpu)
	b.Ratio, b.CallsPerPacket, b.KicksPerPacket = stat.If(ratios), stat.If(calls), stat.If(kicks)
	b.Turns = len(ratios)
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
	if err := os.WriteFile(filepath.Join(dir, "bench.json"), append(b, '\n'), 0o644); err != nil {
		return err
	}
	return r.render(dir)
}

// markdown writes the report as a table.
func (r *report) markdown(out io.Writer) error {
	w := bufio.NewWriter(out)
	m := r.Machine
	fmt.Fprintf(w, "# vhostnet and other back-ends with the same front-ends\n\n")
	fmt.Fprintf(w, "%s; %s, %d cores (%s); Linux %s; %s", r.Time.Format("2006-01-02"), m.CPU, m.Cores, m.Arch, m.Kernel, m.Go)
	for _, name := range slices.Sorted(maps.Keys(r.PeerVersions)) {
		fmt.Fprintf(w, "; %s %s", name, r.PeerVersions[name])
	}
	fmt.Fprintf(w, ". %d launches of %d windows of %g s, in turns; median [range].\n", r.Launches, r.Windows, r.Seconds)
	fmt.Fprintf(w, "\nThe ratio is of packets per second in windows of the same turn, to the first back-end of the row.\n")
	var ns []float64
	for _, o := range r.Rows {
		ns = append(ns, o.Distances...)
	}
	if d := stat.If(ns); d != nil {
		fmt.Fprintf(w, "A cache line takes %s ns from core to core.\n", d.Ranged("%.0f"))
	}
	for _, n := range r.Notes {
		fmt.Fprintf(w, "Note: %s.\n", n)
	}
	for _, f := range r.Failures {
		fmt.Fprintf(w, "Not measured: %s.\n", f)
	}
	fmt.Fprintf(w, "\n| host | traffic | frame | front-end | back-end | kpps | ratio | calls/packet | kicks/packet | back-end CPU ns/packet |\n")
	fmt.Fprintf(w, "|---|---|---|---|---|---|---|---|---|---|\n")
	for _, o := range r.Rows {
		for _, b := range o.BackEnds {
			p := b.PacketsPerSecond
			fmt.Fprintf(w, "| %s | %s | %d B | %s | %s | %.0f [%.0f-%.0f] | %s | %s | %s | %.0f |\n",
				o.Host, o.Mode, o.Size, o.FrontEnd, b.Name, p.Median/1e3, p.Min/1e3, p.Max/1e3,
				b.Ratio.Ranged("%.2f"), b.CallsPerPacket.Cell("%.4f"), b.KicksPerPacket.Cell("%.4f"),
				b.CPUNanoseconds.Median)
		}
	}
	return w.Flush()
}
