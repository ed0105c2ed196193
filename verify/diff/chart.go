package diff

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"plumbline/verify/check"
	"plumbline/verify/stage"
)

// mostDots bounds the points of a chart.
const mostDots = 500

// charts are Δ over the log-probability of the token, with the worst tokens as rings, and the mean of |Δ| by place and by step, with the
// worst one marked.
func (p *pool) charts(m *stage.Comparison) []check.Chart {
	if m.Same || m.Tokens == 0 {
		return nil
	}
	type dot struct{ x, d float64 }
	type sum struct{ n, abs float64 }
	var dots []dot
	byPlace, byStep := map[int]sum{}, map[int]sum{}
	put := func(to map[int]sum, at int, d float64) {
		s := to[at]
		to[at] = sum{s.n + 1, s.abs + math.Abs(d)}
	}
	p.each(func(r *pooled, i int, d, q float64) {
		dots = append(dots, dot{r.a[i], d})
		put(byPlace, i, d)
		put(byStep, r.step, d)
	})
	delta := fmt.Sprintf("%s − %s", p.second, p.first)
	all, worst := check.Series{Name: "tokens", Kind: check.Points}, check.Series{Name: "worst", Kind: check.Rings}
	for i := 0; i < len(dots); i += (len(dots) + mostDots - 1) / mostDots {
		all.X, all.Y = append(all.X, dots[i].x), append(all.Y, dots[i].d)
	}
	slices.SortStableFunc(dots, func(a, b dot) int {
		switch x, y := math.Abs(a.d), math.Abs(b.d); {
		case x > y:
			return -1
		case x < y:
			return 1
		}
		return 0
	})
	for _, d := range dots[:min(10, len(dots))] {
		worst.X, worst.Y = append(worst.X, d.x), append(worst.Y, d.d)
	}
	list := []check.Chart{{Title: "Δ by log-probability", X: "log p under " + p.right, Y: delta + ", nats", Series: []check.Series{all, worst}}}
	for _, c := range []struct {
		title, x string
		of       map[int]sum
	}{{"mean |Δ| by token of the response", "token", byPlace}, {"mean |Δ| by step", "step", byStep}} {
		if len(c.of) < 2 {
			continue
		}
		line, most := check.Series{Name: "mean |Δ|"}, 0
		for _, at := range slices.Sorted(maps.Keys(c.of)) {
			line.X, line.Y = append(line.X, float64(at)), append(line.Y, c.of[at].abs/c.of[at].n)
			if line.Y[len(line.Y)-1] > line.Y[most] {
				most = len(line.Y) - 1
			}
		}
		list = append(list, check.Chart{Title: c.title, X: c.x, Y: "nats", Series: []check.Series{line}, Marks: []check.Mark{{X: line.X[most], Text: "largest"}}})
	}
	return list
}
