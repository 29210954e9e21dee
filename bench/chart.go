package main

import (
	"bytes"
	"encoding/json"
	"errors"
	"fmt"
	"image/color"
	"math"
	"os"
	"path/filepath"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"
)

// drawArgs are the command line that makes table and plot of an earlier measurement.
type drawArgs struct {
	Out string `help:"Folder with bench.json, for bench.md and bench.svg." default:"bench/results" placeholder:"DIR"`
}

// Run draws.
func (a *drawArgs) Run(*streams) error {
	b, err := os.ReadFile(filepath.Join(a.Out, "bench.json"))
	if err != nil {
		return err
	}
	var r report
	if err := json.Unmarshal(b, &r); err != nil {
		return err
	}
	return r.render(a.Out)
}

// render writes table and plot into a folder.
func (r *report) render(dir string) error {
	var table bytes.Buffer
	svg, err := r.drawing()
	if err == nil {
		err = r.markdown(&table)
	}
	if err != nil {
		return err
	}
	return errors.Join(
		os.WriteFile(filepath.Join(dir, "bench.md"), table.Bytes(), 0o644),
		os.WriteFile(filepath.Join(dir, "bench.svg"), svg, 0o644),
	)
}

// marks are how back-ends are drawn, in the order of their first appearance.
var marks = []struct {
	shape draw.GlyphDrawer
	color color.Color
}{
	{draw.CircleGlyph{}, color.RGBA{0x1b, 0x9e, 0x77, 0xff}},
	{draw.PyramidGlyph{}, color.RGBA{0x75, 0x70, 0xb3, 0xff}},
	{draw.BoxGlyph{}, color.RGBA{0xd9, 0x5f, 0x02, 0xff}},
	{draw.PlusGlyph{}, color.RGBA{0x1f, 0x78, 0xb4, 0xff}},
}

// drawing is an SVG with each row's ratios and their ranges, on a logarithmic scale
// on which the row's reference is 1.
func (r *report) drawing() ([]byte, error) {
	var names, labels []string
	for _, w := range r.Rows {
		labels = append(labels, w.String())
		for _, b := range w.BackEnds {
			if b.Name != w.Reference && !slices.Contains(names, b.Name) {
				names = append(names, b.Name)
			}
		}
	}
	p := plot.New()
	p.Title.Text = "Packets per second, as ratio to DPDK (net_vhost; with a TAP: net_vhost + net_tap)"
	p.Y.Scale, p.Y.Tick.Marker = plot.LogScale{}, plot.ConstantTicks(powersOfTwo())
	one, err := plotter.NewLine(plotter.XYs{{X: -0.5, Y: 1}, {X: float64(len(labels)) - 0.5, Y: 1}})
	if err != nil {
		return nil, fmt.Errorf("drawing: %w", err)
	}
	grid := plotter.NewGrid()
	grid.Vertical.Width = 0
	p.Add(grid, one)
	p.Y.Min, p.Y.Max = 0.5, 2
	for i, name := range names {
		if err := r.series(p, name, i, len(names)); err != nil {
			return nil, fmt.Errorf("drawing: %w", err)
		}
	}
	p.NominalX(labels...)
	p.X.Min, p.X.Max = -0.5, float64(len(labels))-0.5
	p.X.Tick.Label.Rotation = math.Pi / 4
	p.X.Tick.Label.XAlign, p.X.Tick.Label.YAlign = text.XRight, text.YTop
	p.Legend.Top, p.Legend.Left = true, true
	canvas := vgsvg.New(4*vg.Centimeter+vg.Centimeter*vg.Length(max(len(labels), 12)), 14*vg.Centimeter)
	p.Draw(draw.New(canvas))
	var out bytes.Buffer
	if _, err := canvas.WriteTo(&out); err != nil {
		return nil, fmt.Errorf("drawing: %w", err)
	}
	return out.Bytes(), nil
}

func powersOfTwo() (ticks []plot.Tick) {
	for e := -3; e <= 6; e++ {
		v := math.Ldexp(1, e)
		ticks = append(ticks, plot.Tick{Value: v, Label: fmt.Sprint(v)})
	}
	return ticks
}

// ratios are points with an error bar each.
type ratios struct {
	plotter.XYs
	plotter.YErrors
}

// series draws the ratios of one back-end, the i-th of n.
func (r *report) series(p *plot.Plot, name string, i, n int) error {
	var points ratios
	for x, w := range r.Rows {
		b := w.find(name)
		if b == nil || b.Ratio == nil || b.Ratio.Min <= 0 {
			continue
		}
		s := b.Ratio
		points.XYs = append(points.XYs, plotter.XY{X: float64(x) + (float64(i)-float64(n-1)/2)*0.2, Y: s.Median})
		points.YErrors = append(points.YErrors, struct{ Low, High float64 }{s.Median - s.Min, s.Max - s.Median})
		p.Y.Min, p.Y.Max = min(p.Y.Min, s.Min), max(p.Y.Max, s.Max)
	}
	if len(points.XYs) == 0 {
		return nil
	}
	scatter, err := plotter.NewScatter(points.XYs)
	if err != nil {
		return err
	}
	bars, err := plotter.NewYErrorBars(points)
	if err != nil {
		return err
	}
	m := marks[i%len(marks)]
	scatter.GlyphStyle = draw.GlyphStyle{Color: m.color, Radius: vg.Points(3.5), Shape: m.shape}
	bars.Color, bars.CapWidth = m.color, vg.Points(3)
	p.Add(bars, scatter)
	p.Legend.Add(name, scatter)
	return nil
}
