package stage

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/check"
)

// KL estimates of 16-bit arithmetic are off to both sides; ones that are all off by one factor are no rounding, however small it is.
func TestOneFactorIsNoRounding(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	s := set(t, "kl.place=token_reward kl.kind=k2 kl.clamp_in=none kl.clamp_out=none")
	kl := make([]float64, 40)
	g := newGrid(20, 20, 20)
	lp, ref := make([]float64, 40), make([]float64, 40)
	for i := range kl {
		lp[i] = float64(float32(-1 - r.Float64()))
		ref[i] = float64(float32(lp[i] + 1 + r.Float64()))
	}
	judged := func(of func(d float64) float64) *Outcome {
		for i := range kl {
			kl[i] = float64(float32(of(lp[i] - ref[i])))
		}
		return Judge(Find("kl/token"), g.token("logp_old", lp...).token("logp_ref", ref...).token("kl", kl...).Batch, s)
	}
	require.Equal(t, check.Pass, judged(func(d float64) float64 { return d * d / 2 }).Verdict)
	half := func(x float64) float64 { // to 11 bits
		f, e := math.Frexp(x)
		return math.Ldexp(math.RoundToEven(f*2048)/2048, e)
	}
	o := judged(func(d float64) float64 { return half(d) * half(d) / 2 })
	require.Equal(t, check.Fail, o.Verdict)
	require.NotNil(t, Coarser(o))
	o = judged(func(d float64) float64 { return 0.9996 * d * d / 2 })
	require.Equal(t, check.Fail, o.Verdict)
	require.True(t, o.oneFactor())
	require.Nil(t, Coarser(o))
}
