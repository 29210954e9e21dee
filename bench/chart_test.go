package main

import (
	"encoding/xml"
	"io"
	"os"
	"path/filepath"
	"strings"
	"testing"
)

// A plot is well-formed and has each back-end with a ratio, also if there is none.
func TestDrawing(t *testing.T) {
	r := &report{Rows: []*rowResult{newRowResult(testRow)}}
	for _, with := range []bool{false, true} {
		if with {
			for i, rate := range []float64{1e6, 2e6} {
				r.Rows[0].add(netVhost, sample{turn: turn{0, i}, Window: rated(rate)})
				r.Rows[0].add("some vhostnet", sample{turn: turn{0, i}, Window: rated(3 * rate)})
			}
			r.finish()
		}
		svg, err := r.drawing()
		if err != nil {
			t.Fatal(err)
		}
		for d := xml.NewDecoder(strings.NewReader(string(svg))); ; {
			if _, err := d.Token(); err == io.EOF {
				break
			} else if err != nil {
				t.Fatal(err)
			}
		}
		if got := strings.Contains(string(svg), "some vhostnet"); got != with || !strings.Contains(string(svg), testRow.String()) {
			t.Errorf("with ratios: %t; they are drawn: %t", with, got)
		}
	}
}

// Table and plot can be made again from what was saved.
func TestDrawAgain(t *testing.T) {
	dir := t.TempDir()
	r := &report{Rows: []*rowResult{newRowResult(testRow)}}
	r.Rows[0].add(netVhost, sample{Window: rated(1e6)})
	r.Rows[0].add("vhostnet", sample{Window: rated(2e6)})
	r.finish()
	if err := r.save(dir); err != nil {
		t.Fatal(err)
	}
	files := map[string]string{}
	for _, name := range []string{"bench.md", "bench.svg"} {
		b, err := os.ReadFile(filepath.Join(dir, name))
		if err != nil {
			t.Fatal(err)
		}
		files[name] = string(b)
		if err := os.Remove(filepath.Join(dir, name)); err != nil {
			t.Fatal(err)
		}
	}
	if err := (&drawArgs{Out: dir}).Run(nil); err != nil {
		t.Fatal(err)
	}
	for name, want := range files {
		if b, err := os.ReadFile(filepath.Join(dir, name)); err != nil || string(b) != want {
			t.Errorf("%s: %v, or another content", name, err)
		}
	}
}
