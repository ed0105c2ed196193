package fault

import (
	"math"
	"slices"
	"strings"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// All returns the hypotheses in the order of the pipeline. The slice is shared and must not be changed.
func All() []*Hypothesis { return all }

// Find returns the hypothesis of that id, nil if there is none.
func Find(id string) *Hypothesis {
	for _, h := range []*Hypothesis{factorHypothesis, extraTerm, otherTensor} {
		if h.ID == id {
			return h
		}
	}
	if i := slices.IndexFunc(all, func(h *Hypothesis) bool { return h.ID == id }); i >= 0 {
		return all[i]
	}
	return nil
}

var all = described(slices.Concat(maskFaults, logpFaults, klFaults, rewardFaults, advantageFaults, lossFaults, aggregateFaults, gradientFaults, engineFaults, rowFaults, groupFaults, reductionFaults, formulaFaults, sequenceFaults, metricFaults, signFaults, preferenceFaults, supervisedFaults(), gateFaults(), quantileFaults(), multiFaults, sequenceFaultsOfRewards(), inBoth())...)

var masked = []string{"reward", "gae", "advantage", "token_loss", "aggregate", "gradient", "scalars", "preference/sft_loss", "distill"}

var maskFaults = []*Hypothesis{
	{ID: "LOSS-MASK-TOOL", Checks: masked,
		Input: mask(withHoles)},
	{ID: "LOSS-MASK-PADS", Checks: masked,
		Input: mask(everyCell)},
	{ID: "LOSS-MASK-SHIFT", Checks: masked,
		Input: mask(late)},
	{ID: "LOSS-MASK-EARLY", Checks: masked,
		Input: mask(early)},
	{ID: "LOSS-MASK-NO-EOS", Checks: masked,
		Input: mask(withoutLast)},
	{ID: "LOSS-MASK-P1", Checks: masked,
		Input: mask(oneMore)},
	{ID: "LOSS-MASK-TOOL-ABOVE", Checks: []string{"aggregate", "gradient"},
		Predict: numerator(mask(withHoles))},
	{ID: "LOSS-MASK-PADS-ABOVE", Checks: []string{"aggregate", "gradient"},
		Predict: numerator(mask(everyCell))},
	{ID: "LOSS-MASKED-BY-ADVANTAGES", Checks: []string{"aggregate", "gradient"},
		Predict: timesAdvantages},
	{ID: "LOSS-FIRST-COLUMN", Checks: []string{"aggregate", "gradient"},
		Input: mask(func(row []bool) { clear(row[1:]) })},
	{ID: "LOSS-LAST-COLUMN", Checks: []string{"aggregate", "gradient", "preference/sft_loss", "distill"},
		Input: withoutLastColumn},
	{ID: "LOSS-MASKED-BY-ADVANTAGES-TWICE", Checks: []string{"aggregate", "gradient"},
		Predict: overAdvantages},
	{ID: "LOSS-MASK-ADVANTAGES", Checks: []string{"aggregate", "gradient"},
		Input: func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
			a := c.Optional("advantages")
			if a.X == nil {
				return nil, nil, false
			}
			m := make([]bool, len(c.B.Mask))
			changed := false
			for i := range m {
				m[i] = c.B.Mask[i] && a.X[i] != 0
				changed = changed || m[i] != c.B.Mask[i]
			}
			return c.B.WithMask(m), c.Set, changed
		}},
}

var ratioed = []string{"token_loss", "aggregate/loss", "aggregate/pg_loss", "gradient/dlogp", "ratio"}

var logpFaults = []*Hypothesis{
	{ID: "LOGP-TEMPERATURE", Checks: []string{"logp"},
		Input: number("logp.temperature", func(float64) float64 { return 1 })},
	{ID: "LOGP-TEMPERATURE-TWICE", Checks: []string{"logp"},
		Input: number("logp.temperature", func(t float64) float64 { return t * t })},
	{ID: "LOGP-SHIFT-LATE", Checks: []string{"logp"},
		Predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			return moved(c, ch, func(int) int { return 1 })
		}},
	{ID: "OLD-RECOMPUTED", Checks: ratioed,
		Predict: policyTerm(1, instead("logp_old", "logp_new"))},
	{ID: "OLD-IS-GEN", Checks: ratioed,
		Predict: policyTerm(1, instead("logp_old", "logp_gen"))},
	{ID: "LOGP-OLD-ZERO", Checks: ratioed,
		Predict: policyTerm(1, constant("logp_old", 0))},
	{ID: "OLD-ROWS-ROLLED", Checks: ratioed,
		Predict: policyTerm(1, rolled("logp_old", 1))},
	{ID: "OLD-ROWS-ROLLED-BACK", Checks: ratioed,
		Predict: policyTerm(1, rolled("logp_old", -1))},
	{ID: "OLD-SHIFT", Checks: ratioed,
		Predict: policyTerm(1, shifted("logp_old", 1))},
	{ID: "OLD-SHIFT-BACK", Checks: ratioed,
		Predict: policyTerm(1, shifted("logp_old", -1))},
	{ID: "RATIO-INVERTED", Checks: []string{"token_loss", "aggregate/loss", "aggregate/pg_loss"},
		Predict: invertedRatio},
	{ID: "RATIO-INVERTED", Checks: []string{"kl/token"},
		Title:   "the estimate of KL is multiplied by the inverse of the ratio: e to the (logp_old − logp_new)",
		Predict: invertedRatio},
	{ID: "IS-NEW-FOR-GEN", Checks: []string{"ratio"},
		Input: instead("logp_gen", "logp_new")},
	{ID: "IS-INVERTED", Checks: []string{"ratio"},
		Input: func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
			a, b := c.B.Token("logp_gen"), c.B.Token("logp_old")
			if b == nil {
				b = c.B.Token("logp_new") // of an on-policy run they are the old ones
			}
			if a == nil || b == nil {
				return nil, nil, false
			}
			return c.B.With("logp_gen", b).With("logp_old", a), c.Set, true
		}},
	{ID: "IS-NOT-APPLIED", Checks: []string{"token_loss", "aggregate", "gradient"},
		Input: constant("is_weights", 1)},
}

var klDependent = []string{"kl", "token_loss", "aggregate/loss", "aggregate/kl_loss", "gradient/dlogp", "reward/token"}

var klFaults = []*Hypothesis{
	{ID: "KL-SIGN", Checks: []string{"token_loss", "aggregate/loss", "gradient/dlogp", "reward/token", "advantage/group", "advantage/return"},
		Input: number("kl.beta", func(b float64) float64 { return -b })},
	{ID: "KL-TWICE", Checks: []string{"token_loss", "aggregate/loss", "gradient/dlogp", "reward/token"}, Configured: []string{"kl.beta"},
		Input: number("kl.beta", func(b float64) float64 { return 2 * b })},
	{ID: "KL-ABSENT", Checks: []string{"token_loss", "aggregate/loss", "gradient/dlogp", "reward/token"},
		Input: noKL},
	{ID: "BETA-MISSING", Checks: []string{"token_loss", "aggregate/loss", "gradient/dlogp", "reward/token"},
		Input: number("kl.beta", func(float64) float64 { return 1 })},
	{ID: "KL-REVERSED", Checks: []string{"kl"},
		Input: func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
			a, b := c.B.Token("logp_new"), c.B.Token("logp_ref")
			if a == nil || b == nil {
				return nil, nil, false
			}
			d := c.B.With("logp_new", b).With("logp_ref", a)
			if v := c.Set.Value("kl.place"); v.Kind() == convention.Enum && v.Text() != "loss" && v.Text() != "none" {
				if old := c.B.Token("logp_old"); old != nil { // KL of the rollout is that of the old policy
					return c.B.With("logp_old", b).With("logp_ref", old), c.Set, true
				}
			}
			if old := c.B.Token("logp_old"); old != nil { // the ratio of a corrected estimator keeps its own
				shiftOld := eachOf(len(old), func(i int) float64 { return b[i] - a[i] + old[i] })
				d = d.With("logp_old", shiftOld)
			}
			return d, c.Set, true
		}},
	{ID: "KL-OLD-FOR-REF", Checks: klDependent,
		Input: instead("logp_ref", "logp_old")},
	{ID: "KL-OF-OLD", Checks: klDependent,
		Input: instead("logp_new", "logp_old")},
	{ID: "KL-OF-OLD", Checks: []string{"kl", "token_loss", "aggregate/kl_loss"}, // under weights of the new policy, which it keeps
		Input: func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
			lp, old, ref := c.B.Token("logp_new"), c.B.Token("logp_old"), c.B.Token("logp_ref")
			if lp == nil || old == nil || ref == nil {
				return nil, nil, false
			}
			moved := slices.Clone(ref)
			for i := range moved {
				moved[i] += lp[i] - old[i]
			}
			return c.B.With("logp_ref", moved), c.Set, true
		}},
	{ID: "KL-OF-GEN", Checks: klDependent,
		Input: instead("logp_new", "logp_gen")},
	{ID: "KL-REFERENCE-ZERO", Checks: klDependent,
		Input: constant("logp_ref", 0)},
	{ID: "KL-REFERENCE-SHIFT", Checks: klDependent,
		Input: shifted("logp_ref", 1)},
	{ID: "KL-REFERENCE-ROWS", Checks: klDependent,
		Input: rolled("logp_ref", 1)},
}

var rewardFaults = []*Hypothesis{
	{ID: "REWARD-WEIGHTS-IGNORED", Checks: []string{"reward", "advantage", "scalars"},
		Input: func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
			w := c.FactList("reward_weights")
			if w == nil {
				return nil, nil, false
			}
			ones := slices.Repeat([]any{1.0}, len(w))
			b := c.B
			if t := b.Tensors["rewards_per_func"]; t != nil && b.Row("scores") != nil {
				sums := make([]float64, b.Rows)
				for i, x := range t.Data {
					if !math.IsNaN(x) {
						sums[i/t.Width] += x
					}
				}
				b = b.With("scores", sums)
			}
			return b, c.Set.WithFact("reward_weights", ones), true
		}},
	{ID: "REWARD-WEIGHTS", Checks: []string{"reward/scores"},
		Title: "the reward functions have each other's weights: the weights are in the reverse order",
		Input: reweighted(func(w []float64) []float64 { w = slices.Clone(w); slices.Reverse(w); return w })},
	{ID: "REWARD-WEIGHTS", Checks: []string{"reward/scores"},
		Title: "the reward functions have each other's weights: the weights are rolled by one",
		Input: reweighted(func(w []float64) []float64 { return append(slices.Clone(w[1:]), w[0]) })},
	{ID: "REWARD-WEIGHTS", Checks: []string{"reward/scores"},
		Title: "the weighted sum is divided by the sum of the weights",
		Input: reweighted(func(w []float64) []float64 {
			sum := total(w)
			return mapped(w, func(x float64) float64 { return x / sum })
		})},
	{ID: "REWARD-WEIGHTS", Checks: []string{"reward/scores"},
		Title: "the weighted sum is divided by the number of reward functions",
		Input: reweighted(func(w []float64) []float64 {
			return mapped(w, func(x float64) float64 { return x / float64(len(w)) })
		})},
	{ID: "REWARD-WEIGHTS", Checks: []string{"reward/scores"},
		Title: "the weights enter squared",
		Input: reweighted(func(w []float64) []float64 { return mapped(w, func(x float64) float64 { return x * x }) })},
	{ID: "SCORE-SHIFT", Checks: []string{"reward/token"},
		Predict: scoreMoved(1)},
	{ID: "SCORE-SHIFT", Checks: []string{"reward/token"},
		Title:   "the score stands one token late, but for rows without a column there",
		Predict: scoreBeyond},
	{ID: "REWARD-PLACE", Checks: []string{"reward/token"},
		Title:   "the score is put into the last column of the row, padding or not",
		Predict: scoreBeyond},
	{ID: "SCORE-EARLY", Checks: []string{"reward/token"},
		Predict: scoreMoved(-1)},
	{ID: "SCORE-LOST", Checks: []string{"reward/token"},
		Input: constant("scores", 0)},
	{ID: "SCORE-INDEX", Checks: []string{"reward/token"},
		Title:   "the score stands one token before the last of the response",
		Predict: scoreAt(func(cells []int, _ int) int { return cells[max(len(cells)-2, 0)] })},
	{ID: "SCORE-INDEX", Checks: []string{"reward/token"},
		Title:   "the score stands in the column before the last token of the response",
		Predict: scoreAt(func(cells []int, _ int) int { return max(cells[len(cells)-1]-1, 0) })},
	{ID: "SCORE-INDEX", Checks: []string{"reward/token"},
		Title:   "the score stands in the column of the number of tokens, less 1: a count in place of a position, which is another column where the mask has holes",
		Predict: scoreAt(func(cells []int, _ int) int { return len(cells) - 1 })},
	{ID: "SCORE-INDEX", Checks: []string{"reward/token"},
		Title:   "the score stands in the column of the number of tokens: a count in place of a position",
		Predict: scoreAt(func(cells []int, cols int) int { return min(len(cells), cols-1) })},
	{ID: "KL-REWARD-PADS", Checks: []string{"advantage/group"},
		Input: func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
			v := c.Set.Value("kl.place")
			if v.Kind() != convention.Enum || !strings.HasPrefix(v.Text(), "sequence_reward") {
				return nil, nil, false
			}
			every := slices.Repeat([]bool{true}, len(c.B.Mask))
			return c.B.WithMask(every), c.Set, count(c.B.Mask) != float64(len(every))
		}},
	{ID: "KL-REWARD-PADS", Checks: []string{"reward/token"}, Title: "the KL of cells outside the mask is in the rewards of tokens: log-probs of padding are not filled on both sides",
		Predict: paddedKL},
	{ID: "KL-REWARD-MEAN", Checks: []string{"advantage/group"}, Input: meanKL},
	{ID: "SCORE-ZERO-MISSING", Checks: []string{"reward/scores"}, Predict: zeroMissing},
	{ID: "EOS-PENALTY-SIGN", Checks: []string{"reward"},
		Input: number("eos.penalty", func(x float64) float64 { return -x })},
	{ID: "EOS-PENALTY-TWICE", Checks: []string{"reward"},
		Input: number("eos.penalty", func(x float64) float64 { return 2 * x })},
	{ID: "EOS-PENALTY-MISSING", Checks: []string{"reward"}, Title: "the penalty of responses without EOS is subtracted from the score of every response",
		Input: everyPenalised},
	{ID: "EOS-PENALTY-MISSING", Checks: []string{"reward"}, Title: "the negative penalty stands in place of the score of a response without EOS, where it should be subtracted from it",
		Input: func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
			if c.Set.Value("eos.rule").String() != "subtract" {
				return nil, nil, false
			}
			return both(option("eos.rule", "replace"), number("eos.penalty", func(x float64) float64 { return -x }))(c)
		}},
	{ID: "EOS-PENALTY-MISSING", Checks: []string{"reward"}, Title: "the penalty of a response without EOS is added to its score, where it should stand in its place",
		Input: func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
			if c.Set.Value("eos.rule").String() != "replace" {
				return nil, nil, false
			}
			return both(option("eos.rule", "subtract"), number("eos.penalty", func(x float64) float64 { return -x }))(c)
		}},
	{ID: "EOS-PENALTY-IGNORED", Checks: []string{"reward"},
		Input: option("eos.rule", "none")},
}

// meanKL returns the input whose rewards of sequences have the mean of the KL over their tokens in place of the sum.
func meanKL(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
	v, kl := c.Set.Value("kl.place"), c.B.Token("kl")
	if v.Kind() != convention.Enum || !strings.HasPrefix(v.Text(), "sequence_reward") {
		return nil, nil, false
	}
	if kl == nil {
		if p := under(sameInput, c, stage.Find("kl/token")); p != nil {
			kl = p.Want
		}
	}
	if len(kl) != len(c.B.Mask) || c.B.Cols == 0 {
		return nil, nil, false
	}
	n, x := tokensOf(c.B, c.B.Mask), make([]float64, len(kl))
	for i := range x {
		x[i] = kl[i] / max(n[i/c.B.Cols], 1)
	}
	return perToken("kl", x)(c)
}

// zeroMissing returns the scores with what was dumped where they should be 0: something else stands in for every one of them, and for
// no other score. What it is need not be in the dump.
func zeroMissing(c *stage.Case, ch *stage.Check) *stage.Prediction {
	const least = 3 // of each kind
	p, got := under(sameInput, c, ch), c.B.Row("scores")
	if p == nil || len(got) != len(p.Want) {
		return nil
	}
	q := altered(p)
	zeros, others := 0, 0
	for i, w := range p.Want {
		switch {
		case w != 0:
			others++
		case got[i] == 0 || math.IsNaN(got[i]):
			return nil
		default:
			zeros++
			q.Want[i] = got[i]
		}
	}
	if zeros < least || others < least {
		return nil
	}
	return q
}

// reweighted returns the input with other weights of several reward functions.
func reweighted(change func(w []float64) []float64) input {
	return func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
		w := c.FactList("reward_weights")
		if len(w) < 2 {
			return nil, nil, false
		}
		other := change(w)
		if slices.Equal(w, other) || slices.ContainsFunc(other, func(x float64) bool { return math.IsNaN(x) || math.IsInf(x, 0) }) {
			return nil, nil, false
		}
		list := make([]any, len(other))
		for i, x := range other {
			list[i] = x
		}
		return c.B, c.Set.WithFact("reward_weights", list), true
	}
}

// scoreAt returns the token rewards with the score of every row in another column, which the columns of its tokens and the width give.
func scoreAt(column func(cells []int, cols int) int) func(*stage.Case, *stage.Check) *stage.Prediction {
	return func(c *stage.Case, ch *stage.Check) *stage.Prediction {
		b := c.B
		without := under(constant("scores", 0), c, ch)
		score := combined(1, ch.Predict(c.Of(b, c.Set)), -1, without)
		if score == nil || len(score.Want) != len(b.Mask) || b.Cols == 0 {
			return nil
		}
		want, bound := make([]float64, len(score.Want)), make([]float64, len(score.Want))
		for r := range b.Rows {
			var cells []int
			from := -1
			for t := range b.Cols {
				i := r*b.Cols + t
				if b.Mask[i] {
					cells = append(cells, t)
				}
				if score.Want[i] != 0 {
					if from >= 0 {
						return nil // a score of every token has no place
					}
					from = i
				}
			}
			if from >= 0 && len(cells) > 0 {
				to := r*b.Cols + column(cells, b.Cols)
				want[to], bound[to] = score.Want[from], score.Bound[from]
			}
		}
		score.Want, score.Bound = want, bound
		return combined(1, without, 1, score)
	}
}

// scoreMoved returns the token rewards with the part that the score makes moved by some columns.
func scoreMoved(by int) func(*stage.Case, *stage.Check) *stage.Prediction {
	return func(c *stage.Case, ch *stage.Check) *stage.Prediction {
		with := ch.Predict(c.Of(c.B, c.Set))
		without := under(constant("scores", 0), c, ch)
		score := combined(1, with, -1, without)
		if score == nil || len(score.Want) != c.B.Rows*c.B.Cols {
			return nil
		}
		score.Want = shift(score.Want, c.B.Rows, c.B.Cols, by)
		score.Bound = shift(score.Bound, c.B.Rows, c.B.Cols, by)
		return combined(1, without, 1, score)
	}
}

// scoreBeyond returns the token rewards with the score one column late where there is one, as an index that is clamped to the width
// gives: of responses that fill their row it stays.
func scoreBeyond(c *stage.Case, ch *stage.Check) *stage.Prediction {
	with, without := ch.Predict(c.Of(c.B, c.Set)), under(constant("scores", 0), c, ch)
	score := combined(1, with, -1, without)
	w := c.B.Cols
	if score == nil || len(score.Want) != c.B.Rows*w || w < 2 {
		return nil
	}
	want, bound := shift(score.Want, c.B.Rows, w, 1), shift(score.Bound, c.B.Rows, w, 1)
	stays := false
	for r := range c.B.Rows {
		own := w
		if o := c.B.Origin[r]; o.Cols > 0 {
			own = o.Cols
		}
		if i := r*w + own - 1; score.Want[i] != 0 {
			stays = true
			want[i] += score.Want[i]
			bound[i] += score.Bound[i]
			if own < w {
				want[i+1] = 0
			}
		}
	}
	if !stays {
		return nil
	}
	score.Want, score.Bound = want, bound
	return combined(1, without, 1, score)
}

// invertedRatio swaps the two policies of the ratio. An estimator of KL that is multiplied by the ratio reads logp_new for itself,
// too: there the old log-probs are mirrored at the new ones.
func invertedRatio(c *stage.Case, ch *stage.Check) *stage.Prediction {
	if ch.Stage != convention.KL {
		c = ofStored(c)
	}
	a, b := c.B.Token("logp_new"), c.B.Token("logp_old")
	if a == nil || b == nil {
		return nil
	}
	if ch.Stage == convention.KL {
		mirrored := eachOf(len(a), func(i int) float64 { return 2*a[i] - b[i] })
		return under(perToken("logp_old", mirrored), c, ch)
	}
	return policyTerm(1, func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
		return c.B.With("logp_new", b).With("logp_old", a), c.Set, true
	})(c, ch)
}
