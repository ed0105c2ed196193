package report

import (
	"bytes"
	"fmt"
	"html/template"
	"image/color"
	"io"
	"math"
	"strconv"
	"strings"

	"gonum.org/v1/plot"
	"gonum.org/v1/plot/text"
	"gonum.org/v1/plot/vg"
	"gonum.org/v1/plot/vg/draw"
	"gonum.org/v1/plot/vg/vgimg"
	"gonum.org/v1/plot/vg/vgsvg"
)

// Bars is a bar chart on a logarithmic scale: for each index one bar per series, and a dashed line at the limit.
type Bars struct {
	Title, XLabel, YLabel string
	Series                []Series
	Limit                 float64
	LimitName             string
	Verdict               string // of the report, in the picture: it travels without the report
}

// Series is one set of bars. Values that are 0 have no bar; values that are not finite reach the top.
type Series struct {
	Name   string
	Values []float64
}

// Picture formats by file name.
var PictureFormats = []string{".svg", ".png", ".html"}

// palette tells two series apart in grey, too.
var palette = []color.RGBA{{0xd9, 0x8c, 0x3f, 0xff}, {0x1f, 0x5a, 0x96, 0xff}}

const (
	pictureWidth  = 10 * vg.Inch
	pictureHeight = 5 * vg.Inch
	pictureDPI    = 100 // 1000 × 500 pixels
)

// Write draws b in the format that the ending of name asks for.
func (b *Bars) Write(w io.Writer, name string) error {
	switch {
	case strings.HasSuffix(name, ".svg"):
		return b.svg(w)
	case strings.HasSuffix(name, ".html"):
		return b.html(w)
	case strings.HasSuffix(name, ".png"):
		c := vgimg.NewWith(vgimg.UseWH(pictureWidth, pictureHeight), vgimg.UseDPI(pictureDPI))
		b.draw(c)
		_, err := vgimg.PngCanvas{Canvas: c}.WriteTo(w)
		return err
	}
	return fmt.Errorf("picture %q: the name must end in one of %s", name, strings.Join(PictureFormats, ", "))
}

// draw leaves a margin around the plot.
func (b *Bars) draw(c vg.CanvasSizer) {
	all := draw.New(c)
	all.FillPolygon(color.White, []vg.Point{all.Min, {X: all.Min.X, Y: all.Max.Y}, all.Max, {X: all.Max.X, Y: all.Min.Y}})
	p := b.plot()
	inner := draw.Crop(all, vg.Points(8), vg.Points(-14), vg.Points(8), vg.Points(-8))
	p.Draw(inner)
	style := p.Legend.TextStyle
	style.YAlign = draw.YTop
	below := vg.Length(0)
	if b.Title != "" {
		below = p.Title.TextStyle.Height(b.Title) + 2*p.Title.Padding
	}
	inner.FillText(style, vg.Point{X: inner.Min.X + vg.Points(52), Y: inner.Max.Y - below}, b.Verdict) // left of the legend
}

func (b *Bars) svg(w io.Writer) error {
	c := vgsvg.New(pictureWidth, pictureHeight)
	b.draw(c)
	_, err := c.WriteTo(w)
	return err
}

var page = template.Must(template.New("").Parse(`<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{{.Title}}</title>
<style>
:root { color-scheme: light dark; }
body { font: 15px/1.5 system-ui, sans-serif; max-width: 70rem; margin: 2rem auto; padding: 0 1rem; }
figure { margin: 0; background: #fff; border-radius: 6px; padding: .5rem; }
figure svg { width: 100%; height: auto; }
table { border-collapse: collapse; margin-top: 1rem; font-variant-numeric: tabular-nums; }
th, td { padding: .15rem 1rem .15rem 0; text-align: right; }
</style></head><body>
<h1>{{.Title}}</h1>
<figure role="img" aria-label="{{.Title}}: {{.YLabel}} by {{.XLabel}}">{{.SVG}}</figure>
<p>{{.LimitName}}: {{.Limit}}</p>
<table><tr><th>{{.XLabel}}</th>{{range .Names}}<th>{{.}}</th>{{end}}</tr>
{{range .Rows}}<tr>{{range .}}<td>{{.}}</td>{{end}}</tr>
{{end}}</table>
{{if .More}}<p>{{.More}} more in the JSON report.</p>{{end}}
</body></html>
`))

const maxRows = 500 // of the table under the picture

func (b *Bars) html(w io.Writer) error {
	var svg bytes.Buffer
	bare := *b
	bare.Title = "" // the page has it
	if err := bare.svg(&svg); err != nil {
		return err
	}
	inline := svg.String()
	inline = inline[strings.Index(inline, "<svg"):] // the XML declaration and doctype have no place inside HTML
	data := struct {
		*Bars
		SVG   template.HTML // drawn here: its only text is the labels, which the SVG writer escapes
		Names []string
		Rows  [][]string
		More  int
	}{Bars: b, SVG: template.HTML(inline)}
	n := 0
	for _, s := range b.Series {
		data.Names = append(data.Names, s.Name)
		n = max(n, len(s.Values))
	}
	data.More = max(0, n-maxRows)
	for i := range min(n, maxRows) {
		row := []string{strconv.Itoa(i)}
		for _, s := range b.Series {
			row = append(row, fmt.Sprintf("%.3e", s.Values[i]))
		}
		data.Rows = append(data.Rows, row)
	}
	return page.Execute(w, data)
}

func (b *Bars) plot() *plot.Plot {
	p := plot.New()
	p.Title.Text, p.X.Label.Text, p.Y.Label.Text = b.Title, b.XLabel, b.YLabel
	for _, style := range []*text.Style{&p.Title.TextStyle, &p.X.Label.TextStyle, &p.Y.Label.TextStyle, &p.X.Tick.Label, &p.Y.Tick.Label, &p.Legend.TextStyle} {
		style.Font.Variant = "Sans"
	}
	p.Title.TextStyle.Font.Size = vg.Points(16)
	p.Title.Padding = vg.Points(6)
	lo, hi := b.span()
	n := 0
	for _, s := range b.Series {
		n = max(n, len(s.Values))
	}
	p.X.Min, p.X.Max, p.Y.Min, p.Y.Max = -0.6, float64(n)-0.4, lo, hi
	p.X.Tick.Marker = plot.TickerFunc(func(_, _ float64) []plot.Tick { return indexTicks(n) })
	p.Y.Scale = plot.LogScale{}
	p.Y.Tick.Marker = plot.TickerFunc(powerTicks)
	p.X.Padding, p.Y.Padding = 0, 0
	p.Add(bars{b})
	for i, s := range b.Series {
		p.Legend.Add(s.Name, swatch{palette[i%len(palette)]})
	}
	p.Legend.Add(fmt.Sprintf("%s %g", b.LimitName, b.Limit), dashes{})
	p.Legend.Top, p.Legend.XOffs = true, vg.Points(-6)
	p.Legend.Padding = vg.Points(2)
	return p
}

// span returns the powers of ten around all values and the limit. Below 1e-18 lies only what float64 sums leave of 0.
func (b *Bars) span() (lo, hi float64) {
	lo, hi = b.Limit, b.Limit
	for _, s := range b.Series {
		for _, v := range s.Values {
			if v > 0 && !math.IsInf(v, 0) {
				lo, hi = min(lo, v), max(hi, v)
			}
		}
	}
	lo = max(lo, 1e-18)
	hi *= 2 // room above the bars
	return math.Pow(10, math.Floor(math.Log10(lo)-0.3)), math.Pow(10, math.Ceil(math.Log10(hi)))
}

func powerTicks(lo, hi float64) []plot.Tick {
	from, to := int(math.Round(math.Log10(lo))), int(math.Round(math.Log10(hi)))
	step := max(1, (to-from+9)/10)
	var ticks []plot.Tick
	for e := from; e <= to; e++ {
		label := ""
		if (e-from)%step == 0 {
			label = fmt.Sprintf("1e%d", e)
		}
		ticks = append(ticks, plot.Tick{Value: math.Pow(10, float64(e)), Label: label})
	}
	return ticks
}

func indexTicks(n int) []plot.Tick {
	step := 1
	for _, s := range []int{1, 2, 5} {
		for m := s; m <= n; m *= 10 {
			if n/m <= 16 && (step == 1 || m < step) {
				step = m
			}
		}
	}
	if n <= 16 {
		step = 1
	}
	var ticks []plot.Tick
	for i := 0; i < n; i += step {
		ticks = append(ticks, plot.Tick{Value: float64(i), Label: strconv.Itoa(i)})
	}
	return ticks
}

// bars draws the series side by side and the limit above them.
type bars struct{ *Bars }

func (b bars) Plot(c draw.Canvas, p *plot.Plot) {
	x, y := p.Transforms(&c)
	width := 0.8 / float64(len(b.Series))
	for s, series := range b.Series {
		for i, v := range series.Values {
			if v == 0 {
				continue
			}
			if !(v <= p.Y.Max) {
				v = p.Y.Max
			}
			left := float64(i) - 0.4 + float64(s)*width
			x0, x1 := x(left), x(left+width)
			x1 = max(x1, x0+vg.Points(0.5)) // visible however many there are
			bottom, top := y(p.Y.Min), y(max(v, p.Y.Min))
			c.FillPolygon(palette[s%len(palette)], []vg.Point{{X: x0, Y: bottom}, {X: x0, Y: top}, {X: x1, Y: top}, {X: x1, Y: bottom}})
		}
	}
	at := y(b.Limit)
	c.StrokeLine2(limitLine, c.Min.X, at, c.Max.X, at)
}

var limitLine = draw.LineStyle{Color: color.RGBA{0xb0, 0x20, 0x20, 0xff}, Width: vg.Points(1.5), Dashes: []vg.Length{vg.Points(6), vg.Points(4)}}

// swatch and dashes are the legend's samples.
type swatch struct{ c color.Color }

func (s swatch) Thumbnail(c *draw.Canvas) {
	c.FillPolygon(s.c, []vg.Point{{X: c.Min.X, Y: c.Min.Y}, {X: c.Min.X, Y: c.Max.Y}, {X: c.Max.X, Y: c.Max.Y}, {X: c.Max.X, Y: c.Min.Y}})
}

type dashes struct{}

func (dashes) Thumbnail(c *draw.Canvas) {
	mid := (c.Min.Y + c.Max.Y) / 2
	c.StrokeLine2(limitLine, c.Min.X, mid, c.Max.X, mid)
}
