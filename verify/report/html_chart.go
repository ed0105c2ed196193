package report

import (
	"fmt"
	"html/template"
	"math"
	"strings"

	"plumbline/verify/check"
)

type pageChart struct {
	Title string
	SVG   template.HTML
}

// Size of a chart, in the units of its drawing, and its margins.
const (
	chartWidth, chartHeight = 480.0, 220.0
	chartLeft, chartRight   = 58.0, 12.0
	chartTop, chartBottom   = 22.0, 38.0
	maxDrawn                = 500 // points of a line
	tickMarks               = 5
	lowestDrawn             = 1e-18 // on a logarithmic axis: below it lies only what float64 sums leave of 0
)

// axis maps numbers to places.
type axis struct {
	lo, hi   float64
	from, to float64
	log      bool
}

func (a axis) at(v float64) float64 {
	lo, hi := a.lo, a.hi
	if a.log {
		lo, hi, v = math.Log10(lo), math.Log10(hi), math.Log10(v)
	}
	return a.from + (a.to-a.from)*(v-lo)/(hi-lo)
}

// ticks are numbers in steps of 1, 2 or 5 times a power of ten; powers of ten on a logarithmic axis.
func (a axis) ticks() (list []float64) {
	if a.log {
		from, to := int(math.Round(math.Log10(a.lo))), int(math.Round(math.Log10(a.hi)))
		for e, step := from, max(1, (to-from+tickMarks-1)/tickMarks); e <= to; e += step {
			list = append(list, math.Pow(10, float64(e)))
		}
		return list
	}
	step := math.Pow(10, math.Floor(math.Log10((a.hi-a.lo)/tickMarks)))
	for _, k := range []float64{1, 2, 5, 10} {
		if (a.hi-a.lo)/(k*step) <= tickMarks {
			step *= k
			break
		}
	}
	for i := math.Ceil(a.lo / step); i*step <= a.hi*(1+1e-12); i++ {
		list = append(list, i*step)
	}
	return list
}

// spanOf returns an axis around the numbers that are finite, and with log above 0.
func spanOf(from, to float64, log bool, numbers ...[]float64) axis {
	lo, hi := math.Inf(1), math.Inf(-1)
	for _, list := range numbers {
		for _, v := range list {
			if !math.IsNaN(v) && !math.IsInf(v, 0) && (!log || v > lowestDrawn) {
				lo, hi = math.Min(lo, v), math.Max(hi, v)
			}
		}
	}
	if lo > hi {
		lo, hi = 1, 1
	}
	if log {
		return axis{math.Pow(10, math.Floor(math.Log10(lo)-0.05)), math.Pow(10, math.Ceil(math.Log10(hi)+0.05)), from, to, true}
	}
	if room := 0.04 * (hi - lo); room > 0 && !math.IsInf(room, 0) {
		lo, hi = lo-room, hi+room
	} else {
		d := math.Max(math.Abs(lo)*0.1, 1e-3)
		lo, hi = lo-d, hi+d
	}
	return axis{lo, hi, from, to, false}
}

// drawn is a chart as SVG. Its colours are those of the page.
func drawn(c *check.Chart) template.HTML {
	var xs, ys [][]float64
	for i := range c.Series {
		s := &c.Series[i]
		if s.X == nil {
			s.X = make([]float64, len(s.Y))
			for k := range s.X {
				s.X[k] = float64(k)
			}
		}
		xs, ys = append(xs, s.X), append(ys, s.Y, s.Lo, s.Hi)
		if s.Kind == check.Columns && len(s.X) > 0 {
			xs = append(xs, []float64{s.X[0] - 0.6, s.X[len(s.X)-1] + 0.6})
		}
	}
	for _, m := range c.Marks {
		xs = append(xs, []float64{m.X})
	}
	if c.Limit != nil {
		ys = append(ys, []float64{c.Limit.Value})
	}
	x := spanOf(chartLeft, chartWidth-chartRight, false, xs...)
	y := spanOf(chartHeight-chartBottom, chartTop, c.Log, ys...)
	var b strings.Builder
	text := template.HTMLEscapeString
	fmt.Fprintf(&b, `<svg viewBox="0 0 %g %g" role="img" aria-label="%s">`, chartWidth, chartHeight, text(c.Title+": "+c.Y+" by "+c.X))
	for _, v := range y.ticks() {
		fmt.Fprintf(&b, `<path class="axis" d="M%g %.1fH%g"/><text x="%g" y="%.1f" text-anchor="end">%s</text>`, chartLeft, y.at(v), chartWidth-chartRight, chartLeft-5, y.at(v)+4, tick(v))
	}
	for _, v := range x.ticks() {
		if v == math.Trunc(v) || x.hi-x.lo < tickMarks {
			fmt.Fprintf(&b, `<text x="%.1f" y="%g" text-anchor="middle">%s</text>`, x.at(v), chartHeight-chartBottom+15, tick(v))
		}
	}
	fmt.Fprintf(&b, `<text x="%g" y="%g" text-anchor="middle">%s</text>`, (chartLeft+chartWidth-chartRight)/2, chartHeight-5, text(c.X))
	said := func(name string) bool { return c.Title == name || strings.HasPrefix(c.Title, name+" (") } // by the caption
	if !said(c.Y) {
		fmt.Fprintf(&b, `<text x="4" y="12">%s</text>`, text(c.Y))
	}
	if c.Diagonal {
		lo, hi := math.Max(x.lo, y.lo), math.Min(x.hi, y.hi)
		if lo < hi {
			fmt.Fprintf(&b, `<path class="diag" d="M%.1f %.1fL%.1f %.1f"/>`, x.at(lo), y.at(lo), x.at(hi), y.at(hi))
		}
	}
	at := chartWidth - chartRight // of the legend, from the right
	for i := len(c.Series) - 1; i >= 0; i-- {
		if s := &c.Series[i]; s.Name != "" && !(len(c.Series) == 1 && said(s.Name)) {
			at -= 7*float64(len([]rune(s.Name))) + 22
			fmt.Fprintf(&b, `<rect class="f%d" x="%.1f" y="4" width="10" height="10"/><text x="%.1f" y="13">%s</text>`, i%2, at, at+14, text(s.Name))
		}
	}
	for i := range c.Series {
		shape(&b, &c.Series[i], i, len(c.Series), x, y)
	}
	if l := c.Limit; l != nil && (!c.Log || l.Value > 0) {
		fmt.Fprintf(&b, `<path class="limit" d="M%g %.1fH%g"/><text class="mark" x="%g" y="%.1f" text-anchor="end">%s</text>`, chartLeft, y.at(l.Value), chartWidth-chartRight, chartWidth-chartRight-2, y.at(l.Value)-4, text(fmt.Sprintf("%s %.4g", l.Name, l.Value)))
	}
	for _, m := range c.Marks {
		side, dx := "start", 4.0
		if x.at(m.X) > chartWidth/2 {
			side, dx = "end", -4
		}
		fmt.Fprintf(&b, `<path class="mark" d="M%.1f %gV%g"/><text class="mark" x="%.1f" y="%g" text-anchor="%s">%s</text>`, x.at(m.X), chartTop, chartHeight-chartBottom, x.at(m.X)+dx, chartTop+10, side, text(m.Text))
	}
	b.WriteString("</svg>")
	return template.HTML(b.String())
}

func tick(v float64) string {
	if math.Abs(v) < 1e-12 {
		v = 0
	}
	return strings.ReplaceAll(fmt.Sprintf("%.4g", v), "-", "−")
}

// shape draws series i of n. What is not finite is a mark at the foot.
func shape(b *strings.Builder, s *check.Series, i, n int, x, y axis) {
	every := max(1, (len(s.Y)+maxDrawn-1)/maxDrawn)
	low := func(v float64) bool { return y.log && !(v > lowestDrawn) }
	var line strings.Builder
	pen := false
	for k := 0; k < len(s.Y); k += every {
		v := s.Y[k]
		if math.IsNaN(v) || math.IsInf(v, 0) {
			pen = false
			fmt.Fprintf(b, `<rect class="nan" x="%.1f" y="%g" width="3" height="6"/>`, x.at(s.X[k])-1.5, y.from-6)
			continue
		}
		if low(v) {
			pen = false
			continue
		}
		px, py := x.at(s.X[k]), y.at(v)
		switch s.Kind {
		case check.Line:
			if pen {
				fmt.Fprintf(&line, "L%.1f %.1f", px, py)
			} else {
				fmt.Fprintf(&line, "M%.1f %.1f", px, py)
			}
			pen = true
		case check.Points:
			fmt.Fprintf(b, `<circle class="f%d" cx="%.1f" cy="%.1f" r="2.6"/>`, i%2, px, py)
		case check.Rings:
			fmt.Fprintf(b, `<circle class="ring s%d" cx="%.1f" cy="%.1f" r="4.5"/>`, i%2, px, py)
		case check.Columns:
			wide := 0.8 / float64(n)
			left, right := x.at(s.X[k]-0.4+float64(i)*wide), x.at(s.X[k]-0.4+float64(i+1)*wide)
			fmt.Fprintf(b, `<rect class="f%d" x="%.1f" y="%.1f" width="%.1f" height="%.1f"/>`, i%2, left, py, max(right-left, 0.5), y.from-py)
		}
	}
	if s.Lo != nil && s.Kind == check.Line {
		band(b, s, i, every, x, y)
	}
	if line.Len() > 0 {
		fmt.Fprintf(b, `<path class="line s%d" d="%s"/>`, i%2, line.String())
	}
}

// band is what lies between the smallest and the largest of the values that were joined.
func band(b *strings.Builder, s *check.Series, i, every int, x, y axis) {
	var up, down []string
	for k := 0; k < len(s.Y); k += every {
		lo, hi := s.Lo[k], s.Hi[k]
		if math.IsNaN(lo+hi) || math.IsInf(lo+hi, 0) {
			continue
		}
		up = append(up, fmt.Sprintf("%.1f %.1f", x.at(s.X[k]), y.at(hi)))
		down = append(down, fmt.Sprintf("%.1f %.1f", x.at(s.X[k]), y.at(lo)))
	}
	if len(up) < 2 {
		return
	}
	fmt.Fprintf(b, `<path class="band f%d" d="M%s`, i%2, strings.Join(up, "L"))
	for k := len(down) - 1; k >= 0; k-- {
		b.WriteString("L" + down[k])
	}
	b.WriteString(`z"/>`)
}
