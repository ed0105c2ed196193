package stage

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/tol"
)

// A mean over the tokens of two ranks is not the mean of their means: 3 tokens of mean 1 and 1 token of mean 5 make 2, not 3.
func TestJoinRanks(t *testing.T) {
	b := &dump.Batch{Rows: 2, Cols: 3, Mask: []bool{true, true, true, false, true, false},
		Files: []dump.FileInfo{{Hi: 1, Cols: 3}, {Lo: 1, Hi: 2, Cols: 3, Rank: 1}}, Meta: dump.Meta{WorldSize: 2, MicroBatches: 1}}
	c := NewCase(b, &convention.Set{}, tol.U32)
	x, e := []float64{1, 5}, []float64{0, 0}
	tokens := metric{tokens: true, ranks: weighted}
	tokens.joinRanks(c, x, e)
	require.InDeltaSlice(t, []float64{2, 2}, x, 1e-15)
	require.Greater(t, e[0], 0.0)

	// A share of clipped sequences counts rows, the smallest and the largest share of a row are those of all ranks; NaN is none.
	of := func(ranks overRanks, set *convention.Set, x ...float64) []float64 {
		(&metric{ranks: ranks}).joinRanks(NewCase(b, set, tol.U32), x, []float64{0, 0})
		return x
	}
	require.InDeltaSlice(t, []float64{2, 2}, of(weighted, &convention.Set{}, 1, 5), 1e-15)
	require.InDeltaSlice(t, []float64{3, 3}, of(weighted, set(t, "ratio.level=seq_mean"), 1, 5), 1e-15)
	require.Equal(t, []float64{1, 1}, of(least, &convention.Set{}, 5, 1))
	require.Equal(t, []float64{5, 5}, of(greatest, &convention.Set{}, 5, math.NaN()))

	c.B.Files = c.B.Files[:1] // a rank is missing
	x = []float64{1}
	tokens.joinRanks(c, x, e)
	require.Equal(t, []float64{1}, x)
}

// TRL's RLOO has its KL in the rewards and logs it once for all tokens of a generation batch, GRPO at every micro-batch.
func TestKLOfAGenerationBatch(t *testing.T) {
	b := &dump.Batch{Rows: 2, Cols: 2, Mask: []bool{true, true, true, false}, Origin: []dump.Origin{{Cols: 2}, {Cols: 2}},
		Files:   []dump.FileInfo{{Hi: 1, Cols: 2}, {Lo: 1, Hi: 2, Cols: 2, MicroBatch: 1}},
		Tensors: map[string]*dump.Tensor{"kl": {Name: "kl", Data: []float64{1, 2, 6, 0}, Layout: dump.PerToken, Type: format.F32, Shape: []int{2, 2}, Width: 1}},
		Meta:    dump.Meta{Framework: "trl", WorldSize: 1, MicroBatches: 2, ScalarsScope: "micro_batch", DLogpScale: 1}}
	log := func(a, b float64) []dump.FileInfo {
		files := []dump.FileInfo{{Hi: 1, Cols: 2}, {Lo: 1, Hi: 2, Cols: 2, MicroBatch: 1}}
		files[0].Scalars, files[1].Scalars = []dump.Scalar{{Name: "kl", Value: a}}, []dump.Scalar{{Name: "kl", Value: b}}
		return files
	}
	judge := func(options string, rows float64) check.Verdict {
		return Judge(Find("scalars/kl"), b, set(t, options).WithFact("generation_batch_size", rows)).Verdict
	}
	b.Files = log(3, 3)
	require.Equal(t, check.Pass, judge("kl.place=sequence_reward_before_baseline", 2))
	require.Equal(t, check.Undetermined, judge("kl.place=sequence_reward_before_baseline", 4), "the other rows are in other steps")
	require.Equal(t, check.Fail, judge("kl.place=loss", 2))
	b.Files = log(4, 4)
	require.Equal(t, check.Fail, judge("kl.place=sequence_reward_before_baseline", 2))
	b.Files = log(1.5, 6)
	require.Equal(t, check.Pass, judge("kl.place=loss", 2))
}

// TRL 1.12's approxkl is 0.5·(diff²).mean() over all cells of a micro-batch, whose width is its own: 1·½ over 2·2 cells, and over 3.
func TestApproxKLOfFilesOfTwoWidths(t *testing.T) {
	token := func(name string, x ...float64) *dump.Tensor {
		return &dump.Tensor{Name: name, Data: x, Layout: dump.PerToken, Type: format.F32, Shape: []int{3, 3}, Width: 1}
	}
	b := &dump.Batch{Rows: 3, Cols: 3, Mask: []bool{true, true, false, true, false, false, true, true, false},
		Origin: []dump.Origin{{Cols: 2}, {Cols: 2}, {File: 1, Cols: 3}},
		Files:  []dump.FileInfo{{Hi: 2, Cols: 2, Scalars: []dump.Scalar{{Name: "policy/approxkl_avg", Value: .125}}}, {Lo: 2, Hi: 3, Cols: 3, Rank: 1, Scalars: []dump.Scalar{{Name: "policy/approxkl_avg", Value: 0.5 * 4 / 3}}}},
		Tensors: map[string]*dump.Tensor{
			"logp_old": token("logp_old", -1, -2, 0, -1, 0, 0, -4, -1, 0),
			"logp_new": token("logp_new", -1, -1, 0, -1, 0, 0, -2, -1, 0),
		},
		Meta: dump.Meta{Framework: "trl", WorldSize: 2, MicroBatches: 1, ScalarsScope: "micro_batch", DLogpScale: 1}}
	options := set(t, "ratio.log_clamp=none ratio.old=stored mask.tokens=response")
	require.Equal(t, check.Pass, Judge(Find("scalars/approx_kl"), b, options).Verdict)
	b.Files[0].Scalars[0].Value = 0.5 / 6 // over the width of the other file
	require.Equal(t, check.Fail, Judge(Find("scalars/approx_kl"), b, options).Verdict)
}

// Without a framework a logged reward of pairs is that of a rank's own, or the mean over the ranks.
func TestRewardsOfPairsOverRanks(t *testing.T) {
	b := &dump.Batch{Rows: 2, Origin: []dump.Origin{{}, {File: 1}}, Files: []dump.FileInfo{{Hi: 1}, {Lo: 1, Hi: 2, Rank: 1}}, Tensors: map[string]*dump.Tensor{},
		Meta: dump.Meta{Algorithm: "dpo", Step: 1, WorldSize: 2, MicroBatches: 1, ScalarsScope: "micro_batch"}}
	for name, x := range map[string][]float64{"logp_chosen": {-1, -2}, "ref_chosen": {-2, -5}, "logp_rejected": {-1, -1}, "ref_rejected": {-1, -1}} {
		b.Tensors[name] = &dump.Tensor{Data: x, Layout: dump.PerRow, Width: 1, Type: format.F32, Shape: []int{2}}
	}
	set := &convention.Set{}
	for name, text := range map[string]string{"dpo.loss": "sigmoid", "dpo.beta": "0.5"} {
		v, err := convention.Parse(name, text)
		require.NoError(t, err)
		set = set.With(name, v, "test")
	}
	for _, tt := range []struct {
		logged [2]float64
		want   check.Verdict
	}{{[2]float64{1, 1}, check.Pass}, {[2]float64{0.5, 1.5}, check.Pass}, {[2]float64{1.5, 0.5}, check.Fail}} {
		for f := range b.Files {
			b.Files[f].Scalars = []dump.Scalar{{Name: "rewards/chosen", Value: tt.logged[f]}}
		}
		require.Equal(t, tt.want, Judge(Find("scalars/rewards_chosen"), b, set).Verdict, "%v", tt.logged)
	}
}
