package bind_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/bind"
	"plumbline/internal/rng"
	"plumbline/internal/train"
	"plumbline/reference/quant"
)

// The base computes with what its codes stand for, and the codes are those of the stored weights, half a step off at most.
func TestInt8Base(t *testing.T) {
	m, _, err := bind.Open(bind.TinyGPTJ, 1)
	require.NoError(t, err)
	plain, _, err := bind.Open(bind.TinyGPTJ, 1)
	require.NoError(t, err)
	codes, err := bind.Int8Base(m.Base)
	require.NoError(t, err)
	require.Len(t, codes, 12)
	worst := 0.0
	for name, q := range codes {
		stored, got := plain.Base.Data(name+".weight"), m.Base.Data(name+".weight")
		for i, v := range got {
			absmax := q.AbsMax[i/q.Cols]
			require.Equal(t, float64(q.Codes[i])*absmax*quant.Inv127Float32, v)
			worst = max(worst, math.Abs(v-stored[i])/absmax)
			require.LessOrEqual(t, math.Abs(float64(q.Codes[i])), 127.)
		}
	}
	require.LessOrEqual(t, worst, .5/127+0x1p-11) // half a step, and float16 before it
	require.Greater(t, worst, .4/127)
	for _, t2 := range m.Base.Config.Tensors() {
		if _, quantised := codes[t2.Name[:max(0, len(t2.Name)-len(".weight"))]]; !quantised {
			require.Equal(t, plain.Base.Data(t2.Name), m.Base.Data(t2.Name), t2.Name)
		}
	}
}

// An adapter on an int8 base is known by the base's files, and what it learns from is finite.
func TestAdapted(t *testing.T) {
	m, _, err := bind.Open(bind.TinyGPTJ, 1)
	require.NoError(t, err)
	a, err := bind.NewAdapter(m.Base.Config, 2, 4, []string{"q_proj", "out_proj"}, 1)
	require.NoError(t, err)
	stored, err := bind.StoredFingerprint(bind.TinyGPTJ)
	require.NoError(t, err)
	again, err := bind.StoredFingerprint("../assets/tiny_gptj")
	require.NoError(t, err)
	require.Equal(t, again, stored)
	p, err := bind.NewAdapted(m.Base, bind.Options{Adapter: a}, true, stored)
	require.NoError(t, err)
	require.Equal(t, stored, p.Fingerprint())
	require.Len(t, p.Params(), 8)
	ids, real := make([]int, 12), make([]bool, 12)
	for i := range ids {
		ids[i], real[i] = int(rng.New(3, 0).Word(uint64(i))%257), true
	}
	b := train.Batch{Rows: 2, Prompt: 3, Response: 3, IDs: ids, Real: real}
	require.Equal(t, p.Reference(b), p.Score(b).LogProbs, "B = 0: the policy is the reference, to the last bit")
	require.Panics(t, func() { _, _ = bind.NewAdapted(m.Base, bind.Options{}, true, "") })
	for _, name := range []string{bind.TinyGPTJInit, "absent"} {
		s, err := bind.StoredFingerprint(name)
		require.Empty(t, s)
		require.Equal(t, name == "absent", err != nil)
	}
}
