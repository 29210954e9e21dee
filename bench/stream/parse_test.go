package main

import (
	"errors"
	"os"
	"path/filepath"
	"testing"

	"github.com/google/go-cmp/cmp"
)

// read is what a program printed.
func read(t *testing.T, name string) string {
	t.Helper()
	b, err := os.ReadFile(filepath.Join("testdata", name))
	if err != nil {
		t.Fatal(err)
	}
	return string(b)
}

func TestParse(t *testing.T) {
	for _, c := range []struct {
		file  string
		parse func(string) (outcome, error)
		want  outcome
	}{
		{"tcp-out.json", parseTCP, outcome{Amount: 1182269440, Seconds: 1.031629, AllAmount: 1182269440, AllSeconds: 1.031629}},
		{"tcp-in.json", parseTCP, outcome{Amount: 824311808, Seconds: 1.000086, AllAmount: 824311808, AllSeconds: 1.000086}},
		{"udp-out.json", parseUDP, outcome{Amount: 24645, Seconds: 1.013755, AllAmount: 24645, AllSeconds: 1.013755, Lost: 3719.0 / 28364}},
		{"udp-in.json", parseUDP, outcome{Amount: 24662, Seconds: 1.000068, AllAmount: 24662, AllSeconds: 1.000068, Lost: 3730.0 / 28392}},
		{"sockperf-ping-pong.txt", parsePingPong, outcome{
			Amount: 47033, Seconds: 0.55, AllAmount: 73615, AllSeconds: 1, P50: 11.056, P99: 16.434,
		}},
	} {
		got, err := c.parse(read(t, c.file))
		// Retransmissions are whatever they were.
		got.Retransmits = 0
		if diff := cmp.Diff(c.want, got); err != nil || diff != "" {
			t.Errorf("%s: %v %s", c.file, err, diff)
		}
	}
}

// TestParseFails: what is no measurement must not pass for one.
func TestParseFails(t *testing.T) {
	parsers := map[string]func(string) (outcome, error){"tcp": parseTCP, "udp": parseUDP, "ping-pong": parsePingPong}
	for _, text := range []string{
		"", "{}", "unable to connect", read(t, "refused.json"), read(t, "sockperf-refused.txt"),
		`{"end":{"sum_received":{"seconds":1,"packets":5,"lost_packets":5}}}`,
		"[Total Run] RunTime=1.000 sec; ReceivedMessages=1\n[Valid Duration] RunTime=0.5 sec; SentMessages=0; ReceivedMessages=0",
		"[Total Run] RunTime=1.000 sec; ReceivedMessages=1\n[Valid Duration] RunTime=1.2.3 sec; SentMessages=0; ReceivedMessages=0",
	} {
		for name, parse := range parsers {
			if o, err := parse(text); err == nil {
				t.Errorf("%s: %q: %+v", name, text, o)
			}
		}
	}
	if _, err := parseTCP("{}"); !errors.Is(err, errNothing) {
		t.Errorf("nothing: %v", err)
	}
}
