package stat

import "testing"

func TestSpread(t *testing.T) {
	for _, tt := range []struct {
		in           []float64
		want         Spread
		cell, ranged string
	}{
		{nil, Spread{}, "-", "-"},
		{[]float64{5}, Spread{5, 5, 5, 1}, "5.0", "5.0"},
		{[]float64{3, 1}, Spread{2, 1, 3, 2}, "2.0", "2.0 [1.0-3.0]"},
		{[]float64{9, 1, 4}, Spread{4, 1, 9, 3}, "4.0", "4.0 [1.0-9.0]"},
		{[]float64{4, 1, 9, 2}, Spread{3, 1, 9, 4}, "3.0", "3.0 [1.0-9.0]"},
	} {
		if got := Of(tt.in); got != tt.want {
			t.Errorf("%v: %+v, want %+v", tt.in, got, tt.want)
		}
		s := If(tt.in)
		if got := s.Cell("%.1f"); got != tt.cell {
			t.Errorf("%v: cell %q, want %q", tt.in, got, tt.cell)
		}
		if got := s.Ranged("%.1f"); got != tt.ranged {
			t.Errorf("%v: with range %q, want %q", tt.in, got, tt.ranged)
		}
		if got := s.In(8).In(0.125); (got == nil) != (s == nil) || got != nil && *got != *s {
			t.Errorf("%v: in eights and back: %+v", tt.in, got)
		}
	}
}

func TestMachine(t *testing.T) {
	if m := ThisMachine(); m.CPU == "" || m.Cores < 1 || m.Arch == "" || m.Kernel == "" || m.Go == "" {
		t.Errorf("%+v", m)
	}
}
