package fault

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/stage"
)

// Returns of the values that the same rows had in the epoch before are told from values of other rows.
func TestValuesOfAnEarlierEpoch(t *testing.T) {
	gae := func(r, v, m, _ []float64, _ float64) []float64 {
		a, next, behind := make([]float64, len(r)), 0.0, 0.0
		for t := len(r) - 1; t >= 0; t-- {
			if m[t] > 0 {
				a[t] = r[t] + 0.97*next - v[t] + 0.97*0.9*behind
				next, behind = v[t], a[t]
			}
		}
		return a
	}
	before := rolledOut(true, gae)
	id := make([]float64, before.Rows)
	for r := range id {
		id[r] = float64(40 + r)
	}
	before.Tensors["sample_id"] = &dump.Tensor{Name: "sample_id", Layout: dump.PerRow, Width: 1, Shape: []int{before.Rows}, Data: id, Type: format.F32}
	before.Meta.Step = 1
	now := before.With("values", mapped(before.Token("values"), func(v float64) float64 { return float64(float32(0.9*v + 0.01)) }))
	now.Meta.Step = 3
	beside := func(int) []*dump.Batch { return []*dump.Batch{before} }
	ch, set := stage.Find("gae/returns"), recursionOptions(t)
	require.Equal(t, check.Pass, stage.Judge(ch, before, set).Verdict)
	found := ExplainRows(stage.Judge(ch, now, set), beside)
	require.Len(t, found, 1)
	require.Equal(t, "VALUES-RECOMPUTED", found[0].Hypothesis.ID)
	others := before.With("sample_id", slices.Repeat([]float64{7}, before.Rows))
	for _, e := range ExplainRows(stage.Judge(ch, now, set), func(int) []*dump.Batch { return []*dump.Batch{others} }) {
		require.NotEqual(t, "VALUES-RECOMPUTED", e.Hypothesis.ID, "the rows are not known to be the same")
	}
}
