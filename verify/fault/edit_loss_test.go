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

// perTokenOf writes a tensor of the log-probs and the advantage of every token.
func perTokenOf(b *dump.Batch, name string, of func(lp, old, a float64) float64) *dump.Batch {
	lp, old, adv := b.Token("logp_new"), b.Token("logp_old"), b.Row("advantages")
	x := make([]float64, len(lp))
	for i := range x {
		x[i] = float64(float32(of(lp[i], old[i], adv[i/b.Cols])))
	}
	b.Tensors[name] = &dump.Tensor{Name: name, Layout: dump.PerToken, Width: 1, Shape: []int{b.Rows, b.Cols}, Data: x, Type: format.F32}
	return b
}

func clippedLoss(t *testing.T, more ...string) *convention.Set {
	t.Helper()
	p, _, err := convention.Lookup("trl-grpo@1.16")
	require.NoError(t, err)
	set := convention.FromProfile(p)
	list := append([]string{"clip.low", "0.2", "clip.high", "0.28", "kl.beta", "0", "agg.kind", "token", "agg.denominator", "micro", "agg.div_ga", "false"}, more...)
	for i := 0; i < len(list); i += 2 {
		set = set.With(list[i], parsed(list[i], list[i+1]), "test")
	}
	return set
}

// A policy term that is another loss, as of probabilities or of a ratio that is detached, is named by its formula.
func TestLossEdits(t *testing.T) {
	set := clippedLoss(t)
	right := func(lp, old, a float64) float64 {
		r := math.Exp(lp - old)
		return math.Max(-a*r, -a*math.Max(0.8, math.Min(r, 1.28)))
	}
	plain := func() *dump.Batch { return updated(func(float64, float64) float64 { return 0 }) }
	c := stage.Find("token_loss/policy")
	require.Equal(t, check.Pass, stage.Judge(c, perTokenOf(plain(), "token_loss", right), set).Verdict)
	for _, f := range []struct {
		words string
		of    func(lp, old, a float64) float64
	}{
		{"without a ratio", func(lp, _, a float64) float64 { return -a * lp }},
		{"the ratio ρ detached", func(lp, old, a float64) float64 { return -a * math.Exp(lp-old) * lp }},
		{"the clipped ratio detached", func(lp, old, a float64) float64 { return -a * math.Max(0.8, math.Min(math.Exp(lp-old), 1.28)) * lp }},
		{"of the probability", func(lp, _, a float64) float64 { return -a * math.Exp(lp) }},
		{"−A·(p_new − p_old)", func(lp, old, a float64) float64 { return -a * (math.Exp(lp) - math.Exp(old)) }},
		{"the mean of the clipped", func(lp, old, a float64) float64 {
			r := math.Exp(lp - old)
			return -a * (r + math.Max(0.8, math.Min(r, 1.28))) / 2
		}},
	} {
		t.Run(f.words, func(t *testing.T) {
			requireName(t, stage.Judge(c, perTokenOf(plain(), "token_loss", f.of), set), "LOSS-KIND", f.words)
		})
	}
	noise := rand.New(rand.NewPCG(1, 2))
	t.Run("noise", func(t *testing.T) {
		requireNoName(t, stage.Judge(c, perTokenOf(plain(), "token_loss", func(float64, float64, float64) float64 { return noise.NormFloat64() }), set))
	})
}

// The soft gate without its factor, or without a part of it, in the loss of a token.
func TestGateWithoutItsFactor(t *testing.T) {
	set := clippedLoss(t, "loss.kind", "sapo", "sapo.tau_pos", "1.5", "sapo.tau_neg", "2")
	c := stage.Find("token_loss/policy")
	gate := func(factor func(tau float64) float64) *dump.Batch {
		plain := updated(func(float64, float64) float64 { return 0 })
		return perTokenOf(plain, "token_loss", func(lp, old, a float64) float64 {
			tau := 2.
			if a > 0 {
				tau = 1.5
			}
			return -a * factor(tau) / (1 + math.Exp(-tau*(math.Exp(lp-old)-1)))
		})
	}
	require.Equal(t, check.Pass, stage.Judge(c, gate(func(tau float64) float64 { return 4 / tau }), set).Verdict)
	for words, factor := range map[string]func(tau float64) float64{
		"lacks its factor":  func(float64) float64 { return 1 },
		"lacks the 4":       func(tau float64) float64 { return 1 / tau },
		"is not divided by": func(float64) float64 { return 4 },
	} {
		requireName(t, stage.Judge(c, gate(factor), set), "SAPO-SCALE", words)
	}
}

// The tokens above a quantile of their entropies, of the wrong share and of none.
func TestTokensOfAnotherQuantile(t *testing.T) {
	set := clippedLoss(t, "loss.top_entropy", "0.25")
	c := stage.Find("token_loss/policy")
	chosen := func(share float64) *dump.Batch {
		b := updated(func(float64, float64) float64 { return 0 })
		h := make([]float64, len(b.Mask))
		r := rand.New(rand.NewPCG(8, 1))
		for i := range h {
			h[i] = float64(float32(3 * r.Float64()))
		}
		sorted := slices.Sorted(slices.Values(h))
		rank := (1 - share) * float64(len(h)-1)
		k := int(rank)
		least := sorted[k] + (rank-float64(k))*(sorted[min(k+1, len(h)-1)]-sorted[k])
		i := -1
		b = perTokenOf(b, "token_loss", func(lp, old, a float64) float64 {
			if i++; h[i] < least {
				return 0
			}
			r := math.Exp(lp - old)
			return math.Max(-a*r, -a*math.Max(0.8, math.Min(r, 1.28)))
		})
		b.Tensors["entropy"] = &dump.Tensor{Name: "entropy", Layout: dump.PerToken, Width: 1, Shape: []int{b.Rows, b.Cols}, Data: h, Type: format.F32}
		return b
	}
	require.Equal(t, check.Pass, stage.Judge(c, chosen(.25), set).Verdict)
	for share, words := range map[float64]string{1: "all entropies", .75: "the share which is kept"} {
		requireName(t, stage.Judge(c, chosen(share), set), "TOP-ENTROPY-QUANTILE", words)
	}
}

// A side of the maximum that is detached takes half of the gradient with it where both are equal, as torch.maximum shares it out.
func TestClipDetached(t *testing.T) {
	set := clippedLoss(t)
	for side, words := range map[int]string{1: "the unclipped side", 2: "the clipped side"} {
		slope := func(detached int) func(d, a float64) float64 {
			return func(d, a float64) float64 {
				r := math.Exp(d)
				bounded := math.Max(0.8, math.Min(r, 1.28))
				plain, c := -a*r, -a*bounded
				var own, clip float64 // the gradients of the sides
				if detached != 1 {
					own = -a * r
				}
				if detached != 2 && bounded == r {
					clip = -a * r
				}
				switch {
				case c > plain:
					return clip
				case c == plain:
					return (own + clip) / 2
				}
				return own
			}
		}
		judge := func(detached int) *stage.Outcome {
			b := updated(func(d, a float64) float64 {
				return math.Max(-a*math.Exp(d), -a*math.Max(0.8, math.Min(math.Exp(d), 1.28)))
			})
			b.Meta.DLogpScale = 1
			b.Tensors["dlogp"] = sloped(b, slope(detached))
			return stage.Judge(stage.Find("gradient/dlogp"), b, set)
		}
		require.Equal(t, check.Pass, judge(0).Verdict)
		requireName(t, judge(side), "CLIP-DETACHED", words)
	}
}

// A gradient of one size everywhere that has the wrong sign, or a factor, is not one that was cut off.
func TestCutOffNeedsNumbersWithin(t *testing.T) {
	set := clippedLoss(t)
	r := rand.New(rand.NewPCG(2, 3))
	b := updated(func(d, a float64) float64 {
		return math.Max(-a*math.Exp(d), -a*math.Max(0.8, math.Min(math.Exp(d), 1.28)))
	})
	copy(b.Token("logp_old"), b.Token("logp_new"))
	for i := range b.Row("advantages") {
		b.Row("advantages")[i] = 1
	}
	b.Meta.DLogpScale = 1
	b.Tensors["dlogp"] = sloped(b, func(float64, float64) float64 { return 1 + 0x1p-22*r.Float64() })
	for _, e := range Explain(stage.Judge(stage.Find("gradient/dlogp"), b, set)) {
		require.NotEqual(t, "GRAD-CUT-OFF", e.Hypothesis.ID)
	}
}

// Tokens of one sign of the advantage that have no gradient are cut off by no bound: a dual clip of both signs leaves the others as they are.
func TestCutOffIsAtNoZero(t *testing.T) {
	set := clippedLoss(t)
	b := updated(func(d, a float64) float64 {
		return math.Max(-a*math.Exp(d), -a*math.Max(0.8, math.Min(math.Exp(d), 1.28)))
	})
	copy(b.Token("logp_old"), b.Token("logp_new"))
	b.Meta.DLogpScale = 1
	b.Tensors["dlogp"] = sloped(b, func(_, a float64) float64 { return math.Max(-a, 0) })
	o := stage.Judge(stage.Find("gradient/dlogp"), b, set)
	require.Equal(t, check.Fail, o.Verdict)
	for _, e := range Explain(o) {
		require.NotEqual(t, "GRAD-CUT-OFF", e.Hypothesis.ID)
	}
}

// A loss that reads the old log-probs, or the advantages, of other rows of the step is named by the tensor, whatever the permutation.
func TestLossOfOtherRows(t *testing.T) {
	set := clippedLoss(t)
	rows := []int{5, 2, 7, 0, 1, 6, 4, 3}
	loss := func(d, a float64) float64 {
		return math.Max(-a*math.Exp(d), -a*math.Max(0.8, math.Min(math.Exp(d), 1.28)))
	}
	for _, f := range []struct{ id, tensor string }{{"OLD-ROWS-ROLLED", "logp_old"}, {"ADV-ROWS-OF-OTHERS", "advantages"}} {
		b := updated(func(float64, float64) float64 { return 0 })
		lp, old, adv := b.Token("logp_new"), b.Token("logp_old"), b.Row("advantages")
		for i := range lp {
			r := i / b.Cols
			other := rows[r]*b.Cols + i%b.Cols
			if f.tensor == "logp_old" {
				b.Token("token_loss")[i] = float64(float32(loss(lp[i]-old[other], adv[r])))
			} else {
				b.Token("token_loss")[i] = float64(float32(loss(lp[i]-old[i], adv[rows[r]])))
			}
		}
		requireName(t, stage.Judge(stage.Find("token_loss/policy"), b, set), f.id, f.tensor+" is that of other rows")
	}
}

// A loss whose old log-probs are those of the next row, or of the row before, is named as rolled, with its own size.
func TestLossOfRolledRows(t *testing.T) {
	set := clippedLoss(t)
	for id, by := range map[string]int{"OLD-ROWS-ROLLED": -1, "OLD-ROWS-ROLLED-BACK": 1} {
		b := updated(func(float64, float64) float64 { return 0 })
		lp, old, adv := b.Token("logp_new"), b.Token("logp_old"), b.Row("advantages")
		for i := range lp {
			d := lp[i] - old[(i+by*b.Cols+len(lp))%len(lp)]
			a := adv[i/b.Cols]
			b.Token("token_loss")[i] = float64(float32(math.Max(-a*math.Exp(d), -a*math.Max(0.8, math.Min(math.Exp(d), 1.28)))))
		}
		o := stage.Judge(stage.Find("token_loss/policy"), b, set)
		for _, h := range All() {
			if h.ID == "OLD-ROWS-ROLLED" || h.ID == "OLD-ROWS-ROLLED-BACK" {
				e, ok := newTrial(o).try(h, "", h.judge)
				require.Equal(t, h.ID == id, ok && !e.Lead, "%s under %s: %s", h.ID, id, h.Title)
			}
		}
	}
}

// The weights that a loss applies are told from those of the rollout, which are right.
func TestLossWeights(t *testing.T) {
	set := clippedLoss(t, "tis.level", "token", "tis.rule", "truncate_upper", "tis.high", "1.2")
	loss := func(d, a float64) float64 {
		return math.Max(-a*math.Exp(d), -a*math.Max(0.8, math.Min(math.Exp(d), 1.28)))
	}
	judge := func(weight func(lp, old, gen, w float64) float64) *stage.Outcome {
		r := rand.New(rand.NewPCG(31, 32))
		b := updated(func(float64, float64) float64 { return 0 })
		lp, old, adv := b.Token("logp_new"), b.Token("logp_old"), b.Row("advantages")
		gen, w := make([]float64, len(lp)), make([]float64, len(lp))
		for i := range lp {
			gen[i] = float64(float32(old[i] + 0.3*r.NormFloat64()))
			w[i] = float64(float32(math.Min(math.Exp(old[i]-gen[i]), 1.2)))
			b.Token("token_loss")[i] = float64(float32(weight(lp[i], old[i], gen[i], w[i]) * loss(lp[i]-old[i], adv[i/b.Cols])))
		}
		for name, x := range map[string][]float64{"logp_gen": gen, "is_weights": w} {
			b.Tensors[name] = &dump.Tensor{Name: name, Layout: dump.PerToken, Width: 1, Shape: []int{b.Rows, b.Cols}, Data: x, Type: format.F32}
		}
		return stage.Judge(stage.Find("token_loss/policy"), b, set)
	}
	for _, dumped := range []bool{true, false} {
		judge := func(weight func(lp, old, gen, w float64) float64) *stage.Outcome {
			o := judge(weight)
			if dumped {
				return o
			}
			return stage.Judge(o.Check, o.Case.B.Without("is_weights"), o.Case.Set)
		}
		require.Equal(t, check.Pass, judge(func(_, _, _, w float64) float64 { return w }).Verdict)
		requireName(t, judge(func(lp, _, gen, _ float64) float64 { return math.Min(math.Exp(lp-gen), 1.2) }), "IS-NEW-FOR-OLD", "")
		requireName(t, judge(func(_, old, gen, _ float64) float64 { return math.Exp(old - gen) }), "IS-CLAMP-MISSING", "without a bound")
		requireName(t, judge(func(_, old, gen, _ float64) float64 { return math.Max(math.Exp(old-gen), 1.2) }), "IS-CLAMP-MISSING", "a maximum where a minimum belongs")
		requireName(t, judge(func(_, _, _, w float64) float64 { return 1 / w }), "IS-INVERTED", "inverses")
		requireName(t, judge(func(_, _, _, w float64) float64 { return w * w }), "IS-TWICE", "")
		requireName(t, judge(func(_, old, gen, _ float64) float64 { return math.Min(math.Exp(old-gen), 1) }), "IS-CLAMP-MISSING", "")
		requireName(t, judge(func(_, old, gen, _ float64) float64 { return math.Min(math.Exp(gen-old), 1.2) }), "IS-INVERTED", "")
		requireName(t, judge(func(lp, old, _, _ float64) float64 { return math.Min(math.Exp(lp-old), 1.2) }), "IS-OLD-FOR-GEN", "")
	}
}

// The weight of VESPO that is made of a mean of log-ratios is told from that of their sum.
func TestVESPOOfTheMean(t *testing.T) {
	set := clippedLoss(t, "loss.kind", "vespo", "vespo.k_pos", "2", "vespo.lambda_pos", "3", "vespo.k_neg", "3", "vespo.lambda_neg", "2")
	judge := func(over func(n float64) float64) *stage.Outcome {
		b := updated(func(float64, float64) float64 { return 0 })
		lp, old, adv := b.Token("logp_new"), b.Token("logp_old"), b.Row("advantages")
		for r := range b.Rows {
			var sum, n float64
			for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
				if b.Mask[i] {
					sum, n = sum+lp[i]-old[i], n+1
				}
			}
			s, k, lambda := math.Max(math.Log(1e-8), math.Min(sum/over(n), 20)), 2.0, 3.0
			if adv[r] < 0 {
				k, lambda = 3, 2
			}
			phi := math.Exp(lambda + k*s - lambda*math.Exp(s))
			for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
				b.Token("token_loss")[i] = float64(float32(-adv[r] * phi * lp[i]))
			}
		}
		return stage.Judge(stage.Find("token_loss/policy"), b, set)
	}
	require.Equal(t, check.Pass, judge(func(float64) float64 { return 1 }).Verdict)
	requireName(t, judge(func(n float64) float64 { return n }), "RATIO-LEVEL", "the mean of its log-ratios")
}

// Weights of the rollout that are those of other rows, of a mean over padding, or held from the wrong side are named by that.
func TestWeightsOfTheRollout(t *testing.T) {
	r := rand.New(rand.NewPCG(33, 34))
	base := updated(func(float64, float64) float64 { return 0 })
	old, gen := base.Token("logp_old"), make([]float64, len(base.Mask))
	for i := range gen {
		if gen[i] = float64(float32(old[i] + 0.1*r.NormFloat64())); i%base.Cols >= 3+i/base.Cols%4 {
			base.Mask[i] = false
		}
	}
	sums := func(row int) (sum float64) {
		for i := row * base.Cols; i < (row+1)*base.Cols; i++ {
			if base.Mask[i] {
				sum += old[i] - gen[i]
			}
		}
		return sum
	}
	judge := func(set *convention.Set, weight func(row, i int) float64) *stage.Outcome {
		w := make([]float64, len(gen))
		for i, m := range base.Mask {
			if m {
				w[i] = float64(float32(weight(i/base.Cols, i)))
			}
		}
		b := base.With("logp_gen", gen).With("is_weights", w)
		for _, name := range []string{"logp_gen", "is_weights"} {
			b.Tensors[name] = &dump.Tensor{Name: name, Layout: dump.PerToken, Width: 1, Shape: []int{b.Rows, b.Cols}, Data: b.Tensors[name].Data, Type: format.F32}
		}
		return stage.Judge(stage.Find("ratio/is_weights"), b, set)
	}
	token := clippedLoss(t, "tis.level", "token", "tis.rule", "truncate_upper", "tis.high", "1.05")
	row := clippedLoss(t, "tis.level", "seq_sum", "tis.rule", "truncate_upper", "tis.high", "1.5")
	require.Equal(t, check.Pass, judge(token, func(_, i int) float64 { return math.Min(math.Exp(old[i]-gen[i]), 1.05) }).Verdict)
	require.Equal(t, check.Pass, judge(row, func(r, _ int) float64 { return math.Min(math.Exp(sums(r)), 1.5) }).Verdict)
	requireName(t, judge(token, func(_, i int) float64 { return math.Max(math.Exp(old[i]-gen[i]), 1.05) }), "IS-CLAMP-MISSING", "a maximum where a minimum belongs")
	requireName(t, judge(row, func(r, _ int) float64 { return math.Min(math.Exp(sums(r)/float64(base.Cols)), 1.5) }), "IS-LEVEL", "over all columns")
	lengths := make([]float64, base.Rows)
	for i, m := range base.Mask {
		lengths[i/base.Cols] += float64(boolToInt(m))
	}
	all := func(r int) (sum float64) {
		for i := r * base.Cols; i < (r+1)*base.Cols; i++ {
			sum += old[i] - gen[i]
		}
		return sum
	}
	requireName(t, judge(row, func(r, _ int) float64 { return math.Min(math.Exp(sums(r)/lengths[r]), 1.5) }), "IS-LEVEL", "of the mean of its log-ratios, not")
	requireName(t, judge(row, func(r, i int) float64 { return math.Min(math.Exp(old[i]-gen[i]), 1.5) }), "IS-LEVEL", "every token")
	requireName(t, judge(row, func(r, _ int) float64 { return math.Min(math.Exp(all(r)), 1.5) }), "LOSS-MASK-PADS", "no mask")
	requireName(t, judge(token, func(r, _ int) float64 { return math.Min(math.Exp(sums(r)), 1.05) }), "IS-LEVEL", "a response has one")
}

// CISPO of the ratio in place of the log-prob is a loss of its own.
func TestCISPOOfTheRatio(t *testing.T) {
	set := clippedLoss(t, "loss.kind", "cispo", "clip.low", "none", "clip.high", "1.2", "clip.high_is_absolute", "true")
	b := perTokenOf(updated(func(float64, float64) float64 { return 0 }), "token_loss", func(lp, old, a float64) float64 {
		r := math.Exp(lp - old)
		return -math.Min(r, 1.2) * a * r
	})
	requireName(t, stage.Judge(stage.Find("token_loss/policy"), b, set), "LOSS-KIND", "the ratio stands where the log-prob belongs")
}

// Weights of the new pass that are not detached have a gradient of their own.
func TestWeightsThatCarryGradient(t *testing.T) {
	set := clippedLoss(t, "tis.level", "token", "tis.rule", "truncate_upper", "tis.high", "1.2")
	r := rand.New(rand.NewPCG(35, 36))
	b := updated(func(float64, float64) float64 { return 0 })
	b.Meta.DLogpScale = 1
	lp, old, adv := b.Token("logp_new"), b.Token("logp_old"), b.Row("advantages")
	gen, g := make([]float64, len(lp)), make([]float64, len(lp))
	for i := range lp {
		gen[i] = float64(float32(old[i] + 0.3*r.NormFloat64()))
		a := adv[i/b.Cols]
		of := func(lp float64) float64 {
			rho := math.Exp(lp - old[i])
			return math.Min(math.Exp(lp-gen[i]), 1.2) * math.Max(-a*rho, -a*math.Max(0.8, math.Min(rho, 1.28)))
		}
		const h = 1e-6
		g[i] = float64(float32((of(lp[i]+h) - of(lp[i]-h)) / (2 * h) / float64(len(lp))))
	}
	for name, x := range map[string][]float64{"logp_gen": gen, "dlogp": g} {
		b.Tensors[name] = &dump.Tensor{Name: name, Layout: dump.PerToken, Width: 1, Shape: []int{b.Rows, b.Cols}, Data: x, Type: format.F32}
	}
	delete(b.Tensors, "token_loss")
	requireName(t, stage.Judge(stage.Find("gradient/dlogp"), b, set), "IS-GRADIENT", "they carry gradient")
}

// The ratio of a sequence whose mean log-ratio is taken over padding, in the loss and in its gradient.
func TestRatioOverPadding(t *testing.T) {
	set := clippedLoss(t, "ratio.level", "seq_mean", "loss.kind", "gspo", "clip.low", "0.05", "clip.high", "0.08")
	judge := func(output string, padded bool) *stage.Outcome {
		b := updated(func(float64, float64) float64 { return 0 })
		b.Meta.DLogpScale = 1
		for i := range b.Mask {
			b.Mask[i] = i%b.Cols < 2+i/b.Cols%4
		}
		var tokens float64
		for _, m := range b.Mask {
			tokens += float64(boolToInt(m))
		}
		lp, old, adv, loss, slope := b.Token("logp_new"), b.Token("logp_old"), b.Row("advantages"), make([]float64, len(b.Mask)), make([]float64, len(b.Mask))
		for r := range b.Rows {
			var sum, n float64
			for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
				if b.Mask[i] {
					sum, n = sum+lp[i]-old[i], n+1
				}
			}
			over := n
			if padded {
				over = float64(b.Cols)
			}
			ratio := math.Exp(sum / over)
			plain, held := -adv[r]*ratio, -adv[r]*math.Max(0.95, math.Min(ratio, 1.08))
			for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
				if loss[i] = float64(float32(math.Max(plain, held))); b.Mask[i] && plain >= held {
					slope[i] = float64(float32(plain / over * n / tokens))
				}
			}
		}
		for name, x := range map[string][]float64{"token_loss": loss, "dlogp": slope} {
			b.Tensors[name] = &dump.Tensor{Name: name, Layout: dump.PerToken, Width: 1, Shape: []int{b.Rows, b.Cols}, Data: x, Type: format.F32}
		}
		return stage.Judge(stage.Find(output), b, set)
	}
	for _, output := range []string{"token_loss/policy", "gradient/dlogp"} {
		o := judge(output, false)
		require.Equal(t, check.Pass, o.Verdict, "%s: %s", output, o.Lacking())
		requireName(t, judge(output, true), "RATIO-MEAN-PADS", "over padding")
	}
}
