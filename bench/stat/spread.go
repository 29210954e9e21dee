package stat

import (
	"fmt"
	"slices"
)

// Spread is a median with the range around it, of N values.
type Spread struct {
	Median float64 `json:"median"`
	Min    float64 `json:"min"`
	Max    float64 `json:"max"`
	N      int     `json:"n"`
}

// Of returns the median, which for an even number of values is the mean of the two
// in the middle, and the range. It is zero if there are no values.
func Of(values []float64) Spread {
	n := len(values)
	if n == 0 {
		return Spread{}
	}
	v := slices.Sorted(slices.Values(values))
	return Spread{Median: (v[(n-1)/2] + v[n/2]) / 2, Min: v[0], Max: v[n-1], N: n}
}

// If is Of, nil if there are no values.
func If(values []float64) *Spread {
	if len(values) == 0 {
		return nil
	}
	s := Of(values)
	return &s
}

// In is the spread in another unit, of which one is so many of those that it is in.
func (s *Spread) In(unit float64) *Spread {
	if s == nil {
		return nil
	}
	return &Spread{Median: s.Median / unit, Min: s.Min / unit, Max: s.Max / unit, N: s.N}
}

// Cell is the text in a table, a dash for nil: the median as the format of one
// float64 has it.
func (s *Spread) Cell(format string) string {
	if s == nil {
		return "-"
	}
	return fmt.Sprintf(format, s.Median)
}

// Ranged is Cell with the range behind it, if there is one.
func (s *Spread) Ranged(format string) string {
	if s == nil || s.Min == s.Max {
		return s.Cell(format)
	}
	return fmt.Sprintf(format+" ["+format+"-"+format+"]", s.Median, s.Min, s.Max)
}
