package dump

import (
	"context"
	"fmt"
	"math"
	"slices"

	"plumbline/verify/check"
	"plumbline/verify/stage"
)

// Limits of what is drawn.
const (
	mostHeats   = 3
	mostScatter = 400 // elements of one output
)

// pictures are the grid of stages and steps, and for each failure that is a number for each token a heat map and its numbers against the
// right ones; where nothing failed, those of the output that is nearest to its limit.
func (s *session) pictures(ctx context.Context, r *Report) (*check.Pictures, error) {
	p := &check.Pictures{Grid: s.grid(r)}
	drawn := map[string]bool{}
	for _, f := range r.Brief.Findings {
		if f.Verdict != check.Fail && f.Verdict != check.Convention {
			continue
		}
		of := false
		for _, id := range f.Seen {
			t := s.trackOf(id)
			if t == nil || t.first == nil || drawn[id] || len(p.Heats) == mostHeats {
				continue
			}
			if h, ok := s.heat(t.first); ok && !of {
				p.Heats = append(p.Heats, h)
				of, drawn[id] = true, true
			}
			if c, ok := scatter(t.first, predicted(t)); ok && len(p.Charts) < 2*mostHeats {
				p.Charts = append(p.Charts, c)
			}
		}
	}
	if len(p.Heats) > 0 || slices.ContainsFunc(r.Brief.Findings, func(f check.Finding) bool { return f.Verdict == check.Fail }) {
		return p, nil
	}
	var nearest *track
	for _, t := range s.tracks {
		if t.silent || t.worst == nil || t.worst.Tally == nil || t.check.Predict == nil || !t.exercised || !perToken(t.worst) {
			continue
		}
		if nearest == nil || ratio(t.worst) > ratio(nearest.worst) {
			nearest = t
		}
	}
	if nearest == nil {
		return p, nil
	}
	u, err := s.unit(ctx, nearest, nearest.worstStep)
	if err != nil {
		return nil, err
	}
	set := u.set
	if nearest.searched && len(nearest.fits) > 0 {
		set = changed(set, nearest.fits[0].Changes)
	}
	o := stage.Judge(nearest.check, u.b, set)
	if h, ok := s.heat(o); ok {
		h.Title += " (of all that agrees, the nearest to its limit)"
		p.Heats = append(p.Heats, h)
	}
	if c, ok := scatter(o, nil); ok {
		p.Charts = append(p.Charts, c)
	}
	return p, nil
}

func (s *session) trackOf(id string) *track {
	for _, t := range s.tracks {
		if t.check.ID == id && !t.silent {
			return t
		}
	}
	return nil
}

// grid is the worst verdict of the checks of a stage in each step. What is wrong there has the verdict of the check's result, which may
// be CONVENTION or WARN.
func (s *session) grid(r *Report) *check.Grid {
	g := &check.Grid{Steps: slices.Clone(s.steps)}
	at := map[int]int{}
	for i, step := range g.Steps {
		at[step] = i
	}
	order := []check.Verdict{0, check.Untested, check.Pass, check.Warn, check.Undetermined, check.Convention, check.Fail}
	for _, p := range pipeline {
		row := make([]check.Verdict, len(g.Steps))
		put := func(t *track, step int, v check.Verdict) {
			from, n := at[step], max(1, t.spans[step])
			for i := from; i < min(from+n, len(row)); i++ {
				if slices.Index(order, v) > slices.Index(order, row[i]) {
					row[i] = v
				}
			}
		}
		for _, t := range s.tracks {
			if t.silent || !slices.Contains(p.groups, groupOf(t.check.ID)) || isAcross(t.check) {
				continue
			}
			i := slices.IndexFunc(r.Results, func(res check.Result) bool { return res.Check == t.check.ID })
			if i < 0 {
				continue
			}
			result := r.Results[i].Verdict
			bad := check.Fail
			if result == check.Convention || result == check.Warn {
				bad = result
			}
			pass := check.Pass
			if result == check.Untested || result == check.NotSeen || isFormal(t.check.ID) && p.name != "masks" {
				pass = check.Untested
			}
			for _, step := range t.starts {
				switch {
				case slices.Contains(t.failing, step):
					put(t, step, bad)
				case slices.Contains(t.undecided, step) && result != check.NotSeen:
					put(t, step, check.Undetermined)
				case slices.Contains(t.warned, step):
					put(t, step, check.Warn)
				default:
					put(t, step, pass)
				}
			}
		}
		g.Stages, g.Verdicts = append(g.Stages, p.name), append(g.Verdicts, row)
	}
	return g
}

// perToken reports whether an output has a number for each token.
func perToken(o *stage.Outcome) bool {
	t := o.Case.B.Rows * o.Case.B.Cols
	return o.Case.B.Cols > 1 && !perFile(o.Check.Output) && (o.Got == nil || len(o.Got) == t)
}

// element returns the numbers of element i as [stage.Judge] compares them: of two that are right the nearer one.
func element(o *stage.Outcome, i int) (got, right, share float64, judged bool) {
	p := o.Pred
	got, right = o.Got[i], p.Want[i]
	limit := o.Limit(i)
	if p.Alt != nil && !math.IsNaN(p.Alt[i]) && math.Abs(got-p.Alt[i]) < math.Abs(got-right) {
		right = p.Alt[i]
	}
	judged = true
	switch b := o.Case.B; {
	case p.Judge != nil:
		judged = p.Judge[i]
	case len(b.Mask) == len(o.Got):
		judged = b.Mask[i]
	}
	share = math.Abs(got-right) / limit
	if got == right || math.IsNaN(got) && math.IsNaN(right) {
		share = 0
	}
	return got, right, share, judged
}

// heat is the map of an outcome that has a number for each token.
func (s *session) heat(o *stage.Outcome) (check.Heat, bool) {
	b := o.Case.B
	if o.Pred == nil || !perToken(o) || len(o.Got) != b.Rows*b.Cols {
		return check.Heat{}, false
	}
	h := check.Heat{Title: fmt.Sprintf("%s, step %d", o.Check.ID, b.Meta.Step)}
	for row := range b.Rows {
		org := b.Origin[row]
		r := check.HeatRow{Name: fmt.Sprintf("row %d", org.Row)}
		if len(b.Files) > 1 {
			f := b.Files[org.File]
			r.Name = fmt.Sprintf("micro-batch %d, row %d", f.MicroBatch, org.Row)
			if b.Meta.WorldSize > 1 {
				r.Name = fmt.Sprintf("rank %d, ", f.Rank) + r.Name
			}
		}
		cols := b.Cols
		if org.Cols > 0 {
			cols = min(cols, org.Cols)
		}
		for col := range cols {
			i := row*b.Cols + col
			c := check.Cell{Place: fmt.Sprintf("token %d", org.Col+col), Masked: !b.Mask[i]}
			c.Got, c.Right, c.Ratio, c.Judged = element(o, i)
			if id, ok := b.TokenID(row, col); ok && !s.o.Redact {
				c.Text = fmt.Sprint(id)
				if s.o.Text != nil {
					c.Text = s.o.Text(id)
				}
			}
			r.Cells = append(r.Cells, c)
		}
		h.Rows = append(h.Rows, r)
	}
	return h, true
}

// predicted returns what the explanation of a failure predicts, nil if there is none that does.
func predicted(t *track) []float64 {
	switch {
	case len(t.why.fits) > 0 && t.why.fits[0].Outcome != nil && t.why.fits[0].Outcome.Pred != nil:
		return t.why.fits[0].Outcome.Pred.Want
	case len(t.why.faults) > 0 && !t.why.faults[0].Lead && t.why.faults[0].Outcome != nil && t.why.faults[0].Outcome.Pred != nil:
		return t.why.faults[0].Outcome.Pred.Want
	}
	return nil
}

// scatter is what was dumped against what is right, and what the explanation gives: where rings lie around the points, it explains them.
func scatter(o *stage.Outcome, why []float64) (check.Chart, bool) {
	if o.Pred == nil || len(o.Got) != len(o.Pred.Want) {
		return check.Chart{}, false
	}
	var some []int
	for i := range o.Got {
		if _, _, _, judged := element(o, i); judged {
			some = append(some, i)
		}
	}
	if len(some) < 2 {
		return check.Chart{}, false
	}
	every := (len(some) + mostScatter - 1) / mostScatter
	got, ring := check.Series{Name: "got", Kind: check.Points}, check.Series{Name: "by the explanation", Kind: check.Rings}
	for k, i := range some {
		if k%every != 0 && i != o.Tally.Worst.Index {
			continue
		}
		out, right, _, _ := element(o, i)
		got.X, got.Y = append(got.X, right), append(got.Y, out)
		if len(why) == len(o.Got) {
			ring.X, ring.Y = append(ring.X, right), append(ring.Y, why[i])
		}
	}
	c := check.Chart{Title: fmt.Sprintf("%s, step %d: got against right", o.Check.ID, o.Case.B.Meta.Step), X: "right", Y: "got", Diagonal: true, Series: []check.Series{got}}
	if ring.X != nil {
		c.Series = append(c.Series, ring)
	}
	return c, true
}
