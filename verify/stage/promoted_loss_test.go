package stage_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
	"plumbline/verify/tol"
)

// lossStep is a step of PPO operation by operation as torch does whose log-probs, advantages and losses are bfloat16, with a KL term that is
// float32 as OpenRLHF's (log_probs.float() − log_probs_base.float()) in the loss, or none: k is "", k1, k2 or k3. halves says that equal
// products pass half of their gradient each; ties is the number of those whose ratio is not on its bound.
func lossStep(tr *trainer, k string, halves bool) (ties int) {
	b := tr.b
	put := func(name string, draw func(i int) float64) []float64 {
		x := tr.grid(name, func(i int) float64 { return bf(draw(i)) })
		b.Tensors[name].Type = format.BF16
		return x
	}
	old := put("logp_old", func(int) float64 { return -tr.r.ExpFloat64() })
	lp := put("logp_new", func(i int) float64 { return min(0, old[i]+0.2*tr.r.NormFloat64()) })
	ref := put("logp_ref", func(i int) float64 { return min(0, old[i]+0.2*tr.r.NormFloat64()) })
	adv := put("advantages", func(int) float64 { return tr.r.NormFloat64() })
	var tokens float32
	for _, m := range b.Mask {
		if m {
			tokens++
		}
	}
	w := float64(1 / tokens * float32(tr.ranks))
	low, high := bf(1-0.2), bf(1+0.2)
	kl, loss, grad := make([]float64, len(lp)), make([]float64, len(lp)), make([]float64, len(lp))
	for i := range lp {
		rho := bf(math.Exp(bf(lp[i] - old[i])))
		one, two := bf(rho*adv[i]), bf(min(max(rho, low), high)*adv[i])
		loss[i] = -min(one, two)
		slope := bf(bf(w) * -adv[i])
		switch inside := rho > low && rho < high; {
		case inside || one < two:
		case one > two:
			slope = 0
		default:
			if rho != low && rho != high && b.Mask[i] {
				ties++
			}
			if halves {
				slope /= 2
			}
		}
		d := float64(float32(lp[i] - ref[i]))
		var dk float64
		switch k {
		case "k1":
			kl[i], dk = d, 1
		case "k2":
			kl[i], dk = float64(float32(d*d))/2, d
		case "k3":
			f := float64(float32(math.Exp(-d)))
			kl[i], dk = float64(float32(float32(f)-1)+float32(d)), 1-f
		}
		if b.Mask[i] {
			grad[i] = bf(bf(slope*rho) + bf(float64(float32(w*0.05))*dk))
		}
	}
	for name, x := range map[string][]float64{"token_loss": loss, "dlogp": grad} {
		tr.put(name, x)
		b.Tensors[name].Type = format.BF16
	}
	if k != "" {
		tr.put("kl", kl)
	}
	b.Meta.ComputeDType, b.Meta.TokenLossIncludesKL = "", new(bool)
	return ties
}

func lossOptions(t require.TestingT, k string) *convention.Set {
	list := []string{"ratio.level=token", "ratio.log_clamp=none", "ratio.old=stored", "loss.kind=ppo", "clip.low=0.2", "clip.high=0.2", "clip.dual=none", "clip.delta=none", "tis.level=none"}
	if k == "" {
		list = append(list, "kl.place=none")
	} else {
		list = append(list, "kl.place=loss", "kl.kind="+k, "kl.clamp_in=none", "kl.clamp_out=none", "kl.grad=naive", "kl.agg=same")
	}
	s := reduction{kind: "token", where: "global"}.set(t, options(t, list...))
	if k != "" {
		s = s.With("kl.beta", convention.NumberValue(0.05), "test")
	}
	return s
}

// Gradients of a loss in bfloat16 are known to the bit, where products are equal when rounded, too, and where the KL term is float32.
func TestGradientsOfALossIn16Bits(t *testing.T) {
	open, all, ties := 0, 0, 0
	for seed := range 120 {
		k := []string{"", "k1", "k2", "k3"}[seed%4]
		set := lossOptions(t, k)
		tr := newTrainer(uint64(seed))
		lossStep(tr, k, true)
		o := stage.Judge(stage.Find("gradient/dlogp"), tr.b, set)
		require.NotEqual(t, check.Fail, o.Verdict, "%s, seed %d: %+v", k, seed, o.Tally)
		if all++; o.Verdict == check.Undetermined {
			open++
		}

		whole := newTrainer(uint64(seed)) // what the formula has
		if n := lossStep(whole, k, false); n > 0 {
			o := stage.Judge(stage.Find("gradient/dlogp"), whole.b, set)
			require.NotEqual(t, check.Pass, o.Verdict, "seed %d", seed)
			ties++
		}
		x := append([]float64(nil), tr.b.Tensors["dlogp"].Data...)
		n := 0
		for i := range x {
			if x[i] = bf(1.03 * x[i]); x[i] != 0 {
				n++
			}
		}
		if n >= 24 {
			require.Equal(t, check.Fail, stage.Judge(stage.Find("gradient/dlogp"), tr.b.With("dlogp", x), set).Verdict, "seed %d", seed)
		}
	}
	require.Less(t, 20*open, all, "undetermined")
	require.Positive(t, ties)
}

// valueStep is the gradient of a clipped value loss as torch has it where values, those of the rollout and targets are bfloat16.
func valueStep(tr *trainer, clip bool, factor float64) {
	b := tr.b
	put := func(name string, draw func(i int) float64) []float64 {
		x := tr.grid(name, func(i int) float64 { return bf(draw(i)) })
		b.Tensors[name].Type = format.BF16
		return x
	}
	old := put("values", func(int) float64 { return tr.r.NormFloat64() })
	v := put("values_new", func(i int) float64 { return old[i] + 0.2*tr.r.NormFloat64() })
	ret := put("returns", func(i int) float64 { return old[i] + tr.r.NormFloat64() })
	var tokens float64
	for _, m := range b.Mask {
		if m {
			tokens++
		}
	}
	tr.grid("dvalues", func(i int) float64 {
		if !b.Mask[i] {
			return 0
		}
		low, high := bf(old[i]-0.1), bf(old[i]+0.1)
		free, held := bf(v[i]-ret[i]), bf(min(max(v[i], low), high)-ret[i])
		reach := bf(factor * bf(0.609) * 0.5 / tokens * float64(tr.ranks))
		switch one, two := bf(free*free), bf(held*held); {
		case !clip || one > two || v[i] > low && v[i] < high:
			return bf(reach * 2 * free)
		case one < two:
			return 0
		}
		return bf(reach * free)
	})
	b.Tensors["dvalues"].Type = format.BF16
	b.Meta.ComputeDType = ""
}

// Values, targets and their loss in bfloat16: the gradient is known to the bit.
func TestGradientsOfValuesIn16Bits(t *testing.T) {
	set := reduction{kind: "token", where: "global"}.set(t, options(t, "value.clip=0.1", "value.factor=0.5", "value.mask=response", "value.agg=same"))
	set = set.With("value.coef", convention.NumberValue(0.609), "test")
	tells, all := 0, 0
	for seed := range cases(120) {
		tr := newTrainer(uint64(seed))
		valueStep(tr, true, 1)
		o := stage.Judge(stage.Find("gradient/dvalues"), tr.b, set)
		require.NotEqual(t, check.Fail, o.Verdict, "seed %d: %+v", seed, o.Tally)
		if all++; o.Verdict == check.Pass {
			tells++
		}
		if counted(tr.b.Mask) < 24 {
			continue
		}
		for _, bad := range []func(*trainer){func(tr *trainer) { valueStep(tr, false, 1) }, func(tr *trainer) { valueStep(tr, true, 1.03) }} {
			tr := newTrainer(uint64(seed))
			bad(tr)
			require.NotEqual(t, check.Pass, stage.Judge(stage.Find("gradient/dvalues"), tr.b, set).Verdict, "seed %d", seed)
		}
	}
	require.Greater(t, 20*tells, 19*all)
}

// whiten16 whitens as lm-human-preferences does in bfloat16 on a CPU: torch.mean and torch.var, each rounded, (x − mean)·rsqrt(var + 1e-8).
func whiten16(x []float64, mask []bool) []float64 {
	var sum, n, squares float64
	for i, m := range mask {
		if m {
			sum += x[i]
			n++
		}
	}
	mean := bf(sum / n)
	for i, m := range mask {
		if m {
			squares += (x[i] - mean) * (x[i] - mean)
		}
	}
	rate := bf(1 / bf(math.Sqrt(bf(bf(squares/n)+1e-8))))
	y := make([]float64, len(x))
	for i, m := range mask {
		if m {
			y[i] = bf(bf(x[i]-mean) * rate)
		}
	}
	return y
}

func TestWhiteningWithoutACorrectionIn16Bits(t *testing.T) {
	set := recursionOptions(t).With("whiten.ddof", convention.NumberValue(0), "test")
	tells, all := 0, 0
	for seed := range cases(120) {
		tr := newTrainer(uint64(seed))
		for len(tr.b.Files) > 1 || counted(tr.b.Mask) < 24 || tr.b.Meta.WorldSize > 1 {
			seed += 1000
			tr = newTrainer(uint64(seed))
		}
		tr.b.Meta.ComputeDType = ""
		recursion16(tr, 0.973, 0.91, true)
		raw := make([]float64, len(tr.b.Mask))
		for r := range tr.b.Rows {
			var a, next float64
			for i := (r+1)*tr.b.Cols - 1; i >= r*tr.b.Cols; i-- {
				if tr.b.Mask[i] {
					v := tr.b.Tensors["values"].Data[i]
					delta := bf(bf(tr.b.Tensors["token_rewards"].Data[i]+bf(float64(float32(0.973)*float32(next)))) - v)
					g := 0.973
					a = bf(delta + bf(float64(float32(g*0.91)*float32(a))))
					raw[i], next = a, v
				}
			}
		}
		x := whiten16(raw, tr.b.Mask)
		o := stage.Judge(stage.Find("gae/advantage"), tr.b.With("advantages", x), set)
		require.NotEqual(t, check.Fail, o.Verdict, "seed %d: %+v", seed, o.Tally)
		if all++; o.Verdict != check.Pass {
			continue
		}
		tells++
		for i := range x {
			x[i] = bf(1.02 * x[i])
		}
		require.NotEqual(t, check.Pass, stage.Judge(stage.Find("gae/advantage"), tr.b.With("advantages", x), set).Verdict, "seed %d", seed)
	}
	require.Greater(t, 10*tells, 9*all)
}

// A mean over rows of losses in bfloat16: the sum of a row is rounded to it, and so is its quotient where the length is an integer.
func TestMeansOverRowsIn16Bits(t *testing.T) {
	set := reduction{kind: "seq_mean_token_mean", where: "micro"}.set(t, options(t, "kl.place=none"))
	tells, all := 0, 0
	for seed := range cases(120) {
		for _, quotient := range []bool{false, true} {
			step := func(extra float64) *trainer {
				tr := newTrainer(uint64(seed))
				b := tr.b
				lp := tr.grid("logp_new", func(int) float64 { return bf(-tr.r.ExpFloat64()) })
				b.Tensors["logp_new"].Type = format.BF16
				loss := tr.grid("token_loss", func(i int) float64 { return bf(1 + 0.3*lp[i]) })
				b.Tensors["token_loss"].Type = format.BF16
				b.Meta.ComputeDType, b.Meta.TokenLossIncludesKL = "", new(bool)
				var means []float64
				for _, f := range b.Files {
					var total, rows float64
					for r := f.Lo; r < f.Hi; r++ {
						var sum, n float64
						for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
							if b.Mask[i] {
								sum += loss[i]
								n++
							}
						}
						if n == 0 {
							continue
						}
						rows++
						if sum = bf(sum); quotient {
							total += bf(sum / (n + extra))
						} else {
							total += float64(float32(sum / (n + extra)))
						}
					}
					means = append(means, float64(float32(total/max(rows, 1))))
				}
				tr.perFile("pg_loss", means)
				return tr
			}
			o := stage.Judge(stage.Find("aggregate/pg_loss"), step(0).b, set)
			require.NotEqual(t, check.Fail, o.Verdict, "seed %d: %+v, lacks %s", seed, o.Tally, o.Lacking())
			if all++; o.Verdict == check.Pass {
				tells++
			}
			o = stage.Judge(stage.Find("aggregate/pg_loss"), step(1).b, set)
			require.NotEqual(t, check.Pass, o.Verdict, "seed %d", seed)
		}
	}
	require.Greater(t, 10*tells, 9*all)
}

// A mean over tokens of losses in bfloat16 is a sum that is rounded, and a quotient that is, too, or float32.
func TestMeansOverTokensIn16Bits(t *testing.T) {
	set := reduction{kind: "token", where: "micro"}.set(t, options(t, "kl.place=none"))
	tells, sharp, all := 0, 0, 0
	for seed := range cases(120) {
		for _, narrow := range []bool{false, true} {
			step := func(extra float64) *trainer {
				tr := newTrainer(uint64(seed))
				b := tr.b
				tr.grid("logp_new", func(int) float64 { return bf(-tr.r.ExpFloat64()) })
				b.Tensors["logp_new"].Type = format.BF16
				loss := tr.grid("token_loss", func(int) float64 { return bf(1 + 0.3*tr.r.NormFloat64()) })
				b.Tensors["token_loss"].Type = format.BF16
				b.Meta.ComputeDType, b.Meta.TokenLossIncludesKL = "", new(bool)
				var means []float64
				for _, f := range b.Files {
					var sum, n float64
					for i := f.Lo * b.Cols; i < f.Hi*b.Cols; i++ {
						if b.Mask[i] {
							sum += loss[i]
							n++
						}
					}
					mean := float64(float32(bf(sum) / max(n+extra, 1)))
					if narrow {
						mean = bf(bf(sum) / max(n+extra, 1))
					}
					means = append(means, mean)
				}
				tr.perFile("pg_loss", means)
				return tr
			}
			o := stage.Judge(stage.Find("aggregate/pg_loss"), step(0).b, set)
			require.NotEqual(t, check.Fail, o.Verdict, "seed %d: %+v, lacks %s", seed, o.Tally, o.Lacking())
			if all++; o.Verdict == check.Pass {
				tells++
			}
			if o.Pred.Bound[0] < tol.UB/4*math.Abs(o.Pred.Want[0]) {
				sharp++ // the sum is rounded, and a mean with more bits than that tells it
			}
			require.NotEqual(t, check.Pass, stage.Judge(stage.Find("aggregate/pg_loss"), step(1).b, set).Verdict, "seed %d", seed)
		}
	}
	require.Greater(t, 10*tells, 9*all)
	require.Greater(t, 5*sharp, 4*all) // of the others the narrow mean has no more bits than the sum
}

// Equal rewards are their own baseline without an error, whichever way it is taken, so that 0/ε is 0.
func TestEqualRewardsLeaveOneOut(t *testing.T) {
	set := options(t, "adv.center=loo", "adv.scale=group_std", "adv.ddof=0", "adv.eps=1e-6", "adv.zero_std=divide_eps", "adv.singleton=zero", "adv.kind=group", "kl.place=none", "reward.clip=none", "eos.rule=none", "whiten.scope=none")
	tr := newTrainer(1)
	b := tr.b
	b.Meta.WorldSize = 1
	tr.perRow("scores", func(r int) float64 { return 1 })
	tr.perRow("group_id", func(r int) float64 { return 0 })
	tr.perRow("advantages", func(r int) float64 { return 0 })
	o := stage.Judge(stage.Find("advantage/group"), b, set)
	require.Equal(t, check.Pass, o.Verdict, o.Lacking())
	require.Zero(t, o.Tally.Undetermined)
	tr.perRow("advantages", func(r int) float64 { return float64(r+1) * 1e-4 })
	require.Equal(t, check.Fail, stage.Judge(stage.Find("advantage/group"), b, set).Verdict)
}
