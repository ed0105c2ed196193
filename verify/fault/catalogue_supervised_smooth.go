package fault

import (
	"math"
	"slices"
	"strconv"

	"plumbline/verify/stage"
)

// smoothing are losses of tokens whose labels are smoothed, (1 − ε)·nll + ε·s with the mean s over the vocabulary of −ln p (transformers.trainer_pt_utils.LabelSmoother@5.23),
// where no smoothing is declared. ε is solved from the output, and written with few digits.
func smoothing() []*Hypothesis {
	return []*Hypothesis{
		{ID: "SFT-SMOOTHING", Checks: []string{"preference/sft_loss"}, Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			s := smooth(c)
			if s == nil {
				return nil
			}
			plain, flat := under(sameInput, c, ch), under(token("logp_new", func(*stage.Case, []float64) []float64 { return s }), c, ch)
			return roughly(mixedByFew(plain, flat, c.B.PerFile(ch.Output)))
		}},
		{ID: "SFT-SMOOTHING", Checks: []string{"token_loss/policy"}, Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			s, plain := smooth(c), under(sameInput, c, ch)
			if s == nil || plain == nil || len(plain.Want) != len(s) {
				return nil
			}
			flat := &stage.Prediction{Want: slices.Clone(plain.Want), Bound: slices.Clone(plain.Bound)}
			for i, x := range s {
				if c.B.Mask[i] {
					flat.Want[i] = -x
				}
			}
			return roughly(mixedByFew(plain, flat, c.B.Token(ch.Output)))
		}},
		{ID: "SFT-SMOOTHING", Checks: []string{"gradient/dlogp"}, Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			if smooth(c) == nil { // of the other term nothing goes through logp_new
				return nil
			}
			plain := under(sameInput, c, ch)
			return roughly(mixedByFew(plain, combined(0, plain, 0, plain), c.B.Token(ch.Output)))
		}},
	}
}

// smooth returns the means over the vocabulary of the log-probs of labels, as they stand in for logp_new; nil where one is not known.
func smooth(c *stage.Case) []float64 {
	if c.B.Meta.Algorithm != "sft" || c.B.Token("logp_new") == nil {
		return nil
	}
	s := c.MeanLogps()
	for i, x := range s {
		if c.B.Mask[i] && math.IsNaN(x) {
			return nil
		}
		if !c.B.Mask[i] {
			s[i] = 0
		}
	}
	return s
}

// mixedByFew returns (1 − ε)·plain + ε·flat with the ε, of two digits at most and below ½, that the output gives where the two differ most.
func mixedByFew(plain, flat *stage.Prediction, got []float64) *stage.Prediction {
	if plain == nil || flat == nil || len(got) != len(plain.Want) || len(got) != len(flat.Want) {
		return nil
	}
	best, most := -1, 0.0
	for i, w := range plain.Want {
		if d := math.Abs(flat.Want[i] - w); (plain.Judge == nil || plain.Judge[i]) && d > most {
			best, most = i, d
		}
	}
	if best < 0 {
		return nil
	}
	e := (got[best] - plain.Want[best]) / (flat.Want[best] - plain.Want[best])
	short, err := strconv.ParseFloat(strconv.FormatFloat(e, 'e', 1, 64), 64)
	if err != nil || !(short > 0) || short >= 0.5 || math.Abs(short-e) > 1e-3*short {
		return nil
	}
	return combined(1-short, plain, short, flat)
}
