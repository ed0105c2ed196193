package fault

import (
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// sequenceFaults are bugs of ratios that are taken over a whole sequence.
var sequenceFaults = []*Hypothesis{
	{ID: "RATIO-SUM-FOR-MEAN", Checks: ratioed,
		Input: func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
			if !overSequence(c) {
				return nil, nil, false
			}
			set := c.Set.With("ratio.level", parsed("ratio.level", "seq_sum"), "hypothesis")
			if v := set.Value("loss.kind"); v.Kind() == convention.Enum && v.Text() == "gspo" { // which is that of the mean by name
				set = set.With("loss.kind", parsed("loss.kind", "ppo"), "hypothesis")
			}
			return c.B, set, true
		}},
	{ID: "RATIO-LEVEL", Checks: policyOutputs,
		Title:   "the weight of a response is that of the mean of its log-ratios, not of their sum",
		Predict: ofVESPO(nearerBy(func(_ *stage.Case, _ int, n float64) float64 { return n }))},
	{ID: "RATIO-LEVEL", Checks: policyOutputs,
		Title:   "the weight of a response is that of the mean of its log-ratios over all columns, not of their sum",
		Predict: ofVESPO(nearerBy(func(c *stage.Case, row int, _ float64) float64 { return float64(width(c.B, row)) }))},
	{ID: "RATIO-MEAN-PADS", Checks: policyOutputs, Predict: overPadding},
	{ID: "RATIO-MEAN-PADS", Checks: policyOutputs,
		Title:   "the log-ratios of padding are in the sum of a sequence, which its tokens divide",
		Predict: withPadding(func(n, _ float64) float64 { return n })},
	{ID: "RATIO-MEAN-PADS", Checks: policyOutputs,
		Title:   "the mean log-ratio of a sequence is that of all columns, with the log-ratios that padding has",
		Predict: withPadding(func(_, cols float64) float64 { return cols })},
	{ID: "RATIO-GRAD-PER-TOKEN", Checks: []string{"gradient/dlogp"},
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			if !overSequence(c) || c.Set.Value("ratio.grad").String() == "token" {
				return nil
			}
			p, kl := policyOnly(sameInput, c, ch), klOnly(c, ch)
			if p == nil || kl == nil || len(p.Want) != len(c.B.Mask) {
				return nil
			}
			q := altered(p)
			for r := range c.B.Rows {
				lo, hi := r*c.B.Cols, (r+1)*c.B.Cols
				n := max(count(c.B.Mask[lo:hi]), 1) // of equal shares of the row's gradient one is left
				for i := lo; i < hi; i++ {
					q.Want[i] /= n
					q.Bound[i] /= n
				}
			}
			return combined(1, q, 1, kl)
		}},
	{ID: "RATIO-GRAD-TWICE", Checks: []string{"gradient/dlogp"},
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			if !overSequence(c) {
				return nil
			}
			of := func(path string) *stage.Prediction {
				return policyOnly(func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
					return c.B, c.Set.With("ratio.grad", parsed("ratio.grad", path), "hypothesis"), true
				}, c, ch)
			}
			return combined(1, combined(1, of("row"), 1, of("token")), 1, klOnly(c, ch))
		}},
	{ID: "GSPO-ADV-PADDING", Checks: []string{"token_loss", "aggregate/loss", "aggregate/pg_loss", "gradient/dlogp"},
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			if !overSequence(c) {
				return nil
			}
			return policyTerm(1, token("advantages", paddedMean))(c, ch)
		}},
}

// ofVESPO returns a predictor of the policy term of VESPO, whose weight is one of the sum of log-ratios of a response, under other old log-probs.
func ofVESPO(old func(c *stage.Case, x []float64) []float64) func(*stage.Case, *stage.Check) *stage.Prediction {
	return func(c *stage.Case, ch *stage.Check) *stage.Prediction {
		if v := c.Set.Value("loss.kind"); v.Kind() != convention.Enum || v.Text() != "vespo" {
			return nil
		}
		return policyTerm(1, token("logp_old", old))(c, ch)
	}
}

// width returns the columns of the file of a row.
func width(b *dump.Batch, row int) int {
	if n := b.Files[b.File(row)].Cols; n > 0 {
		return n
	}
	return b.Cols
}

// overPadding predicts an output of a loss whose ratio is that of the mean of the log-ratios over all columns: n/width times the mean over the n tokens,
// with as much of its gradient.
func overPadding(c *stage.Case, ch *stage.Check) *stage.Prediction {
	old := c.B.Token("logp_old")
	if !overSequence(c) || old == nil || len(old) != len(c.B.Token("logp_new")) || ch.Stage == convention.Aggregate && c.Has("token_loss") {
		return nil
	}
	share := tokensOf(c.B, c.B.Mask)
	for r := range share {
		share[r] /= float64(width(c.B, r))
	}
	y := nearerBy(func(_ *stage.Case, r int, _ float64) float64 { return 1 / share[r] })(c, old)
	p, kl := policyOnly(perToken("logp_old", y), c, ch), klOnly(c, ch)
	if p == nil || kl == nil || ch.Stage != convention.Gradient || len(p.Want) != len(old) {
		return combined(1, p, 1, kl)
	}
	return combined(1, timesCells(p, 0, func(i int) float64 { return share[i/c.B.Cols] }), 1, kl)
}

// withPadding predicts an output of a loss whose ratio is that of the sum of the log-ratios of all columns, those of padding as they were dumped, divided
// by a number of their row: one more log-ratio for all tokens of the row, with its share of the gradient.
func withPadding(over func(n, cols float64) float64) func(*stage.Case, *stage.Check) *stage.Prediction {
	return func(c *stage.Case, ch *stage.Check) *stage.Prediction {
		b := c.B
		lp, old := b.Token("logp_new"), b.Token("logp_old")
		if !overSequence(c) || old == nil || len(old) != len(lp) || ch.Stage == convention.Aggregate && c.Has("token_loss") {
			return nil
		}
		y, share, some := slices.Clone(old), make([]float64, b.Rows), false
		for r, n := range tokensOf(b, b.Mask) {
			cols := float64(width(b, r))
			var inside, outside float64
			for t := range int(cols) {
				if i := r*b.Cols + t; b.Mask[i] {
					inside += lp[i] - old[i]
				} else {
					outside += lp[i] - old[i]
				}
			}
			if n == 0 || math.IsNaN(outside) || math.IsInf(outside, 0) {
				continue
			}
			share[r] = n / over(n, cols)
			some = some || outside != 0
			add := (inside+outside)/over(n, cols) - inside/n
			for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
				y[i] -= add
			}
		}
		if !some {
			return nil
		}
		p, kl := policyOnly(perToken("logp_old", y), c, ch), klOnly(c, ch)
		if p == nil || kl == nil || ch.Stage != convention.Gradient || len(p.Want) != len(old) {
			return combined(1, p, 1, kl)
		}
		q := timesCells(p, 0, func(i int) float64 { return share[i/b.Cols] })
		q.Judge = b.Mask
		return combined(1, q, 1, kl)
	}
}

// nearerBy returns old log-probs whose log-ratios are the right ones over a number of their row: the sum of these is that of those, divided.
func nearerBy(count func(c *stage.Case, row int, n float64) float64) func(c *stage.Case, old []float64) []float64 {
	return func(c *stage.Case, old []float64) []float64 {
		lp, w := c.B.Token("logp_new"), c.B.Cols
		if len(lp) != len(old) {
			return nil
		}
		y := make([]float64, len(old))
		for r, n := range tokensOf(c.B, c.B.Mask) {
			for i := r * w; i < (r+1)*w; i++ {
				y[i] = lp[i] - (lp[i]-old[i])/max(count(c, r, n), 1)
			}
		}
		return y
	}
}

// overSequence reports whether the ratio is that of the mean over a sequence.
func overSequence(c *stage.Case) bool {
	v := c.Set.Value("ratio.level")
	return v.Kind() == convention.Enum && v.Text() == "seq_mean"
}

// paddedMean returns the mean of each row's advantages over all of its cells, of which only those in the mask have one.
func paddedMean(c *stage.Case, x []float64) []float64 {
	b, y := c.B, make([]float64, len(x))
	for r := range b.Rows {
		lo, hi := r*b.Cols, (r+1)*b.Cols
		if len(x) == b.Rows {
			y[r] = x[r] * count(b.Mask[lo:hi]) / float64(b.Cols)
			continue
		}
		if len(x) != len(b.Mask) {
			return nil
		}
		var mean float64
		for i := lo; i < hi; i++ {
			if b.Mask[i] {
				mean += x[i] / float64(b.Cols)
			}
		}
		for i := lo; i < hi; i++ {
			y[i] = mean
		}
	}
	return y
}
