package fault_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
)

// onRanks gives the rows of a batch to two ranks, half of them each.
func onRanks(b *dump.Batch) *dump.Batch {
	half := b.Rows / 2
	b.Files = []dump.FileInfo{{Hi: half, Cols: b.Cols}, {Lo: half, Hi: b.Rows, Cols: b.Cols, Rank: 1}}
	for r := range b.Origin {
		b.Origin[r].File = r / half
	}
	b.Meta.WorldSize = 2
	return b
}

// Values of the second rank come in reversed order into the recursion.
func TestValuesOfARankInReversedOrder(t *testing.T) {
	const rows, cols = 8, 4
	set := declared(t, map[string]string{"adv.kind": "gae", "gae.gamma": "1", "gae.lambda": "1", "gae.hole": "none", "gae.truncated_bootstrap": "none", "gae.value_mask": "response", "whiten.scope": "none", "rewards.whiten": "no",
		"kl.place": "none", "reward.clip": "none"})
	of := func(from func(row int) int) *dump.Batch {
		reward, v, a := make([]float64, rows*cols), make([]float64, rows*cols), make([]float64, rows*cols)
		sum := 0.0
		for i := rows*cols - 1; i >= 0; i-- { // A = Σ r − V
			if i%cols == cols-1 {
				sum = 0
			}
			reward[i], v[i] = noise(i), noise(i+500)
			sum += reward[i]
			a[i] = sum - noise(from(i/cols)*cols+i%cols+500)
		}
		return onRanks(written("ppo", rows, cols, everyCell(rows*cols), map[string][]float64{"token_rewards": reward, "values": v, "advantages": a}))
	}
	found := requireFault(t, "VALUES-OF-OTHER-ROWS", "gae/advantage", of(func(r int) int {
		if r < 4 {
			return r
		}
		return 11 - r
	}), set, of(func(r int) int { return r }))
	require.Contains(t, found[0].Hypothesis.Title, "reversed order on every rank but the first")
}

// looSet are the options of advantages r − (mean of the others) of three groups of four.
func looSet(t *testing.T, more ...string) *convention.Set {
	options := map[string]string{"adv.kind": "group", "adv.center": "loo", "adv.scale": "none", "adv.singleton": "zero", "whiten.scope": "none", "kl.place": "none", "reward.clip": "none", "eos.rule": "none", "adv.group_by": "uid"}
	for i := 0; i < len(more); i += 2 {
		options[more[i]] = more[i+1]
	}
	return declared(t, options).WithFact("num_generations", 4.0)
}

// lessOthers are rewards less the mean of the others of their group.
func lessOthers(r []float64, group func(row int) int) []float64 {
	a, sum, n := make([]float64, len(r)), map[int]float64{}, map[int]float64{}
	for i, x := range r {
		sum[group(i)], n[group(i)] = sum[group(i)]+x, n[group(i)]+1
	}
	for i, x := range r {
		a[i] = x - (sum[group(i)]-x)/(n[group(i)]-1)
	}
	return a
}

// The KL of the second rank's responses is that of the first rank's; or the rewards, with their KL, were shuffled before they were cut into groups.
func TestRewardsOfSequencesWithKL(t *testing.T) {
	const rows, cols = 16, 4
	set := looSet(t, "kl.place", "sequence_reward_before_baseline", "kl.beta", "0.5", "kl.kind", "k1")
	own, fours := func(r int) int { return r }, func(r int) int { return r / 4 }
	of := func(from, group func(row int) int) *dump.Batch {
		kl, sums, scores, id, reward := make([]float64, rows*cols), make([]float64, rows), make([]float64, rows), make([]float64, rows), make([]float64, rows)
		for i := range kl {
			kl[i] = noise(i + 31)
			sums[i/cols] += kl[i]
		}
		for r := range scores {
			scores[r], id[r] = noise(r+900), float64(r/4)
			reward[r] = scores[r] - 0.5*sums[from(r)]
		}
		return onRanks(written("rloo", rows, cols, everyCell(rows*cols), map[string][]float64{"kl": kl, "scores": scores, "group_id": id, "advantages": lessOthers(reward, group)}))
	}
	found := requireFault(t, "KL-OF-OTHER-ROWS", "advantage/group", of(func(r int) int { return r % 8 }, fours), set, of(own, fours))
	require.Contains(t, found[0].Hypothesis.Title, "first rank on all of them")
	shuffled := []int{0, 2, 1, 3, 3, 0, 2, 1, 1, 3, 0, 2, 2, 1, 3, 0}
	requireFault(t, "ADV-WRONG-GROUPS", "advantage/group", of(own, func(r int) int { return shuffled[r] }), set, of(own, fours))
}

// Advantages that stand at the front of a rollout of which one group, without a spread, was dropped.
func TestAdvantagesOfRowsThatWereDropped(t *testing.T) {
	const rows = 16
	of := func(from func(row int) int) *dump.Batch {
		scores, id, sample, a := make([]float64, rows), make([]float64, rows), make([]float64, rows), make([]float64, rows)
		for r := range scores {
			scores[r], id[r], sample[r] = noise(r+77), float64(r/4), float64(r)
			if r >= 4 { // the second group of the rollout
				id[r], sample[r] = id[r]+1, sample[r]+4
			}
		}
		right := lessOthers(scores, func(r int) int { return r / 4 })
		for r := range a {
			if k := from(r); k >= 0 {
				a[r] = right[k]
			}
		}
		return written("rloo", rows, 1, everyCell(rows), map[string][]float64{"scores": scores, "group_id": id, "sample_id": sample, "advantages": a})
	}
	front := requireFault(t, "ADV-ROWS-OF-OTHERS", "advantage/group", of(func(r int) int {
		switch {
		case r < 4:
			return r
		case r < 8:
			return -1
		}
		return r - 4
	}), looSet(t), of(func(r int) int { return r }))
	require.Contains(t, front[0].Hypothesis.Title, "at the front of the rollout")
	b := of(func(r int) int { return r - 4*min(r/8, 1) })
	for r := range 4 { // of scores that were dropped, which have a spread
		b.Tensors["advantages"].Data[4+r] = noise(r + 5)
	}
	scored := requireFault(t, "ADV-ROWS-OF-OTHERS", "advantage/group", b, looSet(t), of(func(r int) int { return r }))
	require.Contains(t, scored[0].Hypothesis.Title, "those of the scores at the front of the rollout")
}
