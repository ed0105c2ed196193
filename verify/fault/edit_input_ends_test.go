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

// Log-probs of the engine that stand for the old ones a token early, or late, where the end of a row keeps its own, as torch.cat([x[:, 1:], x[:, -1:]]) leaves it.
func TestEngineOneTokenEarly(t *testing.T) {
	set := clippedLoss(t, "ratio.old", "engine", "tis.level", "none", "mean.eps", "0", "entropy.coef", "0", "entropy.agg", "same")
	judge := func(by int) *stage.Outcome {
		b := unclipped()
		b.Tensors["logp_gen"] = b.Tensors["logp_old"]
		delete(b.Tensors, "logp_old")
		delete(b.Tensors, "token_loss")
		lp, gen, adv, loss := b.Token("logp_new"), b.Token("logp_gen"), b.Row("advantages"), 0.
		for i := range lp {
			a, r := adv[i/b.Cols], math.Exp(lp[i]-gen[i-i%b.Cols+min(max(i%b.Cols-by, 0), b.Cols-1)])
			loss += math.Max(-a*r, -a*math.Max(0.8, math.Min(r, 1.28))) / float64(len(lp))
		}
		b.Tensors["loss"] = &dump.Tensor{Name: "loss", Layout: dump.PerFile, Width: 1, Shape: []int{1}, Data: []float64{float64(float32(loss))}, Type: format.F32}
		return stage.Judge(stage.Find("aggregate/loss"), b, set)
	}
	o := judge(0)
	require.Equal(t, check.Pass, o.Verdict, o.Lacking())
	requireName(t, judge(-1), "OLD-SHIFT-BACK", "logp_gen is read one token early: that of the token behind, in the last column its own")
	requireName(t, judge(1), "OLD-SHIFT", "logp_gen is read one token late: that of the token before, in the first column its own")
}
