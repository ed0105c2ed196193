package stage

import (
	"maps"
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/reference/rl"
	"plumbline/verify/convention"
)

// impliedRewardForms proposes γ and λ and what stands in the rewards of tokens where these were not dumped. Before the last token of a response its reward is
// −β·k of an estimate k of the KL, or 0, so that with R the returns
//
//	R_t = −β·k_t + γ(1 − λ)·V_{t+1} + γλ·R_{t+1}
//
// is linear in β, γ(1 − λ) and γλ, with a constant beside these where rewards were whitened to a·r + b, and so are advantages of no values, with V = 0. With these the rewards are what the recursion leaves, of the last
// token, too, and say of scores what dumped ones say; see [rewardTerms].
func impliedRewardForms(b *dump.Batch, set *convention.Set) (lists [][]assign) {
	if lists = impliedRewardFormsOf(b, set, longestRows); len(lists) > 0 {
		return lists
	}
	var rows []int // of the first rank: each may have whitened its own
	for r := range b.Rows {
		if b.Files[b.File(r)].Rank == b.Files[0].Rank {
			rows = append(rows, r)
		}
	}
	if len(rows) == b.Rows {
		return nil
	}
	for _, list := range impliedRewardFormsOf(b.Select(rows), set, longestRows) {
		if slices.Contains(list, word("rewards.whiten", "shift_mean_false")) {
			lists = append(lists, append(slices.Clip(list), word("whiten.scope", "local_batch")))
		}
	}
	return lists
}

// impliedRewardFormsOf is impliedRewardForms where a penalty may be that of the rows that penalised reports.
func impliedRewardFormsOf(b *dump.Batch, set *convention.Set, penalised penalisable) (lists [][]assign) {
	return impliedRewardFormsIn(b, set, rewardEstimates(b, set), penalised)
}

// impliedRewardFormsIn is impliedRewardFormsOf by these estimates.
func impliedRewardFormsIn(b *dump.Batch, set *convention.Set, estimates []rewardTerm, penalised penalisable) (lists [][]assign) {
	v, ret := b.Token("values"), b.Token("returns")
	if b.Token("token_rewards") != nil || b.Token("dones") != nil || b.Row("scores") == nil {
		return nil
	}
	if ret == nil {
		ret = slices.Clone(b.Token("advantages"))
		for i := range min(len(ret), len(v)) {
			ret[i] += v[i]
		}
	}
	if ret == nil || v == nil && !variesInRow(b) {
		return nil
	}
	t := recursionOf(b, ret, estimates)
	if t == nil {
		return nil
	}
	w := t.w
	carried, ofValue := w[0], 0.0
	if v != nil {
		ofValue = w[1]
	}
	gamma := written(unit(carried+ofValue), 1e-4)
	lambda := written(unit(carried/gamma), 1e-4)
	if v != nil && beyond([]float64{ofValue, carried}) { // what carries A_{t+1} is λ alone
		gamma, lambda = written(gamma, 1e-3), written(carried, 1e-3)
	}
	base := []assign{amount("gae.gamma", gamma)}
	if v != nil {
		base = append(base, amount("gae.lambda", lambda))
		if white := whitening(b); b.Token("returns") != nil {
			base = append(base, white...)
		}
	} else {
		base = append(base, word("adv.kind", "rfpp"), word("rfpp.mode", "return_to_go"))
		lambda = 1
		if raw := unwhitened(b, ret, t.k, w, penalised); raw != nil {
			for _, terms := range rewardTermsIn(withRewards(b, b.Mask, raw, nil, gamma, 1), estimates, penalised) {
				for _, white := range whitenings {
					lists = append(lists, slices.Concat(base, terms, white))
				}
			}
		}
	}
	cells := [][]bool{b.Mask}
	if with, held := behindResponses(b, ret, v); with != nil {
		if cells = append(cells, with); held {
			cells = cells[1:]
		}
	}
	for _, in := range cells {
		for _, terms := range rewardTermsIn(withRewards(b, in, ret, v, gamma, lambda), estimates, penalised) {
			if v == nil && slices.Contains(terms, word("kl.place", "sequence_reward_after")) {
				lists = append(lists, baselined(terms, gamma)...)
				continue
			}
			if v == nil && gamma == 1 { // of an estimator that has no discount
				lists = append(lists, terms)
			}
			lists = append(lists, slices.Concat(base, terms))
		}
	}
	return append(lists, base)
}

// baselined are rewards that a baseline of the group left, as OpenRLHF 0.11.2 has them: whitened over a rollout (reinforce_baseline, rloo), or not.
func baselined(terms []assign, gamma float64) (lists [][]assign) {
	if gamma != 1 {
		terms = append(slices.Clip(terms), amount("gae.gamma", gamma))
	}
	plain := slices.Contains(terms, word("adv.scale", "none"))
	if plain && slices.Contains(terms, word("adv.center", "mean")) {
		for _, white := range whitenings {
			lists = append(lists, slices.Concat([]assign{word("adv.kind", "rfpp_baseline")}, terms, white))
		}
	}
	lists = append(lists, append([]assign{word("adv.kind", "group"), word("whiten.scope", "none")}, terms...))
	if plain {
		for _, white := range whitenings {
			lists = append(lists, slices.Concat([]assign{word("adv.kind", "group")}, terms, white))
		}
	}
	return lists
}

// impliedRecursion is a form of what stands in rewards under which returns are a line, with the coefficients of it.
type impliedRecursion struct {
	rewardTerm
	shifted bool // there is a constant, the last of w
	w       []float64
}

// recursionOf is the form that leaves no more than roundings of the returns, nil where none does: of these estimates or of no KL, without a constant first.
func recursionOf(b *dump.Batch, ret []float64, estimates []rewardTerm) *impliedRecursion {
	const exact = 1e-5
	v := b.Token("values")
	for _, shifted := range []bool{false, true} {
		for _, t := range append(slices.Clip(estimates), rewardTerm{}) {
			o := observations{n: 1}
			for _, more := range []bool{t.k != nil, v != nil, shifted} {
				if more {
					o.n++
				}
			}
			for i := range ret {
				if (i+1)%b.Cols == 0 || !b.Mask[i] || !b.Mask[i+1] {
					continue
				}
				row := []float64{ret[i+1]}
				if v != nil {
					row = append(row, v[i+1])
				}
				if t.k != nil {
					row = append(row, t.k[i])
				}
				if shifted {
					row = append(row, 1)
				}
				o.add(append(row, ret[i])...)
			}
			if w, left := o.solve(); w != nil && left <= exact*rms(ret, func(i int) bool { return b.Mask[i] }) {
				return &impliedRecursion{t, shifted, w}
			}
		}
	}
	return nil
}

// unwhitened returns the returns of rewards that A = a·G + b was whitened from, nil where it shows no line: the last token of a response has a·(s − β·k) + b of its
// score s, and −aβ is the coefficient of k that w has of the tokens before. Responses that may have a penalty say nothing of a and b.
func unwhitened(b *dump.Batch, adv, k, w []float64, penalised penalisable) []float64 {
	const exact = 1e-5
	c, score, slope := NewCase(b, &convention.Set{}, 0), b.Row("scores"), 0.0
	if k != nil {
		slope = w[1]
	}
	may, _ := penalised(c)
	o := observations{n: 2}
	for r := range b.Rows {
		if last := c.last(r); last >= 0 && !may[r] {
			i := r*b.Cols + last
			x := adv[i]
			if k != nil {
				x -= slope * k[i]
			}
			o.add(score[r], 1, x)
		}
	}
	line, left := o.solve()
	if line == nil || !(line[0] > 0) || left > exact*rms(adv, func(i int) bool { return b.Mask[i] }) || math.Abs(line[0]-1) < exact && math.Abs(line[1]) < exact {
		return nil
	}
	raw := make([]float64, len(adv))
	for i := range b.Tokens() {
		raw[i] = (adv[i] - line[1]) / line[0]
	}
	return raw
}

// behindResponses returns the mask with the cell behind each response, nil where none has a value or a return there, and whether returns stand there, as
// where it holds the score. Where values alone do, a recursion may take them or not.
func behindResponses(b *dump.Batch, ret, v []float64) (cells []bool, held bool) {
	one := rl.LengthMask(nil, b.Mask, b.Rows, b.Cols, 1)
	for i, in := range one {
		if !in || b.Mask[i] || i%b.Cols == 0 || !b.Mask[i-1] {
			continue
		}
		if held = held || ret[i] != 0; ret[i] != 0 || v != nil && v[i] != 0 {
			cells = one
		}
	}
	return cells, held
}

// withRewards is a batch with the rewards that a recursion of returns over some cells leaves, each of them followed by the next of its row.
func withRewards(b *dump.Batch, cells []bool, ret, v []float64, gamma, lambda float64) *dump.Batch {
	r := make([]float64, len(ret))
	for row := range b.Rows {
		next := -1
		for i := (row+1)*b.Cols - 1; i >= row*b.Cols; i-- {
			if !cells[i] {
				continue
			}
			if r[i] = ret[i]; next >= 0 {
				carry := lambda * ret[next]
				if v != nil {
					carry += (1 - lambda) * v[next]
				}
				r[i] -= gamma * carry
			}
			next = i
		}
	}
	of := *b
	of.Tensors = maps.Clone(b.Tensors)
	from := b.Tensors["returns"]
	if from == nil {
		from = b.Tensors["advantages"]
	}
	t := &dump.Tensor{Data: r, Layout: dump.PerToken, Width: 1, Type: from.Type, Shape: []int{b.Rows, b.Cols}}
	for i := range r { // what a difference of rounded numbers leaves of 0
		if math.Abs(r[i]) <= 1e-7 {
			r[i] = 0
		}
	}
	of.Tensors["token_rewards"] = t
	return &of
}
