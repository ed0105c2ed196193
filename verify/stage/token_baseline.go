package stage

import (
	"math"
	"slices"

	"plumbline/reference/rl"
	"plumbline/verify/tol"
)

// tokenBaselineEps is what verl 0.9.1 adds to the sum of the weights.
const tokenBaselineEps = 1e-8

// predictTokenBaseline predicts A_t = G_t − B_t with the baseline B_t = Σ_i G_it·W_it/(Σ_i W_it + ε) of the responses i to one prompt at token t,
// W_it = Σ_{s≤t} (1 − 2π_s + Σπ²_s)·w²_s (verl 0.9.1, compute_optimal_token_baseline_advantage): π is of logp_old, w the importance weight where the
// rollout is corrected.
//
// Of n rows and t tokens a weight is off by e_W = Σ_s w²(2π(|lp| + 4) + 2 + Σπ²)·u + t·u·W, so that the baseline is by
// (Σ(|G|·e_W + W·e_G) + (n + 4)·u·Σ|G|W + |B|·Σe_W)/ΣW.
func predictTokenBaseline(c *Case) *Prediction {
	b := c.B
	if perRow, ok := c.layout("advantages"); !ok || perRow {
		return c.lacks("advantages per token")
	}
	reward, old, squares := c.Token("token_rewards"), c.Token("logp_old"), c.Token("sum_pi_squared")
	ids, complete := c.groups()
	if !c.OK() {
		return nil
	}
	for name, x := range map[string][]float64{"token_rewards per token": reward.X, "logp_old": old.X, "sum_pi_squared": squares.X} {
		if len(x) != len(b.Mask) {
			return c.lacks(name)
		}
	}
	weights := slices.Repeat([]float64{1}, len(b.Mask))
	if c.EnumOr("tis.level", "none") != "none" {
		w := c.Token("is_weights")
		if !c.OK() {
			return nil
		}
		if len(w.X) != len(weights) {
			return c.lacks("is_weights per token")
		}
		for i, x := range w.X {
			weights[i] = float64(x * x)
		}
	}
	u := c.Unit + tol.U64
	p := &Prediction{Want: rl.OptimalTokenBaseline(nil, reward.X, old.X, squares.X, weights, b.Mask, ids, b.Rows, b.Cols, tokenBaselineEps), Bound: make([]float64, len(b.Mask)),
		Judge: append([]bool(nil), b.Mask...)}
	togo, sizes := rl.RewardToGo(nil, reward.X, b.Mask, b.Rows, b.Cols, 1, rl.HoleCarry), make([]float64, len(b.Mask))
	w, errW := make([]float64, len(b.Mask)), make([]float64, len(b.Mask))
	for r := range b.Rows {
		var size, e float64
		for t := b.Cols - 1; t >= 0; t-- {
			if i := r*b.Cols + t; b.Mask[i] {
				size += math.Abs(reward.X[i])
				e += reward.E(i)
				sizes[i] = e + float64(b.Cols)*u*size
			}
		}
		var sum, off float64
		for t := range b.Cols {
			i := r*b.Cols + t
			if b.Mask[i] {
				pi := math.Exp(old.X[i])
				sum += float64((1 - 2*pi + squares.X[i]) * weights[i])
				off += weights[i] * (2*pi*(old.E(i)+4*u) + squares.E(i) + 6*u*(1+squares.X[i]))
			}
			w[i], errW[i] = sum, off+float64(t+1)*u*math.Abs(sum)
		}
	}
	rows := map[int][]int{}
	for r, g := range ids {
		rows[g] = append(rows[g], r)
	}
	for r := range b.Rows {
		members := rows[ids[r]]
		for i := r * b.Cols; i < (r+1)*b.Cols && !complete[r]; i++ {
			p.Judge[i] = false
		}
		for t := range b.Cols {
			var total, off float64
			for _, k := range members {
				if j := k*b.Cols + t; b.Mask[j] {
					total += w[j]
					off += math.Abs(togo[j])*errW[j] + math.Abs(w[j])*sizes[j] + float64(len(members)+4)*u*math.Abs(togo[j]*w[j])
				}
			}
			i := r*b.Cols + t
			base := togo[i] - p.Want[i]
			for _, k := range members {
				if j := k*b.Cols + t; b.Mask[j] {
					off += math.Abs(base) * errW[j]
				}
			}
			p.Bound[i] = sizes[i] + u*(math.Abs(p.Want[i])+4*math.Abs(base))
			if total > 0 {
				p.Bound[i] += off / total
			}
		}
	}
	p.Terms = func(i int) []Term {
		return []Term{{"reward from there on", togo[i]}, {"baseline", togo[i] - p.Want[i]}, {"weight of the row", w[i]}}
	}
	return p
}
