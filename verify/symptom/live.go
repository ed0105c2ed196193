package symptom

import (
	"maps"
	"math"

	"plumbline/internal/format/runlog"
)

// Value is a number that a trainer logs.
type Value struct {
	Name  string
	Value float64
}

// Live judges the numbers of a trainer while it runs.
type Live struct {
	watch *Watch
	names []string
	index map[string]int
	said  map[string]bool
	line  int64
	row   runlog.Row
}

// NewLive returns a judge of a run with these options.
func NewLive(options map[string]string) *Live {
	w := New()
	maps.Copy(w.Config, options)
	return &Live{watch: w, index: map[string]int{"step": 0}, names: []string{"step"}, said: map[string]bool{}}
}

// Add takes the numbers of a step and returns what they show for the first time: warnings and failures, and no notes. What follows
// from a finding is not named beside it.
func (l *Live) Add(step int, values []Value) []*Finding {
	l.line++
	l.row = runlog.Row{Line: l.line, Form: runlog.JSON, Raw: true, Fields: append(l.row.Fields[:0], runlog.Field{Value: float64(step)})}
	urgent := false
	for _, v := range values {
		if v.Name == "step" {
			continue
		}
		i, ok := l.index[v.Name]
		if !ok {
			i = len(l.names)
			l.index[v.Name] = i
			l.names = append(l.names, v.Name)
		}
		urgent = urgent || math.IsNaN(v.Value) || math.IsInf(v.Value, 0)
		l.row.Fields = append(l.row.Fields, runlog.Field{Name: i, Value: v.Value})
	}
	l.watch.Add(&l.row, l.names)
	const trends = 50            // lines before which no trend is told of a run that has just begun
	const often, seldom = 32, 16 // every line at first, then one of some: the rules look at the whole run
	if l.line > often && l.line%seldom != 0 && !urgent {
		return nil
	}
	var list []*Finding
	for _, f := range l.watch.Findings() {
		if f.Severity == Note || f.Step < 0 || l.said[f.ID] || f.Kind == Trend && l.line < trends {
			continue
		}
		l.said[f.ID] = true
		for _, u := range f.Under {
			l.said[u.ID] = true
		}
		list = append(list, f)
	}
	return list
}
