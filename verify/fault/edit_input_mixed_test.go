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

// Ratios to the mean of the trainer's and the engine's log-probs are named by it, however near both are.
func TestRatioToAMeanOfPasses(t *testing.T) {
	set := clippedLoss(t, "tis.level", "none", "ratio.old", "stored")
	judge := func(share float64) *stage.Outcome {
		b := unclipped()
		lp, old, adv := b.Token("logp_new"), b.Token("logp_old"), b.Row("advantages")
		gen := make([]float64, len(old))
		for i := range gen {
			gen[i] = float64(float32(old[i] + 0.02*math.Sin(float64(i*i))))
			a, r := adv[i/b.Cols], math.Exp(lp[i]-(1-share)*old[i]-share*gen[i])
			b.Token("token_loss")[i] = float64(float32(math.Max(-a*r, -a*math.Max(0.8, math.Min(r, 1.28)))))
		}
		b.Tensors["logp_gen"] = &dump.Tensor{Name: "logp_gen", Layout: dump.PerToken, Width: 1, Shape: []int{b.Rows, b.Cols}, Data: gen, Type: format.F32}
		return stage.Judge(stage.Find("token_loss/policy"), b, set)
	}
	o := judge(0)
	require.Equal(t, check.Pass, o.Verdict, o.Lacking())
	requireName(t, judge(0.5), "OLD-IS-GEN", "the mean of logp_old and logp_gen")
	requireName(t, judge(0.75), "OLD-IS-GEN", "0.25·logp_old + 0.75·logp_gen")
	requireName(t, judge(1), "OLD-IS-GEN", "")
}
