package fault

import (
	"fmt"
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/reference/rl"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// rewardSpans are the rows whose token rewards, or scores, are normalised together.
var rewardSpans = []struct {
	title string
	of    func(b *dump.Batch, row int) (key float64, ok bool)
}{
	{"of all rows", func(*dump.Batch, int) (float64, bool) { return 0, true }},
	{"of every group", againScopes[1].of}, {"of every micro-batch", againScopes[2].of}, {"of every rank", againScopes[3].of},
	{"of every row", func(_ *dump.Batch, row int) (float64, bool) { return float64(row), true }},
}

// spanRows returns the rows of each span, nil where the batch has none of that kind.
func spanRows(b *dump.Batch, of func(b *dump.Batch, row int) (float64, bool)) [][]int {
	at := map[float64]int{}
	var sets [][]int
	for r := range b.Rows {
		key, ok := of(b, r)
		if !ok {
			return nil
		}
		if _, known := at[key]; !known {
			at[key] = len(sets)
			sets = append(sets, nil)
		}
		sets[at[key]] = append(sets[at[key]], r)
	}
	return sets
}

// whiteningCells are the cells whose moments rewards may be whitened with.
var whiteningCells = []string{"the tokens of the response", "the tokens of the response and the one behind them", "all cells, padding included"}

// whiteCells returns the mask of one of [whiteningCells].
func whiteCells(b *dump.Batch, cells string) []bool {
	switch cells {
	case whiteningCells[0]:
		return b.Mask
	case whiteningCells[1]:
		return rl.LengthMask(nil, b.Mask, b.Rows, b.Cols, 1)
	}
	count := make([]bool, len(b.Mask))
	for i := range count {
		own := b.Origin[i/b.Cols].Cols
		count[i] = own == 0 || i%b.Cols < own
	}
	return count
}

// rewardWhiteEdits returns edits of token rewards that are whitened over another set of cells than declared, or whose scores are normalised before they
// stand there.
func rewardWhiteEdits(o *stage.Outcome) []edit {
	if o.Check.ID != "reward/token" {
		return nil
	}
	var list []edit
	for _, f := range []struct {
		words, spread string
		centred       bool
	}{
		{"less their mean, over their deviation with n − 1", "std1", true}, {"less their mean, over their deviation with n", "std0", true}, {"less their mean", "none", true},
		{"over their deviation with n − 1", "std1", false}, {"over their deviation with n", "std0", false}, {"over their largest magnitude", "max", false},
	} {
		for _, span := range rewardSpans[:4] {
			for _, eps := range []float64{0, 1e-6, 1e-4} {
				if f.spread == "none" && eps != 0 {
					continue
				}
				title := fmt.Sprintf("the scores %s are normalised before they stand in the token rewards: %s", span.title, f.words)
				if eps != 0 {
					title += fmt.Sprintf(" + %g", eps)
				}
				in := normalisedScores(span.of, f.spread, f.centred, eps)
				list = append(list, edit{id: "SCORE-NORMALISED", title: title, changes: 1, own: true,
					predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction { return roughly(under(in, c, ch)) }})
			}
		}
	}
	bases := [][]stage.Change{nil}
	undeclared := o.Case.EnumOr("rewards.whiten", "no") == "no"
	for _, span := range rewardSpans[:4] {
		for _, cells := range whiteningCells {
			if !undeclared {
				list = append(list, edit{id: "WHITEN-FORM", title: "token rewards are whitened by the root of their second moment, not by their deviation: of " + cells + ", " + span.title, changes: 1, foreign: true,
					predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
						return whitenedRewards(span.of, cells, true, c, ch)
					}})
			}
		}
	}
	if undeclared {
		bases = whitenedBeside(o, func(option string) bool { return o.Case.Set.Value(option).Kind() == convention.Unknown })
	}
	for _, changes := range bases {
		for _, span := range rewardSpans {
			for k, cells := range whiteningCells {
				if undeclared && k == 0 {
					continue // a search tries these
				}
				id := "WHITEN-SCOPE"
				if span.title == rewardSpans[0].title {
					id = "WHITEN-PADS"
				}
				list = append(list, edit{id: id, title: "token rewards are whitened with the moments of other cells: " + cells + ", " + span.title, changes: 1,
					predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
						set := c.Set
						for _, x := range changes {
							set = set.With(x.Option, x.To, "hypothesis")
						}
						return whitenedRewards(span.of, cells, false, c.Of(c.B, set), ch)
					}})
			}
		}
	}
	return list
}

// normalisedScores returns the input whose scores are (s − m)/(spread + eps) over the rows of a span.
func normalisedScores(span func(b *dump.Batch, row int) (float64, bool), spread string, centred bool, eps float64) input {
	return func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
		s := c.B.Row("scores")
		sets := spanRows(c.B, span)
		if len(s) != c.B.Rows || sets == nil {
			return nil, nil, false
		}
		y := slices.Clone(s)
		for _, rows := range sets {
			by, m := 1.0, 0.0
			if spread != "none" {
				by = spreadOf(spread, s, rows) + eps
			}
			if centred {
				m = centreOf("mean", s, rows, rows[0])
			}
			if len(rows) < 2 || !(by > 0) || math.IsInf(by, 0) {
				return nil, nil, false
			}
			for _, r := range rows {
				y[r] = (s[r] - m) / by
			}
		}
		return c.B.With("scores", y), c.Set, true
	}
}

// whitenedRewards predicts token rewards that are whitened as declared, with mean and deviation of other cells; or with the second moment about 0 for the variance,
// which makes the differences from the mean smaller by the root of their ratio.
func whitenedRewards(span func(b *dump.Batch, row int) (float64, bool), cells string, moment bool, c *stage.Case, ch *stage.Check) *stage.Prediction {
	b := c.B
	p, raw, sets := under(sameInput, c, ch), under(option("rewards.whiten", "no"), c, ch), spanRows(b, span)
	place, err := rl.ParseEpsPlace(c.Set.Value("whiten.eps_place").String())
	if p == nil || raw == nil || err != nil || sets == nil || b.Cols == 0 || len(p.Want) != len(b.Mask) || len(raw.Want) != len(b.Mask) {
		return nil
	}
	count := whiteCells(b, cells)
	o := rl.WhitenOptions{Scope: rl.ScopeGlobal, Shift: rl.ShiftFalseAddBack, EpsPlace: place, Eps: max(numberOr(c, "whiten.eps", 1e-8), 0)}
	o.Var.DDof, o.Var.Mean.Outside = int(numberOr(c, "whiten.ddof", 0)), rl.OutsideIgnore
	q := altered(p)
	for _, rows := range sets {
		var x, own []float64
		var mask []bool
		var size, e float64
		var at []int
		for _, r := range rows {
			for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
				if x, mask = append(x, raw.Want[i]), append(mask, count[i]); count[i] {
					at, own = append(at, len(own)), append(own, raw.Want[i])
					size, e = max(size, math.Abs(raw.Want[i])), max(e, raw.Bound[i])
				}
			}
		}
		if len(own) < 2 {
			return nil
		}
		s := spreadOf("std0", own, at)
		y, fail := rl.Whiten(nil, x, mask, len(rows), b.Cols, o)
		if fail != nil || !(s > 0) {
			return nil
		}
		if m := meanOf(own); moment {
			by := s / math.Sqrt(float64(s*s)+float64(m*m))
			for k, x := range y {
				y[k] = m + (x-m)*by
			}
		}
		for k, r := range rows {
			for t := range b.Cols {
				if i := r*b.Cols + t; p.Judge != nil && p.Judge[i] || p.Want[i] != 0 || b.Mask[i] { // what is set to 0 behind a response stays so
					q.Want[i] = y[k*b.Cols+t]
					q.Bound[i] = (2*e+64*c.Unit*size)/s*(1+math.Abs(q.Want[i])) + 8*c.Unit*math.Abs(q.Want[i]) + 4*c.Unit*size
				}
			}
		}
	}
	return q
}

// weightPatterns returns edits of a weighted sum of rewards that has some of the functions only.
func weightPatterns(o *stage.Outcome) []edit {
	const most = 16 // functions
	t := o.Case.B.Tensors["rewards_per_func"]
	if o.Check.ID != "reward/scores" || t == nil || t.Width < 2 || t.Width > most {
		return nil
	}
	var list []edit
	add := func(title string, of func(w []float64) []float64) {
		list = append(list, edit{id: "REWARD-WEIGHTS", title: title, changes: 1,
			predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction { return under(reweighted(of), c, ch) }})
	}
	one := func(float64) float64 { return 1 }
	for k := range t.Width {
		put := func(y, w []float64, value func(w float64) float64) []float64 {
			if k < len(w) {
				y[k] = value(w[k])
			}
			return y
		}
		only := func(value func(w float64) float64) func(w []float64) []float64 {
			return func(w []float64) []float64 { return put(make([]float64, len(w)), w, value) }
		}
		with := func(value func(w float64) float64) func(w []float64) []float64 {
			return func(w []float64) []float64 { return put(slices.Clone(w), w, value) }
		}
		add(fmt.Sprintf("the score is that of reward function %d alone, without its weight", k+1), only(one))
		add(fmt.Sprintf("the score is that of reward function %d alone, times its weight", k+1), only(func(w float64) float64 { return w }))
		add(fmt.Sprintf("reward function %d is left out of the score", k+1), with(func(float64) float64 { return 0 }))
		add(fmt.Sprintf("reward function %d has the weight 1", k+1), with(one))
		add(fmt.Sprintf("reward function %d has its weight with the wrong sign", k+1), with(func(w float64) float64 { return -w }))
	}
	return list
}
