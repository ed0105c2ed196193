package fault

import (
	"math"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/stage"
)

// inFiles splits a batch into micro-batches of two rows.
func inFiles(b *dump.Batch) *dump.Batch {
	b.Files = nil
	for k := range b.Rows / 2 {
		b.Files = append(b.Files, dump.FileInfo{MicroBatch: k, Lo: 2 * k, Hi: 2*k + 2, Cols: b.Cols})
	}
	for r := range b.Rows {
		b.Origin[r] = dump.Origin{File: r / 2, Row: r % 2}
	}
	b.Meta.MicroBatches = len(b.Files)
	return b
}

// A tensor that is that of another micro-batch of the step, or of one of the rollout for all, is named with the slice.
func TestSlices(t *testing.T) {
	set := clippedLoss(t)
	c := stage.Find("token_loss/policy")
	lossOf := func(b *dump.Batch, old func(i int) float64, adv func(r int) float64) *dump.Batch {
		lp, x := b.Token("logp_new"), make([]float64, len(b.Mask))
		for i := range x {
			r, a := math.Exp(lp[i]-old(i)), adv(i/b.Cols)
			x[i] = float64(float32(math.Max(-a*r, -a*math.Max(0.8, math.Min(r, 1.28)))))
		}
		return b.With("token_loss", x)
	}
	b := inFiles(unclipped())
	old, adv := b.Token("logp_old"), b.Row("advantages")
	own := func(i int) float64 { return old[i] }
	require.Equal(t, check.Pass, stage.Judge(c, lossOf(b, own, func(r int) float64 { return adv[r] }), set).Verdict)
	first := lossOf(b, func(i int) float64 { return old[i%(2*b.Cols)] }, func(r int) float64 { return adv[r] })
	requireName(t, stage.Judge(c, first, set), "OLD-ROWS-ROLLED", "of the first micro-batch of the step")
	before := lossOf(b, own, func(r int) float64 { return adv[(r+6)%8] })
	requireName(t, stage.Judge(c, before, set), "ADV-ROWS-OF-OTHERS", "micro-batch before")
	beside := inFiles(unclipped())
	beside.Meta.Step = 1
	other := slices.Clone(old)
	slices.Reverse(other)
	beside.Tensors["logp_old"].Data = other
	b.Meta.Step = 2
	stale := lossOf(b, func(i int) float64 { return other[i%(2*b.Cols)] }, func(r int) float64 { return adv[r] })
	found := ExplainRows(stage.Judge(c, stale, set), func(int) []*dump.Batch { return []*dump.Batch{beside} })
	require.NotEmpty(t, found)
	require.Equal(t, "OLD-ROWS-ROLLED", found[0].Hypothesis.ID)
	require.Contains(t, found[0].Hypothesis.Title, "one micro-batch of the rollout")
}

// The file of another rank stands in its own step and micro-batch.
func TestOfRank(t *testing.T) {
	files := []dump.FileInfo{{Rank: 0}, {Rank: 1}, {Rank: 2}, {MicroBatch: 1, Rank: 0}, {MicroBatch: 1, Rank: 1}, {MicroBatch: 1, Rank: 2}}
	require.Equal(t, []int{1, 2, 0, 4, 5, 3}, []int{ofRank(files, 0, 1), ofRank(files, 1, 1), ofRank(files, 2, 1), ofRank(files, 3, 1), ofRank(files, 4, 1), ofRank(files, 5, 1)})
	require.Equal(t, 5, ofRank(files, 3, -1))
	require.Equal(t, -1, ofRank(files[:1], 0, 1))
	require.Equal(t, -1, ofRank([]dump.FileInfo{{Rank: 0}, {MicroBatch: 1, Rank: 1}}, 0, 1))
}
