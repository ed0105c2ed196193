package rl

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestTokenRewards(t *testing.T) {
	mask := []bool{true, true, false, false, true, false, true, true, false, false, false, false}
	kl := []float64{1, 2, 4, 8, 1, 2, 4, 8, 1, 2, 4, 8}
	score := []float64{10, 20, 30}
	eos := []int{0, -1, -1}
	for _, c := range []struct {
		o    RewardOptions
		want []float64
	}{
		{RewardOptions{Beta: .5}, []float64{-.5, 9, 0, 0, -.5, 0, -2, 16, 0, 0, 0, 0}},
		{RewardOptions{Beta: .5, KLEverywhere: true}, []float64{-.5, 9, -2, -4, -.5, -1, -2, 16, -.5, -1, -2, -4}},
		{RewardOptions{}, []float64{0, 10, 0, 0, 0, 0, 0, 20, 0, 0, 0, 0}},
		{RewardOptions{EmptyLastColumn: true}, []float64{0, 10, 0, 0, 0, 0, 0, 20, 0, 0, 0, 30}},
		{RewardOptions{Index: ScoreEOS}, []float64{10, 0, 0, 0, 0, 0, 0, 20, 0, 0, 0, 0}},
		{RewardOptions{Index: ScoreEOSPlus1}, []float64{0, 0, 10, 0, 0, 0, 0, 20, 0, 0, 0, 0}},
		{RewardOptions{Index: ScoreLastColumn}, []float64{0, 0, 0, 10, 0, 0, 0, 20, 0, 0, 0, 30}},
	} {
		require.Equal(t, c.want, TokenRewards(nil, score, kl, mask, eos, 3, 4, c.o), "%+v", c.o)
	}
	require.Equal(t, []float64{0, 7}, TokenRewards(nil, []float64{7}, nil, nil, nil, 1, 2, RewardOptions{}))
	require.Panics(t, func() { TokenRewards(nil, score, nil, mask, nil, 3, 4, RewardOptions{Beta: 1}) })
	require.Panics(t, func() { TokenRewards(nil, score, kl, mask, nil, 3, 4, RewardOptions{Index: ScoreEOS}) })
	require.Panics(t, func() { TokenRewards(nil, score, kl, mask, []int{4, 0, 0}, 3, 4, RewardOptions{Index: ScoreEOS}) })
}

// TestTokenRewardsLaws: the rewards of a row sum to score − β·Σ kl over true cells, whatever masked cells hold.
func TestTokenRewardsLaws(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		kl, mask, rows, cols := drawBatch(t, 1)
		score := drawCells(t, "score", rows)
		o := RewardOptions{Beta: .25, Index: ScoreIndex(rapid.IntRange(0, 3).Draw(t, "index"))}
		eos := make([]int, rows)
		for i := range eos {
			eos[i] = lastTrue(row(mask, i, cols), cols)
		}
		r := TokenRewards(nil, score, poison(kl, mask), mask, eos, rows, cols, o)
		for i, sum := range RowSums(nil, r, nil, rows, cols) {
			want := score[i]
			if eos[i] < 0 && o.Index != ScoreLastColumn {
				want = 0
			}
			want -= .25 * MaskedSum(row(kl, i, cols), row(mask, i, cols), OutsideIgnore)
			if !(math.Abs(sum-want) <= 1e-12) {
				t.Fatalf("row %d has %v, want %v", i, sum, want)
			}
		}
	})
}

func TestMissingEOS(t *testing.T) {
	score, finished := []float64{3, 3, -2}, []bool{true, false, false}
	for _, c := range []struct {
		rule    EOSRule
		penalty float64
		want    []float64
	}{
		{EOSNone, 1, []float64{3, 3, -2}},
		{EOSSubtract, 1, []float64{3, 2, -3}},
		{EOSReplace, -1, []float64{3, -1, -1}},
		{EOSScale, .5, []float64{3, 1.5, -1}},
		{EOSScale, 0, []float64{3, 0, 0}},
		{EOSScale, -.25, []float64{3, -.25, -.25}},
	} {
		require.NoError(t, off(MissingEOS(nil, score, finished, c.rule, c.penalty), c.want, 0), c.rule)
	}
	require.Panics(t, func() { MissingEOS(nil, score, nil, EOSNone, 0) })
}

func TestClipRewards(t *testing.T) {
	got := ClipRewards(nil, []float64{-11, 11, 0, nan, math.Inf(1)}, -10, 10)
	require.NoError(t, off(got, []float64{-10, 10, 0, nan, 10}, 0))
	require.Panics(t, func() { ClipRewards(nil, got, 1, -1) })
}

func TestOverlongPenalty(t *testing.T) {
	for length, want := range map[int]float64{0: 0, 80: 0, 81: -.1, 90: -1, 99: -1.9, 100: -2, 101: -2, 1000: -2} {
		require.InDelta(t, want, OverlongPenalty(length, 100, 20, 2), 1e-15, "length %d", length)
	}
	require.Panics(t, func() { OverlongPenalty(1, 10, 0, 1) })
	require.Panics(t, func() { OverlongPenalty(1, 10, 11, 1) })
}

func TestAdaptKL(t *testing.T) {
	// OpenAI's sentiment recipe: β .15, target 6, horizon 10000, batch 512
	for _, c := range [][2]float64{{6, 1}, {6.6, 1 + .1*.0512}, {60, 1 + .2*.0512}, {5.4, 1 - .1*.0512}, {0, 1 - .2*.0512}, {-3, 1 - .2*.0512}} {
		require.InDelta(t, .15*c[1], AdaptKL(.15, c[0], 6, 1e4, 512), 1e-15, "kl %v", c[0])
	}
	require.True(t, math.IsNaN(AdaptKL(.15, nan, 6, 1e4, 512)))
	require.Panics(t, func() { AdaptKL(.15, 1, 0, 1, 1) })
}
