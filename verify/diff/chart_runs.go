package diff

import (
	"cmp"
	"fmt"
	"math"
	"slices"

	"plumbline/verify/check"
)

// unequal is the share of the elements of each tensor that are not equal bit by bit, by step.
type unequal struct {
	names []string // in the order in which tensors come about, as first seen
	of    map[string]*check.Series
	any   map[string]bool // has a share above 0
}

func (s *unequal) add(d *difference) {
	if d.compared == 0 {
		return
	}
	if s.of == nil {
		s.of, s.any = map[string]*check.Series{}, map[string]bool{}
	}
	line := s.of[d.name]
	if line == nil {
		line = &check.Series{Name: d.name}
		s.of[d.name], s.names = line, append(s.names, d.name)
	}
	line.X, line.Y = append(line.X, float64(d.step)), append(line.Y, float64(d.changed)/float64(d.compared))
	s.any[d.name] = s.any[d.name] || d.changed > 0
}

// charts are the first tensor that differs, one run against the other, and the share of elements that differ by step.
func (w *walk) charts() (list []check.Chart) {
	if c := w.against(); c != nil {
		list = append(list, *c)
	}
	const most = 6 // lines that can be told apart
	var lines []check.Series
	for _, name := range w.unequal.names {
		if line := w.unequal.of[name]; w.unequal.any[name] && len(line.X) > 1 && len(lines) < most {
			lines = append(lines, *line)
		}
	}
	if len(lines) > 0 {
		c := check.Chart{Title: "share of elements that differ, by step", X: "step", Y: "share", Series: lines}
		if w.first != nil {
			c.Marks = []check.Mark{{X: float64(w.first.step), Text: "first"}}
		} else if w.grown >= 0 {
			c.Marks = []check.Mark{{X: float64(w.grown), Text: "grown"}}
		}
		list = append(list, c)
	}
	return list
}

// against draws the first tensor that differs, the elements of the second run over those of the first, the ten worst as rings. Of what was
// sampled it draws the lengths of the rows: ids of tokens are text.
func (w *walk) against() *check.Chart {
	if w.first == nil {
		return nil
	}
	name, v := w.first.name, &values{}
	switch w.first.kind {
	case prompts, sampled:
		name = "tokens of a row"
		for k := range w.at.ca {
			v.a, v.b = append(v.a, float64(len(w.at.ca[k]))), append(v.b, float64(len(w.at.cb[k])))
		}
	default:
		if v, _ = w.at.of(name); v == nil {
			return nil
		}
	}
	var at []int
	for i := range v.a {
		if !math.IsNaN(v.a[i]+v.b[i]) && !math.IsInf(v.a[i], 0) && !math.IsInf(v.b[i], 0) {
			at = append(at, i)
		}
	}
	if len(at) == 0 {
		return nil
	}
	all, worst := check.Series{Name: "elements", Kind: check.Points}, check.Series{Name: "worst", Kind: check.Rings}
	for i := 0; i < len(at); i += (len(at) + mostDots - 1) / mostDots {
		all.X, all.Y = append(all.X, v.a[at[i]]), append(all.Y, v.b[at[i]])
	}
	slices.SortStableFunc(at, func(i, j int) int { return cmp.Compare(math.Abs(v.a[j]-v.b[j]), math.Abs(v.a[i]-v.b[i])) })
	for _, i := range at[:min(10, len(at))] {
		worst.X, worst.Y = append(worst.X, v.a[i]), append(worst.Y, v.b[i])
	}
	return &check.Chart{Title: fmt.Sprintf("%s of step %d", name, w.first.step), X: "first run", Y: "second run", Diagonal: true, Series: []check.Series{all, worst}}
}
