package stage

import (
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
)

// WrongRecursion is a recursion over the tokens of a response that is another one than that of generalised advantage estimation,
//
//	A_t = r_t + γ·V'_t − V°_t + γλ·A_{t+1}
//
// with V' and V° what Next and Own make of the values, and V' of the last token what End does: of all responses, of the longest alone, which may have been cut off,
// or of the others alone, where a loop over all columns ends behind the last one.
type WrongRecursion struct {
	Next, Own ofToken
	End       func(v []float64) float64
	Interior  bool // Next and Own are right
	Longest   bool
	Shorter   bool
}

// response is a row of a batch: its cells in the mask, and the values and advantages of these.
type response struct {
	cells   []int
	v, adv  []float64
	row     int
	longest bool
}

// RecursionUndone returns b with the returns and advantages of the right recursion in place of those of a wrong one, where rewards were not dumped: before the
// last token r_t is −β·k_t of an estimate k of the KL, or 0, so that γ, γλ and β are least squares. It is nil where they leave more than roundings, and where the
// last tokens are no nearer to their scores, but for one number, than those of the right recursion; off is how far they are from these. Right advantages get the
// mean and the deviation of the dumped ones where these are not A = R − V.
func RecursionUndone(b *dump.Batch, set *convention.Set, w WrongRecursion) (healed *dump.Batch, off float64) {
	const near = 1e-5 // of the advantages
	v, ret, score := b.Token("values"), b.Token("returns"), b.Row("scores")
	if b.Token("token_rewards") != nil || b.Token("dones") != nil || v == nil || ret == nil || len(score) != b.Rows {
		return nil, 0
	}
	list := responsesOf(b, v, ret)
	size := rms(ret, func(i int) bool { return b.Mask[i] })
	for _, e := range append(rewardEstimates(b, set), rewardTerm{}) {
		o := observations{n: 2}
		if e.k != nil {
			o.n++
		}
		for _, r := range list {
			for t := range len(r.cells) - 1 {
				x := []float64{w.Next(r.v, t), r.adv[t+1]}
				if e.k != nil {
					x = append(x, e.k[r.cells[t]])
				}
				o.add(append(x, r.adv[t]+w.Own(r.v, t))...)
			}
		}
		x, left := o.solve()
		if x == nil || !(left <= near*size) || !(x[0] > 0) {
			continue
		}
		gamma, slope := written(unit(x[0]), 1e-4), 0.0
		lambda := written(unit(x[1]/gamma), 1e-4)
		reward := make([]float64, len(ret))
		var right, wrong, all []float64 // what the rewards of last tokens have beside scores and KL, of the recursion that is wrong, and if it were right
		for _, r := range list {
			n := len(r.cells) - 1
			for t, i := range r.cells {
				if e.k != nil {
					slope = x[2]
					reward[i] = slope * e.k[i]
				}
				if t < n {
					continue
				}
				kl := reward[i]
				reward[i] = r.adv[n] + w.Own(r.v, n)
				if !(w.Longest && !r.longest || w.Shorter && r.longest) {
					reward[i] -= gamma * w.End(r.v)
					wrong, right = append(wrong, reward[i]-kl-score[r.row]), append(right, r.adv[n]+r.v[n]-kl-score[r.row])
				}
				all = append(all, reward[i]-kl-score[r.row])
			}
		}
		if w.Interior && !(apart(wrong) <= 0.1*apart(right)) {
			continue
		}
		return recursedFrom(b, list, reward, gamma, lambda), apart(all)
	}
	return nil, 0
}

// apart is the mean of what numbers are off their median.
func apart(x []float64) (off float64) {
	m := middle(slices.Clone(x), 1)
	for _, v := range x {
		off += math.Abs(v-m) / float64(len(x))
	}
	return off
}

// responsesOf are the rows of b with tokens.
func responsesOf(b *dump.Batch, v, ret []float64) (list []response) {
	most := 0
	for row := range b.Rows {
		r := response{row: row}
		for i := range b.TokensOf(row) {
			r.cells, r.v, r.adv = append(r.cells, i), append(r.v, v[i]), append(r.adv, ret[i]-v[i])
		}
		if len(r.cells) > 0 {
			list, most = append(list, r), max(most, len(r.cells))
		}
	}
	for i := range list {
		list[i].longest = len(list[i].cells) == most
	}
	return list
}

// recursedFrom is b with the returns and advantages of rewards by the right recursion.
func recursedFrom(b *dump.Batch, list []response, reward []float64, gamma, lambda float64) *dump.Batch {
	ret, adv := make([]float64, len(reward)), make([]float64, len(reward))
	for _, r := range list {
		var carried, next float64
		for t := len(r.cells) - 1; t >= 0; t-- {
			i := r.cells[t]
			carried = reward[i] + gamma*next - r.v[t] + gamma*lambda*carried
			next = r.v[t]
			adv[i], ret[i] = carried, float64(float32(carried+r.v[t]))
		}
	}
	return withRecursed(b, ret, adv)
}

// withRecursed is b with other returns and advantages, whose mean and deviation are those of the dumped ones where these are not A = R − V.
func withRecursed(b *dump.Batch, ret, adv []float64) *dump.Batch {
	healed := b.With("returns", ret)
	dumped := b.Token("advantages")
	if dumped == nil {
		return healed
	}
	if fit := lineOfSurprise(b, 0, b.Rows); fit == nil || math.Abs(fit.a-1) > 1e-4 || math.Abs(fit.b) > 1e-4*fit.size {
		asWhite(adv, dumped, b.Mask)
	}
	for i, a := range adv {
		adv[i] = float64(float32(a))
	}
	return healed.With("advantages", adv)
}
