package stage

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format/dump"
	"plumbline/verify/check"
)

// Every logged number of a batch is what its framework computes, written here a second time; off by 2 % it fails.
func TestLoggedNumbersOfABatch(t *testing.T) {
	r := rand.New(rand.NewPCG(16, 4))
	g := newGrid(6, 6, 4, 6, 2)
	g.row("scores", 1, 3, 4, 8).row("group_id", 1, 1, 2, 2).row("prompt_len", 3, 5, 5, 7)
	g.token("response_ids", 5, 5, 5, 5, 5, 9, 5, 5, 5, 9, 0, 0, 5, 5, 5, 5, 5, 5, 5, 9, 0, 0, 0, 0)
	var gap, widest, values float64
	draw := func(name string, f func(i int) float64) []float64 {
		x := make([]float64, len(g.Mask))
		for i := range x {
			x[i] = float64(float32(f(i)))
		}
		g.token(name, x...)
		return x
	}
	old := draw("logp_old", func(int) float64 { return -0.1 - r.ExpFloat64() })
	gen := draw("logp_gen", func(i int) float64 { return old[i] + 0.05*r.NormFloat64() })
	v := draw("values_new", func(int) float64 { return r.NormFloat64() + 2 })
	for i, m := range g.Mask {
		if m {
			gap += math.Abs(old[i]-gen[i]) / 18
			widest = max(widest, math.Abs(old[i]-gen[i]))
			values += v[i] / 18
		}
	}
	sd := math.Sqrt((9 + 1 + 0 + 16) / 3.)
	const trl = "ratio.old=stored adv.scale=group_std"
	for _, e := range []struct {
		framework, id, logged string
		want                  float64
	}{
		{"trl", "completions_mean_terminated_length", "completions/mean_terminated_length", 4},
		{"trl", "completions_min_terminated_length", "completions/min_terminated_length", 2},
		{"trl", "completions_max_terminated_length", "completions/max_terminated_length", 6},
		{"trl", "reward_std", "reward_std", sd},
		{"trl", "reward_std", "reward_std", (2 + 4) / (2 * math.Sqrt2)}, // the mean of the groups' in older releases
		{"trl", "sampling_sampling_logp_difference_mean", "sampling/sampling_logp_difference/mean", gap},
		{"trl", "sampling_sampling_logp_difference_max", "sampling/sampling_logp_difference/max", widest},
		{"verl", "critic_score_mean", "critic/score/mean", 4},
		{"verl", "critic_score_max", "critic/score/max", 8},
		{"verl", "critic_score_min", "critic/score/min", 1},
		{"verl", "response_length_mean", "response_length/mean", 4.5},
		{"verl", "response_length_max", "response_length/max", 6},
		{"verl", "response_length_min", "response_length/min", 2},
		{"verl", "prompt_length_mean", "prompt_length/mean", 5},
		{"verl", "prompt_length_max", "prompt_length/max", 7},
		{"verl", "prompt_length_min", "prompt_length/min", 3},
		{"verl", "critic_vpred_mean", "critic/vpred_mean", values},
		{"mine", "rewards_mean", "reward_mean", 4},
		{"mine", "rewards_std", "reward_std", sd},
		{"mine", "rewards_std", "reward/std", sd * math.Sqrt(0.75)},
		{"mine", "rewards_max", "reward/max", 8},
		{"mine", "lengths_mean", "completion_length", 4.5},
		{"mine", "lengths_min", "response_length_min", 2},
	} {
		s := set(t, trl).WithFact("num_mini_batches", 1.0).WithFact("generation_batch_size", 4.0).WithFact("eos_token_id", 9.0)
		b := *g.Batch
		b.Meta = dump.Meta{Framework: e.framework, WorldSize: 1, MicroBatches: 1, ScalarsScope: "optimizer_step"}
		for _, off := range []float64{1, 1.02} {
			b.Files = []dump.FileInfo{{Hi: b.Rows, Cols: b.Cols, PromptCols: -1, Scalars: []dump.Scalar{{Name: e.logged, Value: e.want * off}}}}
			o := Judge(Find("scalars/"+e.id), &b, s)
			require.Equal(t, map[float64]check.Verdict{1: check.Pass, 1.02: check.Fail}[off], o.Verdict, "%s %s × %g: %s", e.framework, e.logged, off, o.Lacking())
		}
		require.Equal(t, "scalars/"+e.id, ReadsScalar(e.framework, e.logged))
	}
	require.Empty(t, ReadsScalar("mine", "speed"))
	require.Empty(t, ReadsScalar("trl", "reward_mean"), "TRL's log has no such number")
}

// Half of the groups have equal rewards.
func TestLoggedShareOfEqualGroups(t *testing.T) {
	g := newGrid(1, 1, 1, 1, 1).row("scores", 1, 1, 0, 1).row("group_id", 1, 1, 2, 2)
	g.Meta = dump.Meta{Framework: "trl", WorldSize: 1, MicroBatches: 1, ScalarsScope: "optimizer_step"}
	for logged, want := range map[float64]check.Verdict{0.5: check.Pass, 0: check.Fail} {
		g.Files[0].Scalars = []dump.Scalar{{Name: "frac_reward_zero_std", Value: logged}}
		require.Equal(t, want, Judge(Find("scalars/frac_reward_zero_std"), g.Batch, set(t, "adv.scale=group_std").WithFact("generation_batch_size", 4.0)).Verdict)
	}
}

// A logged reward may be that of the scores, of all rows, or that of the sums of the token rewards.
func TestRewardsThatMayBeLogged(t *testing.T) {
	g := newGrid(3, 3, 1).token("token_rewards", 1, -2, 4, 5, 9, 9).row("scores", 0.5, 0.25) // sums 3 and 5: the last two cells are padding
	for _, c := range []struct {
		how  combine
		want []float64
	}{{mean, []float64{0.375, 4}}, {largest, []float64{0.5, 5}}, {smallest, []float64{0.25, 3}}} {
		var got []float64
		for _, x := range otherScores(c.how)(NewCase(g.Batch, set(t, ""), 0), []span{{0, 2}}) {
			got = append(got, x[0])
		}
		require.Equal(t, c.want, got)
	}
}
