package provision

import (
	"testing"

	"github.com/google/go-cmp/cmp"
)

func TestParseOneLine(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       source
		ok         bool
	}{
		{"plain", "deb http://mirror.example/debian bookworm main contrib\n", source{uri: "http://mirror.example/debian"}, true},
		{"options", "deb [arch=amd64 signed-by=/k.gpg] http://m.example/d bookworm main", source{uri: "http://m.example/d", signedBy: "/k.gpg"}, true},
		{"comment", "# deb http://mirror.example/debian bookworm main\n", source{}, false},
		{"source packages", "deb-src http://mirror.example/debian bookworm main\n", source{}, false},
		{"security first", "deb http://s.example/sec bookworm-security main\ndeb http://m.example/d bookworm main\n", source{uri: "http://m.example/d"}, true},
		{"third party", "deb https://other.example/apt some-suite main\n", source{}, false},
		{"no main", "deb http://m.example/d bookworm contrib\n", source{}, false},
		{"broken brackets", "deb ]signed-by=x[ http://m.example/d bookworm main\n", source{}, false},
		{"empty", "", source{}, false},
	} {
		got, ok := parseOneLine(c.text)
		if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(source{})); diff != "" || ok != c.ok {
			t.Errorf("%s: ok %v, diff %s", c.name, ok, diff)
		}
	}
}

func TestParseDeb822(t *testing.T) {
	for _, c := range []struct {
		name, text string
		want       source
		ok         bool
	}{
		{"stanza", "Types: deb\nURIs: http://m.example/d\nSuites: bookworm bookworm-updates\nComponents: main\nSigned-By: /k.gpg\n", source{"http://m.example/d", "/k.gpg"}, true},
		{"second stanza", "Types: deb\nURIs: http://s.example/s\nSuites: bookworm-security\nComponents: main\n\nTypes: deb deb-src\nURIs: http://m.example/d\nSuites: bookworm\nComponents: main\n", source{uri: "http://m.example/d"}, true},
		{"disabled", "Enabled: no\nTypes: deb\nURIs: http://m.example/d\nSuites: bookworm\nComponents: main\n", source{}, false},
		{"comment inside", "Types: deb\n# URIs: http://x.example\nURIs: http://m.example/d\nSuites: bookworm\nComponents: main\n", source{uri: "http://m.example/d"}, true},
		{"key in place", "Types: deb\nURIs: http://m.example/d\nSuites: bookworm\nComponents: main\nSigned-By:\n -----BEGIN\n .\n", source{uri: "http://m.example/d"}, true},
		{"empty", "", source{}, false},
	} {
		got, ok := parseDeb822(c.text)
		if diff := cmp.Diff(c.want, got, cmp.AllowUnexported(source{})); diff != "" || ok != c.ok {
			t.Errorf("%s: ok %v, diff %s", c.name, ok, diff)
		}
	}
}
