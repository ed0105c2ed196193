package fault_test

import (
	"math"
	"testing"

	"plumbline/internal/format/dump"
)

// Token rewards of rows of three to five tokens: −0.5·KL, and the score at the last token.
func TestRewardSums(t *testing.T) {
	const rows, cols = 6, 5
	scores := []float64{2, -3, 0.5, 1.25, -1.75, 4}
	mask, kl := make([]bool, rows*cols), make([]float64, rows*cols)
	last := func(r int) int { return 2 + r%3 }
	for i := range mask {
		mask[i] = i%cols <= last(i/cols)
		kl[i] = math.Mod(float64(7*i), 11)/8 - 0.4
	}
	of := func(reward func(r, col int, kl float64) float64) *dump.Batch {
		x := make([]float64, len(mask))
		for i, m := range mask {
			if m {
				x[i] = reward(i/cols, i%cols, kl[i])
			}
		}
		return written("ppo", rows, cols, mask, map[string][]float64{"scores": scores, "kl": kl, "token_rewards": x})
	}
	rowKL := func(r int) (sum float64) {
		for i := r * cols; i <= r*cols+last(r); i++ {
			sum += kl[i]
		}
		return sum
	}
	at := func(is bool, s float64) float64 {
		if is {
			return s
		}
		return 0
	}
	options := map[string]string{"kl.place": "token_reward", "kl.beta": "0.5", "score.index": "last_response", "reward.clip": "none", "eos.rule": "none", "rewards.whiten": "no"}
	healthy := of(func(r, col int, k float64) float64 { return at(col == last(r), scores[r]) - 0.5*k })
	set := declared(t, options)
	requireFault(t, "KL-TWICE", "reward/token", of(func(r, col int, k float64) float64 { return at(col == last(r), scores[r]-0.5*rowKL(r)) - 0.5*k }), set, healthy)
	requireFault(t, "REWARD-PLACE", "reward/token", of(func(r, col int, k float64) float64 { return at(col >= 2, scores[r]) - 0.5*k }), set, healthy)
	requireFault(t, "REWARD-PLACE", "reward/token", of(func(r, col int, k float64) float64 { return (scores[r] - 0.5*rowKL(r)) / float64(last(r)+1) }), set, healthy)
	requireFault(t, "REWARD-PLACE", "reward/token", of(func(r, col int, k float64) float64 { return at(col == last(r), scores[r]-0.5*rowKL(r)) }), set, healthy)

	options["reward.clip"], options["reward.clip_range"] = "before_baseline", "-1,2"
	clip := func(x, lo, hi float64) float64 { return min(max(x, lo), hi) }
	healthy = of(func(r, col int, k float64) float64 { return at(col == last(r), clip(scores[r], -1, 2)) - 0.5*k })
	set = declared(t, options)
	requireFault(t, "REWARD-CLIP-MISSING", "reward/token", of(func(r, col int, k float64) float64 { return clip(at(col == last(r), scores[r])-0.5*k, -1, 2) }), set, healthy)
	requireFault(t, "REWARD-CLIP-MISSING", "reward/token", of(func(r, col int, k float64) float64 { return at(col == last(r), min(scores[r], 2)) - 0.5*k }), set, healthy)
}

// Scores that are a sum of two functions with other weights than the run's.
func TestWeightsOfRewardFunctions(t *testing.T) {
	of := func(a, b float64) *dump.Batch {
		var per, sum []float64
		for i := range 8 {
			x, y := math.Mod(float64(3*i), 7), math.Mod(float64(5*i), 4)/4
			per, sum = append(per, x, y), append(sum, a*x+b*y)
		}
		batch := written("grpo", 8, 1, []bool{true, true, true, true, true, true, true, true}, map[string][]float64{"scores": sum})
		batch.Tensors["rewards_per_func"] = &dump.Tensor{Name: "rewards_per_func", Data: per, Layout: dump.PerRow, Width: 2}
		return batch
	}
	set := declared(t, nil).WithFact("reward_weights", []any{2.0, 1.0})
	requireFault(t, "REWARD-WEIGHTS", "reward/scores", of(2, 2), set, of(2, 1))
	requireFault(t, "REWARD-WEIGHTS", "reward/scores", of(0.5, 1), set, of(2, 1))
}
