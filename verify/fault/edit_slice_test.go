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
