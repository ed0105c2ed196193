package fault

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// updated returns a step of eight responses of six tokens whose token losses a program makes of the difference d of log-probs and of the
// advantage.
func updated(loss func(d, a float64) float64) *dump.Batch {
	r := rand.New(rand.NewPCG(3, 4))
	const rows, cols = 8, 6
	b := &dump.Batch{Rows: rows, Cols: cols, Mask: make([]bool, rows*cols), Tensors: map[string]*dump.Tensor{}, Origin: make([]dump.Origin, rows),
		Files: []dump.FileInfo{{Lo: 0, Hi: rows, Cols: cols}}}
	b.Meta.MicroBatches, b.Meta.WorldSize = 1, 1
	single := func() float64 { return float64(float32(r.NormFloat64())) }
	lp, old, adv, loss1 := make([]float64, rows*cols), make([]float64, rows*cols), make([]float64, rows), make([]float64, rows*cols)
	for i := range adv {
		adv[i] = 2 * single()
	}
	for i := range lp {
		b.Mask[i] = true
		lp[i] = float64(float32(-1 - math.Abs(single())))
		old[i] = float64(float32(lp[i] + 0.3*single()))
		loss1[i] = float64(float32(loss(lp[i]-old[i], adv[i/cols])))
	}
	for name, x := range map[string][]float64{"logp_new": lp, "logp_old": old, "token_loss": loss1} {
		b.Tensors[name] = &dump.Tensor{Name: name, Layout: dump.PerToken, Width: 1, Shape: []int{rows, cols}, Data: x, Type: format.F32}
	}
	b.Tensors["advantages"] = &dump.Tensor{Name: "advantages", Layout: dump.PerRow, Width: 1, Shape: []int{rows}, Data: adv, Type: format.F32}
	return b
}

// A clipped objective with one part wrong is named by that part. The formulas are those of programs: exp, clamp and maximum, in the order
// in which they are written there.
func TestPolicyEdits(t *testing.T) {
	p, _, err := convention.Lookup("trl-grpo@1.16")
	require.NoError(t, err)
	set := convention.FromProfile(p)
	for name, x := range map[string]string{"clip.low": "0.2", "clip.high": "0.28", "clip.dual": "3", "kl.beta": "0", "logp.temperature": "0.8"} {
		set = set.With(name, parsed(name, x), "test")
	}
	const low, high = 0.2, 0.28
	clamp := func(x, lo, hi float64) float64 { return math.Max(lo, math.Min(x, hi)) }
	dual := func(loss, a float64) float64 {
		if a < 0 {
			return math.Min(loss, -a*3)
		}
		return loss
	}
	right := func(d, a float64) float64 {
		return dual(math.Max(-a*math.Exp(d), -a*clamp(math.Exp(d), 1-low, 1+high)), a)
	}
	require.Equal(t, check.Pass, stage.Judge(stage.Find("token_loss/policy"), updated(right), set).Verdict)
	for _, c := range []struct {
		id, words string
		of        func(d, a float64) float64
	}{
		{"RATIO-FORM", "1 + d", func(d, a float64) float64 { return dual(math.Max(-a*(1+d), -a*clamp(1+d, 1-low, 1+high)), a) }},
		{"RATIO-FORM", "|d|", func(d, a float64) float64 {
			x := math.Exp(math.Abs(d))
			return dual(math.Max(-a*x, -a*clamp(x, 1-low, 1+high)), a)
		}},
		{"CLIP-BOUND", "the log-ratio is clipped", func(d, a float64) float64 {
			return dual(math.Max(-a*math.Exp(d), -a*math.Exp(clamp(d, -low, high))), a)
		}},
		{"CLIP-BOUND", "the lower bound is 1", func(d, a float64) float64 {
			return dual(math.Max(-a*math.Exp(d), -a*clamp(math.Exp(d), 1, 1+high)), a)
		}},
		{"CLIP-BOUND", "clipped side is not multiplied", func(d, a float64) float64 {
			return dual(math.Max(-a*math.Exp(d), -clamp(math.Exp(d), 1-low, 1+high)), a)
		}},
		{"CLIP-BOUND", "product of advantage and ratio is held within −(1 − clip.low) and 1 + clip.high", func(d, a float64) float64 {
			return -clamp(a*math.Exp(d), low-1, 1+high)
		}},
		{"RATIO-FORM", "e to the d/3", func(d, a float64) float64 {
			return dual(math.Max(-a*math.Exp(d/3), -a*clamp(math.Exp(d/3), 1-low, 1+high)), a)
		}},
		{"RATIO-FORM", "e to the −2d", func(d, a float64) float64 {
			return dual(math.Max(-a*math.Exp(-2*d), -a*clamp(math.Exp(-2*d), 1-low, 1+high)), a)
		}},
		{"RATIO-FORM", "divided by the temperature", func(d, a float64) float64 {
			return dual(math.Max(-a*math.Exp(d/0.8), -a*clamp(math.Exp(d/0.8), 1-low, 1+high)), a)
		}},
		{"RATIO-FORM", "multiplied by the temperature", func(d, a float64) float64 {
			return dual(math.Max(-a*math.Exp(d*0.8), -a*clamp(math.Exp(d*0.8), 1-low, 1+high)), a)
		}},
		{"CLIP-MIN-MAX", "larger magnitude", func(d, a float64) float64 {
			l, c := -a*math.Exp(d), -a*clamp(math.Exp(d), 1-low, 1+high)
			if math.Abs(c) > math.Abs(l) {
				l = c
			}
			return dual(l, a)
		}},
		{"CLIP-DUAL", "whatever the ratio", func(d, a float64) float64 {
			if a < 0 {
				return -a * 3
			}
			return right(d, a)
		}},
		{"RATIO-FORM", "unclipped side is not multiplied by the ratio", func(d, a float64) float64 {
			return dual(math.Max(-a, -a*clamp(math.Exp(d), 1-low, 1+high)), a)
		}},
		{"RATIO-FORM", "unclipped side is multiplied by the ratio twice", func(d, a float64) float64 {
			return dual(math.Max(-a*math.Exp(d)*math.Exp(d), -a*clamp(math.Exp(d), 1-low, 1+high)), a)
		}},
		{"RATIO-FORM", "the clipped side is multiplied by the ratio once more", func(d, a float64) float64 {
			return dual(math.Max(-a*math.Exp(d), -a*math.Exp(d)*clamp(math.Exp(d), 1-low, 1+high)), a)
		}},
		{"LOSS-SIGN", "negative advantage has the wrong sign where the ratio is below", func(d, a float64) float64 {
			l := right(d, a)
			if a < 0 && math.Exp(d) < 1-low {
				return -l
			}
			return l
		}},
		{"LOSS-SIGN", "token whose ratio is beyond its bounds", func(d, a float64) float64 {
			if l := right(d, a); math.Exp(d) >= 1-low && math.Exp(d) <= 1+high {
				return l
			} else {
				return -l
			}
		}},
		{"LOSS-SIGN", "the objective's absolute value", func(d, a float64) float64 { return -math.Abs(right(d, a)) }},
		{"CLIP-BOUND", "half of the bounds", func(d, a float64) float64 {
			return dual(math.Max(-a*math.Exp(d), -a*math.Exp(clamp(d, -low/2, high/2))), a)
		}},
		{"CLIP-WITHOUT-MIN", "of a positive advantage the clipped side alone is taken, of a negative one the unclipped", func(d, a float64) float64 {
			if a > 0 {
				return -a * clamp(math.Exp(d), 1-low, 1+high)
			}
			return dual(-a*math.Exp(d), a)
		}},
		{"RATIO-FORM", "stands for the ratio, without the exponential", func(d, a float64) float64 { return dual(-a*clamp(d, -low, high), a) }},
		{"RATIO-INVERTED", "inverted on the clipped side", func(d, a float64) float64 {
			return dual(math.Max(-a*math.Exp(d), -a*clamp(math.Exp(-d), 1-low, 1+high)), a)
		}},
	} {
		t.Run(c.words, func(t *testing.T) {
			o := stage.Judge(stage.Find("token_loss/policy"), updated(c.of), set)
			requireName(t, o, c.id, c.words)
			require.False(t, (c.words == "the log-ratio is clipped" || c.id == "CLIP-DUAL") && Explain(o)[0].Hypothesis.Relative, c.words)
		})
	}
	t.Run("noise", func(t *testing.T) { // what no form gives gets no name
		noise := rand.New(rand.NewPCG(1, 2))
		requireNoName(t, stage.Judge(stage.Find("token_loss/policy"), updated(func(float64, float64) float64 { return noise.NormFloat64() }), set))
	})
}

// A dual clip of another bound is named by that, where what it holds is what the bounds of the ratio hold, too.
func TestOtherDualClips(t *testing.T) {
	const low, high = 0.2, 0.28
	set := clippedLoss(t, "clip.dual", "3")
	for words, dual := range map[string]float64{"clip.dual is 1.1": 1.1, "clip.dual is 1.2": 1.2} {
		requireName(t, stage.Judge(stage.Find("token_loss/policy"), updated(func(d, a float64) float64 {
			l := math.Max(-a*math.Exp(d), -a*math.Max(1-low, math.Min(math.Exp(d), 1+high)))
			if a < 0 {
				return math.Min(l, -a*dual)
			}
			return l
		}), set), "CLIP-DUAL", words)
	}
}

// The dual clip taken from its other side.
func TestDualClipTurned(t *testing.T) {
	const low, high, dual = 0.2, 0.28, 1.1
	set := clippedLoss(t, "clip.dual", "1.1")
	loss := func(hold func(x, y float64) float64) *dump.Batch {
		return updated(func(d, a float64) float64 {
			l := math.Max(-a*math.Exp(d), -a*math.Max(1-low, math.Min(math.Exp(d), 1+high)))
			if a < 0 {
				return hold(l, -a*dual)
			}
			return l
		})
	}
	require.Equal(t, check.Pass, stage.Judge(stage.Find("token_loss/policy"), loss(math.Min), set).Verdict)
	requireName(t, stage.Judge(stage.Find("token_loss/policy"), loss(math.Max), set), "CLIP-DUAL", "is at least −A·clip.dual")
	clipped := func(d, a float64) float64 {
		return math.Max(-a*math.Exp(d), -a*math.Max(1-0.2, math.Min(math.Exp(d), 1+0.28)))
	}
	b := updated(func(d, a float64) float64 {
		if a > 0 {
			return math.Max(clipped(d, a), -a*1.1)
		}
		return clipped(d, a)
	})
	o := stage.Judge(stage.Find("token_loss/policy"), b, set)
	requireName(t, o, "CLIP-DUAL", "of positive advantages from below")
	require.False(t, Explain(o)[0].Hypothesis.Relative)
}

// A token that is held by the dual clip of the other sign is off by the rounding of that product, however small the loss without it is.
func TestDualClipOfBothSignsHoldsTinyLosses(t *testing.T) {
	const dual = 1.1
	b := updated(func(d, a float64) float64 { return 0 })
	lp, old, adv := b.Token("logp_new"), b.Token("logp_old"), b.Row("advantages")
	for i := range lp {
		if adv[i/b.Cols] > 0 && i%3 == 0 {
			lp[i] = float64(float32(old[i] - 18))
		}
	}
	b = perTokenOf(b, "token_loss", func(lp, old, a float64) float64 {
		r := math.Exp(lp - old)
		return math.Min(math.Max(-a*r, -a*math.Max(0.8, math.Min(r, 1.28))), -a*dual)
	})
	requireName(t, stage.Judge(stage.Find("token_loss/policy"), b, clippedLoss(t, "clip.dual", "1.1")), "CLIP-DUAL-BOTH-SIGNS", "positive")
}

// A KL that stands in the loss of a token is added to what the dual clip holds, once, and what cannot be predicted is no hypothesis.
func TestDualClipOfBothSignsBesideKL(t *testing.T) {
	const dual, beta = 1.1, 0.1
	set := clippedLoss(t, "clip.dual", "1.1", "kl.beta", "0.1", "kl.kind", "k2", "kl.place", "loss", "kl.grad", "naive", "kl.agg", "same", "kl.under_is_weight", "outside", "tis.level", "none")
	inside := true
	of := func(hold func(l, a float64) float64) *dump.Batch {
		b := updated(func(float64, float64) float64 { return 0 })
		b.Meta.TokenLossIncludesKL = &inside
		r := rand.New(rand.NewPCG(2, 3))
		b = perTokenOf(b, "logp_ref", func(lp, _, _ float64) float64 { return lp + 0.5*r.NormFloat64() })
		ref, i := b.Token("logp_ref"), -1
		b = perTokenOf(b, "kl", func(lp, _, _ float64) float64 { i++; return (lp - ref[i]) * (lp - ref[i]) / 2 })
		kl := b.Token("kl")
		i = -1
		return perTokenOf(b, "token_loss", func(lp, old, a float64) float64 {
			i++
			r := math.Exp(lp - old)
			return hold(math.Max(-a*r, -a*math.Max(0.8, math.Min(r, 1.28))), a) + beta*kl[i]
		})
	}
	c := stage.Find("token_loss/policy")
	require.Equal(t, check.Pass, stage.Judge(c, of(func(l, a float64) float64 {
		if a < 0 {
			return math.Min(l, -a*dual)
		}
		return l
	}), set).Verdict)
	o := stage.Judge(c, of(func(l, a float64) float64 { return math.Min(l, -a*dual) }), set)
	requireName(t, o, "CLIP-DUAL-BOTH-SIGNS", "positive")
	h := All()[slices.IndexFunc(All(), func(h *Hypothesis) bool { return h.ID == "CLIP-DUAL-BOTH-SIGNS" })]
	require.Nil(t, h.Predict(o.Case.Of(o.Case.B, o.Case.Set.With("agg.kind", convention.Value{}, "test")), stage.Find("gradient/dlogp")))
}
