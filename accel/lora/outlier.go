package lora

import (
	"math"

	"plumbline/accel/cpu"
	"plumbline/accel/i8"
)

// Threshold is from where an activation is an outlier in mode [LLMInt8]: that of the paper and of transformers.
const Threshold = 6

// forwardMixed is the base of [Linear.Forward] in mode [LLMInt8], token by token:
//
//	y_ij = scale_j·absmax_i/127·Σ_{k∉O_i} code(x_i)_k·code_jk + b_j + Σ_{k∈O_i} x_ik·w_jk,   O_i = {k: |x_ik| ≥ 6}
//
// where x is rounded to float16 before it is compared and quantised, and w_jk is code_jk·scale_j. Dettmers et al. 2022, Section 3;
// MatMul8bitLt of bitsandbytes@0.50.2. There the other tokens of a batch lose the columns of O_i to the second sum, too; here a token gets
// what it gets there alone, whatever is computed beside it.
func (l *Linear) forwardMixed(y, x []float32, n int, w *Work) {
	in, out := l.In, l.Out
	rest, codes, scale := grow(&w.rest, n*in), grow(&w.codes, n*in), grow(&w.scale, n)
	outliers := make([][]int, n)
	cpu.Split(n, max(1, (1<<14)/in), func(lo, hi int) {
		for i := lo; i < hi; i++ {
			for k, v := range x[i*in : (i+1)*in] {
				h := half(v)
				if h >= Threshold || h <= -Threshold {
					outliers[i] = append(outliers[i], k)
					h = 0
				}
				rest[i*in+k] = h
			}
		}
	})
	i8.QuantizeRows(codes, in, scale, rest, in, n, in)
	i8.Scales(scale, scale)
	i8.GemmScaled(y, out, codes, in, scale, l.Codes, in, l.Scale, l.Bias, n, out, in)
	cpu.Split(out, 64, func(lo, hi int) {
		for i, list := range outliers {
			for j := lo; j < hi && len(list) > 0; j++ {
				var sum float32
				for _, k := range list {
					sum += float32(x[i*in+k] * float32(float32(l.Codes[j*in+k])*l.Scale[j]))
				}
				y[i*out+j] += sum
			}
		}
	})
}

// half returns x rounded to float16, half to even: infinite beyond its largest number.
func half(x float32) float32 {
	switch a := math.Abs(float64(x)); {
	case x != x:
		return x
	case a >= 65520:
		return float32(math.Inf(int(math.Copysign(1, float64(x)))))
	case a < 0x1p-14: // multiples of 2⁻²⁴
		return float32(math.RoundToEven(float64(x)*0x1p24) * 0x1p-24)
	}
	u := math.Float32bits(x)
	u += 1<<12 - 1 + u>>13&1
	return math.Float32frombits(u &^ (1<<13 - 1))
}
