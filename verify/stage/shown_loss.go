package stage

import (
	"math"
	"plumbline/internal/format/dump"
	"slices"
)

// ShownBounds returns the bounds that the ratios of token losses stop at, whichever formula has them: where none of a program does, that of a bug may. It
// proposes only. Beside a KL the losses give its coefficient where the ratio is not held, and the bounds behind it. A clip may act on few tokens of a step, so that several give it together: under the options of the first.
func ShownBounds(ch *Check, steps []Step) (shown [][]Change) {
	if ch.ID != "token_loss/policy" && ch.ID != "gradient/dlogp" || len(steps) == 0 || slices.ContainsFunc(steps, func(s Step) bool {
		return s.B.Token("token_loss") == nil || s.B.Token("logp_old") == nil && s.B.Token("logp_gen") == nil
	}) {
		return nil
	}
	var start []assign
	if steps[0].B.Token("logp_old") == nil {
		start = []assign{word("ratio.old", "engine")}
	}
	s := &solver{ch: Find("token_loss/policy"), steps: steps}
	type proposal struct {
		list []assign
		odd  int // cells that it does not explain
	}
	var found []proposal
	for _, level := range []string{"token", "seq_mean"} {
		for _, place := range klPlaces(steps[0].B) {
			base := append([]assign{word("ratio.level", level)}, start...)
			for _, estimate := range s.likeliest(base, klEstimates(steps[0].B, place), place) {
				base := append(slices.Clone(base), estimate...)
				cells := s.lossCells(base, place != "")
				for _, scored := range []bool{false, true} { // −A·ρ, and −A·ρ·logp_new of loss.kind cispo
					by := func(c *lossCell) float64 { return c.adv }
					list := base
					if scored {
						by = func(c *lossCell) float64 { return c.adv * c.lp }
						list = append(slices.Clone(base), word("loss.kind", "cispo"), word("clip.high_is_absolute", "false"))
					}
					betas := s.betas(cells, place, func(c *lossCell) float64 { return -by(c) * c.rho })
					for _, beta := range append(betaOfDropped(cells, place), betas...) {
						for _, signed := range []bool{true, false} { // the smaller of two terms stops at the bounds where the larger one does not
							if signed && scored {
								continue
							}
							v := bounds(cells, signed, func(c *lossCell) (x, e float64) {
								x, e = c.rest(beta, place)
								return -x / by(c), e / math.Abs(by(c))
							})
							if v.low.n+v.high.n+v.dual.n == 0 {
								continue
							}
							kept := leftOut(cells, beta, place, v.dropped)[0]
							found = append(found, proposal{withBeta(slices.Concat(list, v.numbers(), kept), place, beta), v.odd})
						}
					}
				}
			}
		}
	}
	slices.SortStableFunc(found, func(a, b proposal) int { return a.odd - b.odd })
	var lists [][]assign
	for _, p := range found {
		lists = append(lists, p.list)
	}
	return openOf(lists, steps[0].Set)
}

// betaOfDropped returns the coefficient of the KL term where many tokens have nothing else in their loss, as those that are left out of the policy term.
func betaOfDropped(cells []lossCell, place string) []float64 {
	const share = 10
	var x []float64
	for i := range cells {
		if c := &cells[i]; c.k != 0 && place == "outside" {
			x = append(x, c.loss/c.k)
		}
	}
	if beta, n := commonest(x); n > len(cells)/share && beta > 0 {
		return []float64{written(beta, 1e-3)}
	}
	return nil
}

// numbers are the first of the bounds that were read off. Ratios that are all raised to a number above 1 are held by the upper bound on the wrong side.
func (v shown) numbers() (list []assign) {
	low, high := v.low, v.high
	if x := low.candidates(); low.n > 0 && high.n == 0 && len(x) > 0 && x[0] > 1 {
		low, high = high, low
	}
	for _, of := range [][]assign{numbers("clip.low", low.of(1, -1)), numbers("clip.high", high.of(-1, 1)), numbers("clip.dual", v.dual)} {
		if len(of) > 0 {
			list = append(list, of[0])
		}
	}
	return list
}

// ShownTogether returns what the gradients of several steps give together of the options of ch, as [Shown] does of one: a bound lies in an interval that the
// tokens of a step leave open, and in all of theirs.
func ShownTogether(ch *Check, steps []Step) [][]Change {
	if len(steps) < 2 {
		return nil
	}
	list := make([]*dump.Batch, len(steps))
	for i, s := range steps {
		list[i] = s.B
	}
	var lists [][]assign
	switch {
	case ch.ID == "aggregate/value_loss" || ch.ID == "gradient/dvalues":
		b := dump.Join(list...)
		lists = valueClips(b, steps[0].Set, valueForms[0])
	case ch.ID == "gradient/dlogp" && steps[0].B.Token("token_loss") == nil || TellsByGradient(ch, steps[0].B):
		b := dump.Join(list...)
		lists = append(gradientWeights(b), gradientClips(b, nil, nil))
		for _, kl := range klSlopes(b) {
			lists = append(lists, append(kl.list, gradientClips(b, &kl, nil)...))
		}
	}
	return openOf(lists, steps[0].Set)
}
