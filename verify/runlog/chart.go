package runlog

import (
	"cmp"
	"fmt"
	"path/filepath"
	"slices"

	"plumbline/verify/check"
	"plumbline/verify/symptom"
)

// mostCharts bounds the page: a curve has some 500 points, 10 KB.
const mostCharts = 24

// charts draws the metrics that findings are about, with the first bad step marked, then the others of the dictionary.
func (r *Report) charts(logs []*log, found []*symptom.Finding, where map[*symptom.Finding]string) {
	type curve struct{ path, name string }
	var order []curve
	marks := map[curve][]check.Mark{}
	add := func(f *symptom.Finding) {
		if f.Metric == "" || f.Severity == symptom.Note {
			return
		}
		c := curve{where[f], f.Metric}
		if !slices.Contains(order, c) {
			order = append(order, c)
		}
		if f.Step >= 0 {
			marks[c] = append(marks[c], check.Mark{X: float64(f.Step), Text: f.ID})
		}
	}
	for _, f := range found {
		add(f)
		for _, u := range f.Under {
			add(u)
		}
	}
	for _, l := range logs {
		known, _ := l.watch.Metrics(1)
		for _, m := range known {
			if c := (curve{l.path, m.Name}); !slices.Contains(order, c) {
				order = append(order, c)
			}
		}
	}
	for _, c := range order {
		if len(r.Charts) == mostCharts {
			return
		}
		l := logs[slices.IndexFunc(logs, func(l *log) bool { return l.path == c.path })]
		v := l.watch.Curve(c.name)
		if len(v.Steps) < 2 {
			continue
		}
		title := c.name
		if len(logs) > 1 {
			title = fmt.Sprintf("%s (%s)", c.name, filepath.Base(c.path))
		}
		at := marks[c]
		slices.SortFunc(at, func(a, b check.Mark) int { return cmp.Compare(a.X, b.X) })
		r.Charts = append(r.Charts, check.Chart{Title: title, X: "step", Y: c.name, Marks: at, Series: []check.Series{{Name: c.name, X: v.Steps, Y: v.Mean, Lo: v.Low, Hi: v.High}}})
	}
}
