package fault_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/fault"
	"plumbline/verify/stage"
)

// Recursions over responses some of which end with EOS, 1, behind which there is 0, and over others, which are cut off, behind which there is a value where
// that is declared.
func TestBootstrappedResponses(t *testing.T) {
	const rows, cols, eos, gamma, lambda = 6, 4, 1, 0.97, 0.9
	length := []int{2, 4, 3, 4, 4, 4}
	ends := []bool{true, false, true, true, false, false}
	mask, ids := make([]bool, rows*cols), make([]float64, rows*cols)
	rewards, values, next := make([]float64, rows*cols), make([]float64, rows*cols), []float64{0.5, -0.75, 0.25, 0.875, 0.5625, -0.375}
	for i := range mask {
		r, c := i/cols, i%cols
		mask[i], ids[i] = c < length[r], float64(5+i%7)
		if ends[r] && c == length[r]-1 {
			ids[i] = eos
		}
		if mask[i] {
			rewards[i], values[i] = float64((7*i)%11)/8-0.5, float64((5*i)%13)/8-0.625
		}
	}
	held := math.Inf(1)
	of := func(behind func(r int) float64, reward float64, dumped bool) *dump.Batch {
		ret := make([]float64, len(mask))
		for r := range rows {
			a, v := 0.0, behind(r)
			for c := length[r] - 1; c >= 0; c-- {
				i := r*cols + c
				a = max(min(reward*rewards[i]+gamma*v-values[i], held), -held) + gamma*lambda*a
				ret[i], v = a+values[i], values[i]
			}
		}
		x := map[string][]float64{"token_rewards": rewards, "values": values, "returns": ret, "response_ids": ids}
		if dumped {
			x["next_values"] = next
		}
		return written("ppo", rows, cols, mask, x)
	}
	options := map[string]string{"adv.kind": "gae", "gae.gamma": "0.97", "gae.lambda": "0.9", "gae.hole": "carry", "gae.lambda_policy": "none", "gae.truncated_bootstrap": "value",
		"whiten.scope": "none", "returns.before_whiten": "true", "rewards.whiten": "no", "eos.test": "eos_id"}
	set := declared(t, options).WithFact("eos_token_id", float64(eos))
	cut := func(r int) float64 {
		if ends[r] {
			return 0
		}
		return next[r]
	}
	zero, all := func(int) float64 { return 0 }, func(r int) float64 { return next[r] }
	healthy := of(cut, 1, true)
	requireFault(t, "GAE-TRUNCATED-BOOTSTRAP", "gae/returns", of(all, 1, true), set, healthy)
	requireFault(t, "GAE-TRUNCATED-BOOTSTRAP", "gae/returns", of(func(r int) float64 { return next[r] - cut(r) }, 1, true), set, healthy)
	requireFault(t, "GAE-RECURSION", "gae/returns", of(cut, gamma, true), set, healthy)
	requireFault(t, "GAE-RECURSION", "gae/returns", of(cut, 0, true), set, healthy)
	held = 0.5
	clamped := of(cut, 1, true)
	held = math.Inf(1)
	requireFault(t, "GAE-RECURSION", "gae/returns", clamped, set, healthy)
	options["gae.truncated_bootstrap"] = "none"
	set = declared(t, options).WithFact("eos_token_id", float64(eos))
	requireFault(t, "GAE-TRUNCATED-BOOTSTRAP", "gae/returns", of(cut, 1, true), set, of(zero, 1, true))
	requireFault(t, "GAE-TRUNCATED-BOOTSTRAP", "gae/returns", of(cut, 1, false), set, of(zero, 1, false))
	requireFault(t, "GAE-NOT-RESET", "gae/returns", of(all, 1, false), set, of(zero, 1, false))

	// Where rewards are recomputed of scores, another score of every response that was cut off gives the same numbers.
	scores := make([]float64, rows)
	for i := range rewards {
		if r := i / cols; i%cols == length[r]-1 {
			scores[r] = rewards[i]
		} else {
			rewards[i] = 0
		}
	}
	for name, x := range map[string]string{"kl.place": "none", "score.index": "last_response", "eos.rule": "none", "reward.clip": "none"} {
		options[name] = x
	}
	set = declared(t, options).WithFact("eos_token_id", float64(eos))
	recomputed := func(behind func(r int) float64) *stage.Outcome {
		b := of(behind, 1, false).Without("token_rewards")
		b.Tensors["scores"] = &dump.Tensor{Name: "scores", Data: scores, Layout: dump.PerRow, Width: 1}
		return stage.Judge(stage.Find("gae/returns"), b, set)
	}
	require.Equal(t, check.Pass, recomputed(zero).Verdict)
	o := recomputed(cut)
	require.Equal(t, check.Fail, o.Verdict)
	require.NotContains(t, names(fault.Explain(o)), "GAE-TRUNCATED-BOOTSTRAP")
}
