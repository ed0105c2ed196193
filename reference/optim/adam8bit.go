package optim

import (
	"math"

	"plumbline/reference/quant"
)

// Min8bit is the number of elements from which bitsandbytes keeps the moments of a tensor in 8 bits; smaller ones stay in 32.
const Min8bit = 4096

// State8bit is the moments of a run of parameters in 8 bits: m with the signed code book, v with the unsigned one.
type State8bit struct {
	Step int
	M, V quant.Blocks
}

var signed, unsigned = quant.DynamicMap(true), quant.DynamicMap(false)

// NewState8bit returns the state before the first step of n parameters: zeros, as bitsandbytes has them.
func NewState8bit(n int) *State8bit {
	zero := func() quant.Blocks {
		return quant.Blocks{Codes: make([]uint8, n), AbsMax: make([]float32, (n+quant.BlockSize-1)/quant.BlockSize)}
	}
	return &State8bit{M: zero(), V: zero()}
}

// Step8bit applies one step to p for the gradient g: the moments are read from their codes, updated and applied as in
// [Adam.Step], rounded to float32 and stored as codes again, so that p moves by the moments before they are quantised.
//
// It is Dettmers et al. 2022 (https://arxiv.org/abs/2110.02861), Section 2, as bitsandbytes@0.50.2 steps on a CPU: AdamW8bit,
// backends/cpu/ops.py, _optimizer_update_8bit_blockwise_cpu. What that rounds to float32 on the way is float64 here. AMSGrad,
// coupled decay and TensorFlow's form do not exist there.
//
// It panics if the lengths differ or one of these is asked for.
func (o Adam) Step8bit(p, g []float64, s *State8bit) {
	switch {
	case len(g) != len(p) || len(s.M.Codes) != len(p) || len(s.V.Codes) != len(p):
		panic(badLength)
	case o.AMSGrad || o.Coupled || o.Form != PyTorch:
		panic("optim: 8-bit Adam has PyTorch's form, decoupled decay and no AMSGrad")
	}
	wide := &State{Step: s.Step, M: make([]float64, len(p)), V: make([]float64, len(p))}
	s.M.Dequantize(wide.M, signed)
	s.V.Dequantize(wide.V, unsigned)
	o.Step(p, g, wide)
	for _, x := range [][]float64{wide.M, wide.V} {
		for i, v := range x {
			x[i] = math.Max(-math.MaxFloat32, math.Min(math.MaxFloat32, float64(float32(v))))
		}
	}
	s.Step, s.M, s.V = wide.Step, quant.QuantizeBlockwise(wide.M, signed), quant.QuantizeBlockwise(wide.V, unsigned)
}
