package stage

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/check"
	"plumbline/verify/convention"
)

// The gradients of a row show the pull of DRO and the bounds of CISPO where the losses of its tokens were not dumped.
func TestGradientsShowScoreFunctions(t *testing.T) {
	dro := func(_ []int, adv, rho []float64, i int) float64 { return 0.37*math.Log(rho[i]) - adv[i] }
	cispo := func(_ []int, adv, rho []float64, i int) float64 { return -adv[i] * max(min(rho[i], 1.23), 1-0.17) }
	for _, c := range []struct {
		slope func([]int, []float64, []float64, int) float64
		want  map[string]string
	}{{dro, map[string]string{"loss.kind": "dro", "dro.beta": "0.37"}}, {cispo, map[string]string{"loss.kind": "cispo", "clip.low": "0.17", "clip.high": "0.23"}}} {
		b := without(gradientOf(3, 0.15, func(float64, float64) float64 { return 0 }), c.slope)
		fits, _ := Complete(Find("gradient/dlogp"), b, &convention.Set{})
		require.NotEmpty(t, fits)
		require.Equal(t, check.Pass, fits[0].Outcome.Verdict)
		got := texts(fits[0].Changes)
		for option, text := range c.want {
			require.Equal(t, text, got[option], "%s of %v", option, got)
		}
	}
	require.Empty(t, scoreForms(gradientOf(5, 0.1, func(float64, float64) float64 { return 0 })))
}
