package main

import (
	"bufio"
	"encoding/json"
	"fmt"
	"io"
	"os"
	"path/filepath"
	"time"

	"github.com/vhostnet/vhostnet/bench/stat"
)

// growthReport is what growth.json contains.
type growthReport struct {
	Time     time.Time        `json:"time"`
	Machine  stat.Machine     `json:"machine"`
	Rounds   int              `json:"rounds"`
	Seconds  float64          `json:"seconds_per_measurement"`
	Variants []*growthVariant `json:"variants"`
}

// growthVariant is the outcome of a variant. Ratios are to the base of its group in
// the same round.
type growthVariant struct {
	Section string         `json:"section"`
	Name    string         `json:"name"`
	Group   string         `json:"group,omitempty"`
	Base    bool           `json:"base"`
	Samples []growthSample `json:"samples"`

	PacketsPerSecond stat.Spread  `json:"packets_per_second"`
	Ratio            *stat.Spread `json:"ratio_to_base,omitempty"`
	CallsPerPacket   stat.Spread  `json:"calls_per_packet"`
	IdleMillis       *stat.Spread `json:"idle_cpu_ms_per_second,omitempty"`
	ResidentMB       stat.Spread  `json:"resident_mb"`
	Threads          int          `json:"threads"`
	P50              *stat.Spread `json:"p50_us,omitempty"`
	P99              *stat.Spread `json:"p99_us,omitempty"`
	P999             *stat.Spread `json:"p99_9_us,omitempty"`
	Max              *stat.Spread `json:"max_us,omitempty"`
}

func newGrowthReport(g *growthArgs, variants []*variant) *growthReport {
	r := &growthReport{Time: time.Now().UTC().Truncate(time.Second), Machine: stat.ThisMachine(), Rounds: g.Rounds, Seconds: g.Duration.Seconds()}
	for _, v := range variants {
		r.Variants = append(r.Variants, &growthVariant{Section: v.section, Name: v.name, Group: v.group, Base: v.base})
	}
	return r
}

func (s growthSample) rate() float64 { return s.Packets / s.Seconds }

// finish computes what the samples say.
func (r *growthReport) finish() {
	for _, v := range r.Variants {
		base := r.baseOf(v)
		var rates, ratios, calls, idle, resident, p50, p99, p999, longest []float64
		for i, s := range v.Samples {
			rates = append(rates, s.rate())
			calls = append(calls, s.Calls/s.Packets)
			resident = append(resident, float64(s.ResidentKB)/1024)
			v.Threads = max(v.Threads, s.Threads)
			if base != nil && base != v && i < len(base.Samples) {
				ratios = append(ratios, s.rate()/base.Samples[i].rate())
			}
			if v.Section == sectionDevices {
				idle = append(idle, s.Idle.Seconds()*1e3)
			}
			if s.P50 > 0 {
				p50, p99, p999, longest = append(p50, s.P50), append(p99, s.P99), append(p999, s.P999), append(longest, s.Max)
			}
		}
		v.PacketsPerSecond, v.CallsPerPacket, v.ResidentMB = stat.Of(rates), stat.Of(calls), stat.Of(resident)
		v.Ratio, v.IdleMillis = stat.If(ratios), stat.If(idle)
		v.P50, v.P99, v.P999, v.Max = stat.If(p50), stat.If(p99), stat.If(p999), stat.If(longest)
	}
}

func (r *growthReport) baseOf(v *growthVariant) *growthVariant {
	for _, b := range r.Variants {
		if b.Base && b.Section == v.Section && b.Group == v.Group {
			return b
		}
	}
	return nil
}

// save writes the report's files into a folder.
func (r *growthReport) save(dir string) error {
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
	if err := os.WriteFile(filepath.Join(dir, "growth.json"), append(b, '\n'), 0o644); err != nil {
		return err
	}
	f, err := os.Create(filepath.Join(dir, "growth.md"))
	if err != nil {
		return err
	}
	if err := r.markdown(f); err != nil {
		_ = f.Close()
		return err
	}
	return f.Close()
}

// markdown writes the report as tables.
func (r *growthReport) markdown(out io.Writer) error {
	w := bufio.NewWriter(out)
	m := r.Machine
	fmt.Fprintf(w, "# How a process of vhostnet grows\n\n%s; %s, %d cores (%s); Linux %s; %s. %d rounds of %g s, in turns; median [range].\n",
		r.Time.Format("2006-01-02"), m.CPU, m.Cores, m.Arch, m.Kernel, m.Go, r.Rounds, r.Seconds)
	fmt.Fprintf(w, "Drivers are on one processor, devices on the other; frames have 64 bytes. Ratios are of packets per second, in the\n"+
		"same round. \"Beside bulk\" is beside an echo at full rate on the device's other queue pair: both drivers share a processor,\n"+
		"and so do both workers.\n")
	section := ""
	for _, v := range r.Variants {
		if v.Section != section {
			section = v.Section
			fmt.Fprintf(w, "\n## %s\n\n", section)
			switch section {
			case sectionLatency:
				fmt.Fprintf(w, "| | p50 us | p99 us | p99.9 us | longest us |\n|---|---|---|---|---|\n")
			case sectionDevices:
				fmt.Fprintf(w, "| devices | kpps of the busy one | ratio | idle CPU ms/s | resident MB | threads |\n|---|---|---|---|---|---|\n")
			default:
				fmt.Fprintf(w, "| | kpps | ratio | calls/packet |\n|---|---|---|---|\n")
			}
		}
		p := v.PacketsPerSecond
		rate := fmt.Sprintf("%.0f [%.0f-%.0f]", p.Median/1e3, p.Min/1e3, p.Max/1e3)
		switch section {
		case sectionLatency:
			fmt.Fprintf(w, "| %s | %s | %s | %s | %s |\n", v.Name,
				v.P50.Ranged("%.1f"), v.P99.Ranged("%.0f"), v.P999.Ranged("%.0f"), v.Max.Ranged("%.0f"))
		case sectionDevices:
			fmt.Fprintf(w, "| %s | %s | %s | %s | %s | %d |\n", v.Name, rate,
				v.Ratio.Ranged("%.2f"), v.IdleMillis.Ranged("%.0f"), v.ResidentMB.Ranged("%.0f"), v.Threads)
		default:
			fmt.Fprintf(w, "| %s | %s | %s | %s |\n", v.Name, rate, v.Ratio.Ranged("%.2f"), v.CallsPerPacket.Ranged("%.4f"))
		}
	}
	return w.Flush()
}
