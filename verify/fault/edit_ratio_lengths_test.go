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

// The log-ratios of a response that are divided by another length than its own are named by that, in the loss and in the gradient.
func TestRatiosOverOtherLengths(t *testing.T) {
	for words, by := range map[string]func(n, mean, longest float64) float64{
		"":                     func(n, _, _ float64) float64 { return n },
		"the mean length":      func(_, mean, _ float64) float64 { return mean },
		"the longest response": func(_, _, longest float64) float64 { return longest },
		"its length less 1":    func(n, _, _ float64) float64 { return n - 1 },
	} {
		for _, grad := range []string{"row", "token"} {
			set := clippedLoss(t, "ratio.level", "seq_mean", "ratio.grad", grad, "loss.kind", "ppo", "clip.low", "none", "clip.high", "none")
			b := unclipped()
			b.Meta.DLogpScale = 1
			lp, old, adv := b.Token("logp_new"), b.Token("logp_old"), b.Row("advantages")
			length := func(r int) int { return b.Cols - 1 - r%3 }
			var sum, longest float64
			for r := range b.Rows {
				sum, longest = sum+float64(length(r)), max(longest, float64(length(r)))
			}
			g := make([]float64, len(lp))
			for r := range b.Rows {
				d, n := 0.0, float64(length(r))
				for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
					if b.Mask[i] = i%b.Cols < length(r); b.Mask[i] {
						d += lp[i] - old[i]
					}
				}
				over := by(n, sum/float64(b.Rows), longest)
				for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
					b.Tensors["token_loss"].Data[i] = float64(float32(-adv[r] * math.Exp(d/over)))
					if g[i] = -adv[r] * math.Exp(d/over) / sum; grad == "row" {
						g[i] *= n / over
					}
					if g[i] = float64(float32(g[i])); !b.Mask[i] {
						g[i] = 0
					}
				}
			}
			b.Tensors["dlogp"] = &dump.Tensor{Name: "dlogp", Layout: dump.PerToken, Width: 1, Shape: []int{b.Rows, b.Cols}, Data: g, Type: format.F32}
			for _, id := range []string{"token_loss/policy", "gradient/dlogp"} {
				o := stage.Judge(stage.Find(id), b, set)
				if words == "" {
					require.Equal(t, check.Pass, o.Verdict, o.Lacking())
					continue
				}
				requireName(t, o, "RATIO-FORM", words)
			}
		}
	}
}
