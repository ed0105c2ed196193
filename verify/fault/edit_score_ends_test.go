package fault_test

import (
	"testing"

	"plumbline/internal/format/dump"
)

// Responses of two to four tokens in four columns, some of which end with EOS, 1: a score of s, less 2 where a response is taken for one without it.
func TestScoresByTheirEnds(t *testing.T) {
	const rows, cols, eos = 8, 4, 1
	scores := []float64{2, -3, 0.5, 1.25, -1.75, 4, -0.5, 3.25}
	length := []int{2, 4, 3, 4, 4, 2, 4, 3}
	ends := []bool{true, false, true, true, false, true, false, true}
	mask, kl, ids := make([]bool, rows*cols), make([]float64, rows*cols), make([]float64, rows*cols)
	for i := range mask {
		r, c := i/cols, i%cols
		mask[i], ids[i] = c < length[r], float64(5+i%7)
		if kl[i] = float64(i%5)/8 - 0.25; ends[r] && c == length[r]-1 {
			ids[i] = eos
		}
	}
	of := func(penalised func(r int) bool, klAtScore float64) *dump.Batch {
		x := make([]float64, len(mask))
		for i, m := range mask {
			r := i / cols
			if !m {
				continue
			}
			if x[i] = -0.5 * kl[i]; i%cols == length[r]-1 {
				x[i] = x[i]*klAtScore + scores[r]
				if penalised(r) {
					x[i] -= 2
				}
			}
		}
		return written("ppo", rows, cols, mask, map[string][]float64{"scores": scores, "kl": kl, "token_rewards": x, "response_ids": ids})
	}
	set := declared(t, map[string]string{"kl.place": "token_reward", "kl.beta": "0.5", "score.index": "last_response", "reward.clip": "none", "eos.rule": "subtract", "eos.penalty": "2",
		"eos.test": "eos_id", "rewards.whiten": "no"}).WithFact("eos_token_id", float64(eos))
	missing := func(r int) bool { return !ends[r] }
	healthy := of(missing, 1)
	requireFault(t, "EOS-PENALTY-MISSING", "reward/token", of(func(r int) bool { return length[r] < cols || !ends[r] }, 1), set, healthy)
	requireFault(t, "EOS-PENALTY-MISSING", "reward/token", of(func(int) bool { return true }, 1), set, healthy)
	requireFault(t, "EOS-INVERTED", "reward/token", of(func(r int) bool { return ends[r] }, 1), set, healthy)
	requireFault(t, "REWARD-PLACE", "reward/token", of(missing, 0), set, healthy)
}
