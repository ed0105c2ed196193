package fault_test

import (
	"testing"

	"plumbline/internal/format/dump"
)

// The KL of the loss is in the scores of responses, too; and advantages are what returns exceed the values of the update by.
func TestPenaltiesAndValuesOfTheUpdate(t *testing.T) {
	const rows, cols, beta = 12, 4, 0.5
	of := func(beta float64) *dump.Batch {
		old, ref, scores, id, reward := make([]float64, rows*cols), make([]float64, rows*cols), make([]float64, rows), make([]float64, rows), make([]float64, rows)
		for i := range old {
			old[i], ref[i] = noise(i)-2, noise(i+400)-2
			reward[i/cols] -= beta * (old[i] - ref[i])
		}
		for r := range scores {
			scores[r], id[r] = noise(r+900), float64(r/4)
			reward[r] += scores[r]
		}
		return written("rloo", rows, cols, everyCell(rows*cols), map[string][]float64{"logp_old": old, "logp_ref": ref, "scores": scores, "group_id": id, "advantages": lessOthers(reward, func(r int) int { return r / 4 })})
	}
	requireFault(t, "KL-TWICE", "advantage/group", of(beta), looSet(t, "kl.place", "loss", "kl.beta", "0.5", "kl.kind", "k1", "kl.clamp_in", "none", "kl.clamp_out", "none", "kl.grad", "naive"), of(0))
	advantages := func(moved float64) *dump.Batch {
		x := map[string][]float64{}
		for _, name := range []string{"token_rewards", "values", "values_new", "returns", "advantages"} {
			x[name] = make([]float64, rows*cols)
		}
		a, next := 0.0, 0.0
		for i := rows*cols - 1; i >= 0; i-- {
			if i%cols == cols-1 {
				a, next = 0, 0
			}
			v := noise(i + 500)
			a, next = noise(i)+next-v+0.5*a, v
			x["token_rewards"][i], x["values"][i], x["values_new"][i] = noise(i), v, v+moved*noise(i+700)
			x["returns"][i], x["advantages"][i] = a+v, a+v-x["values_new"][i]
		}
		return written("ppo", rows, cols, everyCell(rows*cols), x)
	}
	set := declared(t, map[string]string{"adv.kind": "gae", "gae.gamma": "1", "gae.lambda": "0.5", "gae.hole": "none", "gae.truncated_bootstrap": "none", "gae.value_mask": "response", "whiten.scope": "none", "rewards.whiten": "no",
		"kl.place": "none", "reward.clip": "none"})
	requireFault(t, "GAE-VALUES-NEW", "gae/advantage", advantages(0.25), set, advantages(0))
}
