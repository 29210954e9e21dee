package chart

import (
	"fmt"
	"image/color"
	"io"
	"math"
	"slices"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/plotter"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgsvg"

	"github.com/vhostnet/vhostnet/coalesce/sim"
)

// Size of a chart.
const (
	width  = 16 * vg.Centimeter
	height = 11 * vg.Centimeter
)

// Both axes are logarithmic, so that what is 0 is drawn at these.
const (
	leastNotifications = 1e-4
	leastDelay         = 0.1 // us
)

// look is how an engine is drawn.
type look struct {
	name  string
	shape draw.GlyphDrawer
	color color.Color
}

// engines are the marks of what is not fixed limits.
var engines = []look{
	{"off", draw.CrossGlyph{}, color.RGBA{0x55, 0x55, 0x55, 0xff}},
	{"net-dim", draw.BoxGlyph{}, color.RGBA{0xd9, 0x5f, 0x02, 0xff}},
	{"rdma-dim", draw.PyramidGlyph{}, color.RGBA{0x75, 0x70, 0xb3, 0xff}},
	{"adaptive", draw.CircleGlyph{}, color.RGBA{0x1b, 0x9e, 0x77, 0xff}},
}

// otherColors are for further specs, with parameters.
var otherColors = []color.Color{
	color.RGBA{0xe7, 0x29, 0x8a, 0xff}, color.RGBA{0x66, 0xa6, 0x1e, 0xff}, color.RGBA{0xa6, 0x76, 0x1d, 0xff},
}

var fixedColor = color.RGBA{0x1f, 0x78, 0xb4, 0xff}

// WriteSVG draws the results of one workload as an SVG: the 99th percentile of
// the delay, and smaller the median.
func WriteSVG(w io.Writer, results []sim.Result) error {
	p, err := draft(results)
	if err != nil {
		return fmt.Errorf("chart: %w", err)
	}
	c := vgsvg.New(width, height)
	p.Draw(draw.New(c))
	if _, err := c.WriteTo(w); err != nil {
		return fmt.Errorf("chart: %w", err)
	}
	return nil
}

// FileName is the name of a workload's chart.
func FileName(workload string) string {
	return strings.Map(func(r rune) rune {
		if r < 128 && (r >= 'a' && r <= 'z' || r >= 'A' && r <= 'Z' || r >= '0' && r <= '9' || r == '-' || r == '.') {
			return r
		}
		return '_'
	}, workload) + ".svg"
}

func draft(results []sim.Result) (*plot.Plot, error) {
	p := plot.New()
	p.Title.Text = results[0].Workload
	p.X.Label.Text, p.Y.Label.Text = "notifications per packet", "delay, us: p99, and p50 smaller"
	p.X.Scale, p.Y.Scale = plot.LogScale{}, plot.LogScale{}
	p.X.Tick.Marker, p.Y.Tick.Marker = decades{}, decades{}
	p.Legend.Top, p.Legend.Left = true, false
	p.Add(plotter.NewGrid())

	var grid []sim.Result
	others := 0
	for _, r := range results {
		if strings.HasPrefix(r.Engine, "fixed:") {
			grid = append(grid, r)
			continue
		}
		shape, col := draw.GlyphDrawer(draw.RingGlyph{}), otherColors[others%len(otherColors)]
		if i := slices.IndexFunc(engines, func(l look) bool { return l.name == r.Engine }); i >= 0 {
			shape, col = engines[i].shape, engines[i].color
		} else {
			others++
		}
		if err := mark(p, r.Engine, []sim.Result{r}, shape, col, false); err != nil {
			return nil, err
		}
	}
	if len(grid) > 0 {
		if err := mark(p, "fixed", grid, draw.PlusGlyph{}, fixedColor, true); err != nil {
			return nil, err
		}
	}
	frame(p, results)
	return p, nil
}

// mark draws the two points of each result, and for limits their names and a
// line through them.
func mark(p *plot.Plot, name string, rs []sim.Result, shape draw.GlyphDrawer, col color.Color, line bool) error {
	var p50, p99 plotter.XYs
	var labels []string
	for _, r := range rs {
		x, lo, hi := point(r)
		p50, p99 = append(p50, plotter.XY{X: x, Y: lo}), append(p99, plotter.XY{X: x, Y: hi})
		labels = append(labels, " "+strings.TrimPrefix(r.Engine, "fixed:"))
	}
	high, err := plotter.NewScatter(p99)
	if err != nil {
		return err
	}
	low, err := plotter.NewScatter(p50)
	if err != nil {
		return err
	}
	high.GlyphStyle = draw.GlyphStyle{Color: col, Radius: vg.Points(5), Shape: shape}
	low.GlyphStyle = draw.GlyphStyle{Color: col, Radius: vg.Points(2.5), Shape: shape}
	if line {
		l, err := plotter.NewLine(p99)
		if err != nil {
			return err
		}
		l.Color = col
		names, err := plotter.NewLabels(plotter.XYLabels{XYs: p99, Labels: labels})
		if err != nil {
			return err
		}
		for i := range names.TextStyle {
			names.TextStyle[i].Color = col
			names.TextStyle[i].Font.Size = vg.Points(8)
			names.TextStyle[i].YAlign = text.YBottom
		}
		p.Add(l, names)
	}
	p.Add(high, low)
	p.Legend.Add(name, high)
	return nil
}

func point(r sim.Result) (notifications, p50, p99 float64) {
	return max(r.NotificationsPerPacket, leastNotifications), max(r.P50, leastDelay), max(r.P99, leastDelay)
}

// frame leaves room around the points, also when they all lie on each other.
func frame(p *plot.Plot, results []sim.Result) {
	x, lo, hi := point(results[0])
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = x, x, lo, hi
	for _, r := range results {
		x, lo, hi := point(r)
		p.X.Min, p.X.Max = min(p.X.Min, x), max(p.X.Max, x)
		p.Y.Min, p.Y.Max = min(p.Y.Min, lo), max(p.Y.Max, hi)
	}
	p.X.Min, p.X.Max = p.X.Min/1.6, p.X.Max*2.5
	p.Y.Min, p.Y.Max = p.Y.Min/1.4, p.Y.Max*1.6
}

// decades names 1, 2 and 5 of each decade.
type decades struct{}

func (decades) Ticks(lo, hi float64) (ts []plot.Tick) {
	for digits := 6; digits > -9; digits-- {
		unit := math.Pow(10, -float64(digits))
		for n := 1; n < 10; n++ {
			v := float64(n) * unit
			if v < lo || v > hi {
				continue
			}
			t := plot.Tick{Value: v}
			if n == 1 || n == 2 || n == 5 {
				t.Label = strconv.FormatFloat(v, 'f', max(digits, 0), 64)
			}
			ts = append(ts, t)
		}
	}
	return ts
}
