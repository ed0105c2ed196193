package fault_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/check"
	"plumbline/verify/stage"
)

// Where no scores are dumped, the KL in the rewards of tokens is named by its form all the same, of log-probs whose clamps nobody declares.
func TestKLOfRewardsWithoutScores(t *testing.T) {
	const rows, cols = 6, 8
	sum := func(x []float64) (y float64) {
		for _, v := range x {
			y += v
		}
		return y
	}
	for words, of := range map[string]func(kl []float64, at int) float64{
		"":                            func(kl []float64, at int) float64 { return kl[at] },
		"the sum over those up to it": func(kl []float64, at int) float64 { return sum(kl[:at+1]) },
		"the mean of its row":         func(kl []float64, at int) float64 { return sum(kl) / float64(len(kl)) },
	} {
		old, ref, r := make([]float64, rows*cols), make([]float64, rows*cols), make([]float64, rows*cols)
		for i := range old {
			old[i], ref[i] = float64(float32(-2+math.Sin(float64(i*i)))), float64(float32(-2+math.Cos(float64(3*i))))
		}
		for i := range r {
			kl := make([]float64, cols)
			for k := range kl {
				kl[k] = old[i/cols*cols+k] - ref[i/cols*cols+k]
			}
			if r[i] = float64(float32(-0.1 * of(kl, i%cols))); i%cols == cols-1 {
				r[i]++
			}
		}
		b := written("ppo", rows, cols, everyCell(rows*cols), map[string][]float64{"logp_old": old, "logp_ref": ref, "token_rewards": r})
		o := stage.Judge(stage.Find("reward/token"), b, declared(t, map[string]string{"kl.place": "token_reward", "kl.beta": "0.1", "kl.kind": "k1", "rewards.whiten": "no", "adv.kind": "rfpp"}))
		if words == "" {
			require.Equal(t, check.Pass, o.Verdict, o.Lacking())
			continue
		}
		requireFirst(t, o, "OTHER-FORM", words)
	}
}
