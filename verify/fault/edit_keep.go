package fault

import (
	"math"
	"slices"

	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// keepForm says which tokens a loss leaves out where it should leave out others: of rows that went too far, or of tokens of low entropy.
type keepForm struct {
	id, title string
	option    string                            // that says which are left out
	keep      func(c *stage.Case) (keep []bool) // nil: cannot be told
}

// keepForms are the ways in which programs leave out others than loss.off_policy_max says, rows with A < 0 whose mean of gen − new is above it
// (TRL 1.16 get_off_policy_mask), or than loss.top_entropy says, tokens whose entropy is below the quantile (get_high_entropy_mask).
func keepForms() []keepForm {
	var list []keepForm
	far := func(title string, from string, gap func(d []float64, n float64) float64, drops func(adv, gap, limit float64) bool) {
		list = append(list, keepForm{id: "OFF-POLICY-FORM", title: "rows that went too far are left out by another rule: " + title, option: "loss.off_policy_max",
			keep: func(c *stage.Case) []bool { return nearRows(c, from, gap, drops) }})
	}
	mean := func(d []float64, n float64) float64 { return total(d) / max(n, 1) }
	right := func(adv, gap, limit float64) bool { return adv < 0 && gap > limit }
	far("those with A > 0, not those with A < 0", "", mean, func(adv, gap, limit float64) bool { return adv > 0 && gap > limit })
	far("whatever the sign of A", "", mean, func(_, gap, limit float64) bool { return gap > limit })
	far("those with A ≤ 0, or those of which nothing is known", "", mean, func(adv, gap, limit float64) bool { return adv <= 0 && gap > limit })
	far("the difference is taken the other way, new − old", "", mean, func(adv, gap, limit float64) bool { return adv < 0 && -gap > limit })
	far("of the magnitude of the difference", "", mean, func(adv, gap, limit float64) bool { return adv < 0 && math.Abs(gap) > limit })
	far("those that are near, not those that are far", "", mean, func(adv, gap, limit float64) bool { return adv < 0 && gap <= limit })
	far("the limit has the wrong sign", "", mean, func(adv, gap, limit float64) bool { return adv < 0 && gap > -limit })
	far("the sum of the differences, not their mean", "", func(d []float64, _ float64) float64 { return total(d) }, right)
	far("the mean of the magnitudes", "", func(d []float64, n float64) float64 { return mean(mapped(d, math.Abs), n) }, right)
	far("the largest difference of a token, not the mean", "", func(d []float64, _ float64) float64 {
		if len(d) == 0 {
			return 0
		}
		return slices.Max(d)
	}, right)
	far("the old policy's log-probs are read where the engine's should be", "logp_old", mean, right)
	list = append(list,
		keepForm{"OFF-POLICY-FORM", "rows that went too far are left out by another rule: of the mean over the micro-batch, not of each row", "loss.off_policy_max", nearOfFile},
		keepForm{"OFF-POLICY-FORM", "tokens that went too far are left out, not rows: of the difference of each token", "loss.off_policy_max", nearTokens})
	for _, f := range []struct {
		title string
		keep  func(h float64, below func(q float64) float64, top float64) bool
	}{
		{"those below the quantile are trained on", func(h float64, at func(float64) float64, top float64) bool { return h <= at(1-top) }},
		{"the tokens of the lowest entropy are trained on", func(h float64, at func(float64) float64, top float64) bool { return h <= at(top) }},
		{"the share that is kept is left out: 1 − loss.top_entropy of the tokens are trained on", func(h float64, at func(float64) float64, top float64) bool { return h >= at(top) }},
	} {
		for _, byRow := range []bool{false, true} {
			title := f.title
			if byRow {
				title += ", by the quantile of each row"
			}
			list = append(list, keepForm{"TOP-ENTROPY-QUANTILE", "tokens are chosen by their entropy in another way: " + title, "loss.top_entropy", func(c *stage.Case) []bool {
				return byEntropy(c, byRow, f.keep)
			}})
		}
	}
	list = append(list, keepForm{"TOP-ENTROPY-QUANTILE", "tokens are chosen by their entropy in another way: the quantile is over all columns, with 0 for the entropy of padding", "loss.top_entropy", func(c *stage.Case) []bool {
		return byEntropyOf(c, false, true, func(h float64, at func(float64) float64, top float64) bool { return h >= at(1-top) })
	}})
	list = append(list, keepForm{"TOP-ENTROPY-QUANTILE", "tokens are chosen by their entropy in another way: by the quantile of each row", "loss.top_entropy", func(c *stage.Case) []bool {
		return byEntropy(c, true, func(h float64, at func(float64) float64, top float64) bool { return h >= at(1-top) })
	}})
	return list
}

func total(x []float64) (sum float64) {
	for _, v := range x {
		sum += v
	}
	return sum
}

// keepEdits returns edits of what a loss leaves out.
func keepEdits(o *stage.Outcome) []edit {
	if !policyOutput(o) || weighsBesides(o.Case) {
		return nil
	}
	var list []edit
	for _, f := range keepForms() {
		if o.Case.Set.Value(f.option).Kind() != convention.Number {
			continue
		}
		list = append(list, edit{id: f.id, title: f.title, changes: 1, foreign: true, predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			adv, keep := c.Optional("advantages").X, f.keep(c)
			if len(adv) != len(c.B.Mask) || len(keep) != len(adv) {
				return nil
			}
			kept := make([]float64, len(adv))
			for i, k := range keep {
				if k {
					kept[i] = adv[i]
				}
			}
			return combined(1, policyOnly(both(perToken("advantages", kept), option(f.option, "none")), c, ch), 1, klOnly(c, ch))
		}})
	}
	return list
}

// gaps returns the differences gen − new of the tokens of a row, with the tensor that another one is read from; nil where there is none.
func gaps(c *stage.Case, from string) []float64 {
	lp := c.B.Token("logp_new")
	if from == "" {
		if from = "logp_old"; c.Has("logp_gen") {
			from = "logp_gen"
		}
	} else if !c.Has("logp_gen") {
		return nil // it is the one that is read
	}
	x := c.B.Token(from)
	if lp == nil || len(x) != len(lp) {
		return nil
	}
	d := make([]float64, len(lp))
	for i := range d {
		if d[i] = x[i] - lp[i]; math.IsNaN(d[i]) {
			d[i] = 0
		}
	}
	return d
}

// nearRows returns the tokens of the rows that are not dropped.
func nearRows(c *stage.Case, from string, gap func(d []float64, n float64) float64, drops func(adv, gap, limit float64) bool) []bool {
	d, adv, limit := gaps(c, from), c.Optional("advantages").X, c.Set.Value("loss.off_policy_max").Num()
	if d == nil || len(adv) != len(d) {
		return nil
	}
	keep := make([]bool, len(d))
	for r := range c.B.Rows {
		var own []float64
		for i := range c.B.TokensOf(r) {
			own = append(own, d[i])
		}
		g := gap(own, float64(len(own)))
		for i := r * c.B.Cols; i < (r+1)*c.B.Cols; i++ {
			keep[i] = !drops(adv[i], g, limit)
		}
	}
	return keep
}

// nearOfFile is nearRows with one mean of every micro-batch.
func nearOfFile(c *stage.Case) []bool {
	d, adv, limit := gaps(c, ""), c.Optional("advantages").X, c.Set.Value("loss.off_policy_max").Num()
	if d == nil || len(adv) != len(d) {
		return nil
	}
	keep := make([]bool, len(d))
	for _, f := range c.B.Files {
		var sum, n float64
		for i := range c.B.TokensIn(f.Lo, f.Hi) {
			sum, n = sum+d[i], n+1
		}
		for i := f.Lo * c.B.Cols; i < f.Hi*c.B.Cols; i++ {
			keep[i] = !(adv[i] < 0 && sum/max(n, 1) > limit)
		}
	}
	return keep
}

// nearTokens drops tokens, each by its own difference.
func nearTokens(c *stage.Case) []bool {
	d, adv, limit := gaps(c, ""), c.Optional("advantages").X, c.Set.Value("loss.off_policy_max").Num()
	if d == nil || len(adv) != len(d) {
		return nil
	}
	keep := make([]bool, len(d))
	for i := range keep {
		keep[i] = !(adv[i] < 0 && d[i] > limit)
	}
	return keep
}

// byEntropy keeps tokens by their entropy h and the quantiles of the entropies of a micro-batch, that of all ranks, or of a row, which at interpolates
// (torch.quantile@2.15.0).
func byEntropy(c *stage.Case, byRow bool, keeps func(h float64, at func(q float64) float64, top float64) bool) []bool {
	return byEntropyOf(c, byRow, false, keeps)
}

// byEntropyOf is byEntropy where the columns outside the mask may count, with an entropy of 0.
func byEntropyOf(c *stage.Case, byRow, padded bool, keeps func(h float64, at func(q float64) float64, top float64) bool) []bool {
	b, h, top := c.B, c.B.Token("entropy"), c.Set.Value("loss.top_entropy").Num()
	if h == nil || b.Cols == 0 || !(top > 0 && top < 1) {
		return nil
	}
	keep := make([]bool, len(h))
	choose := func(rows [][2]int) {
		var x []float64
		for _, r := range rows {
			for i := r[0] * b.Cols; i < r[1]*b.Cols; i++ {
				switch {
				case b.Mask[i]:
					x = append(x, h[i])
				case padded && i%b.Cols < width(b, i/b.Cols):
					x = append(x, 0)
				}
			}
		}
		if len(x) == 0 {
			return
		}
		slices.Sort(x)
		at := func(q float64) float64 {
			rank := float64(float32(q) * float32(len(x)-1))
			k := min(int(rank), len(x)-1)
			return x[k] + (rank-float64(k))*(x[min(k+1, len(x)-1)]-x[k])
		}
		for _, r := range rows {
			for i := r[0] * b.Cols; i < r[1]*b.Cols; i++ {
				keep[i] = keeps(h[i], at, top)
			}
		}
	}
	if byRow {
		for r := range b.Rows {
			choose([][2]int{{r, r + 1}})
		}
		return keep
	}
	done := map[int]bool{}
	for _, first := range b.Files {
		if done[first.MicroBatch] {
			continue
		}
		done[first.MicroBatch] = true
		var rows [][2]int
		for _, f := range b.Files {
			if f.MicroBatch == first.MicroBatch {
				rows = append(rows, [2]int{f.Lo, f.Hi})
			}
		}
		choose(rows)
	}
	return keep
}
