package stage

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/convention"
)

// Numbers of configurations are written by people.
func TestNumbersThatNobodyWrites(t *testing.T) {
	unwritten := func(pairs map[string]float64, from convention.Value) bool {
		var f Fit
		for option, x := range pairs {
			f.Changes = append(f.Changes, Change{option, from, convention.NumberValue(x)})
		}
		return f.Unwritten()
	}
	none := convention.Value{}
	for _, pairs := range []map[string]float64{
		{"gae.gamma": 0.99, "gae.lambda": 0.95 / 0.99}, {"adv.eps": 1e-2}, {"whiten.eps": 1e-3}, {"gae.lambda": 0.9 / 0.95}, {"gae.gamma": 0.99 * 0.957},
		{"clip.low": 1 - math.Exp(-0.2), "clip.high": math.Exp(0.2) - 1}, {"clip.low": 1 - math.Exp(-0.1) + 1e-7, "clip.high": math.Exp(0.28) - 1},
	} {
		require.True(t, unwritten(pairs, none), "%v", pairs)
		require.False(t, unwritten(pairs, convention.NumberValue(3)), "%v: one that is declared is written", pairs)
	}
	for _, pairs := range []map[string]float64{
		{"adv.eps": 1e-3}, {"adv.eps": 1.04e-6}, {"whiten.eps": 1e-5}, {"gae.lambda": 0.95, "gae.gamma": 0.99}, {"gae.lambda": 0.9596, "gae.gamma": 0.99}, {"gae.lambda": 1, "gae.gamma": 0.99}, {"gae.gamma": 0.9995}, {"gae.lambda": 0.99997},
		{"clip.low": 0.2, "clip.high": 0.28}, {"clip.low": 3e-4, "clip.high": 4e-4}, {"clip.low": 1 - 1/1.2, "clip.high": 0.2}, {"clip.low": 0.0625, "clip.high": 0.177},
	} {
		require.False(t, unwritten(pairs, none), "%v", pairs)
	}
}
