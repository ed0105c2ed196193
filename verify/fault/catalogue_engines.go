package fault

import (
	"math"
	"slices"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

var engineFaults = []*Hypothesis{
	{ID: "ADV-WRONG-GROUPS", Rows: []string{"P110", "P111"}, Checks: []string{"advantage"},
		Title: "two prompts have the same group key and share a baseline", Cause: "prompt text or tokens are the key, not the identity of the prompt", Fix: "give every prompt an id of its own",
		Predict: merged},
	{ID: "EOS-INVERTED", Rows: []string{"P176"}, Checks: []string{"reward", "advantage", "gae"},
		Title: "termination flags are inverted: finished responses count as cut off", Cause: "truncation is inferred from the padded width, or a missing not", Fix: "test for the EOS in the response",
		Input: inverted},
	{ID: "SCORE-ZERO-MISSING", Rows: []string{"P097"}, Checks: []string{"reward", "advantage", "gae"},
		Title: "a score of 0.0 is taken for a missing one and replaced by −1", Cause: "`a or b` on a number", Fix: "compare with None",
		Input: token("scores", func(_ *stage.Case, x []float64) []float64 {
			y := slices.Clone(x)
			for i := range y {
				if y[i] == 0 {
					y[i] = -1
				}
			}
			return y
		})},
	{ID: "KL-AFTER-BASELINE", Rows: []string{"P104"}, Checks: []string{"advantage"},
		Title: "the KL of a sequence is subtracted after the baseline", Cause: "the order of baseline and penalty", Fix: "subtract it from the reward before the baseline, or declare kl.place",
		Predict: afterBaseline},
	{ID: "ADV-ROW-FROM-SPAN", Rows: []string{"P115"}, Checks: []string{"advantage", "gae/advantage"},
		Title: "whole rows are off by a constant: a penalty for one token reaches its row", Cause: "a write into an expanded view", Fix: "clone before writing to one cell",
		Predict: spanned},
	{ID: "GAE-LAST-INDEX", Rows: []string{"P190"}, Checks: []string{"gae"},
		Title: "the last token bootstraps from the cell after it", Cause: "an index of one too many, or no mask at the end", Fix: "V is 0 behind the last token of a response that has ended",
		Predict: recursion(lastReward(func(c *stage.Case, row, last int) float64 { return discounted(c, row, last+1) }))},
	{ID: "GAE-TRUNCATED-BOOTSTRAP", Rows: []string{"P055"}, Checks: []string{"gae"},
		Title: "a response cut off by its length is bootstrapped with its last value", Cause: "truncation is taken for a state with a future", Fix: "declare gae.truncated_bootstrap=value if that is meant",
		Predict: recursion(lastReward(func(c *stage.Case, row, last int) float64 {
			if ended(c, row) {
				return 0
			}
			return discounted(c, row, last)
		}))},
	{ID: "GAE-EOS-VALUE-ZERO", Rows: []string{"P059"}, Checks: []string{"gae"},
		Title: "the value of the last token is 0", Cause: "values are multiplied by a mask that is one position early", Fix: "cut mask and values by the same slice",
		Predict: recursion(lastValueZero)},
	{ID: "GAE-VALUE-SHIFT", Rows: []string{"C5", "P059"}, Checks: []string{"gae"},
		Title: "values are cut out one position late", Cause: "the value slice is not that of the tokens", Fix: "values of [p−1 : p+r−1], as for the logits",
		Predict: recursion(token("values", func(c *stage.Case, x []float64) []float64 {
			y, w := slices.Clone(x), c.B.Cols
			for r := range c.B.Rows {
				copy(y[r*w:(r+1)*w], x[r*w+1:(r+1)*w])
			}
			return y
		}))},
	{ID: "GAE-NO-LAMBDA", Rows: []string{"C3"}, Checks: []string{"gae"},
		Title: "the recursion forgets λ", Cause: "γ alone decays the sum", Fix: "A = δ + γλA",
		Predict: recursion(number("gae.lambda", func(float64) float64 { return 1 }))},
	{ID: "WHITEN-WRONG-AXIS", Rows: []string{"P091"}, Checks: []string{"gae/advantage", "advantage"},
		Title: "mean and variance are taken over columns, not over all cells", Cause: "an axis in the reduction, or no keepdim", Fix: "reduce over all cells of the mask",
		Predict: byColumn},
	{ID: "LOSS-MASK-SHIFT-ABOVE", Rows: []string{"P068", "P004"}, Checks: []string{"aggregate", "gradient"},
		Title:   "the mask of the sum is one position late, that of the denominator is not",
		Cause:   "the two are cut by different slices",
		Fix:     "cut the mask by the same slice as the tokens that it marks",
		Predict: numerator(func(row []bool) { copy(row[1:], slices.Clone(row)); row[0] = false })},
	{ID: "GRAD-LAST-CHUNK", Rows: []string{"P117", "P128"}, Checks: []string{"gradient/dlogp"},
		Title: "only the last micro-batch leaves a gradient",
		Cause: "gradients are overwritten, or finalised per chunk",
		Fix:   "accumulate over the micro-batches of a step",
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
	{ID: "CLIP-DUAL-BOTH-SIGNS", Rows: []string{"C3"}, Checks: []string{"token_loss", "gradient/dlogp"},
		Title: "the dual clip is applied to positive advantages, too",
		Cause: "the sign of the advantage is not looked at",
		Fix:   "bound the loss by −A·c only where A < 0",
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
					if ch.Output == "token_loss" {
						q.Want[i] = bound
					}
				}
			}
			return combined(1, q, 1, klOnly(c, ch))
		}},
	{ID: "AGG-COUNTS-MASKED", Rows: []string{"P030"}, Checks: []string{"aggregate", "gradient"},
		Title: "the denominator counts the tokens of completions that are masked out",
		Cause: "tokens are counted in the attention mask",
		Fix:   "count in the mask of the loss",
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			b := c.B
			attention := b.Tensors["attention_mask"]
			if attention == nil || attention.Layout != dump.PerRow || c.Set.Value("agg.kind").Kind() != convention.Enum || c.Set.Value("agg.kind").Text() != "token" {
				return nil
			}
			attended := make([]bool, len(b.Mask))
			for r := range b.Rows {
				at := b.Files[b.File(r)].PromptCols
				for t := range b.Cols {
					if at >= 0 && at+t < attention.Width && attention.Data[r*attention.Width+at+t] != 0 {
						attended[r*b.Cols+t] = true
					}
				}
			}
			return scaled(under(sameInput, c, ch), b, func(f int) float64 {
				lo, hi := b.Files[f].Lo*b.Cols, b.Files[f].Hi*b.Cols
				if v := c.Set.Value("agg.denominator"); v.Kind() != convention.Enum || v.Text() != "micro" {
					lo, hi = 0, len(b.Mask)
				}
				return count(b.Mask[lo:hi]) / count(attended[lo:hi])
			})
		}},
	{ID: "KL-SIGN", Rows: []string{"P181"}, Checks: []string{"aggregate/kl_loss"},
		Title: "the KL term has the wrong sign", Cause: "the penalty is subtracted from the loss", Fix: "loss + β·KL",
		Predict: klTimes(-1)},
	{ID: "KL-TWICE", Rows: []string{"P075"}, Checks: []string{"aggregate/kl_loss"},
		Title: "the KL term is added twice", Cause: "it is part of the token loss and added again", Fix: "add it once",
		Predict: klTimes(2)},
	{ID: "KL-ABSENT", Rows: []string{"P069", "P107", "P210"}, Checks: []string{"aggregate/kl_loss"},
		Title: "the KL term is missing", Cause: "the option is accepted and ignored", Fix: "add β·KL, or declare kl.beta=0",
		Predict: klTimes(0)},
	{ID: "KL-BF16", Rows: []string{"P093"}, Checks: klDependent,
		Title: "the log-ratio of KL is taken in bfloat16",
		Cause: "log-probs, or their difference, are rounded to 16 bits before the estimator",
		Fix:   "subtract in float32",
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
				moved := make([]float64, len(old))
				for i := range old {
					moved[i] = d[i] - (lp[i] - old[i])
				}
				b = b.With("logp_old", moved)
			}
			return b.With("logp_new", d).With("logp_ref", zero), c.Set, true
		}},
	{ID: "GAE-PADS", Rows: []string{"P169", "P190", "C4"}, Checks: []string{"gae"},
		Title: "the recursion runs over every cell, tool tokens and padding included",
		Cause: "no mask in the loop",
		Fix:   "leave masked tokens out of the recursion (gae.hole)",
		Predict: recursion(mask(func(row []bool) {
			for i := range row {
				row[i] = true
			}
		}))},
	{ID: "IS-OLD-FOR-GEN", Rows: []string{"P026"}, Checks: []string{"ratio/is_weights"},
		Title: "importance weights compare the new policy with the old one",
		Cause: "logp_new and logp_old are taken where logp_old and logp_gen belong",
		Fix:   "w = exp(logp_old − logp_gen)",
		Input: both(instead("logp_gen", "logp_old"), func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
			lp := c.B.Token("logp_new")
			if lp == nil {
				return nil, nil, false
			}
			return c.B.With("logp_old", lp), c.Set, true
		})},
	{ID: "IS-NEW-FOR-OLD", Rows: []string{"P070", "P026"}, Checks: []string{"ratio/is_weights"},
		Title: "importance weights are made of the policy being trained, so that they carry gradient",
		Cause: "logp_new is used where logp_old belongs, without detaching it",
		Fix:   "w = exp(logp_old − logp_gen), detached",
		Input: instead("logp_old", "logp_new")},
	{ID: "IS-GRADIENT", Rows: []string{"P070", "P114"}, Checks: []string{"gradient/dlogp"},
		Title: "gradient flows through the importance weights",
		Cause: "the weight is computed from log-probs that carry gradient",
		Fix:   "detach the weight",
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			w := c.Optional("is_weights")
			loss := stage.Find("token_loss/policy")
			if w.X == nil || loss == nil {
				return nil
			}
			policy := policyOnly(sameInput, c, loss) // weight included
			if policy == nil || len(policy.Want) != len(w.X) {
				return nil
			}
			high := math.Inf(1)
			if v := c.Set.Value("tis.high"); v.Kind() == convention.Number {
				high = v.Num()
			}
			extra := slices.Clone(policy.Want)
			for i := range extra {
				if w.X[i] >= high {
					extra[i] = 0
				}
			}
			return added(under(sameInput, c, ch), weightsOf(c, ch), extra)
		}},
	{ID: "KL-WEIGHT-DETACHED", Rows: []string{"P113", "P045"}, Checks: []string{"gradient/dlogp"},
		Title: "the weight of the KL term is detached: the score-function part of its gradient is missing",
		Cause: "the ratio that multiplies the estimator is detached, so that only the estimator is differentiated",
		Fix:   "let the gradient flow through the weight too (kl.grad)",
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			beta, kl := c.Set.Value("kl.beta"), stage.Find("kl/token")
			if beta.Kind() != convention.Number || kl == nil {
				return nil
			}
			value := under(sameInput, c, kl)
			if value == nil {
				return nil
			}
			extra := make([]float64, len(value.Want))
			for i, k := range value.Want {
				extra[i] = -beta.Num() * k
			}
			return added(under(sameInput, c, ch), weightsOf(c, ch), extra)
		}},
	{ID: "CISPO-THROUGH-CLIP", Rows: []string{"P130"}, Checks: []string{"token_loss", "aggregate/loss", "aggregate/pg_loss", "gradient/dlogp"},
		Title: "CISPO is trained through the capped ratio: the log-prob and the detach are missing",
		Cause: "−min(ρ, cap)·A in place of −sg(min(ρ, cap))·A·logp",
		Fix:   "detach the weight and multiply by the log-prob",
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
	{ID: "LOGP-ROWS-PERMUTED", Rows: []string{"P077"}, Checks: []string{"logp"},
		Title:   "the rows are those of others",
		Cause:   "the order of dynamic batching was not undone",
		Fix:     "sort the results back before they are used",
		Predict: permuted},
	{ID: "LOGP-ROWS-REVERSED", Rows: []string{"P077"}, Checks: []string{"logp"},
		Title:   "the rows are in the reverse order",
		Cause:   "the order of dynamic batching was not undone",
		Fix:     "sort the results back before they are used",
		Predict: rowsMoved(func(r, n int) int { return n - 1 - r })},
	{ID: "LOGP-ROWS-ROLLED", Rows: []string{"P077"}, Checks: []string{"logp"},
		Title:   "the rows are those of others",
		Cause:   "the order of dynamic batching was not undone",
		Fix:     "sort the results back before they are used",
		Predict: rowsMoved(func(r, n int) int { return (r + n - 1) % n })},
	{ID: "LOGP-SHIFT", Rows: []string{"C5", "P133", "P163"}, Checks: []string{"logp"},
		Title: "log-probs are one position early",
		Cause: "logits of position t+1 are read for token t",
		Fix:   "logits[:, :-1] score ids[:, 1:]",
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			p := under(sameInput, c, ch)
			if p == nil || len(p.Want) != c.B.Rows*c.B.Cols {
				return nil
			}
			return moved(p, c, func(int) int { return -1 })
		}},
	{ID: "LOGP-SHIFT-PADDING", Rows: []string{"P089", "P101"}, Checks: []string{"logp"},
		Title: "log-probs are cut out as if responses stood at the end: each row is shifted by its padding",
		Cause: "[-length:] of a tensor padded on the right",
		Fix:   "cut by where the response begins",
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			p := under(sameInput, c, ch)
			if p == nil || len(p.Want) != c.B.Rows*c.B.Cols {
				return nil
			}
			return moved(p, c, func(r int) int {
				_, last := firstLast(c.B.Mask[r*c.B.Cols : (r+1)*c.B.Cols])
				return last + 1 - c.B.Cols
			})
		}},
	{ID: "LOGP-SAME-POSITION", Rows: []string{"P172", "P173"}, Checks: []string{"logp/new"},
		Title: "the log-prob of a token is read from the logits at its own position, which predict the next",
		Cause: "no shift between logits and ids",
		Fix:   "logits[:, :-1] score ids[:, 1:]",
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
	{ID: "LOGP-BF16", Rows: []string{"P093"}, Checks: []string{"logp", "kl/token", "token_loss"}, Loose: true,
		Title: "the numbers lie on the bfloat16 grid although they are stored in more bits",
		Cause: "this stage runs in 16 bits, under autocast or in the model's own type",
		Fix:   "take log-probs in float32",
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			t := c.B.Tensors[ch.Output]
			p := under(sameInput, c, ch)
			if p == nil || t == nil || t.Type == format.BF16 || len(t.Data) != len(c.B.Mask) {
				return nil
			}
			var inside []float64
			for i, m := range c.B.Mask {
				if m {
					inside = append(inside, t.Data[i])
				}
			}
			if stage.Grid(inside) != 0x1p-8 {
				return nil
			}
			for i, w := range p.Want {
				p.Bound[i] = 0x1p-6*math.Abs(w) + 0x1p-6 // a few roundings of numbers of the size of a logit
			}
			return p
		}},
	{ID: "ADV-ONE-PASS", Rows: []string{"P109"}, Checks: []string{"advantage"},
		Title:   "the variance is E[x²] − μ² in float32: its error swamps it",
		Cause:   "one pass over rewards with an offset; the difference of two large numbers",
		Fix:     "subtract the mean first, then square",
		Predict: onePass},
	{ID: "VALUE-CLIP-MIN", Rows: []string{"C3", "V18"}, Checks: []string{"aggregate/value_loss", "aggregate/loss", "gradient/dvalues"},
		Title: "the smaller of the two squares is taken",
		Cause: "min where the clipped value loss has max",
		Fix:   "½·max((v − R)², (clip(v) − R)²)",
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
			b := c.B.With("values_new", small)
			return under(func(*stage.Case) (*dump.Batch, *convention.Set, bool) {
				return b, c.Set.With("value.clip", parsed("value.clip", "none"), "hypothesis"), true
			}, c, ch)
		}},
	{ID: "VALUE-TARGET-GRAD", Rows: []string{"P194"}, Checks: []string{"gradient/dvalues"},
		Title: "gradient flows into the bootstrapped target", Cause: "the returns are not detached: γ times a token's gradient is taken from the next one's", Fix: "detach the returns",
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			p, g := under(sameInput, c, ch), c.Set.Value("gae.gamma")
			if p == nil || g.Kind() != convention.Number || len(p.Want) != len(c.B.Mask) {
				return nil
			}
			q := *p
			q.Want, q.Bound, q.Alt = slices.Clone(p.Want), slices.Clone(p.Bound), nil
			for i := range p.Want {
				if i%c.B.Cols > 0 && c.B.Mask[i] {
					q.Want[i] -= g.Num() * p.Want[i-1]
					q.Bound[i] += g.Num()*p.Bound[i-1] + 0x1p-22*math.Abs(p.Want[i-1])
				}
			}
			return &q
		}},
}
