package fault

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// Advantages that are rounded to a grid are named by its step, which the numbers show.
func TestAdvantagesOnAGrid(t *testing.T) {
	p, _, err := convention.Lookup("trl-grpo@1.16")
	require.NoError(t, err)
	set := convention.FromProfile(p).WithFact("num_generations", 4)
	for words, f := range map[string]func(x float64) float64{
		"":                                     func(x float64) float64 { return x },
		"x rounded to multiples of 0.25":       func(x float64) float64 { return math.RoundToEven(4*x) / 4 },
		"x rounded down to multiples of 0.125": func(x float64) float64 { return math.Floor(8*x) / 8 },
		"x cut off to multiples of 0.015":      func(x float64) float64 { return math.Trunc(x/0.015) * 0.015 },
	} {
		o := stage.Judge(stage.Find("advantage/group"), rewarded(func(r []float64, group []int, i int) float64 {
			return f((r[i] - centreOf("mean", r, group, i)) / (spreadOf("std1", r, group) + 1e-4))
		}), set)
		if words == "" {
			require.Equal(t, check.Pass, o.Verdict)
			require.Zero(t, gridStep(o))
			continue
		}
		requireName(t, o, "ADV-FORM", words)
	}
}
