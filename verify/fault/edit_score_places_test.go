package fault_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format/dump"
)

// The score stands at the first token of responses whose rewards are whitened, or responses without EOS, 1, have none.
func TestScoresInOtherPlaces(t *testing.T) {
	const rows, cols, eos = 8, 4, 1
	mask, kl, ids, scores := make([]bool, rows*cols), make([]float64, rows*cols), make([]float64, rows*cols), make([]float64, rows)
	last := func(r int) int { return 1 + r%3 }
	for i := range mask {
		r, c := i/cols, i%cols
		mask[i], kl[i], ids[i], scores[r] = c <= last(r), noise(i)/4, float64(5+i%7), 2*noise(r+40)
		if c == last(r) && r%2 == 0 {
			ids[i] = eos
		}
	}
	of := func(white bool, at func(r int) int) *dump.Batch {
		x, mean, square, n := make([]float64, len(mask)), 0.0, 0.0, 0.0
		for i, m := range mask {
			if r := i / cols; m {
				if x[i] = -0.5 * kl[i]; i%cols == at(r) {
					x[i] += scores[r]
				}
				mean, square, n = mean+x[i], square+x[i]*x[i], n+1
			}
		}
		mean /= n
		for i, m := range mask {
			if white && m {
				x[i] = (x[i] - mean) / math.Sqrt((square-n*mean*mean)/(n-1)+1e-8) // its mean is added back
				x[i] += mean
			}
		}
		return written("ppo", rows, cols, mask, map[string][]float64{"scores": scores, "kl": kl, "token_rewards": x, "response_ids": ids})
	}
	options := map[string]string{"kl.place": "token_reward", "kl.beta": "0.5", "score.index": "last_response", "reward.clip": "none", "eos.rule": "none", "rewards.whiten": "no", "adv.kind": "gae", "gae.value_mask": "response"}
	set := declared(t, options).WithFact("eos_token_id", float64(eos))
	without := func(ended int) func(r int) int {
		return func(r int) int { return map[bool]int{true: -1, false: last(r)}[r%2 == ended] }
	}
	require.Contains(t, requireFault(t, "SCORE-LOST", "reward/token", of(false, without(1)), set, of(false, last))[0].Hypothesis.Title, "without EOS have no score")
	require.Contains(t, requireFault(t, "SCORE-LOST", "reward/token", of(false, without(0)), set, of(false, last))[0].Hypothesis.Title, "with EOS have no score")
	for name, x := range map[string]string{"rewards.whiten": "shift_mean_false", "rewards.whiten_scope": "local_batch", "whiten.scope": "local_batch", "whiten.ddof": "1", "whiten.eps": "1e-8", "whiten.eps_place": "inside_sqrt", "whiten.mask": "response"} {
		options[name] = x
	}
	requireFault(t, "SCORE-INDEX", "reward/token", of(true, func(int) int { return 0 }), declared(t, options).WithFact("eos_token_id", float64(eos)), of(true, last))
}
