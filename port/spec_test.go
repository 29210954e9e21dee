package port

import (
	"errors"
	"strings"
	"testing"
)

func TestParse(t *testing.T) {
	tests := []struct {
		in   string
		want Spec
	}{
		{"null", Spec{Kind: "null"}},
		{"tap:vn0", Spec{Kind: "tap", Args: "vn0"}},
		{"source:1500", Spec{Kind: "source", Args: "1500"}},
		{"tap:a:b", Spec{Kind: "tap", Args: "a:b"}},
		{"tap::", Spec{Kind: "tap", Args: ":"}},
		{" tap : x ", Spec{Kind: " tap ", Args: " x "}},
	}
	for _, tt := range tests {
		got, err := Parse(tt.in)
		if err != nil || got != tt.want {
			t.Errorf("%q: %+v, %v; want %+v", tt.in, got, err, tt.want)
		}
		if got.String() != tt.in {
			t.Errorf("%q is written as %q", tt.in, got)
		}
	}
	for _, in := range []string{"", ":", ":vn0", "tap:"} {
		got, err := Parse(in)
		if !errors.Is(err, ErrSpec) || got != (Spec{}) {
			t.Errorf("%q: %+v, %v", in, got, err)
		} else if !strings.Contains(err.Error(), in) {
			t.Errorf("%q: the error %q does not name it", in, err)
		}
	}
}

// What is accepted is written as it was read.
func FuzzParse(f *testing.F) {
	for _, s := range []string{"", ":", "tap:vn0", "null", "source:64", "a:b:c", "tap:"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, in string) {
		s, err := Parse(in)
		if err == nil && s.String() != in || err != nil && s != (Spec{}) {
			t.Fatalf("%q: %+v, %v", in, s, err)
		}
	})
}
