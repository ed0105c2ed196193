package fault

import (
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
	{ID: "RATIO-GRAD-PER-TOKEN", Checks: []string{"gradient/dlogp"},
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			if !overSequence(c) || c.Set.Value("ratio.grad").String() == "token" {
				return nil
			}
			p, kl := policyOnly(sameInput, c, ch), klOnly(c, ch)
			if p == nil || kl == nil || len(p.Want) != len(c.B.Mask) {
				return nil
			}
			q := *p
			q.Want, q.Bound, q.Alt = slices.Clone(p.Want), slices.Clone(p.Bound), nil
			for r := range c.B.Rows {
				lo, hi := r*c.B.Cols, (r+1)*c.B.Cols
				n := max(count(c.B.Mask[lo:hi]), 1) // of equal shares of the row's gradient one is left
				for i := lo; i < hi; i++ {
					q.Want[i] /= n
					q.Bound[i] /= n
				}
			}
			return combined(1, &q, 1, kl)
		}},
	{ID: "GSPO-ADV-PADDING", Checks: []string{"token_loss", "aggregate/loss", "aggregate/pg_loss", "gradient/dlogp"},
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			if !overSequence(c) {
				return nil
			}
			return policyTerm(1, token("advantages", paddedMean))(c, ch)
		}},
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
