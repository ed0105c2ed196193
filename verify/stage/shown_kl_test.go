package stage

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
)

// A bound of estimates that no table has is where they stop, and what stops at none, or is another estimate, shows none.
func TestBoundsOfEstimatesAreShown(t *testing.T) {
	estimate := map[string]func(d float64) float64{"k1": func(d float64) float64 { return d }, "k2": func(d float64) float64 { return d * d / 2 },
		"k3": func(d float64) float64 { return math.Expm1(-d) + d }, "abs": math.Abs, "-k1": func(d float64) float64 { return -d }}
	for kind, of := range estimate {
		for _, bound := range []float64{0.37, 100} {
			b := stepsOf(1, true, func(_, _, adv, _, _ float64) float64 { return adv })[0].B
			lp, kl := b.Token("logp_new"), b.Token("kl")
			ref := make([]float64, len(lp))
			for i := range lp {
				ref[i] = float64(float32(lp[i] - 1.3*math.Sin(float64(3*i))))
				kl[i] = float64(float32(min(max(of(lp[i]-ref[i]), -bound), bound)))
			}
			b.Tensors["logp_ref"] = &dump.Tensor{Data: ref, Layout: dump.PerToken, Type: format.F32}
			shown := Shown(Find("kl/token"), b, &convention.Set{})
			if bound > 1 || kind == "-k1" {
				require.Empty(t, shown, kind)
				continue
			}
			require.NotEmpty(t, shown, kind)
			require.Equal(t, kind, texts(shown[0])["kl.kind"])
			require.Equal(t, "0.37", texts(shown[0])["kl.clamp_out"])
			fits, _ := Complete(Find("kl/token"), b, &convention.Set{})
			require.NotEmpty(t, fits, kind)
			require.Equal(t, check.Pass, fits[0].Outcome.Verdict)
		}
	}
}
