package stage

import (
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/tol"
)

// The tokens of a response are counted up to its EOS, whatever the mask has of it; where no EOS is declared it is what ends those that do not fill their columns.
func TestWrittenTokens(t *testing.T) {
	b := &dump.Batch{Rows: 3, Cols: 4, Mask: []bool{true, true, false, false, false, false, false, false, false, false, false, false}, Tensors: map[string]*dump.Tensor{},
		Files: []dump.FileInfo{{Hi: 3, Cols: 4}}, Origin: []dump.Origin{{Cols: 4}, {Cols: 4}, {Cols: 4}}, Meta: dump.Meta{Align: dump.AlignResponse}}
	b.Tensors["response_ids"] = &dump.Tensor{Name: "response_ids", Width: 1, Layout: dump.PerToken, Shape: []int{3, 4}, Type: format.I64,
		Data: []float64{7, 2, 0, 0, 7, 8, 2, 0, 9, 9, 9, 9}}
	of := func(set *convention.Set) float64 { return NewCase(b, set, tol.U32).writtenTokens() }
	require.Equal(t, 9., of(&convention.Set{}))
	require.Equal(t, 9., of((&convention.Set{}).WithFact("eos_token_id", 2.)))
	b.Mask[0], b.Mask[1] = false, false
	require.Equal(t, 0., of(&convention.Set{}), "nothing says what ends a response")
	require.Equal(t, 9., of((&convention.Set{}).WithFact("eos_token_id", 2.)))
}
