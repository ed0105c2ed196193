package stage

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
)

// without returns the batch of gradientOf with other gradients: those of the mean over rows of means over tokens of a loss without a KL term.
func without(b *dump.Batch, slope func(row []int, adv, rho []float64, i int) float64) *dump.Batch {
	lp, old, adv, g := b.Token("logp_new"), b.Token("logp_old"), b.Token("advantages"), b.Token("dlogp")
	rho := make([]float64, len(lp))
	for i := range rho {
		rho[i] = math.Exp(lp[i] - old[i])
	}
	for r := range b.Rows {
		var row []int
		for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
			if b.Mask[i] {
				row = append(row, i)
			}
		}
		for _, i := range row {
			g[i] = float64(float32(slope(row, adv, rho, i) / float64(len(row)*b.Rows)))
		}
	}
	return b
}

// gated is the slope of SAPO with other temperatures than those that are proposed for it.
func gated(_ []int, adv, rho []float64, i int) float64 {
	tau := 1.3
	if adv[i] <= 0 {
		tau = 1.7
	}
	c := math.Cosh(tau * (rho[i] - 1) / 2)
	return -adv[i] * rho[i] / (c * c)
}

// The gradients of a row show the temperatures of SAPO where the losses of its tokens were not dumped.
func TestGradientsShowTheGateOfSAPO(t *testing.T) {
	for _, drift := range []float64{0.1, 0.4} {
		b := without(gradientOf(3, drift, func(float64, float64) float64 { return 0 }), gated)
		fits, _ := Complete(Find("gradient/dlogp"), b, &convention.Set{})
		require.NotEmpty(t, fits)
		require.Equal(t, check.Pass, fits[0].Outcome.Verdict)
		got := texts(fits[0].Changes)
		require.Equal(t, []string{"sapo", "1.3", "1.7"}, []string{got["loss.kind"], got["sapo.tau_pos"], got["sapo.tau_neg"]})
	}
}

// Gradients of a clipped surrogate show no gate, nor do those of tokens whose ratios are 1.
func TestGradientsOfASurrogateShowNoGate(t *testing.T) {
	for _, drift := range []float64{0, 0.1, 0.4} {
		b := gradientOf(5, drift, func(float64, float64) float64 { return 0 })
		require.Empty(t, sapoGates(b))
	}
}
