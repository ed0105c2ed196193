package rl

import (
	"errors"
	"fmt"
	"testing"

	"github.com/stretchr/testify/require"
)

// options checks that the values of an enumeration print and parse as the conventions document spells them, in its order,
// and that nothing else parses.
func options[T interface {
	~int
	fmt.Stringer
}](t *testing.T, parse func(string) (T, error), values ...string) {
	t.Helper()
	for i, v := range values {
		require.Equal(t, v, T(i).String())
		got, err := parse(v)
		require.NoError(t, err)
		require.Equal(t, T(i), got)
	}
	require.Equal(t, "invalid", T(len(values)).String())
	require.Equal(t, "invalid", T(-1).String())
	for _, bad := range []string{"", "invalid", values[0] + " "} {
		_, err := parse(bad)
		var wrong *OptionError
		require.True(t, errors.As(err, &wrong), bad)
		require.Equal(t, values, wrong.Allowed)
		require.ErrorContains(t, err, fmt.Sprintf("%q", bad))
	}
}

func TestAdvantageOptions(t *testing.T) {
	options(t, ParseEmptyRule, "nan", "zero", "error")
	options(t, ParseOutsideRule, "propagate", "ignore")
	options(t, ParseSingleRule, "nan", "zero", "error")
	options(t, ParseScope, "none", "row", "minibatch", "local_batch", "global")
	options(t, ParseEpsPlace, "inside_sqrt", "floor_var", "add_std", "no_std")
	options(t, ParseShiftMean, "true", "false_add_back", "false_plain")
	options(t, ParseWhitenMask, "response", "length", "none")
	options(t, ParseHole, "none", "carry", "zero_step", "cut", "cut_next")
	options(t, ParseValueMask, "response", "p1")
	options(t, ParseLambdaPolicy, "none", "vapo")
	options(t, ParseBootstrap, "none", "value")
	options(t, ParseReturnsMask, "false", "true", "masked_v")
	options(t, ParseScoreIndex, "last_response", "eos", "eos_plus_1", "last_column")
	options(t, ParseEOSRule, "none", "subtract", "replace", "scale")
	options(t, ParseCenter, "mean", "loo", "none")
	options(t, ParseScale, "none", "group_std", "batch_std", "loo_std")
	options(t, ParseZeroStd, "divide_eps", "skip", "zero")
	options(t, ParseSingleton, "error", "zero", "raw", "nan")
	options(t, ParseMultiReward, "sum_then_normalize", "normalize_then_sum")
	options(t, ParseReinforceMode, "return_to_go", "broadcast")
}
