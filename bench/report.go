package main

import (
	"bufio"
	"fmt"
	"io"
	"os"
	"runtime"
	"slices"
	"strings"
	"time"

	"golang.org/x/sys/unix"
)

// report is what bench.json contains.
type report struct {
	Time     time.Time    `json:"time"`
	Machine  machine      `json:"machine"`
	Device   string       `json:"device"`
	Repeats  int          `json:"repeats"`
	Seconds  float64      `json:"seconds_per_repeat"`
	Cases    []caseResult `json:"cases"`
	Comments []string     `json:"comments,omitempty"`
}

// machine says on what the numbers were taken.
type machine struct {
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"`
	Arch   string `json:"arch"`
	Kernel string `json:"kernel"`
	Go     string `json:"go"`
}

// spread is a median with the range around it.
type spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

type caseResult struct {
	benchCase
	PacketsPerSecond       spread    `json:"packets_per_second"`
	NotificationsPerPacket spread    `json:"notifications_per_packet"`
	KicksPerPacket         spread    `json:"kicks_per_packet"`
	Samples                []float64 `json:"samples_packets_per_second"`

	notifications, kicks []float64
}

func newCaseResult(c benchCase) caseResult { return caseResult{benchCase: c} }

func (r *caseResult) add(s sample) {
	r.Samples = append(r.Samples, s.packetsPerSecond)
	r.notifications = append(r.notifications, s.notificationsPerPacket)
	r.kicks = append(r.kicks, s.kicksPerPacket)
}

func newReport(o *options) *report {
	r := &report{
		Time: time.Now().UTC().Truncate(time.Second), Machine: thisMachine(),
		Device: o.Device, Repeats: o.Repeats, Seconds: o.Duration.Seconds(),
	}
	if r.Machine.Cores < 2 {
		r.Comments = append(r.Comments, "fewer than two cores: a polling driver and the device share one")
	}
	return r
}

func (r *report) finish() {
	for i := range r.Cases {
		c := &r.Cases[i]
		c.PacketsPerSecond = spreadOf(c.Samples)
		c.NotificationsPerPacket = spreadOf(c.notifications)
		c.KicksPerPacket = spreadOf(c.kicks)
	}
}

// spreadOf returns the median, which for an even number of values is the mean of
// the two in the middle, and the range.
func spreadOf(values []float64) spread {
	if len(values) == 0 {
		return spread{}
	}
	v := slices.Sorted(slices.Values(values))
	n := len(v)
	return spread{Median: (v[(n-1)/2] + v[n/2]) / 2, Min: v[0], Max: v[n-1]}
}

// markdown writes the report as a table.
func (r *report) markdown(out io.Writer) error {
	w := bufio.NewWriter(out)
	m := r.Machine
	fmt.Fprintf(w, "# Packets per second, embedded driver\n\n")
	fmt.Fprintf(w, "%s; %s, %d cores (%s); Linux %s; %s; device: %s; %d interleaved repeats of %g s; median [range].\n",
		r.Time.Format("2006-01-02"), m.CPU, m.Cores, m.Arch, m.Kernel, m.Go, r.Device, r.Repeats, r.Seconds)
	for _, c := range r.Comments {
		fmt.Fprintf(w, "Note: %s.\n", c)
	}
	fmt.Fprintf(w, "\n| case | frame | driver | kpps | notifications/packet | kicks/packet |\n|---|---|---|---|---|---|\n")
	for i := range r.Cases {
		c := &r.Cases[i]
		p := c.PacketsPerSecond
		fmt.Fprintf(w, "| %s | %d B | %s | %.0f [%.0f-%.0f] | %.4f | %.4f |\n", c.Mode, c.Size, c.Driver,
			p.Median/1e3, p.Min/1e3, p.Max/1e3, c.NotificationsPerPacket.Median, c.KicksPerPacket.Median)
	}
	return w.Flush()
}

func thisMachine() machine {
	return machine{CPU: cpuModel(), Cores: runtime.NumCPU(), Arch: runtime.GOARCH, Kernel: kernelRelease(), Go: runtime.Version()}
}

func kernelRelease() string {
	var u unix.Utsname
	if unix.Uname(&u) != nil {
		return "unknown"
	}
	return unix.ByteSliceToString(u.Release[:])
}

// cpuModel returns the processor's name, which not every architecture has.
func cpuModel() string {
	b, err := os.ReadFile("/proc/cpuinfo")
	if err != nil {
		return "unknown"
	}
	for line := range strings.Lines(string(b)) {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == "model name" {
			return strings.TrimSpace(v)
		}
	}
	return "unknown"
}
