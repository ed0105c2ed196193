package stage_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// recursion16 computes GAE, returns and whitened advantages operation by operation as torch does where values are bfloat16: all of it in
// that type where rewards are, too, and γV′ alone where they are float32.
func recursion16(tr *trainer, gamma, lambda float64, all bool) {
	b := tr.b
	put := func(name string, x []float64, half bool) {
		tr.put(name, x)
		if half {
			b.Tensors[name].Type = format.BF16
		}
	}
	for r := range b.Rows { // no rule for holes
		n := counted(b.Mask[r*b.Cols : (r+1)*b.Cols])
		for t := range b.Cols {
			b.Mask[r*b.Cols+t] = t < n
		}
	}
	store := func(x float64) float64 { return float64(float32(x)) }
	if all {
		store = bf
	}
	n := b.Rows * b.Cols
	v, rew, lp := make([]float64, n), make([]float64, n), make([]float64, n)
	for i, m := range b.Mask {
		lp[i] = bf(-tr.r.ExpFloat64())
		if m {
			v[i], rew[i] = bf(tr.r.NormFloat64()), store(0.3*tr.r.NormFloat64())
		}
	}
	adv, ret := make([]float64, n), make([]float64, n)
	for r := range b.Rows {
		var a, next float64
		for t := b.Cols - 1; t >= 0; t-- {
			i := r*b.Cols + t
			delta := store(store(rew[i]+bf(float64(float32(gamma)*float32(next)))) - v[i])
			a = store(delta + store(float64(float32(gamma*lambda)*float32(a))))
			adv[i], ret[i], next = a, store(a+v[i]), v[i]
		}
	}
	var sum, squares, tokens float64
	for i, m := range b.Mask {
		if m {
			sum += adv[i]
			tokens++
		}
	}
	mean := store(store(sum) / tokens)
	for i, m := range b.Mask {
		if c := store(adv[i] - mean); m {
			squares += store(c * c)
		}
	}
	variance := float32(store(store(squares)/tokens)) * float32(tokens/(tokens-1))
	rate := float32(1 / math.Sqrt(float64(variance+1e-8)))
	for i := range adv {
		adv[i] = store(float64(float32(store(adv[i]-mean)) * rate))
	}
	put("values", v, true)
	put("logp_old", lp, true)
	put("logp_new", lp, true)
	put("token_rewards", rew, all)
	put("advantages", adv, all)
	put("returns", ret, all)
}

func recursionOptions(t require.TestingT) *convention.Set {
	return options(t, "adv.kind=gae", "gae.hole=none", "gae.gamma=0.973", "gae.lambda=0.91", "gae.value_mask=response", "rewards.whiten=no", "whiten.scope=global",
		"whiten.mask=response", "whiten.shift_mean=true", "whiten.ddof=1", "whiten.eps=1e-8", "whiten.eps_place=inside_sqrt", "returns.before_whiten=true", "returns.remask=false")
}

func TestRecursionsIn16Bits(t *testing.T) {
	narrow := 0
	for _, all := range []bool{false, true} {
		for seed := range cases(120) {
			tr := newTrainer(uint64(seed))
			for len(tr.b.Files) > 1 || counted(tr.b.Mask) < 12 || tr.b.Meta.WorldSize > 1 {
				seed += 1000
				tr = newTrainer(uint64(seed))
			}
			tr.b.Meta.ComputeDType = ""
			recursion16(tr, 0.973, 0.91, all)
			set := recursionOptions(t)
			for _, id := range []string{"gae/advantage", "gae/returns"} {
				o := stage.Judge(stage.Find(id), tr.b, set)
				require.NotEqual(t, check.Fail, o.Verdict, "%s, seed %d, all %v: %+v", id, seed, all, o.Tally.Worst)
				if o.Verdict == check.Pass {
					narrow++
				}
				name := map[string]string{"gae/advantage": "advantages", "gae/returns": "returns"}[id]
				x := append([]float64(nil), tr.b.Tensors[name].Data...)
				at := 0
				for i, m := range tr.b.Mask {
					if m && math.Abs(x[i]) > math.Abs(x[at]) || !tr.b.Mask[at] {
						at = i
					}
				}
				x[at] *= 1.08 // γ of a recursion that is wrong by a hundredth is wrong by more than this after eight tokens
				bad := tr.b.With(name, x)
				require.NotEqual(t, check.Pass, stage.Judge(stage.Find(id), bad, set).Verdict, "%s, seed %d", id, seed)
			}
		}
	}
	require.Greater(t, narrow, 2*2*cases(120)*9/10)
}
