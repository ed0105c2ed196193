package stage

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/convention"
)

// A KL of the whole row in the reward of every token is told beside scores whose groups are one row each, as under a baseline that leaves these what they are.
func TestRewardsUnderOfSingleRows(t *testing.T) {
	b := ppoBatch(1, func(row int, score float64, kl []float64, last int) []float64 {
		sum := 0.0
		for _, k := range kl[:last+1] {
			sum += k
		}
		x := make([]float64, len(kl))
		for i := range x[:last+1] {
			x[i] = -0.05 * sum
		}
		x[last] += score
		return x
	}, gaeOf(1, 1))
	id := *b.Tensors["scores"]
	id.Data = make([]float64, b.Rows)
	for r := range id.Data {
		id.Data[r] = float64(r)
	}
	b.Tensors["group_id"] = &id
	shown := RewardsUnder(b, &convention.Set{})
	for _, place := range []string{"token_reward", "sequence_reward_after"} {
		require.True(t, slices.ContainsFunc(shown, func(list []Change) bool {
			got := texts(list)
			return got["kl.place"] == place && got["kl.beta"] == "0.05"
		}), "%s: %v", place, shown)
	}
}
