package fault

import (
	"math"
	"slices"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
	"plumbline/verify/tol"
)

var engineFaults = []*Hypothesis{
	{ID: "ADV-WRONG-GROUPS", Checks: []string{"advantage"},
		Predict: merged},
	{ID: "EOS-INVERTED", Checks: []string{"reward", "advantage", "gae"},
		Input: inverted},
	{ID: "SCORE-ZERO-MISSING", Checks: []string{"reward", "advantage", "gae"},
		Input: token("scores", func(_ *stage.Case, x []float64) []float64 {
			y := slices.Clone(x)
			for i := range y {
				if y[i] == 0 {
					y[i] = -1
				}
			}
			return y
		})},
	{ID: "KL-AFTER-BASELINE", Checks: []string{"advantage"},
		Predict: afterBaseline},
	{ID: "ADV-ROW-FROM-SPAN", Checks: []string{"advantage", "gae/advantage"},
		Predict: spanned},
	{ID: "GAE-LAST-INDEX", Checks: []string{"gae"},
		Predict: recursion(ofLast("token_rewards", func(c *stage.Case, row, last int, r float64) float64 { return r + discounted(c, row, last+1) }))},
	{ID: "GAE-TRUNCATED-BOOTSTRAP", Checks: []string{"gae"},
		Predict: recursion(ofLast("token_rewards", func(c *stage.Case, row, last int, r float64) float64 {
			if ended(c, row) {
				return r
			}
			return r + discounted(c, row, last)
		}))},
	{ID: "GAE-EOS-VALUE-ZERO", Checks: []string{"gae"},
		Predict: recursion(ofLast("values", func(*stage.Case, int, int, float64) float64 { return 0 }))},
	{ID: "GAE-VALUE-SHIFT", Checks: []string{"gae"},
		Predict: recursion(token("values", func(c *stage.Case, x []float64) []float64 {
			y, w := slices.Clone(x), c.B.Cols
			for r := range c.B.Rows {
				copy(y[r*w:(r+1)*w], x[r*w+1:(r+1)*w])
			}
			return y
		}))},
	{ID: "GAE-NO-LAMBDA", Checks: []string{"gae"},
		Predict: recursion(number("gae.lambda", func(float64) float64 { return 1 }))},
	{ID: "WHITEN-WRONG-AXIS", Checks: []string{"gae/advantage", "advantage"},
		Predict: byColumn},
	{ID: "LOSS-MASK-SHIFT-ABOVE", Checks: []string{"aggregate", "gradient"},
		Predict: numerator(mask(late))},
	{ID: "GRAD-LAST-CHUNK", Checks: []string{"gradient/dlogp"},
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			p := under(sameInput, c, ch)
			last := map[int]int{}
			for f, info := range c.B.Files {
				last[info.Rank] = f
			}
			return scaled(p, c.B, func(f int) float64 {
				if last[c.B.Files[f].Rank] == f {
					return 1
				}
				return 0
			})
		}},
	{ID: "CLIP-DUAL-BOTH-SIGNS", Checks: []string{"token_loss", "gradient/dlogp"},
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			dual, adv := c.Set.Value("clip.dual"), c.Optional("advantages")
			loss := stage.Find("token_loss/policy")
			if dual.Kind() != convention.Number || adv.X == nil || loss == nil {
				return nil
			}
			// With a cap of −A·c every token of A > 0 whose loss is above it is held there: as if its ratio were c, without gradient.
			value := policyOnly(sameInput, c, loss)
			p := policyOnly(sameInput, c, ch)
			if value == nil || p == nil || len(p.Want) != len(adv.X) || len(value.Want) != len(adv.X) {
				return nil
			}
			q := &stage.Prediction{Judge: p.Judge, Scale: p.Scale, Want: slices.Clone(p.Want), Bound: slices.Clone(p.Bound)}
			for i, a := range adv.X {
				if bound := -a * dual.Num(); a > 0 && value.Want[i] > bound {
					q.Want[i] = 0
					if ch.Output == "token_loss" { // a product of its own, whatever the loss rounds to
						q.Want[i], q.Bound[i] = bound, math.Abs(dual.Num())*adv.E(i)+2*(c.Unit+tol.U64)*math.Abs(bound)
					}
				}
			}
			return combined(1, q, 1, klOnly(c, ch))
		}},
	{ID: "AGG-COUNTS-MASKED", Checks: []string{"aggregate", "gradient"},
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			b := c.B
			attention := b.Tensors["attention_mask"]
			if attention == nil || attention.Layout != dump.PerRow || c.Set.Value("agg.kind").Kind() != convention.Enum || c.Set.Value("agg.kind").Text() != "token" {
				return nil
			}
			attended := attendedCells(b)
			return scaled(under(sameInput, c, ch), b, func(f int) float64 {
				lo, hi := b.Files[f].Lo*b.Cols, b.Files[f].Hi*b.Cols
				if v := c.Set.Value("agg.denominator"); v.Kind() != convention.Enum || v.Text() != "micro" {
					lo, hi = 0, len(b.Mask)
				}
				return count(b.Mask[lo:hi]) / count(attended[lo:hi])
			})
		}},
	{ID: "KL-SIGN", Checks: []string{"aggregate/kl_loss"},
		Predict: klTimes(-1)},
	{ID: "KL-TWICE", Checks: []string{"aggregate/kl_loss"},
		Predict: klTimes(2)},
	{ID: "KL-ABSENT", Checks: []string{"aggregate/kl_loss"},
		Predict: klTimes(0)},
	{ID: "KL-BF16", Checks: klDependent,
		Input: func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
			lp, ref := c.B.Token("logp_new"), c.B.Token("logp_ref")
			if lp == nil || ref == nil {
				return nil, nil, false
			}
			d, zero := make([]float64, len(lp)), make([]float64, len(lp))
			b := c.B
			for i := range lp {
				d[i] = format.Round(format.Round(lp[i], format.BF16)-format.Round(ref[i], format.BF16), format.BF16)
			}
			if old := b.Token("logp_old"); old != nil { // the ratio stays
				moved := eachOf(len(old), func(i int) float64 { return d[i] - (lp[i] - old[i]) })
				b = b.With("logp_old", moved)
			}
			return b.With("logp_new", d).With("logp_ref", zero), c.Set, true
		}},
	{ID: "GAE-PADS", Checks: []string{"gae"},
		Predict: recursion(mask(everyCell))},
	{ID: "GAE-PADS", Checks: []string{"gae"},
		Title:   "every column is an action but for the KL, which is that of the response: the score stands in the last column",
		Predict: recursion(both(maskedKL, mask(everyCell)))},
	{ID: "GAE-PADS", Checks: []string{"gae"},
		Title: "every column is an action, in the whitening, too, but for the KL, which is that of the response: the score stands in the last column",
		Input: both(maskedKL, mask(everyCell))},
	{ID: "IS-ROWS", Checks: []string{"ratio/is_weights"},
		Predict: permuted},
	{ID: "IS-CLAMP-MISSING", Checks: []string{"ratio/is_weights"},
		Title: "importance weights are at least tis.high where they should be at most tis.high: a maximum where a minimum belongs",
		Input: turnedBound},
	{ID: "IS-LEVEL", Checks: []string{"ratio/is_weights"},
		Title: "the weight of a response is that of the mean of its log-ratios over all columns, padding included",
		Input: meanOverColumns},
	{ID: "IS-LEVEL", Checks: []string{"ratio/is_weights"},
		Title: "the weight of a response is that of the mean of its log-ratios, not of their sum",
		Input: otherLevel("seq_geo", "seq_sum")},
	{ID: "IS-LEVEL", Checks: []string{"ratio/is_weights"},
		Title: "every token has a weight of its own, where a response should have one",
		Input: otherLevel("token", "seq_sum", "seq_geo")},
	{ID: "IS-LEVEL", Checks: []string{"ratio/is_weights"},
		Title: "a response has one weight, that of the sum of its log-ratios, where every token should have its own",
		Input: otherLevel("seq_sum", "token")},
	{ID: "IS-SUM-FOR-MEAN", Checks: []string{"ratio/is_weights"},
		Input: otherLevel("seq_sum", "seq_geo")},
	{ID: "LOSS-MASK-PADS", Checks: []string{"ratio/is_weights"},
		Title: "the log-ratio of a response is that of every cell: no mask is applied to logp_old − logp_gen",
		Input: func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
			if level := c.EnumOr("tis.level", "none"); level != "seq_sum" && level != "seq_geo" {
				return nil, nil, false
			}
			return mask(everyCell)(c)
		}},
	{ID: "IS-OF-REFERENCE", Checks: []string{"ratio/is_weights"},
		Input: instead("logp_gen", "logp_ref")},
	{ID: "IS-OF-REFERENCE", Checks: []string{"ratio/is_weights"},
		Title: "importance weights are made of the reference's log-probs, in place of the trainer's",
		Input: instead("logp_old", "logp_ref")},
	{ID: "IS-OLD-FOR-GEN", Checks: []string{"ratio/is_weights"},
		Input: both(instead("logp_gen", "logp_old"), func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
			lp := c.B.Token("logp_new")
			if lp == nil {
				return nil, nil, false
			}
			return c.B.With("logp_old", lp), c.Set, true
		})},
	{ID: "IS-NEW-FOR-OLD", Checks: []string{"ratio/is_weights"},
		Input: instead("logp_old", "logp_new")},
	{ID: "IS-GRADIENT", Checks: []string{"gradient/dlogp"},
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			w := c.Of(c.B, c.Set).LossWeights()
			loss := stage.Find("token_loss/policy")
			if w.X == nil || loss == nil {
				return nil
			}
			policy := policyOnly(sameInput, c, loss) // weight included
			if policy == nil || len(policy.Want) != len(w.X) {
				return nil
			}
			return added(under(sameInput, c, ch), weightsOf(c, ch), throughWeights(c, policy.Want, w.X))
		}},
	{ID: "KL-WEIGHT-DETACHED", Checks: []string{"gradient/dlogp"},
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			beta, kl := c.Set.Value("kl.beta"), stage.Find("kl/token")
			if beta.Kind() != convention.Number || kl == nil {
				return nil
			}
			value := under(sameInput, c, kl)
			if value == nil {
				return nil
			}
			extra := mapped(value.Want, func(k float64) float64 { return -beta.Num() * k })
			return added(under(sameInput, c, ch), weightsOf(c, ch), extra)
		}},
	{ID: "CISPO-THROUGH-CLIP", Checks: []string{"token_loss", "aggregate/loss", "aggregate/pg_loss", "gradient/dlogp"},
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			kind, lp, old, adv := c.Set.Value("loss.kind"), c.B.Token("logp_new"), c.B.Token("logp_old"), c.Optional("advantages")
			if kind.Kind() != convention.Enum || kind.Text() != "cispo" || lp == nil || old == nil || adv.X == nil {
				return nil
			}
			a := make([]float64, len(lp))
			for i := range a {
				switch {
				case ch.Output == "dlogp" && math.Exp(lp[i]-old[i]) >= upperBound(c):
					a[i] = 0
				case ch.Output == "dlogp":
					a[i] = adv.X[i]
				default:
					a[i] = adv.X[i] / lp[i]
				}
			}
			return combined(1, policyOnly(perToken("advantages", a), c, ch), 1, klOnly(c, ch))
		}},
	{ID: "LOGP-ROWS-PERMUTED", Checks: []string{"logp"},
		Predict: permuted},
	{ID: "LOGP-ROWS-REVERSED", Checks: []string{"logp"},
		Predict: rowsMoved(func(r, n int) int { return n - 1 - r })},
	{ID: "LOGP-ROWS-ROLLED", Checks: []string{"logp"},
		Predict: rowsMoved(func(r, n int) int { return (r + n - 1) % n })},
	{ID: "LOGP-SHIFT", Checks: []string{"logp"},
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			return moved(c, ch, func(int) int { return -1 })
		}},
	{ID: "LOGP-SHIFT-PADDING", Checks: []string{"logp"},
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			return moved(c, ch, func(r int) int {
				_, last := firstLast(c.B.Mask[r*c.B.Cols : (r+1)*c.B.Cols])
				return last + 1 - c.B.Cols
			})
		}},
	{ID: "LOGP-SAME-POSITION", Checks: []string{"logp/new"},
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			t := c.B.Tensors["logits"]
			if t == nil || t.Layout != dump.PerToken || c.B.Cols < 2 {
				return nil
			}
			z, w := slices.Clone(t.Data), t.Width*c.B.Cols
			for r := range c.B.Rows {
				copy(z[r*w:(r+1)*w], t.Data[r*w+t.Width:(r+1)*w])
			}
			p := under(func(*stage.Case) (*dump.Batch, *convention.Set, bool) { return c.B.With("logits", z), c.Set, true }, c, ch)
			if p == nil || len(p.Want) != len(c.B.Mask) {
				return nil
			}
			p.Judge = slices.Clone(c.B.Mask)
			for r := range c.B.Rows {
				if _, last := firstLast(c.B.Mask[r*c.B.Cols : (r+1)*c.B.Cols]); last >= 0 {
					p.Judge[r*c.B.Cols+last] = false // what follows the last token was not dumped
				}
			}
			return p
		}},
	{ID: "LOGP-BF16", Checks: []string{"logp", "kl/token", "token_loss"}, Loose: true,
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			t := c.B.Tensors[ch.Output]
			p := under(sameInput, c, ch)
			if p == nil || t == nil || t.Type == format.BF16 || len(t.Data) != len(c.B.Mask) {
				return nil
			}
			var inside []float64
			for i := range c.B.Tokens() {
				inside = append(inside, t.Data[i])
			}
			if stage.Grid(inside) != 0x1p-8 {
				return nil
			}
			for i, w := range p.Want {
				p.Bound[i] = 0x1p-6*math.Abs(w) + 0x1p-6 // a few roundings of numbers of the size of a logit
			}
			return p
		}},
	{ID: "ADV-ONE-PASS", Checks: []string{"advantage"},
		Predict: onePass},
	{ID: "VALUE-CLIP-MIN", Checks: []string{"aggregate/value_loss", "aggregate/loss", "gradient/dvalues"},
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			v, old, ret := c.B.Token("values_new"), c.B.Token("values"), c.B.Token("returns")
			clip := c.Set.Value("value.clip")
			if v == nil || old == nil || ret == nil || clip.Kind() != convention.Number {
				return nil
			}
			// Unclipped, with the value that gives the smaller square; its gradient is 0 where that one is clipped.
			small := make([]float64, len(v))
			for i := range v {
				bounded := min(max(v[i], old[i]-clip.Num()), old[i]+clip.Num())
				small[i] = v[i]
				if math.Abs(bounded-ret[i]) < math.Abs(v[i]-ret[i]) {
					small[i] = bounded
					if ch.Output == "dvalues" {
						small[i] = ret[i]
					}
				}
			}
			return ofValues(small, c, ch)
		}},
	{ID: "VALUE-TARGET-GRAD", Checks: []string{"gradient/dvalues"},
		Title: "the target R = A + V keeps the gradient of the values: it moves with them, and nothing is left",
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			v, old := c.B.Token("values_new"), c.B.Token("values")
			if v == nil || old == nil || !slices.Equal(v, old) { // the values of the target are those of this pass
				return nil
			}
			return multiple(0, c, ch)
		}},
	{ID: "VALUE-TARGET-GRAD", Checks: []string{"gradient/dvalues"},
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			p, g := under(sameInput, c, ch), c.Set.Value("gae.gamma")
			if p == nil || g.Kind() != convention.Number || len(p.Want) != len(c.B.Mask) {
				return nil
			}
			q := altered(p)
			for i := range p.Want {
				if i%c.B.Cols > 0 && c.B.Mask[i] {
					q.Want[i] -= g.Num() * p.Want[i-1]
					q.Bound[i] += g.Num()*p.Bound[i-1] + 0x1p-22*math.Abs(p.Want[i-1])
				}
			}
			return q
		}},
}
