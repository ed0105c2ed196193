package fault

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/check"
	"plumbline/verify/stage"
)

// The ratio of a response whose third token is of a tool sums that one, too, or divides by the length with it; the token has the gradient of its row.
func TestRatiosThatCountTools(t *testing.T) {
	set := clippedLoss(t, "ratio.level", "seq_mean", "ratio.grad", "row", "loss.kind", "ppo", "clip.low", "none", "clip.high", "none")
	for words, f := range map[string]struct{ sum, length bool }{"": {}, "summed over the tokens of tools as well, and divided by those of the policy": {true, false},
		"divided by its length with the tokens of tools, and summed": {false, true}} {
		b := unclipped()
		lp, old, adv := b.Token("logp_new"), b.Token("logp_old"), b.Row("advantages")
		for r := range b.Rows {
			n, d, end := 0.0, 0.0, b.Cols-r%2
			for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
				b.Mask[i] = i%b.Cols != 2 && i%b.Cols < end
				if b.Mask[i] || f.sum && i%b.Cols == 2 {
					d += lp[i] - old[i]
				}
				if b.Mask[i] || f.length && i%b.Cols == 2 {
					n++
				}
			}
			for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
				b.Tensors["token_loss"].Data[i] = float64(float32(-adv[r] * math.Exp(d/n)))
			}
		}
		o := stage.Judge(stage.Find("token_loss/policy"), b, set)
		if words == "" {
			require.Equal(t, check.Pass, o.Verdict, o.Lacking())
			continue
		}
		requireName(t, o, "RATIO-COUNTS-TOOLS", words)
	}
}
