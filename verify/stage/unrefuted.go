package stage

import (
	"math"
	"slices"

	"plumbline/internal/format/dump"
)

// Unrefuted names the options of which a value that a search cannot try, for want of data or since no option stands for it, may have given an output
// that failed: what failed has the form that such a value gives.
func Unrefuted(o *Outcome) []string {
	if o.Case == nil || o.Pred == nil {
		return nil
	}
	switch o.Check.ID {
	case "ratio/is_weights":
		if scaledWeights(o.Case) {
			return []string{"tis.normalize"}
		}
	case "reward/token":
		if shapedAtEnds(o) {
			return []string{"reward.clip", "eos.rule"}
		}
	case "gae/returns":
		if whitenedSince(o.Case) {
			return []string{"whiten.scope"}
		}
	case "advantage/group":
		if clippedBehindSome(o) {
			return []string{"reward.clip_range"}
		}
		if _, one := baselineOfAll(o.Case.B); one { // the mean of a rollout of which the step is a part
			return []string{"adv.kind"}
		}
	case "advantage/return":
		if baselineOfSteps(o.Case) {
			return []string{"adv.kind"}
		}
	}
	return nil
}

// scaledWeights reports whether importance weights are those of one level times one number that is not 1, but for those that an upper bound
// holds, which have one weight, and a quarter of them, which others may have cut before: the number is the mean that a release divides by, of tokens or of rows, of a step or of a rollout (verl 0.9.1,
// rollout_corr_helper.py, rollout_is_batch_normalize).
func scaledWeights(c *Case) bool {
	b := c.B
	w, gen, old := c.Optional("is_weights").X, b.Token("logp_gen"), b.Token("logp_old")
	if old == nil {
		old = b.Token("logp_new")
	}
	if len(w) != len(b.Mask) || gen == nil || old == nil {
		return false
	}
	for level := range 3 {
		var x, weights []float64
		most := 0.0 // what those have that a bound holds
		for r := range b.Rows {
			var sum, n float64
			for i := range b.TokensOf(r) {
				sum, n = sum+old[i]-gen[i], n+1
			}
			for i := range b.TokensOf(r) {
				d := []float64{old[i] - gen[i], sum, sum / n}[level]
				if q := w[i] / math.Exp(d); !math.IsNaN(q) && !math.IsInf(q, 0) {
					x, weights, most = append(x, q), append(weights, w[i]), max(most, w[i])
				}
			}
		}
		k, _ := commonest(x)
		near, held := 0, 0
		for j, q := range x {
			switch {
			case math.Abs(q-k) <= 1e-4*k:
				near++
			case math.Abs(weights[j]-most) <= 1e-5*most:
				held++
			}
		}
		if k > 0 && math.Abs(k-1) > 2e-4 && 4*(near+held) >= 3*len(x) && 4*near >= len(x) && len(x) > 0 {
			return true
		}
	}
	return false
}

// shapedAtEnds reports whether token rewards are wrong at the ends of responses alone, by what a range of scores and a rule for responses without an end make
// together: of responses that are as long as the longest anything, of the others the least or the largest of the scores that the rewards have.
func shapedAtEnds(o *Outcome) bool {
	c, b := o.Case, o.Case.B
	s := b.Row("scores")
	if len(s) != b.Rows || len(o.Got) != len(b.Mask) || c.EnumOr("rewards.whiten", "no") != "no" {
		return false
	}
	longest := 0
	for r := range b.Rows {
		longest = max(longest, c.last(r))
	}
	shaped, moved := make([]float64, b.Rows), make([]bool, b.Rows)
	low, high := math.Inf(1), math.Inf(-1)
	for r := range b.Rows {
		for t := range b.Cols {
			i := r*b.Cols + t
			if !b.Mask[i] {
				continue
			}
			d := o.Got[i] - o.Pred.Want[i]
			wrong := !(math.Abs(d) <= 4*o.Limit(i))
			if wrong && t != c.last(r) || math.IsNaN(d) {
				return false
			}
			if t == c.last(r) {
				shaped[r], moved[r] = s[r]+d, wrong
			}
		}
		if c.last(r) >= 0 && c.last(r) < longest {
			low, high = min(low, shaped[r]), max(high, shaped[r])
		}
	}
	near := func(x, bound float64) bool { return math.Abs(x-bound) <= 1e-5*(1+math.Abs(bound)) }
	held := 0
	for r := range b.Rows {
		if !moved[r] || c.last(r) == longest {
			continue
		}
		switch {
		case near(shaped[r], low) && s[r] < low, near(shaped[r], high) && s[r] > high:
			held++
		default:
			return false
		}
	}
	return held > 0
}

// whitenedSince reports whether advantages are a line of what returns exceed values by, other than they themselves: they were whitened after the
// returns were taken, of rewards that were not dumped. Every file may have a line of its own, as those of a rank or of a mini-batch.
func whitenedSince(c *Case) bool {
	if c.B.Token("token_rewards") != nil {
		return false
	}
	const least = 16 // cells
	line := func(lo, hi int) bool {
		fit := lineOfSurprise(c.B, lo, hi)
		return fit != nil && fit.a > 0 && fit.left <= 1e-3*fit.size && fit.cells >= least
	}
	return line(0, c.B.Rows) || !slices.ContainsFunc(c.B.Files, func(f dump.FileInfo) bool { return !line(f.Lo, f.Hi) })
}

// baselineOfSteps reports whether what advantages are less than the rewards to come is one number for the rows of a group at each step, as the optimal
// token baseline is, whose weights need the squared probabilities of every token. A step is a column, or a token of its row by its number (verl 0.9.1,
// core_algos.py, compute_optimal_token_baseline_advantage and compute_multi_turn_optimal_token_baseline_advantage).
func baselineOfSteps(c *Case) bool {
	b := c.B
	adv, r, id, score := b.Token("advantages"), b.Token("token_rewards"), b.Row("group_id"), b.Row("scores")
	if adv == nil || id == nil || r == nil && score == nil {
		return false
	}
	var toGo []float64
	for row := range b.Rows {
		var to float64
		if r == nil {
			to = score[row]
		}
		rest := make([]float64, b.Cols)
		for t := b.Cols - 1; t >= 0; t-- {
			if i := row*b.Cols + t; r != nil && b.Mask[i] {
				to += r[i]
			}
			rest[t] = to
		}
		toGo = append(toGo, rest...)
	}
	return oneOfSteps(b, adv, toGo, false) || oneOfSteps(b, adv, toGo, true)
}

// oneOfSteps reports whether what advantages are less than the rewards to come is the same for the rows of a group at each column, or at the tokens of
// each number.
func oneOfSteps(b *dump.Batch, adv, toGo []float64, numbered bool) bool {
	type place struct {
		group float64
		step  int
	}
	id, base, compared := b.Row("group_id"), map[place]float64{}, 0
	for row := range b.Rows {
		n := 0
		for t := range b.Cols {
			i := row*b.Cols + t
			if !b.Mask[i] {
				continue
			}
			at := place{id[row], t}
			if numbered {
				at.step = n
			}
			n++
			x := toGo[i] - adv[i]
			if y, there := base[at]; !there {
				base[at] = x
			} else if compared++; math.Abs(x-y) > 1e-4*(1+math.Abs(toGo[i])+math.Abs(adv[i])) {
				return false
			}
		}
	}
	return compared >= 16
}
