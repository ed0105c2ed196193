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

// bf rounds to bfloat16 by the bits of a float32, to nearest even.
func bf(x float64) float64 {
	bits := math.Float32bits(float32(x))
	bits += 0x7fff + bits>>16&1
	return float64(math.Float32frombits(bits &^ 0xffff))
}

// promotedStep computes a step of GRPO operation by operation as torch does whose log-probs are bfloat16 and whose advantages are
// float32, forward and backward, with the KL estimate times the ratio if corrected, and the estimate written in one of the ways of programs.
func promotedStep(tr *trainer, beta float64, corrected bool, form string) {
	put := func(name string, draw func(i int) float64) []float64 {
		x := tr.grid(name, func(i int) float64 { return bf(draw(i)) })
		tr.b.Tensors[name].Type = format.BF16
		return x
	}
	old := put("logp_old", func(int) float64 { return -tr.r.ExpFloat64() })
	lp := put("logp_new", func(i int) float64 { return min(0, old[i]+0.2*tr.r.NormFloat64()) })
	ref := put("logp_ref", func(i int) float64 { return min(0, old[i]+0.2*tr.r.NormFloat64()) })
	adv := tr.grid("advantages", func(int) float64 { return tr.r.NormFloat64() })
	w := make([]float64, len(lp)) // a mean over the tokens of the step
	var tokens float32
	for _, m := range tr.b.Mask {
		if m {
			tokens++
		}
	}
	for i, m := range tr.b.Mask {
		if m {
			w[i] = float64(1 / tokens * float32(tr.ranks))
		}
	}
	kl, loss, grad := make([]float64, len(lp)), make([]float64, len(lp)), make([]float64, len(lp))
	low, high := bf(1-0.2), bf(1+0.2)
	for i := range lp {
		rho := bf(math.Exp(bf(lp[i] - old[i])))
		clipped := min(max(rho, low), high)
		delta := bf(ref[i] - lp[i])
		f := bf(math.Exp(delta))
		k := bf(bf(f-delta) - 1)
		switch form {
		case "exp(δ) − 1 − δ":
			k = bf(bf(f-1) - delta)
		case "expm1(δ) − δ":
			e := bf(math.Expm1(delta))
			k, f = bf(e-delta), bf(e+1)
		case "k2":
			k = bf(delta*delta) / 2
		case "k1":
			k = -delta
		}
		one, two := float32(rho)*float32(adv[i]), float32(clipped)*float32(adv[i])
		gRatio := bf(float64(-float32(w[i]) * float32(adv[i])))
		if two < one { // the clip acts, and has no gradient
			gRatio = 0
		}
		toKL := bf(bf(w[i]) * beta)
		ratioKL := 0.0
		kl[i] = k
		if corrected {
			kl[i] = bf(k * rho)
			ratioKL = bf(toKL * k)
			toKL = bf(toKL * rho)
		}
		loss[i] = float64(-min(one, two) + float32(bf(beta*kl[i])))
		if w[i] != 0 {
			gDelta := bf(bf(toKL*f) - toKL)
			switch form {
			case "k2", "k3+":
				gDelta = bf(toKL * delta)
			case "k1":
				gDelta = -toKL
			}
			grad[i] = bf(bf(bf(gRatio+ratioKL)*rho) - gDelta)
		}
	}
	for name, x := range map[string][]float64{"kl": kl, "dlogp": grad} {
		tr.put(name, x)
		tr.b.Tensors[name].Type = format.BF16
	}
	tr.put("token_loss", loss)
	tr.b.Meta.ComputeDType = ""
}

// Log-probs in bfloat16 beside advantages in float32 are judged by the types that torch gives their results, as narrowly as in float32.
func TestTypesOfMixedTensors(t *testing.T) {
	all, open := 0, 0 // outcomes; those with a ratio on its bound in too many cells
	for _, corrected := range []bool{false, true} {
		for seed := range cases(120) {
			tr := newTrainer(uint64(seed))
			beta := []float64{0.04, 0.001, 0.3}[seed%3]
			form := []string{"exp(δ) − δ − 1", "exp(δ) − 1 − δ", "expm1(δ) − δ", "k2", "k1", "k3+"}[seed/3%6]
			kind, grad := "k3", map[bool]string{true: "is_corrected", false: "naive"}[corrected]
			switch form {
			case "k1", "k2":
				kind = form
			case "k3+":
				grad = "straight_through_k2"
			}
			promotedStep(tr, beta, corrected && form != "k3+", form)
			b := tr.b
			set := reduction{kind: "token", where: "global"}.set(t, options(t, "ratio.level=token", "ratio.log_clamp=none", "ratio.old=stored", "loss.kind=ppo", "clip.low=0.2", "clip.high=0.2",
				"clip.dual=none", "clip.delta=none", "tis.level=none", "kl.place=loss", "kl.kind="+kind, "kl.clamp_in=none", "kl.clamp_out=none", "kl.grad="+grad, "kl.agg=same"))
			set = set.With("kl.beta", convention.NumberValue(beta), "test")
			for _, id := range []string{"kl/token", "token_loss/policy", "gradient/dlogp"} {
				o := stage.Judge(stage.Find(id), b, set)
				require.NotEqual(t, check.Fail, o.Verdict, "%s, %s, seed %d: %+v, lacks %s", id, grad+" "+form, seed, o.Tally, o.Lacking())
				if all++; o.Verdict == check.Undetermined {
					open++
				}
			}
			for id, name := range map[string]string{"kl/token": "kl", "token_loss/policy": "token_loss", "gradient/dlogp": "dlogp"} {
				x := append([]float64(nil), b.Tensors[name].Data...)
				wrong := false
				for i := range x {
					if x[i] *= 1.03; name != "token_loss" {
						x[i] = bf(x[i])
					}
					wrong = wrong || b.Mask[i] && math.Abs(x[i]-b.Tensors[name].Data[i]) > 0.02*math.Abs(x[i])
				}
				if o := stage.Judge(stage.Find(id), b.With(name, x), set); wrong && o.Tally != nil && o.Tally.N >= 24 {
					require.Equal(t, check.Fail, o.Verdict, "%s, seed %d", id, seed)
				}
			}
		}
	}
	require.Less(t, 20*open, all, "undetermined")
}
