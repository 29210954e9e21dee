package chart

import (
	"bytes"
	"encoding/xml"
	"errors"
	"fmt"
	"io"
	"strings"
	"testing"

	"github.com/vhostnet/vhostnet/coalesce/sim"
)

// wellFormed reads all of an XML document and returns its texts.
func wellFormed(t *testing.T, doc []byte) (texts []string) {
	t.Helper()
	for d := xml.NewDecoder(bytes.NewReader(doc)); ; {
		tok, err := d.Token()
		switch {
		case errors.Is(err, io.EOF):
			return texts
		case err != nil:
			t.Fatal(err)
		}
		if c, ok := tok.(xml.CharData); ok {
			texts = append(texts, strings.TrimSpace(string(c)))
		}
	}
}

func TestWriteSVG(t *testing.T) {
	for name, rs := range map[string][]sim.Result{
		"usual": {
			{Engine: "off", P50: 30, P99: 40, NotificationsPerPacket: 0.4},
			{Engine: "net-dim", P50: 140, P99: 290, NotificationsPerPacket: 0.07},
			{Engine: "adaptive", P50: 35, P99: 90, NotificationsPerPacket: 0.2},
			{Engine: "adaptive:max-latency=20", P50: 32, P99: 60, NotificationsPerPacket: 0.3},
			{Engine: "fixed:8/8", P50: 35, P99: 48, NotificationsPerPacket: 0.34},
			{Engine: "fixed:256/64", P50: 140, P99: 290, NotificationsPerPacket: 0.07},
		},
		"one point":      {{Engine: "off", P50: 30, P99: 30, NotificationsPerPacket: 1}},
		"nothing at all": {{Engine: "off"}, {Engine: "fixed:8/8"}},
	} {
		for i := range rs {
			rs[i].Workload = "constant-<1k>"
		}
		var a, b bytes.Buffer
		if err := WriteSVG(&a, rs); err != nil {
			t.Fatal(name, err)
		}
		if err := WriteSVG(&b, rs); err != nil || !bytes.Equal(a.Bytes(), b.Bytes()) {
			t.Errorf("%s: not the same a second time: %v", name, err)
		}
		if bytes.Contains(a.Bytes(), []byte("NaN")) || bytes.Contains(a.Bytes(), []byte("Inf")) {
			t.Errorf("%s: a coordinate is no number", name)
		}
		texts := fmt.Sprint(wellFormed(t, a.Bytes()))
		for _, r := range rs {
			if !strings.Contains(texts, strings.TrimPrefix(r.Engine, "fixed:")) {
				t.Errorf("%s: no %s in %s", name, r.Engine, texts)
			}
		}
	}
}

func TestFileName(t *testing.T) {
	for in, want := range map[string]string{"rr-1": "rr-1.svg", "trace:../a b": "trace_.._a_b.svg", "ä": "_.svg"} {
		if got := FileName(in); got != want {
			t.Errorf("%q: %q, want %q", in, got, want)
		}
	}
}
