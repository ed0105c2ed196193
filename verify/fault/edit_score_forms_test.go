package fault_test

import (
	"math"
	"testing"

	"plumbline/internal/format/dump"
)

// Token rewards −0.5·KL, and at the last token what programs make of the score.
func TestShapedScores(t *testing.T) {
	const rows, cols = 8, 5
	scores := []float64{2, -3, 0.5, 1.25, -1.75, 4, -0.5, 3.25}
	mask, kl := make([]bool, rows*cols), make([]float64, rows*cols)
	last := func(r int) int { return 2 + r%3 }
	for i := range mask {
		mask[i] = i%cols <= last(i/cols)
		kl[i] = math.Mod(float64(7*i), 11)/8 - 0.4
	}
	of := func(score func(r int) float64) *dump.Batch {
		x := make([]float64, len(mask))
		for i, m := range mask {
			if m {
				if x[i] = -0.5 * kl[i]; i%cols == last(i/cols) {
					x[i] += score(i / cols)
				}
			}
		}
		return written("ppo", rows, cols, mask, map[string][]float64{"scores": scores, "kl": kl, "token_rewards": x})
	}
	set := declared(t, map[string]string{"kl.place": "token_reward", "kl.beta": "0.5", "score.index": "last_response", "reward.clip": "none", "eos.rule": "none", "rewards.whiten": "no"})
	healthy := of(func(r int) float64 { return scores[r] })
	mean, square := 0.0, 0.0
	for _, s := range scores {
		mean += s / rows
	}
	for _, s := range scores {
		square += (s - mean) * (s - mean) / (rows - 1)
	}
	for _, c := range []struct {
		fault string
		score func(r int) float64
	}{
		{"SCORE-NORMALISED", func(r int) float64 { return scores[r] - mean }},
		{"SCORE-NORMALISED", func(r int) float64 { return (scores[r] - mean) / math.Sqrt(square) }},
		{"REWARD-OF-OTHER-ROW", func(r int) float64 { return scores[(r+1)%rows] }},
		{"OTHER-FORM", func(r int) float64 { return scores[r] / float64(last(r)+1) }},
		{"OTHER-FORM", func(r int) float64 { return math.Tanh(scores[r]) }},
		{"OTHER-FORM", func(r int) float64 { return scores[r] * float64(last(r)+1) / 5 }}, // of the longest
		{"OTHER-FORM", func(r int) float64 { return scores[r] / math.Sqrt(float64(last(r)+1)) }},
		{"REWARD-CLIP-MISSING", func(r int) float64 { return max(-1.5, min(scores[r], 1.5)) }},
		{"REWARD-CLIP-MISSING", func(r int) float64 { return min(scores[r], 1.5) }},
	} {
		requireFault(t, c.fault, "reward/token", of(c.score), set, healthy)
	}
}
