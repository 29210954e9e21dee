package main

import (
	"fmt"
	"os"
	"runtime"
	"slices"
	"strings"

	"golang.org/x/sys/unix"
)

// spread is a median with the range around it.
type spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
}

// spreadOf returns the median, which for an even number of values is the mean of
// the two in the middle, and the range; nil if there are no values.
func spreadOf(values []float64) *spread {
	if len(values) == 0 {
		return nil
	}
	v := slices.Sorted(slices.Values(values))
	n := len(v)
	return &spread{Median: (v[(n-1)/2] + v[n/2]) / 2, Min: v[0], Max: v[n-1]}
}

// cell is the text in a table, of values in some unit.
func (s *spread) cell(format string, unit float64) string {
	if s == nil {
		return "-"
	}
	if s.Min == s.Max {
		return fmt.Sprintf(format, s.Median/unit)
	}
	return fmt.Sprintf(format+" ["+format+"-"+format+"]", s.Median/unit, s.Min/unit, s.Max/unit)
}

// machine says on what the numbers were taken.
type machine struct {
	CPU    string `json:"cpu"`
	Cores  int    `json:"cores"`
	Arch   string `json:"arch"`
	Kernel string `json:"kernel"`
	Go     string `json:"go"`
}

func thisMachine() machine {
	m := machine{CPU: "unknown", Cores: runtime.NumCPU(), Arch: runtime.GOARCH, Kernel: "unknown", Go: runtime.Version()}
	var u unix.Utsname
	if unix.Uname(&u) == nil {
		m.Kernel = unix.ByteSliceToString(u.Release[:])
	}
	b, _ := os.ReadFile("/proc/cpuinfo") // not every architecture has names there
	for line := range strings.Lines(string(b)) {
		if k, v, ok := strings.Cut(line, ":"); ok && strings.TrimSpace(k) == "model name" {
			m.CPU = strings.TrimSpace(v)
			break
		}
	}
	return m
}
