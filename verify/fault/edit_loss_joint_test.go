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
	"plumbline/verify/stage"
)

func unclipped() *dump.Batch { return updated(func(float64, float64) float64 { return 0 }) }

// A clipped loss whose ratio is none of the difference of log-probs, or whose bounds are on another number, is named by its formula.
func TestJointRatios(t *testing.T) {
	set := clippedLoss(t)
	c := stage.Find("token_loss/policy")
	clip := func(x float64) float64 { return math.Max(0.8, math.Min(x, 1.28)) }
	of := func(r func(lp, old float64) float64) func(lp, old, a float64) float64 {
		return func(lp, old, a float64) float64 { return math.Max(-a*r(lp, old), -a*clip(r(lp, old))) }
	}
	for words, f := range map[string]struct {
		id string
		of func(lp, old, a float64) float64
	}{
		"1 + p_new − p_old":          {"RATIO-FORM", of(func(lp, old float64) float64 { return 1 + math.Exp(lp) - math.Exp(old) })},
		"logp_new/logp_old":          {"RATIO-FORM", of(func(lp, old float64) float64 { return lp / old })},
		"e to the (p_new − p_old)":   {"RATIO-FORM", of(func(lp, old float64) float64 { return math.Exp(math.Exp(lp) - math.Exp(old)) })},
		"product with the advantage": {"CLIP-BOUND", func(lp, old, a float64) float64 { return math.Max(-a*math.Exp(lp-old), -clip(a*math.Exp(lp-old))) }},
	} {
		t.Run(words, func(t *testing.T) {
			requireName(t, stage.Judge(c, perTokenOf(unclipped(), "token_loss", f.of), set), f.id, words)
		})
	}
}

// A detached weight that is none of the ratio, or multiplies another log-prob.
func TestDetachedWeights(t *testing.T) {
	set := clippedLoss(t, "loss.kind", "cispo", "clip.high_is_absolute", "false")
	c := stage.Find("token_loss/policy")
	weight := func(lp, old float64) float64 { return math.Max(0.8, math.Min(math.Exp(lp-old), 1.28)) }
	require.Equal(t, check.Pass, stage.Judge(c, perTokenOf(unclipped(), "token_loss", func(lp, old, a float64) float64 { return -a * weight(lp, old) * lp }), set).Verdict)
	for words, of := range map[string]func(lp, old, a float64) float64{
		"of the log-ratio d, not":       func(lp, old, a float64) float64 { return -a * math.Max(-0.2, math.Min(lp-old, 0.28)) * lp },
		"−A·clip(ρ)·logp_old":           func(lp, old, a float64) float64 { return -a * weight(lp, old) * old },
		"(logp_new − logp_old), the cl": func(lp, old, a float64) float64 { return -a * weight(lp, old) * (lp - old) },
	} {
		t.Run(words, func(t *testing.T) {
			requireName(t, stage.Judge(c, perTokenOf(unclipped(), "token_loss", of), set), "LOSS-KIND", words)
		})
	}
}

// The bound of a detached weight holds the ratio from the other side.
func TestDetachedWeightsHeldFromTheWrongSide(t *testing.T) {
	set := clippedLoss(t, "loss.kind", "cispo", "clip.high_is_absolute", "false")
	for words, of := range map[string]func(r float64) float64{
		"held from below by the upper bound": func(r float64) float64 { return math.Max(r, 1.28) },
		"held from above by the lower bound": func(r float64) float64 { return math.Min(r, 0.8) },
	} {
		b := perTokenOf(unclipped(), "token_loss", func(lp, old, a float64) float64 { return -a * of(math.Exp(lp-old)) * lp })
		requireName(t, stage.Judge(stage.Find("token_loss/policy"), b, set), "CISPO-WRONG-SIDE", words)
	}
}

// Forms of a loss whose ratios are to the engine's log-probs are those of ratios to the rollout's.
func TestFormsOfRatiosToTheEngine(t *testing.T) {
	for _, c := range []struct {
		id, words, kind string
		of              func(lp, old, a float64) float64
	}{
		{"RATIO-INVERTED", "", "ppo", func(lp, old, a float64) float64 {
			r := math.Exp(old - lp)
			return math.Max(-a*r, -a*math.Max(0.8, math.Min(r, 1.28)))
		}},
		{"LOSS-KIND", "without the exponential", "ppo", func(lp, old, a float64) float64 { return -a * (lp - old) }},
		{"CLIP-MIN-MAX", "", "ppo", func(lp, old, a float64) float64 {
			r := math.Exp(lp - old)
			return math.Min(-a*r, -a*math.Max(0.8, math.Min(r, 1.28)))
		}},
		{"LOSS-KIND", "of the log-ratio d, not", "cispo", func(lp, old, a float64) float64 { return -a * math.Max(-0.2, math.Min(lp-old, 0.28)) * lp }},
	} {
		b := perTokenOf(unclipped(), "token_loss", c.of)
		b.Tensors["logp_gen"] = b.Tensors["logp_old"]
		delete(b.Tensors, "logp_old")
		set := clippedLoss(t, "loss.kind", c.kind, "clip.high_is_absolute", "false", "ratio.old", "engine", "tis.level", "none")
		o := stage.Judge(stage.Find("token_loss/policy"), b, set)
		requireName(t, o, c.id, c.words)
	}
}

// byRows returns a step whose token losses a program makes of the log-ratios of each row and its advantage.
func byRows(of func(d []float64, a float64) []float64) *dump.Batch {
	b := unclipped()
	lp, old, adv := b.Token("logp_new"), b.Token("logp_old"), b.Row("advantages")
	var x []float64
	for r := range b.Rows {
		var d []float64
		for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
			d = append(d, lp[i]-old[i])
		}
		x = append(x, of(d, adv[r])...)
	}
	for i := range x {
		x[i] = float64(float32(x[i]))
	}
	b.Tensors["token_loss"].Data = x
	return b
}

// The ratio of a row made of its tokens' in another way, or read on one side of the clip only.
func TestRowRatios(t *testing.T) {
	set := clippedLoss(t, "ratio.level", "seq_mean", "ratio.grad", "row")
	c := stage.Find("token_loss/policy")
	clip := func(x float64) float64 { return math.Max(0.8, math.Min(x, 1.28)) }
	mean := func(x []float64) (m float64) {
		for _, v := range x {
			m += v / float64(len(x))
		}
		return m
	}
	same := func(r func(d []float64) float64) func(d []float64, a float64) []float64 {
		return func(d []float64, a float64) []float64 {
			return slices.Repeat([]float64{math.Max(-a*r(d), -a*clip(r(d)))}, len(d))
		}
	}
	require.Equal(t, check.Pass, stage.Judge(c, byRows(same(func(d []float64) float64 { return math.Exp(mean(d)) })), set).Verdict)
	exp := func(d []float64) []float64 { return mapped(d, math.Exp) }
	for words, of := range map[string]func(d []float64, a float64) []float64{
		"the mean of the ratios of its tokens": same(func(d []float64) float64 { return mean(exp(d)) }),
		"the largest of its tokens":            same(func(d []float64) float64 { return slices.Max(exp(d)) }),
		"the clipped side reads the ratios of the tokens": func(d []float64, a float64) (x []float64) {
			for _, r := range exp(d) {
				x = append(x, math.Max(-a*math.Exp(mean(d)), -a*clip(r)))
			}
			return x
		},
	} {
		t.Run(words, func(t *testing.T) { requireName(t, stage.Judge(c, byRows(of), set), "RATIO-FORM", words) })
	}
	sums := clippedLoss(t, "ratio.level", "seq_sum", "ratio.grad", "row")
	require.Equal(t, check.Pass, stage.Judge(c, byRows(same(func(d []float64) float64 { return math.Exp(total(d)) })), sums).Verdict)
	requireName(t, stage.Judge(c, byRows(same(func(d []float64) float64 { return mean(exp(d)) })), sums), "RATIO-FORM", "the mean of the ratios of its tokens")
	requireName(t, stage.Judge(c, byRows(func(d []float64, a float64) (x []float64) {
		for _, r := range exp(d) {
			x = append(x, math.Max(-a*r, -a*clip(math.Exp(total(d)))))
		}
		return x
	}), sums), "RATIO-FORM", "the unclipped side reads the ratios of the tokens")
}

// Rows that went too far, and tokens of low entropy, that are left out by another rule.
func TestKeepEdits(t *testing.T) {
	c := stage.Find("token_loss/policy")
	ppo := func(lp, old, a float64) float64 {
		r := math.Exp(lp - old)
		return math.Max(-a*r, -a*math.Max(0.8, math.Min(r, 1.28)))
	}
	far := clippedLoss(t, "loss.off_policy_max", "0.05")
	gap := func(d []float64) (g float64) {
		for _, v := range d {
			g -= v / float64(len(d))
		}
		return g
	}
	by := func(drops func(a, g float64) bool) *dump.Batch {
		return byRows(func(d []float64, a float64) []float64 {
			x := make([]float64, len(d))
			if !drops(a, gap(d)) {
				for i, v := range d {
					x[i] = ppo(v, 0, a)
				}
			}
			return x
		})
	}
	require.Equal(t, check.Pass, stage.Judge(c, by(func(a, g float64) bool { return a < 0 && g > 0.05 }), far).Verdict)
	for words, drops := range map[string]func(a, g float64) bool{
		"those with A > 0":       func(a, g float64) bool { return a > 0 && g > 0.05 },
		"whatever the sign":      func(_, g float64) bool { return g > 0.05 },
		"taken the other way":    func(a, g float64) bool { return a < 0 && -g > 0.05 },
		"not those that are far": func(a, g float64) bool { return a < 0 && g <= 0.05 },
	} {
		t.Run(words, func(t *testing.T) { requireName(t, stage.Judge(c, by(drops), far), "OFF-POLICY-FORM", words) })
	}
	top := clippedLoss(t, "loss.top_entropy", "0.2")
	r := rand.New(rand.NewPCG(4, 6))
	b := perTokenOf(unclipped(), "token_loss", ppo)
	h := make([]float64, len(b.Mask))
	for i := range h {
		h[i] = float64(float32(r.Float64()))
	}
	b.Tensors["entropy"] = &dump.Tensor{Name: "entropy", Layout: dump.PerToken, Width: 1, Shape: []int{b.Rows, b.Cols}, Data: h, Type: format.F32}
	sorted := slices.Sorted(slices.Values(h))
	at := sorted[int(0.8*float64(len(h)-1))]
	loss := b.Tensors["token_loss"].Data
	for i := range loss {
		if h[i] > at {
			loss[i] = 0
		}
	}
	requireName(t, stage.Judge(c, b, top), "TOP-ENTROPY-QUANTILE", "below the quantile")
}

// Quantiles of the entropies of a row interpolate between two of its tokens; that of a row of one token is its own, and one of no token has none.
func TestQuantilesOfEntropies(t *testing.T) {
	b := unclipped()
	b.Tensors["entropy"] = &dump.Tensor{Name: "entropy", Layout: dump.PerToken, Width: 1, Shape: []int{b.Rows, b.Cols}, Data: make([]float64, len(b.Mask)), Type: format.F32}
	for i := range b.Mask {
		b.Mask[i], b.Tensors["entropy"].Data[i] = i < b.Cols || i == b.Cols, float64(i+1)
	}
	c := stage.NewCase(b, clippedLoss(t, "loss.top_entropy", "0.2"), 0)
	byEntropyOf(c, false, true, func(_ float64, at func(q float64) float64, _ float64) bool {
		require.Zero(t, at(0.5), "most columns are padding, whose entropy is taken for 0")
		require.Equal(t, 7., at(1))
		return true
	})
	want := map[float64][]float64{0: {1, 7}, 0.25: {2.25, 7}, 0.5: {3.5, 7}, 1: {6, 7}} // of entropies 1 to 6, and of 7
	byEntropy(stage.NewCase(b, clippedLoss(t, "loss.top_entropy", "0.2"), 0), true, func(h float64, at func(q float64) float64, top float64) bool {
		require.Equal(t, 0.2, top)
		for q, rows := range want {
			if h <= 6 {
				require.Equal(t, rows[0], at(q))
			} else if h == 7 {
				require.Equal(t, rows[1], at(q))
			}
		}
		return true
	})
}

// An estimate of KL of probabilities, and one that stands inside the clip.
func TestProbabilityKL(t *testing.T) {
	set := clippedLoss(t, "kl.kind", "k2", "kl.place", "loss", "kl.beta", "0.1", "kl.grad", "naive")
	b := estimatedBy(func(x float64) float64 { return x * x / 2 })
	c := stage.Find("kl/token")
	require.Equal(t, check.Pass, stage.Judge(c, b, set).Verdict)
	lp, ref, kl := b.Token("logp_new"), b.Token("logp_ref"), slices.Clone(b.Token("kl"))
	for i := range kl {
		d := math.Exp(ref[i]) - math.Exp(lp[i])
		kl[i] = float64(float32(d * d / 2))
	}
	requireName(t, stage.Judge(c, b.With("kl", kl), set), "KL-FORMULA", "of probabilities")
	inside := true
	b.Meta.TokenLossIncludesKL = &inside
	old, adv, loss := b.Token("logp_old"), b.Row("advantages"), make([]float64, len(lp))
	for i := range loss {
		a, r := adv[i/b.Cols]-0.1*b.Token("kl")[i], math.Exp(lp[i]-old[i])
		loss[i] = float64(float32(math.Max(-a*r, -a*math.Max(0.8, math.Min(r, 1.28)))))
	}
	b.Tensors["token_loss"] = &dump.Tensor{Name: "token_loss", Layout: dump.PerToken, Width: 1, Shape: []int{b.Rows, b.Cols}, Data: loss, Type: format.F32}
	requireName(t, stage.Judge(stage.Find("token_loss/policy"), b, set), "KL-INSIDE-CLIP", "inside the clip")
}
