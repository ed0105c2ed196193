package stage

import (
	"math"

	"plumbline/internal/format/dump"
	"plumbline/reference/rl"
)

// decaysAlone proposes γ and λ of GAE, and the KL in its rewards, where these were not dumped. A token that another one follows has no score, so that with
// k the estimates of the KL of the old policy and R the returns
//
//	R_t = −β·k_t + γ(1 − λ)·V_{t+1} + γλ·R_{t+1}
func decaysAlone(b *dump.Batch) (lists [][]assign) {
	const near = 1e-5 // of the returns
	v, ret := b.Token("values"), b.Token("returns")
	if v == nil || ret == nil {
		return nil
	}
	size := rms(ret, func(i int) bool { return b.Mask[i] })
	follows := func(i int) bool { return (i+1)%b.Cols != 0 && b.Mask[i] && b.Mask[i+1] }
	two := observations{n: 2}
	for i := range ret {
		if follows(i) {
			two.add(v[i+1], ret[i+1], ret[i])
		}
	}
	if w, left := two.solve(); w != nil && left <= near*size {
		for _, g := range gammas(two, w) {
			place := "none"
			if b.Token("logp_ref") != nil {
				place = "loss"
			}
			lists = append(lists, []assign{word("kl.place", place), word("returns.before_whiten", "true"), amount("gae.gamma", g[0]), amount("gae.lambda", g[1])})
		}
		return lists
	}
	old, ref := b.Token("logp_old"), b.Token("logp_ref")
	if old == nil || ref == nil {
		return nil
	}
	for _, kind := range []rl.KLKind{rl.KLK1, rl.KLK2, rl.KLK3, rl.KLAbs} {
		k, _ := rl.KL(nil, nil, old, ref, old, rl.KLOptions{Kind: kind})
		three := observations{n: 3}
		for i := range ret {
			if follows(i) {
				three.add(-k[i], v[i+1], ret[i+1], ret[i])
			}
		}
		w, left := three.solve()
		if w == nil || !(left <= near*size) || !(w[0] > 0) {
			continue
		}
		gamma := unit(w[1] + w[2])
		for _, tol := range []float64{1e-5, 1e-3} {
			g := written(gamma, tol)
			lists = append(lists, []assign{word("kl.place", "token_reward"), word("kl.kind", kind.String()), amount("kl.beta", written(w[0], math.Sqrt(tol)*0.1)),
				word("kl.clamp_in", "none"), word("kl.clamp_out", "none"), amount("gae.gamma", g), amount("gae.lambda", written(unit(w[2]/gamma), tol))})
		}
	}
	return lists
}
