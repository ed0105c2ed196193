package fault

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/check"
	"plumbline/verify/stage"
)

// kl_cov that holds back the tokens of the smallest covariance, or of the largest magnitude, is named.
func TestTokensChosenByCovariance(t *testing.T) {
	set := clippedLoss(t, "loss.kind", "kl_cov", "cov.fraction", "0.25", "cov.coef", "0.5", "clip.low", "none", "clip.high", "none", "clip.dual", "none")
	for words, key := range map[string]func(x float64) float64{"": func(x float64) float64 { return x }, "of the smallest covariance": func(x float64) float64 { return -x }, "of the largest magnitude": math.Abs} {
		b := unclipped()
		lp, old, adv := b.Token("logp_new"), b.Token("logp_old"), b.Row("advantages")
		n, cells := float64(len(lp)), make([]int, len(lp))
		var meanA, meanL float64
		for i, x := range lp {
			cells[i], meanA, meanL = i, meanA+adv[i/b.Cols]/n, meanL+x/n
			b.Token("token_loss")[i] = -adv[i/b.Cols] * math.Exp(x-old[i])
		}
		cov := func(i int) float64 { return key((adv[i/b.Cols] - meanA) * (lp[i] - meanL)) }
		slices.SortFunc(cells, func(i, j int) int { return compare(cov(j), cov(i)) })
		for _, i := range cells[:len(cells)/4] {
			b.Token("token_loss")[i] += 0.5 * math.Abs(lp[i]-old[i])
		}
		for i, x := range b.Token("token_loss") {
			b.Token("token_loss")[i] = float64(float32(x))
		}
		o := stage.Judge(stage.Find("token_loss/policy"), b, set)
		if words == "" {
			require.Equal(t, check.Pass, o.Verdict, o.Lacking())
			continue
		}
		requireName(t, o, "LOSS-COVARIANCE", words)
	}
}
