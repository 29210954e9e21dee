package mgmt

import (
	"errors"
	"strings"
	"testing"
)

func TestParseAddress(t *testing.T) {
	long := strings.Repeat("x", maxUnixPath)
	for _, c := range []struct {
		in   string
		want Address
		ok   bool
	}{
		{"unix:/run/v.sock", Address{Network: "unix", Path: "/run/v.sock"}, true},
		{"unix:v:1.sock", Address{Network: "unix", Path: "v:1.sock"}, true},
		{"unix:" + long, Address{Network: "unix", Path: long}, true},
		{"vsock:1024", Address{Network: "vsock", CID: CIDAny, Port: 1024}, true},
		{"vsock:1:1024", Address{Network: "vsock", CID: CIDLocal, Port: 1024}, true},
		{"vsock:3:4294967294", Address{Network: "vsock", CID: 3, Port: 4294967294}, true},
		{in: ""},
		{in: "unix"},
		{in: "unix:"},
		{in: "unix:@abstract"},
		{in: "unix:a\x00b"},
		{in: "unix:" + long + "x"},
		{in: "/run/v.sock"},
		{in: "tcp:127.0.0.1:80"},
		{in: "vsock:"},
		{in: "vsock:0"},
		{in: "vsock:-1"},
		{in: "vsock:4294967295"},
		{in: "vsock:4294967296"},
		{in: "vsock:x:1"},
		{in: "vsock:4294967296:1"},
		{in: "vsock:1:2:3"},
		{in: "vsock::1"},
	} {
		got, err := ParseAddress(c.in)
		if (err == nil) != c.ok || got != c.want {
			t.Errorf("ParseAddress(%q) = %+v, %v; want %+v", c.in, got, err, c.want)
		}
		if err != nil && !errors.Is(err, ErrAddress) {
			t.Errorf("ParseAddress(%q): %v does not wrap ErrAddress", c.in, err)
		}
		if err == nil && got.String() != c.in {
			t.Errorf("String() = %q, want %q", got, c.in)
		}
	}
}

func FuzzParseAddress(f *testing.F) {
	for _, s := range []string{"unix:/a", "vsock:1", "vsock:2:3", "vsock:4294967295:1", ":", "unix:@"} {
		f.Add(s)
	}
	f.Fuzz(func(t *testing.T, s string) {
		a, err := ParseAddress(s)
		if err != nil {
			if a != (Address{}) {
				t.Fatalf("%q: %+v beside an error", s, a)
			}
			return
		}
		again, err := ParseAddress(a.String())
		if err != nil || again != a {
			t.Fatalf("%q: %+v printed is %q: %+v, %v", s, a, a.String(), again, err)
		}
	})
}
