package stage

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
)

// Returns and values tell γ, λ and what stands in rewards that were not dumped; returns of another rule, and those of a declared reward, show nothing.
func TestImpliedRewardsAreShown(t *testing.T) {
	for seed := range uint64(4) {
		for _, of := range []struct{ gamma, lambda, beta float64 }{{1, 0.95, 0.05}, {0.98, 0.9, 0.02}, {0.99, 1, 0.1}} {
			b := ppoBatch(seed, rewardsOf(of.beta, 0), gaeOf(of.gamma, of.lambda))
			delete(b.Tensors, "token_rewards")
			b.Tensors["advantages"] = b.Tensors["raw"]
			lists := Shown(Find("gae/returns"), b, &convention.Set{})
			require.NotEmpty(t, lists)
			got := map[string]float64{}
			for _, c := range lists[0] {
				if c.To.Kind() == convention.Number {
					got[c.Option] = c.To.Num()
				}
			}
			require.Equal(t, map[string]float64{"gae.gamma": of.gamma, "gae.lambda": of.lambda, "kl.beta": of.beta}, got)
		}
		b := ppoBatch(seed, rewardsOf(0.05, 0), func(r, v []float64) []float64 {
			a := gaeOf(0.98, 0.9)(r, v)
			for i := range a {
				a[i] *= a[i]
			}
			return a
		})
		delete(b.Tensors, "token_rewards")
		b.Tensors["advantages"] = b.Tensors["raw"]
		require.Empty(t, impliedRewardForms(b, &convention.Set{}), "another rule")
		b = ppoBatch(seed, rewardsOf(0.05, 0), gaeOf(1, 0.95))
		b.Tensors["advantages"] = b.Tensors["raw"]
		require.Empty(t, impliedRewardForms(b, &convention.Set{}), "the rewards are there")
	}
}

// Of responses without values the sums of rewards from each token on tell γ and β, and the scores what their baseline is.
func TestImpliedRewardsWithoutValues(t *testing.T) {
	for seed := range uint64(4) {
		groups := []float64{0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2}
		scores := ppoBatch(seed, rewardsOf(0, 0), gaeOf(1, 1)).Row("scores")
		sum := map[float64]float64{}
		for r, g := range groups {
			sum[g] += scores[r]
		}
		b := ppoBatch(seed, func(row int, score float64, kl []float64, last int) []float64 {
			return rewardsOf(0.02, 0)(row, score-(sum[groups[row]]-score)/3, kl, last)
		}, func(r, _ []float64) []float64 { return gaeOf(1, 1)(r, make([]float64, len(r))) })
		for _, name := range []string{"token_rewards", "values", "returns"} {
			delete(b.Tensors, name)
		}
		b.Tensors["advantages"] = b.Tensors["raw"]
		id := *b.Tensors["scores"]
		id.Data = groups
		b.Tensors["group_id"] = &id
		lists := Shown(Find("advantage/return"), b, &convention.Set{})
		require.NotEmpty(t, lists)
		got := texts(lists[0])
		require.Equal(t, "0.02", got["kl.beta"])
		require.Equal(t, "loo", got["adv.center"])
		require.Equal(t, "sequence_reward_after", got["kl.place"])
	}
}

// A score in the cell behind a response, which holds a value, and a penalty of responses without an end are told by returns alone.
func TestImpliedRewardsOfOneTokenMore(t *testing.T) {
	b := ppoBatch(2, rewardsOf(0.05, 0.7), gaeOf(1, 0.95))
	ids := b.Token("response_ids")
	for i, id := range ids {
		if id == 2 { // the last token is the cell behind the one before
			b.Mask[i], ids[i], ids[i-1] = false, 0, 2
		}
	}
	delete(b.Tensors, "token_rewards")
	b.Tensors["advantages"] = b.Tensors["raw"]
	got := texts(Shown(Find("gae/returns"), b, &convention.Set{})[0])
	for name, x := range map[string]string{"gae.gamma": "1", "gae.lambda": "0.95", "kl.beta": "0.05", "eos.rule": "subtract", "eos.penalty": "0.7"} {
		require.Equal(t, x, got[name], name)
	}
}

// Rewards that were whitened show a constant beside their KL, and those of ranks that whiten their own each another one.
func TestImpliedRewardsOfRanksAreShown(t *testing.T) {
	for seed := range uint64(4) {
		for _, ranks := range []int{1, 2} {
			b := ppoBatch(seed, func(row int, score float64, kl []float64, last int) []float64 {
				x := rewardsOf(0.05, 0)(row, score, kl, last)
				a, shift := 1.7, -0.13
				if ranks == 2 && row >= 6 {
					a, shift = 0.8, 0.21
				}
				for i := range x {
					x[i] = a*x[i] + shift
				}
				return x
			}, gaeOf(0.98, 0.9))
			delete(b.Tensors, "token_rewards")
			if ranks == 2 {
				b.Files = []dump.FileInfo{{Name: "f", Hi: 6, Cols: b.Cols}, {Name: "g", Lo: 6, Hi: 12, Rank: 1, Cols: b.Cols}}
				for r := 6; r < b.Rows; r++ {
					b.Origin[r].File = 1
				}
			}
			for _, tensor := range b.Tensors {
				tensor.Width = 1
			}
			lists := Shown(Find("gae/returns"), b, &convention.Set{})
			require.NotEmpty(t, lists, "seed %d, %d ranks", seed, ranks)
			got := texts(lists[0])
			require.Equal(t, "0.98 0.9 shift_mean_false", got["gae.gamma"]+" "+got["gae.lambda"]+" "+got["rewards.whiten"])
			require.Equal(t, map[int]string{1: "", 2: "local_batch"}[ranks], got["whiten.scope"])
		}
	}
}

// Whitened advantages tell γ, λ and β where the returns are of none: with a γλ of 1, too, and where the KL is added.
func TestAdvantagesImplyRewards(t *testing.T) {
	for seed := range uint64(4) {
		for _, of := range []struct{ gamma, lambda, beta float64 }{{0.99, 0.95, 0.05}, {1, 1, 0.1}, {1, 0.95, -0.05}} {
			b := ppoBatch(seed, rewardsOf(of.beta, 0), gaeOf(of.gamma, of.lambda))
			delete(b.Tensors, "token_rewards")
			white := *b.Tensors["raw"]
			white.Data = make([]float64, len(white.Data))
			for i, in := range b.Mask {
				if in {
					white.Data[i] = 0.6*b.Tensors["raw"].Data[i] - 0.17
				}
			}
			b.Tensors["advantages"], b.Tensors["returns"] = &white, b.Tensors["raw"] // the returns lack V
			for _, tensor := range b.Tensors {
				tensor.Width = 1
			}
			shown := Shown(Find("gae/advantage"), b, &convention.Set{})
			if of.beta < 0 {
				require.False(t, slices.ContainsFunc(shown, func(list []Change) bool { return texts(list)["kl.beta"] != "" }), "no coefficient is below 0")
				shown = RewardsUnder(b, &convention.Set{})
			}
			require.True(t, slices.ContainsFunc(shown, func(list []Change) bool {
				got := texts(list)
				return got["gae.gamma"] == number(of.gamma) && got["gae.lambda"] == number(of.lambda) && got["kl.beta"] == number(math.Abs(of.beta))
			}), "seed %d: %v: %v", seed, of, shown)
		}
	}
}

// The KL of an estimator without values is told whatever the baseline of the scores is; one that leaves the returns no line is not.
func TestKLIsToldUnderAnyBaseline(t *testing.T) {
	score := map[int]float64{}
	b := ppoBatch(1, func(row int, s float64, kl []float64, last int) []float64 {
		score[row] = s
		return rewardsOf(0.02, 0)(row, s-0.4*score[row/4*4], kl, last)
	}, func(r, _ []float64) []float64 { return gaeOf(1, 1)(r, make([]float64, len(r))) })
	for _, name := range []string{"token_rewards", "values", "returns"} {
		delete(b.Tensors, name)
	}
	b.Tensors["advantages"] = b.Tensors["raw"]
	id := *b.Tensors["scores"]
	id.Data = []float64{0, 0, 0, 0, 1, 1, 1, 1, 2, 2, 2, 2}
	b.Tensors["group_id"] = &id
	lists := BaselinesUnder(b, &convention.Set{})
	require.NotEmpty(t, lists)
	require.Equal(t, "0.02 sequence_reward_after", texts(lists[0])["kl.beta"]+" "+texts(lists[0])["kl.place"])
	for i := range b.Tensors["raw"].Data {
		b.Tensors["raw"].Data[i] *= math.Abs(b.Tensors["raw"].Data[i])
	}
	require.Empty(t, BaselinesUnder(b, &convention.Set{}))
}
