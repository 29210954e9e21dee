package main

import (
	"bytes"
	"fmt"
	"image/color"
	"math"
	"slices"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/vhostnet/vhostnet/bench/stat"
)

// Size of a drawing: of each of its two panels, and of a workload in them.
const (
	panelHeight   = 9 * vg.Centimeter
	workloadWidth = 1.7 * vg.Centimeter
	marginWidth   = 4 * vg.Centimeter
)

// look is how a variant is drawn.
type look struct {
	variant string
	shape   draw.GlyphDrawer
	color   color.Color
}

var looks = []look{
	{"fixed:64/64", draw.PlusGlyph{}, color.RGBA{0x1f, 0x78, 0xb4, 0xff}},
	{"net-dim", draw.BoxGlyph{}, color.RGBA{0xd9, 0x5f, 0x02, 0xff}},
	{"rdma-dim", draw.PyramidGlyph{}, color.RGBA{0x75, 0x70, 0xb3, 0xff}},
	{"adaptive", draw.CircleGlyph{}, color.RGBA{0x1b, 0x9e, 0x77, 0xff}},
	{guestVariant, draw.CrossGlyph{}, color.RGBA{0xe7, 0x29, 0x8a, 0xff}},
}

func lookOf(variant string) look {
	if i := slices.IndexFunc(looks, func(l look) bool { return l.variant == variant }); i >= 0 {
		return looks[i]
	}
	return look{variant, draw.RingGlyph{}, color.RGBA{0x66, 0x66, 0x66, 0xff}}
}

// drawing is a lane's results as an SVG: above the ratio of the rate to that
// without moderation, below the change of notifications per packet in percent.
func drawing(r *laneReport) ([]byte, error) {
	rows := rowsOf(r.Samples, r.info)
	var workloads, variants []string
	for _, row := range rows {
		if !slices.Contains(workloads, row.title()) {
			workloads = append(workloads, row.title())
		}
		if row.variant != baseline && !slices.Contains(variants, row.variant) {
			variants = append(variants, row.variant)
		}
	}
	above, err := panel("Lane "+r.Lane+": rate, as ratio to off", rows, workloads, variants, 1,
		func(r row) stat.Spread { return r.ratio })
	if err != nil {
		return nil, err
	}
	below, err := panel("notifications per packet, change against off in percent", rows, workloads, variants, 0,
		func(r row) stat.Spread { return percent(r.change) })
	if err != nil {
		return nil, err
	}
	above.Legend.Top = true
	below.Legend = plot.NewLegend() // the same
	above.Y.Min = min(above.Y.Min, 0.8)
	below.Y.Min, below.Y.Max = -100, min(max(below.Y.Max, 20), 100)
	canvas := vgsvg.New(marginWidth+workloadWidth*vg.Length(max(len(workloads), 6)), 2*panelHeight)
	rowsOfPlots := [][]*plot.Plot{{above}, {below}}
	tiles := plot.Align(rowsOfPlots, draw.Tiles{Rows: 2, Cols: 1, PadY: vg.Points(10)}, draw.New(canvas))
	above.Draw(tiles[0][0])
	below.Draw(tiles[1][0])
	var out bytes.Buffer
	if _, err := canvas.WriteTo(&out); err != nil {
		return nil, fmt.Errorf("drawing: %w", err)
	}
	return out.Bytes(), nil
}

func percent(s stat.Spread) stat.Spread {
	return stat.Spread{Median: 100 * s.Median, Min: 100 * s.Min, Max: 100 * s.Max, N: s.N}
}

// panel draws one value of all rows, workload by workload, with its range.
// neutral is its value without moderation.
func panel(title string, rows []row, workloads, variants []string, neutral float64, value func(row) stat.Spread) (*plot.Plot, error) {
	p := plot.New()
	p.Title.Text = title
	line, err := plotter.NewLine(plotter.XYs{{X: -0.5, Y: neutral}, {X: float64(len(workloads)) - 0.5, Y: neutral}})
	if err != nil {
		return nil, fmt.Errorf("drawing: %w", err)
	}
	grid := plotter.NewGrid()
	grid.Vertical.Width = 0
	p.Add(grid, line)
	for i, v := range variants {
		var points ranges
		for _, r := range rows {
			if s := value(r); r.variant == v && s.N > 0 && !math.IsNaN(s.Median) {
				x := float64(slices.Index(workloads, r.title())) + (float64(i)-float64(len(variants)-1)/2)*0.8/float64(len(variants))
				points.XYs = append(points.XYs, plotter.XY{X: x, Y: s.Median})
				points.YErrors = append(points.YErrors, struct{ Low, High float64 }{s.Median - s.Min, s.Max - s.Median})
			}
		}
		if len(points.XYs) == 0 {
			continue
		}
		if err := mark(p, v, points); err != nil {
			return nil, fmt.Errorf("drawing: %w", err)
		}
	}
	p.NominalX(workloads...)
	const legend = 1.5 // its width, in workloads
	p.X.Min, p.X.Max = -0.5, float64(len(workloads))-0.5+legend
	p.X.Tick.Label.Rotation = math.Pi / 5
	p.X.Tick.Label.XAlign, p.X.Tick.Label.YAlign = text.XRight, text.YTop
	p.Legend.YOffs, p.Legend.TextStyle.Font.Size = vg.Points(-4), vg.Points(9)
	return p, nil
}

// ranges are points with an error bar each.
type ranges struct {
	plotter.XYs
	plotter.YErrors
}

func mark(p *plot.Plot, variant string, points ranges) error {
	l := lookOf(variant)
	scatter, err := plotter.NewScatter(points.XYs)
	if err != nil {
		return err
	}
	bars, err := plotter.NewYErrorBars(points)
	if err != nil {
		return err
	}
	scatter.GlyphStyle = draw.GlyphStyle{Color: l.color, Radius: vg.Points(3.5), Shape: l.shape}
	bars.Color, bars.CapWidth = l.color, vg.Points(3)
	p.Add(bars, scatter)
	p.Legend.Add(variant, scatter)
	return nil
}
