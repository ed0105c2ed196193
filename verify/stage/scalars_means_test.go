package stage

import (
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
)

// What a log means by "kl" its framework says; where none is named, it is each of them: OpenRLHF 0.11.2 logs Σ kl·ranks/N of a micro-batch, N the
// mean of the tokens of the micro-batches (ppo_actor.py, training_step), TRL up to 1.8 the mean over the ranks of their means, later over their tokens.
func TestLoggedMeansOfNoFramework(t *testing.T) {
	judge := func(framework string, ranks int, logged ...float64) check.Verdict {
		kl := []float64{1, 2, 3, 5, 0, 0}
		b := &dump.Batch{Rows: 2, Cols: 3, Mask: []bool{true, true, true, true, false, false}, Origin: []dump.Origin{{}, {File: 1}},
			Files: []dump.FileInfo{{Hi: 1, Cols: 3}, {Lo: 1, Hi: 2, Cols: 3, MicroBatch: 1}}, Tensors: map[string]*dump.Tensor{
				"kl": {Data: kl, Layout: dump.PerToken, Type: format.F32, Shape: []int{2, 3}}}}
		b.Meta = dump.Meta{Step: 1, Framework: framework, WorldSize: ranks, MicroBatches: 2 / ranks, ScalarsScope: "micro_batch"}
		for f := range b.Files {
			if ranks == 2 {
				b.Files[f].Rank, b.Files[f].MicroBatch = f, 0
			}
			b.Files[f].Scalars = []dump.Scalar{{Name: "kl", Value: logged[f]}}
		}
		return Judge(Find("scalars/kl"), b, &convention.Set{}).Verdict
	}
	require.Equal(t, check.Pass, judge("", 1, 2, 5))
	require.Equal(t, check.Pass, judge("", 1, 3, 2.5), "6/2 and 5/2: N is 2")
	require.Equal(t, check.Pass, judge("", 2, 3.5, 3.5), "the mean of 2 and 5")
	require.Equal(t, check.Pass, judge("", 2, 2.75, 2.75), "the mean of 1, 2, 3 and 5")
	require.Equal(t, check.Pass, judge("", 1, 2.75, 2.75), "the mean over what was sampled together")
	require.Equal(t, check.Fail, judge("", 1, 2.1, 5))
	require.Equal(t, check.Pass, judge("torch", 1, 3, 2.5), "a library has no log of its own")
	require.Equal(t, check.Pass, judge("own", 1, 3, 2.5), "a program that nobody knows")
	require.Equal(t, check.Fail, judge("own", 1, 3.1, 2.5))
	require.Equal(t, check.Fail, judge("trl", 1, 3, 2.5), "whose names mean one thing")
}
