package dump

import (
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/convention"
	"plumbline/verify/fault"
	"plumbline/verify/stage"
)

// Another option gives way to a bug of the same numbers where the bug says more: a constant that is the width, and a bound that no weight shows.
func TestWhatSaysLess(t *testing.T) {
	fit := func(option, from, to string) stage.Fit {
		a, err := convention.Parse(option, from)
		require.NoError(t, err)
		b, err := convention.Parse(option, to)
		require.NoError(t, err)
		return stage.Fit{Changes: []stage.Change{{Option: option, From: a, To: b}}}
	}
	set := (&convention.Set{}).With("tis.low", convention.NumberValue(0.8), "test")
	of := func(id string) *track {
		return &track{first: &stage.Outcome{Got: []float64{0.5, 1.7}, Case: &stage.Case{Set: set}}, why: explanation{faults: []fault.Explanation{{Hypothesis: hypothesis(id)}}}}
	}
	pads, bound := of("AGG-PAD-DENOMINATOR"), of("IS-BOUND-FORM")
	require.True(t, pads.saysLess(fit("agg.kind", "token", "seq_sum_const")))
	require.False(t, pads.saysLess(fit("agg.kind", "token", "seq_mean_token_mean")))
	require.False(t, bound.saysLess(fit("agg.kind", "token", "seq_sum_const")))
	require.True(t, bound.saysLess(fit("tis.high", "1.4", "none")))
	require.True(t, bound.saysLess(fit("tis.high", "1.4", "2")))
	require.False(t, bound.saysLess(fit("tis.high", "1.4", "1.7")), "a weight is held at it")
	require.False(t, pads.saysLess(fit("tis.high", "1.4", "none")))
	set = &convention.Set{}
	require.False(t, of("IS-BOUND-FORM").saysLess(fit("tis.high", "1.4", "none")), "the only bound")
}
