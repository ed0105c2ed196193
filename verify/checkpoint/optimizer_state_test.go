package checkpoint

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/arch"
	"plumbline/internal/format"
)

// No gradients take m² beyond the limit, and those that grow by β₂/β₁ from one step to the next reach it.
func TestMomentLimit(t *testing.T) {
	r := rand.New(rand.NewPCG(1, 2))
	for range 2000 {
		b1, b2 := 0.98*r.Float64(), 0.5+0.499*r.Float64()
		steps := 1 + r.IntN(30)
		random, worst := [2]float64{}, [2]float64{}
		for k := range steps {
			step := func(s *[2]float64, g float64) {
				s[0] = b1*s[0] + (1-b1)*g
				s[1] = b2*s[1] + (1-b2)*g*g
			}
			step(&random, r.NormFloat64()*math.Exp(5*r.NormFloat64()))
			step(&worst, math.Pow(b2/b1, float64(k)))
		}
		c := momentLimit(b1, b2, float64(steps))
		require.LessOrEqual(t, random[0]*random[0], c*random[1]*(1+1e-9))
		require.InEpsilon(t, c, worst[0]*worst[0]/worst[1], 1e-9)
	}
	require.True(t, math.IsInf(momentLimit(0.9, 1, 3), 1))
	require.InEpsilon(t, 1.0/(1-0.5), momentLimit(0, 0.5, 9), 1e-12)
	require.InEpsilon(t, 10, momentLimit(0.9, 0.999, 1), 1e-9)
}

// Moments remember 1/(1 − β₂) steps, or all where there were fewer, and are rounded to the coarser of their types in each.
func TestRoundings(t *testing.T) {
	for _, c := range []struct {
		m, v         format.DType
		steps, beta2 float64
		want         float64
	}{
		{format.F32, format.BF16, 1e6, 0.9, 10 * 0x1p-8},
		{format.BF16, format.F32, 1e6, 0.9, 10 * 0x1p-8},
		{format.F32, format.F32, 1e6, 0.999, 1000 * 0x1p-24},
		{format.F32, format.F32, 3, 0.999, 3 * 0x1p-24},
	} {
		x := &twoMoments{m: values{dtype: c.m}, v: values{dtype: c.v}, steps: c.steps}
		require.InEpsilon(t, c.want, x.roundings(c.beta2), 1e-9)
	}
}

// named_parameters is in the order in which __init__ makes the layers of attention: GPTJAttention k_proj, v_proj, q_proj, out_proj,
// Phi3Attention o_proj, qkv_proj (transformers@5.23.0).
func TestOrderOfParameters(t *testing.T) {
	for kind, want := range map[string][]string{"gptj": {"k_proj", "v_proj", "q_proj", "out_proj"}, "phi3": {"o_proj", "qkv_proj"}, "llama": {"q_proj", "k_proj", "v_proj", "o_proj"}} {
		m := &arch.Model{Config: arch.Config{Type: kind, Layers: 2, Hidden: 8, Heads: 2, KVHeads: 2, HeadDim: 4, Inner: 16, Vocab: 10}}
		got := map[int][]string{}
		for _, x := range ordered(m) {
			if slices.Contains(want, x.Last()) {
				got[x.Layer] = append(got[x.Layer], x.Last())
			}
		}
		require.Equal(t, map[int][]string{0: want, 1: want}, got, kind)
	}
}
