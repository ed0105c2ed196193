package fault

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/stage"
)

// withGradient returns b with its loss and its gradient, both in float32.
func withGradient(b *dump.Batch, loss float64, g []float64) *dump.Batch {
	for i := range g {
		g[i] = float64(float32(g[i]))
	}
	b.Meta.DLogpScale = 1
	b.Tensors["dlogp"] = &dump.Tensor{Name: "dlogp", Layout: dump.PerToken, Width: 1, Shape: []int{b.Rows, b.Cols}, Data: g, Type: format.F32}
	b.Tensors["loss"] = &dump.Tensor{Name: "loss", Layout: dump.PerFile, Data: []float64{float64(float32(loss))}, Type: format.F32}
	return b
}

// surrogateOf returns the token loss of PPO with bounds 0.8 and 1.28 at a log-ratio d, and its slope.
func surrogateOf(d, a float64) (value, slope float64) {
	plain, held := -a*math.Exp(d), -a*math.Max(0.8, math.Min(math.Exp(d), 1.28))
	if held > plain {
		return held, 0
	}
	return plain, plain
}

// A loss that is right has its KL: that the gradient lacks it, or has it twice, is a matter of the way that the gradient takes.
func TestKLSlopesUnderARightLoss(t *testing.T) {
	const beta = 0.1
	k2, k3 := func(x float64) float64 { return x * x / 2 }, func(x float64) float64 { return math.Exp(x) - x - 1 }
	right := map[string]func(d, x float64) float64{ // of d = new − old, x = reference − new
		"k3 naive":               func(_, x float64) float64 { return 1 - math.Exp(x) },
		"k2 straight_through_k2": func(d, x float64) float64 { return -x * min(math.Exp(d), 10) },
		"k3 straight_through_k2": func(d, x float64) float64 { return -x * min(math.Exp(d), 10) },
	}
	for _, f := range []struct {
		kind, grad, id, words string
		slope                 func(d, x float64) float64
	}{
		{"k3", "naive", "KL-DETACHED", "", func(_, _ float64) float64 { return 0 }},
		{"k2", "straight_through_k2", "KL-DETACHED", "", func(_, _ float64) float64 { return 0 }},
		{"k3", "straight_through_k2", "KL-DETACHED", "", func(_, _ float64) float64 { return 0 }},
		{"k2", "straight_through_k2", "KL-GRAD", "is kept beside", func(d, x float64) float64 { return -x * (min(math.Exp(d), 10) + 1) }},
		{"k3", "straight_through_k2", "KL-GRAD", "is kept beside", func(d, x float64) float64 { return -x*min(math.Exp(d), 10) + 1 - math.Exp(x) }},
		{"k3", "straight_through_k2", "KL-GRAD", "not detached", func(d, x float64) float64 { return math.Exp(d) * (x*x/2 - x) }},
	} {
		set := clippedLoss(t, "kl.beta", "0.1", "kl.kind", f.kind, "kl.place", "loss", "kl.grad", f.grad, "kl.agg", "same", "kl.is_cap", "10", "entropy.coef", "0")
		judge := func(slope func(d, x float64) float64) *stage.Outcome {
			estimate := k3
			if f.kind == "k2" {
				estimate = k2
			}
			b := estimatedBy(estimate)
			lp, old, ref, adv := b.Token("logp_new"), b.Token("logp_old"), b.Token("logp_ref"), b.Row("advantages")
			g, n, loss := make([]float64, len(lp)), float64(len(lp)), 0.0
			for i := range lp {
				d, x := lp[i]-old[i], ref[i]-lp[i]
				v, s := surrogateOf(d, adv[i/b.Cols])
				loss += (v + beta*estimate(x)) / n
				g[i] = (s + beta*slope(d, x)) / n
			}
			return stage.Judge(stage.Find("gradient/dlogp"), withGradient(b, loss, g), set)
		}
		require.Equal(t, check.Pass, judge(right[f.kind+" "+f.grad]).Verdict)
		o := judge(f.slope)
		requireName(t, o, f.id, f.words)
		for _, e := range Explain(o) {
			require.NotContains(t, []string{"KL-ABSENT", "KL-TWICE"}, e.Hypothesis.ID, "the loss has its KL, once")
		}
	}
}

// The ratio of a sequence whose mean log-ratio carries its gradient beside that of the token, s = mean(new − old) + new − sg(new).
func TestRatioGradTwice(t *testing.T) {
	for _, grad := range []string{"row", "token"} {
		set := clippedLoss(t, "ratio.level", "seq_mean", "ratio.grad", grad, "ratio.len_eps", "0", "ratio.seq_log_max", "none", "agg.kind", "seq_mean_token_mean", "agg.div_batch", "true", "agg.len_eps", "0")
		judge := func(row, token float64) *stage.Outcome {
			b := updated(func(float64, float64) float64 { return 0 })
			lp, old, adv := b.Token("logp_new"), b.Token("logp_old"), b.Row("advantages")
			w := float64(b.Cols)
			g, loss := make([]float64, len(lp)), 0.0
			for r := range b.Rows {
				var mean float64
				for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
					mean += (lp[i] - old[i]) / w
				}
				v, s := surrogateOf(mean, adv[r])
				loss += v / float64(b.Rows)
				for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
					g[i] = (row*s + token*s) / w / float64(b.Rows) // Σ over the row of s·1/w, and its own s
				}
			}
			return stage.Judge(stage.Find("gradient/dlogp"), withGradient(b, loss, g), set)
		}
		require.Equal(t, check.Pass, judge(1, 0).Verdict)
		found := Explain(judge(1, 1))
		require.NotEmpty(t, found)
		ids := []string{}
		for _, e := range found {
			ids = append(ids, e.Hypothesis.ID)
		}
		require.Contains(t, ids, "RATIO-GRAD-TWICE", grad)
	}
}

// Importance weights that were not permuted with their mini-batch are the right ones of other rows.
func TestImportanceWeightsOfOtherRows(t *testing.T) {
	set := clippedLoss(t, "tis.level", "token", "tis.rule", "truncate_upper", "tis.high", "2", "tis.gate", "ratio", "tis.low", "none", "tis.log_clamp", "none")
	judge := func(by int) *stage.Outcome {
		b := updated(func(float64, float64) float64 { return 0 })
		old := b.Token("logp_old")
		gen, w := make([]float64, len(old)), make([]float64, len(old))
		for i := range old {
			gen[i] = float64(float32(old[i] + 0.4*math.Sin(float64(7*i*i))))
		}
		for i := range old {
			j := (i + by*b.Cols) % len(old)
			w[i] = float64(float32(min(math.Exp(old[j]-gen[j]), 2)))
		}
		for name, x := range map[string][]float64{"logp_gen": gen, "is_weights": w} {
			b.Tensors[name] = &dump.Tensor{Name: name, Layout: dump.PerToken, Width: 1, Shape: []int{b.Rows, b.Cols}, Data: x, Type: format.F32}
		}
		return stage.Judge(stage.Find("ratio/is_weights"), b, set)
	}
	require.Equal(t, check.Pass, judge(0).Verdict)
	requireName(t, judge(3), "IS-ROWS", "other rows")
}

// Groups by a stride are groups of a known size: without it they are one group, which is a bug of its own.
func TestOneGroupIsNoStride(t *testing.T) {
	names := func() (list []string) {
		set := clippedLoss(t, "adv.center", "mean", "adv.scale", "none", "adv.kind", "group", "adv.group_by", "uid")
		b := updated(func(float64, float64) float64 { return 0 })
		scores, adv, group, mean := make([]float64, b.Rows), b.Row("advantages"), make([]float64, b.Rows), 0.0
		for r := range scores {
			scores[r], group[r] = float64(r*r%7), float64(r/2)
			mean += scores[r] / float64(b.Rows)
		}
		for r := range scores {
			adv[r] = float64(float32(scores[r] - mean))
		}
		for name, x := range map[string][]float64{"scores": scores, "group_id": group} {
			b.Tensors[name] = &dump.Tensor{Name: name, Layout: dump.PerRow, Width: 1, Shape: []int{b.Rows}, Data: x, Type: format.F32}
		}
		o := stage.Judge(stage.Find("advantage/group"), b, set)
		require.Equal(t, check.Fail, o.Verdict, "%v %v", o.Case.Unknown, o.Case.Absent)
		for _, e := range Explain(o) {
			list = append(list, e.Hypothesis.ID)
		}
		return list
	}
	require.Contains(t, names(), "ADV-ONE-GROUP")
	require.NotContains(t, names(), "ADV-GROUPS-INTERLEAVED")
}
