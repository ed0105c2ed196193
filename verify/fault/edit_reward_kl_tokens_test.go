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

// The KL in the rewards of tokens that is of another cell is named, where it is recomputed of log-probs, both of which are read elsewhere then.
func TestKLOfRewardsMoved(t *testing.T) {
	const rows, cols = 6, 8
	for words, of := range map[string]func(row, col int) int{
		"rolled: read one token late":                    func(row, col int) int { return row*cols + (col+cols-1)%cols },
		"read one token early: that of the token behind": func(row, col int) int { return row*cols + min(col+1, cols-1) },
		"from the row before":                            func(row, col int) int { return (row+rows-1)%rows*cols + col },
	} {
		old, ref, r, score := make([]float64, rows*cols), make([]float64, rows*cols), make([]float64, rows*cols), make([]float64, rows)
		for i := range old {
			old[i], ref[i] = float64(float32(-2+math.Sin(float64(i*i)))), float64(float32(-2+math.Cos(float64(3*i))))
		}
		for i := range r {
			k := of(i/cols, i%cols)
			if r[i] = float64(float32(-0.1 * (old[k] - ref[k]))); i%cols == cols-1 {
				score[i/cols] = float64(i/cols) / 4
				r[i] = float64(float32(r[i] + score[i/cols]))
			}
		}
		b := written("ppo", rows, cols, everyCell(rows*cols), map[string][]float64{"logp_old": old, "logp_ref": ref, "token_rewards": r, "scores": score})
		o := stage.Judge(stage.Find("reward/token"), b, declared(t, map[string]string{"kl.place": "token_reward", "kl.beta": "0.1", "kl.kind": "k1", "kl.clamp_in": "none", "kl.clamp_out": "none",
			"rewards.whiten": "no", "adv.kind": "rfpp", "score.index": "last_response", "eos.rule": "none", "reward.clip": "none"}))
		requireFirst(t, o, "OTHER-TENSOR", words)
	}
}
