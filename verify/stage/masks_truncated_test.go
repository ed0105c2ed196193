package stage

import (
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/verify/check"
)

// Rows that were cut off by their length are masked under mask_truncated_completions; 2 is EOS, 0 padding.
func TestTruncatedRowsAreMasked(t *testing.T) {
	ended, atLimit, long := []float64{5, 6, 2, 0, 0}, []float64{5, 6, 5, 6, 2}, []float64{5, 6, 7, 8, 5}
	other := []float64{5, 6, 7, 0, 0} // ended by another token
	s := set(t, "").WithFact("eos_token_id", 2.0).WithFact("max_completion_length", 5.0).WithFact("mask_truncated_completions", true)
	for _, e := range []struct {
		name    string
		rows    [][]float64
		lengths []int
		fault   string
	}{
		{"healthy", [][]float64{ended, atLimit, long, long}, []int{3, 5, 0, 0}, "–"},
		{"kept", [][]float64{ended, atLimit, long, long}, []int{3, 5, 5, 5}, "MASK-TRUNCATED-KEPT"},
		{"one is kept", [][]float64{ended, atLimit, long, long}, []int{3, 5, 0, 5}, "MASK-TRUNCATED-KEPT"},
		{"the first token is kept", [][]float64{ended, atLimit, long, long}, []int{3, 5, 1, 1}, "MASK-TRUNCATED-KEPT"},
		{"inverted", [][]float64{ended, atLimit, long, long}, []int{0, 0, 5, 5}, "EOS-INVERTED"},
		{"all cut off, and masked", [][]float64{long, long}, []int{0, 0}, "–"},
		{"no EOS anywhere: perhaps the id is another", [][]float64{long, long}, []int{5, 5}, ""},
		{"cut off, and nothing says which id is padding: perhaps the last token is", [][]float64{atLimit, long}, []int{5, 5}, ""},
		{"the last sampled token is that of padding, which ends a response, too", [][]float64{ended, {5, 6, 7, 8, 0}, long}, []int{3, 5, 0}, "–"},
		{"other tokens end responses, too", [][]float64{ended, other, long}, []int{3, 3, 5}, ""},
	} {
		g := newGrid(5, e.lengths...)
		var ids []float64
		for _, row := range e.rows {
			ids = append(ids, row...)
		}
		g = g.token("response_ids", ids...)
		g.Tensors["response_ids"].Type = format.I64
		o := Judge(Find("masks/truncated"), g.Batch, s)
		switch e.fault {
		case "":
			require.Equal(t, check.Skip, o.Verdict, e.name)
		case "–":
			require.NotEqual(t, check.Fail, o.Verdict, e.name)
		default:
			require.Equal(t, check.Fail, o.Verdict, e.name)
			require.Equal(t, e.fault, o.Rules.Violations[0].Fault, e.name)
		}
		require.Equal(t, check.Skip, Judge(Find("masks/truncated"), g.Batch, s.WithFact("mask_truncated_completions", false)).Verdict)
	}
}
