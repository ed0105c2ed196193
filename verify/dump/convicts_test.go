package dump_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	dumpfile "plumbline/internal/format/dump"
	"plumbline/verify/check"
)

func verdictOf(t *testing.T, id string, change func(b *dumpfile.Batch)) check.Result {
	for _, r := range silent(t, change, id) {
		if r.Check == id {
			return r
		}
	}
	t.Fatalf("%s was not judged", id)
	return check.Result{}
}

// baselines writes rewards, and advantages with a baseline per group that no estimator of the catalogue has.
func baselines(b *dumpfile.Batch) {
	score, group := b.Tensors["scores"], b.Row("group_id")
	for r := range score.Data {
		score.Data[r] = single(4 + math.Sin(float64(3*r*r+b.Meta.Step)))
	}
	adv := make([]float64, len(b.Mask))
	cells(b, func(i, row, _ int) { adv[i] = single(score.Data[row] - 3.31 - 0.17*math.Sin(5*group[row]+1)) })
	b.Tensors["advantages"] = &dumpfile.Tensor{Name: "advantages", Data: adv, Width: 1, Layout: dumpfile.PerToken, Shape: []int{b.Rows, b.Cols}, Type: format.F32}
}

// Where nothing is declared, advantages with another baseline per group are those of an estimator that nobody has named: no bug.
func TestABaselineThatNobodyDeclaresIsNoBug(t *testing.T) {
	r := verdictOf(t, "advantage/group", baselines)
	require.Equal(t, check.Undetermined, r.Verdict, r.Reason)
	require.Contains(t, r.Reason, "nobody declares")
	require.NotEmpty(t, r.Explanations, "what it would be is still said")
	require.True(t, r.Explanations[0].Lead)
}
