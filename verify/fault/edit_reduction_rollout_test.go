package fault_test

import (
	"cmp"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/fault"
	"plumbline/verify/stage"
)

// Two ranks and two steps of a generation batch: num_items_in_batch is 24 tokens, of which the first rank has 9 and the second 15.
func TestCountsThatAreNotGathered(t *testing.T) {
	const cols, items = 4, 24.0
	undeclaredItems := declared(t, map[string]string{"agg.kind": "token", "agg.denominator": "global", "agg.div_ga": "false", "loss.kind": "ppo", "entropy.coef": "0", "kl.place": "none", "mean.eps": "0"})
	set := undeclaredItems.WithFact("num_items_in_batch", items)
	tokens := map[int][]int{1: {2, 3, 4, 4}, 2: {1, 3, 3, 4}} // of the rows of a step, two for each rank
	step := func(s int, divisor func(rank int) float64) *dump.Batch {
		mask, x, loss := make([]bool, 4*cols), make([]float64, 4*cols), make([]float64, 2)
		for i := range mask {
			if mask[i] = i%cols < tokens[s][i/cols]; mask[i] {
				x[i] = noise(i + 7*s)
				loss[i/cols/2] += x[i] / divisor(i/cols/2)
			}
		}
		b := written("grpo", 4, cols, mask, map[string][]float64{"token_loss": x, "loss": loss})
		b.Meta.Step, b.Meta.WorldSize = s, 2
		b.Files = []dump.FileInfo{{Hi: 2, Cols: cols, Step: s}, {Lo: 2, Hi: 4, Cols: cols, Step: s, Rank: 1}}
		for r := range b.Origin {
			b.Origin[r].File = r / 2
		}
		return b
	}
	ch := stage.Find("aggregate/loss")
	right := stage.Judge(ch, step(1, func(int) float64 { return items / 2 }), set)
	require.Equal(t, check.Pass, right.Verdict, right.Lacking())
	for _, share := range []float64{2, 1} {
		local := func(rank int) float64 { return []float64{9, 15}[rank] / share }
		found := fault.ExplainRows(stage.Judge(ch, step(1, local), set), func(int) []*dump.Batch { return []*dump.Batch{step(2, local)} })
		require.NotEmpty(t, found)
		require.Equal(t, "AGG-LOCAL-DENOMINATOR", found[0].Hypothesis.ID)
		require.Equal(t, share > 1, len(found[0].Hypothesis.Title) > 140, found[0].Hypothesis.Title)
		shown := undeclaredItems.WithFact(stage.StepTokens, items/2).WithFact(stage.GenerationSteps, 2.0)
		twice := func(rank int) float64 { return local(rank) / 2 } // such a loss is that of a step: times the two of the batch
		found = fault.ExplainRows(stage.Judge(ch, step(1, twice), shown), func(int) []*dump.Batch { return []*dump.Batch{step(2, twice)} })
		require.NotEmpty(t, found)
		require.Equal(t, "AGG-LOCAL-DENOMINATOR", found[0].Hypothesis.ID, "a count that the losses show")
	}
}

// One rank and two steps of a generation batch: three responses of each step are as long as the columns, and left out of its mask behind the count.
func TestCountsOfResponsesThatAreLeftOut(t *testing.T) {
	const rows, cols = 6, 4
	tokens := map[int][]int{1: {2, 4, 2, 4, 1, 4}, 2: {4, 1, 1, 2, 4, 4}}
	const both = 17.0 + 16
	step := func(s int) *dump.Batch {
		mask, x, ids, loss := make([]bool, rows*cols), make([]float64, rows*cols), make([]float64, rows*cols), 0.0
		for i := range mask {
			if n := tokens[s][i/cols]; i%cols < n {
				ids[i] = 3
				mask[i] = n < cols
			}
			if mask[i] {
				x[i] = noise(i + 7*s)
				loss += x[i] / (both / 2)
			}
		}
		b := written("grpo", rows, cols, mask, map[string][]float64{"token_loss": x, "loss": {loss}, "response_ids": ids})
		b.Meta.Step = s
		return b
	}
	for _, den := range []string{"", "global", "micro"} {
		set := declared(t, map[string]string{"loss.kind": "ppo", "entropy.coef": "0", "kl.place": "none", "mean.eps": "0", "agg.div_ga": "false",
			"agg.kind": "token", "agg.denominator": cmp.Or(den, "micro")})
		if den == "" {
			set = set.With("agg.denominator", set.Value("agg.denominator"), "search")
		}
		found := fault.ExplainRows(stage.Judge(stage.Find("aggregate/loss"), step(1), set), func(int) []*dump.Batch { return []*dump.Batch{step(2)} })
		if den == "micro" {
			require.Empty(t, found)
			continue
		}
		require.NotEmpty(t, found)
		require.Equal(t, "AGG-COUNTS-MASKED", found[0].Hypothesis.ID)
		require.Contains(t, found[0].Hypothesis.Title, "2 steps")
	}
}
