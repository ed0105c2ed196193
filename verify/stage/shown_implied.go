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
// is linear in β, γ(1 − λ) and γλ, and so are advantages of no values, with V = 0. With these the rewards are what the recursion leaves, of the last
// token, too, and say of scores what dumped ones say; see [rewardTerms].
func impliedRewardForms(b *dump.Batch, set *convention.Set) (lists [][]assign) {
	const exact = 1e-5
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
	if ret == nil || v == nil && !variesInRow(b, "advantages") {
		return nil
	}
	for _, t := range append(rewardEstimates(b, set), rewardTerm{}) {
		o := observations{n: 1}
		if t.k != nil {
			o.n++
		}
		if v != nil {
			o.n++
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
			o.add(append(row, ret[i])...)
		}
		w, left := o.solve()
		if size := rms(ret, func(i int) bool { return b.Mask[i] }); w == nil || !(left <= exact*size) {
			continue
		}
		carried, ofValue := w[0], 0.0
		if v != nil {
			ofValue = w[1]
		}
		gamma := written(unit(carried+ofValue), 1e-4)
		lambda := written(unit(carried/gamma), 1e-4)
		base := []assign{amount("gae.gamma", gamma)}
		if v != nil {
			base = append(base, amount("gae.lambda", lambda))
			if white := whitening(b); b.Token("returns") != nil {
				base = append(base, white...)
			}
		} else {
			base = append(base, word("adv.kind", "rfpp"), word("rfpp.mode", "return_to_go"))
			lambda = 1
		}
		for _, terms := range rewardTerms(withRewards(b, ret, v, gamma, lambda), set) {
			if v == nil && gamma == 1 { // of an estimator that has no discount
				lists = append(lists, terms)
			}
			lists = append(lists, slices.Concat(base, terms))
		}
		lists = append(lists, base)
		break
	}
	return lists
}

// withRewards is a batch with the rewards that a recursion of returns leaves, each token followed by the next of its row, the last one by the cell behind it where
// some row has a number there: it holds a value, and the score may stand there.
func withRewards(b *dump.Batch, ret, v []float64, gamma, lambda float64) *dump.Batch {
	r, cells := make([]float64, len(ret)), b.Mask
	one := rl.LengthMask(nil, b.Mask, b.Rows, b.Cols, 1)
	for i, in := range one {
		if in && !b.Mask[i] && i%b.Cols > 0 && b.Mask[i-1] && (ret[i] != 0 || v != nil && v[i] != 0) {
			cells = one
			break
		}
	}
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
