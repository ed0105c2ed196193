package stage

import (
	"math"
	"slices"

	"plumbline/internal/format/dump"
)

// withReturnsImplied is b with the returns R = A + V of which its advantages are a·A + c, whatever returns were dumped, nil where the advantages show none. With
// −β·k of an estimate k of the KL, or 0, for the rewards before the last token of a response
//
//	a·A_t + c = γλ·(a·A_{t+1} + c) + aγ·V_{t+1} − a·V_t − aβ·k_t + (1 − γλ)·c
//
// is linear in γλ, aγ, a, aβ and the constant, which gives c unless γλ is 1. There the last tokens do, of which a·(s − V − β·k) + c holds the score s in most responses.
func withReturnsImplied(b *dump.Batch, estimates []rewardTerm) *dump.Batch {
	const exact = 1e-5
	v, adv, score := b.Token("values"), b.Token("advantages"), b.Row("scores")
	if b.Token("token_rewards") != nil || b.Token("dones") != nil || v == nil || adv == nil || len(score) != b.Rows {
		return nil
	}
	size := rms(adv, func(i int) bool { return b.Mask[i] })
	for _, t := range append(slices.Clip(estimates), rewardTerm{}) {
		o := observations{n: 4}
		if t.k != nil {
			o.n++
		}
		for i := range adv {
			if (i+1)%b.Cols == 0 || !b.Mask[i] || !b.Mask[i+1] {
				continue
			}
			x := []float64{adv[i+1], v[i+1], -v[i]}
			if t.k != nil {
				x = append(x, -t.k[i])
			}
			o.add(append(x, 1, adv[i])...)
		}
		w, left := o.solve()
		if w == nil || !(left <= exact*size) || !(w[2] > 0) || !(w[1] > 0) {
			continue
		}
		scale, shift := w[2], w[o.n-1]/(1-w[0])
		if math.Abs(1-w[0]) < 1e-3 {
			var of []float64
			for r := range b.Rows {
				last := -1
				for i := range b.TokensOf(r) {
					last = i
				}
				if last < 0 {
					continue
				}
				x := adv[last] - scale*(score[r]-v[last])
				if t.k != nil {
					x += w[3] * t.k[last]
				}
				of = append(of, x)
			}
			shift = middle(of, 1)
		}
		ret := make([]float64, len(adv))
		for i := range b.Tokens() {
			ret[i] = (adv[i]-shift)/scale + v[i]
		}
		in := b.With("returns", ret)
		of := *b.Tensors["advantages"]
		of.Name, of.Data = "returns", ret
		in.Tensors["returns"] = &of
		return in
	}
	return nil
}
