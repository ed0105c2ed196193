package fault

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// labelled returns a file of labels of rows of different lengths, with the loss that a program makes of the sum of its tokens.
func labelled(loss func(sum, tokens, rows float64) float64) *dump.Batch {
	b := updated(func(d, a float64) float64 { return d - a })
	b.Meta.Algorithm, b.Meta.DLogpScale = "sft", 1
	var sum, n float64
	for i, x := range b.Token("logp_new") {
		if b.Mask[i] = i%b.Cols < b.Cols-i/b.Cols%3; b.Mask[i] {
			sum, n = sum-x, n+1
		}
	}
	for _, name := range []string{"logp_old", "token_loss", "advantages"} {
		delete(b.Tensors, name)
	}
	x := float64(float32(loss(sum, n, float64(b.Rows))))
	b.Tensors["loss"] = &dump.Tensor{Name: "loss", Layout: dump.PerFile, Width: 1, Shape: []int{1}, Data: []float64{x}, Type: format.F32}
	return b
}

// A cross-entropy that is divided by something else than its labels is named by what it is divided by.
func TestSupervisedDivisor(t *testing.T) {
	set := (&convention.Set{}).With("agg.kind", parsed("agg.kind", "token"), "test").With("agg.denominator", parsed("agg.denominator", "micro"), "test").
		With("agg.div_ga", parsed("agg.div_ga", "false"), "test")
	c := stage.Find("preference/sft_loss")
	require.Equal(t, check.Pass, stage.Judge(c, labelled(func(sum, tokens, _ float64) float64 { return sum / tokens }), set).Verdict)
	twice := labelled(func(float64, float64, float64) float64 { return 0 })
	x, loss, labels := twice.Token("logp_new"), 0.0, 0.0
	for r := range twice.Rows {
		sum, n := 0.0, 0.0
		for i := r * twice.Cols; i < (r+1)*twice.Cols; i++ {
			if twice.Mask[i] {
				sum, n = sum-x[i], n+1
			}
		}
		loss, labels = loss+sum/n, labels+n
	}
	twice.Tensors["loss"].Data[0] = float64(float32(loss / labels))
	found := Explain(stage.Judge(c, twice, set))
	require.NotEmpty(t, found)
	require.Contains(t, found[0].Hypothesis.Title, "divided by its own tokens besides")
	require.True(t, slices.ContainsFunc(found, func(e Explanation) bool { return !e.Hypothesis.Relative }), "no configuration has that")
	requireName(t, stage.Judge(c, labelled(func(sum, _, rows float64) float64 { return sum / rows }), set), "AGG-DENOMINATOR", "the rows of the micro-batch")
	requireName(t, stage.Judge(c, labelled(func(sum, _, rows float64) float64 { return sum / rows / 6 }), set), "AGG-PAD-DENOMINATOR", "the cells of the micro-batch")
	requireName(t, stage.Judge(c, labelled(func(sum, _, rows float64) float64 { return sum / rows / 7 }), set), "AGG-PAD-DENOMINATOR", "those of the first tokens")
}

// The rows that were packed are those of the file, not the sequences that a packed row was taken apart into.
func TestPackedRows(t *testing.T) {
	b := &dump.Batch{Rows: 3, Origin: []dump.Origin{{Row: 0}, {Row: 0, Col: 4}, {Row: 1}}}
	require.Equal(t, []float64{1, 0, 1}, packedRows(b))
	b.Origin[1] = dump.Origin{Row: 1}
	b.Origin[2] = dump.Origin{Row: 2}
	require.Nil(t, packedRows(b))
}
