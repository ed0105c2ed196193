package fault

import (
	"maps"
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
	"plumbline/verify/tol"
)

// A KL term, or an entropy bonus, that is reduced by weights of its own is named by them, in the loss and in the gradient; and a bonus that is
// made of log-probs by that.
func TestTermEdits(t *testing.T) {
	const beta, coef = 0.1, 0.02
	set := clippedLoss(t, "kl.beta", "0.1", "kl.kind", "k3", "kl.place", "loss", "kl.grad", "naive", "kl.agg", "same", "entropy.coef", "0.02", "entropy.agg", "same",
		"kl.under_is_weight", "outside", "tis.level", "none", "mean.eps", "0")
	includes := false
	noise := rand.New(rand.NewPCG(21, 22))
	// The token mean of the loss, and the KL and the entropies as the program reduces them.
	judge := func(id string, kl, entropy func(n, rows, tokens, cells float64) float64, bonus func(h, lp float64) float64) *stage.Outcome {
		b := updated(func(d, a float64) float64 {
			return math.Max(-a*math.Exp(d), -a*math.Max(0.8, math.Min(math.Exp(d), 1.28)))
		})
		for r := range b.Rows {
			for c := b.Cols - 1 - r%3; c < b.Cols; c++ {
				b.Mask[r*b.Cols+c] = false
			}
		}
		b.Meta.TokenLossIncludesKL, b.Meta.DLogpScale = &includes, 1
		r := rand.New(rand.NewPCG(8, 9))
		lp, old, adv, loss := b.Token("logp_new"), b.Token("logp_old"), b.Row("advantages"), b.Token("token_loss")
		ref, k, h, g := make([]float64, len(lp)), make([]float64, len(lp)), make([]float64, len(lp)), make([]float64, len(lp))
		n := tokensOf(b, b.Mask)
		tokens, cells := count(b.Mask), float64(len(b.Mask))
		var total, klLoss, entropyLoss float64
		for i := range lp {
			ref[i] = float64(float32(lp[i] + 0.6*r.NormFloat64()))
			x := ref[i] - lp[i]
			k[i], h[i] = float64(float32(math.Exp(x)-x-1)), float64(float32(math.Abs(r.NormFloat64())))
			if !b.Mask[i] {
				continue
			}
			row := i / b.Cols
			wk, we := kl(n[row], float64(b.Rows), tokens, cells), entropy(n[row], float64(b.Rows), tokens, cells)
			total += loss[i]/tokens + beta*wk*k[i] - coef*we*bonus(h[i], lp[i])
			klLoss, entropyLoss = klLoss+wk*k[i], entropyLoss+we*h[i]
			d, a := lp[i]-old[i], adv[row]
			if c := math.Max(0.8, math.Min(math.Exp(d), 1.28)); !(-a*c > -a*math.Exp(d)) {
				g[i] = -a * math.Exp(d) / tokens
			}
			g[i] = float64(float32(g[i] + beta*wk*(1-math.Exp(x))))
		}
		for name, x := range map[string][]float64{"logp_ref": ref, "kl": k, "entropy": h, "dlogp": g} {
			b.Tensors[name] = &dump.Tensor{Name: name, Layout: dump.PerToken, Width: 1, Shape: []int{b.Rows, b.Cols}, Data: x, Type: format.F32}
		}
		for name, x := range map[string]float64{"loss": total, "kl_loss": klLoss, "entropy_loss": entropyLoss} {
			if "aggregate/"+name == id || name == "loss" {
				b.Tensors[name] = &dump.Tensor{Name: name, Layout: dump.PerFile, Width: 1, Shape: []int{1}, Data: []float64{float64(float32(x))}, Type: format.F32}
			}
		}
		return stage.Judge(stage.Find(id), b, set)
	}
	mean := func(_, _, tokens, _ float64) float64 { return 1 / tokens }
	sums := func(_, rows, _, _ float64) float64 { return 1 / rows }
	means := func(n, rows, _, _ float64) float64 { return 1 / (n * rows) }
	own := func(h, _ float64) float64 { return h }
	for _, id := range []string{"aggregate/loss", "gradient/dlogp"} {
		require.Equal(t, check.Pass, judge(id, mean, mean, own).Verdict, id)
		requireName(t, judge(id, sums, mean, own), "KL-AGGREGATION", "the mean of the sums of the responses")
		requireName(t, judge(id, means, mean, own), "KL-AGGREGATION", "the mean of the means of the responses")
	}
	for _, id := range []string{"aggregate/loss", "aggregate/entropy_loss"} {
		requireName(t, judge(id, mean, sums, own), "ENTROPY-AGGREGATION", "the mean of the sums of the responses")
	}
	for _, held := range []bool{true, false} { // what padding holds is of no program with a mask; where it holds nothing, its cells may be a constant
		bonus := judge("aggregate/entropy_loss", mean, mean, own)
		h := slices.Clone(bonus.Case.B.Token("entropy"))
		var sum float64
		for i, m := range bonus.Case.B.Mask {
			if !m && !held {
				h[i] = 0
			}
			sum += h[i]
		}
		o := stage.Judge(bonus.Check, bonus.Case.B.With("entropy", h).With("entropy_loss", []float64{float64(float32(sum / float64(len(h))))}), set)
		found := termEdits(o)
		require.Equal(t, held, slices.ContainsFunc(found, func(e edit) bool { return e.foreign }))
		require.Equal(t, held, slices.ContainsFunc((&trial{levels: newTrial(o).levels}).fitting(found), func(e Explanation) bool { return !e.Hypothesis.Relative }))
	}
	requireName(t, judge("aggregate/kl_loss", sums, mean, own), "KL-AGGREGATION", "the mean of the sums of the responses")
	requireName(t, judge("aggregate/loss", mean, mean, func(_, lp float64) float64 { return -lp }), "ENTROPY-FORM", "−logp_new")
	// A KL of the tokens whose advantage is above 0 alone, and a loss that was reduced in bfloat16 by several roundings; one that was rounded once has no name.
	of := judge("aggregate/loss", mean, mean, own).Case.B
	part, whole := *of.Tensors["loss"], of.Tensors["loss"].Data[0]
	x := whole
	for i, m := range of.Mask {
		if m && of.Row("advantages")[i/of.Cols] <= 0 {
			x -= beta * of.Token("kl")[i] / count(of.Mask)
		}
	}
	lossOf := func(x float64) *stage.Outcome {
		part.Data = []float64{float64(float32(x))}
		of.Tensors["loss"] = &part
		return stage.Judge(stage.Find("aggregate/loss"), of, set)
	}
	requireName(t, lossOf(x), "KL-PART", "above 0")
	require.Equal(t, check.Pass, lossOf(whole).Verdict)
	requireName(t, lossOf(inHalf(inHalf(whole)*(1+0x1p-7))), "LOSS-BF16", "in bfloat16")
	requireNoName(t, lossOf(inHalf(whole)*(1+0x1p-7)+1e-6))
	squared := stage.Judge(stage.Find("aggregate/loss"), judge("aggregate/kl_loss", mean, mean, own).Case.B, set)
	twice, kl := *squared.Case.B, *squared.Case.B.Tensors["kl_loss"]
	for _, held := range []bool{true, false} {
		agg := squared.Case.B.PerFile("kl_loss")[0]
		if kl.Data = []float64{agg}; held {
			kl.Data = []float64{float64(float32(beta * agg))}
		}
		twice.Tensors = maps.Clone(squared.Case.B.Tensors)
		twice.Tensors["kl_loss"] = &kl
		o := stage.Judge(stage.Find("aggregate/loss"), twice.With("loss", []float64{float64(float32(squared.Case.B.PerFile("loss")[0] + (beta*beta-beta)*agg))}), set)
		requireName(t, o, map[bool]string{true: "COEFFICIENT-TWICE", false: "OTHER-FORM"}[held], map[bool]string{true: "multiplies it once more", false: "square of its coefficient"}[held])
		require.Equal(t, !held, Explain(o)[0].Hypothesis.Relative)
	}
	// Where the loss is its KL alone, a sum of n terms of one sign, it is off by n roundings of itself.
	b := judge("aggregate/loss", mean, mean, own).Case.B
	alone := stage.NewCase(b.With("token_loss", make([]float64, len(b.Mask))), set.With("entropy.coef", convention.NumberValue(0), "test"), tol.U32)
	n := 0
	for _, e := range termEdits(&stage.Outcome{Case: alone, Check: stage.Find("aggregate/loss")}) {
		if p := e.predict(alone, stage.Find("aggregate/loss")); p != nil {
			n++
			require.Greater(t, p.Want[0], 0.0, e.title)
			require.GreaterOrEqual(t, p.Bound[0], count(b.Mask)*tol.U32*p.Want[0], e.title)
		}
	}
	require.Greater(t, n, 5)
	t.Run("noise", func(t *testing.T) {
		w := noise.Float64()
		requireNoName(t, judge("aggregate/loss", func(n, _, _, _ float64) float64 { return w / (n * n * n) }, mean, own))
	})
}
