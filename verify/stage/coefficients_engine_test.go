package stage

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// TestRatiosToTheEngine takes losses of files that have no log-probs of the rollout but the engine's: ratios to these (prime-rl, tinker-cookbook), or of 1
// beside weights (TRL 1.16, grpo_trainer.py, old_per_token_logps), in sums that nothing divides, a constant, or the tokens of the file.
func TestRatiosToTheEngine(t *testing.T) {
	for name, c := range map[string]struct {
		of      func(a, rho, lp float64) float64
		over    func(tokens float64) float64
		form    []string
		divisor float64
	}{
		"a sum":      {func(a, rho, _ float64) float64 { return -a * rho }, func(float64) float64 { return 1 }, []string{"ratio.level=token", "ratio.old=engine", "agg.kind=token_sum"}, 0},
		"a constant": {func(a, rho, _ float64) float64 { return -a * rho }, func(float64) float64 { return 640 }, []string{"ratio.level=token", "ratio.old=engine"}, 640},
		"cispo": {func(a, rho, lp float64) float64 { return -a * lp * min(rho, 1.1) }, func(n float64) float64 { return n },
			[]string{"loss.kind=cispo", "clip.high=0.1", "ratio.old=engine"}, 0},
		"score functions": {func(a, _, lp float64) float64 { return -a * lp }, func(float64) float64 { return 640 }, []string{"loss.kind=reinforce"}, 640},
		"weights": {func(a, rho, _ float64) float64 { return -a * min(rho, 1.15) }, func(n float64) float64 { return n },
			[]string{"ratio.old=stopgrad_new", "tis.level=token", "tis.rule=truncate_upper", "tis.high=1.15"}, 0},
	} {
		l := &Losses{}
		for _, b := range boundBatches(1, true, false, func(boundToken) float64 { return 0 }) {
			var sum float64
			lp, gen, adv := b.Token("logp_new"), b.Token("logp_gen"), b.Token("advantages")
			for i, m := range b.Mask {
				if m {
					sum += c.of(adv[i], math.Exp(lp[i]-gen[i]), lp[i])
				}
			}
			b.Tensors["loss"].Data[0] = float64(float32(sum / c.over(tokensIn(b))))
			delete(b.Tensors, "logp_old")
			l.Add(b)
		}
		require.Subset(t, formTexts(l), c.form, name)
		require.InDelta(t, c.divisor, l.Divisor(), 0, name)
	}
}
