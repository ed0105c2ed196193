package nn

import (
	"math"

	"plumbline/reference/ad"
)

// GELU returns the Gaussian error linear unit, elementwise:
//
//	y = x·Φ(x) = x·(1 + erf(x/√2))/2
//
// Hendrycks and Gimpel 2016 (https://arxiv.org/abs/1606.08415), Section 2. It is the gelu of transformers and torch's
// default.
func GELU(x *ad.Var) *ad.Var {
	return ad.Mul(ad.Scale(x, 0.5), ad.AddScalar(ad.Erf(ad.Scale(x, 1/math.Sqrt2)), 1))
}

// GELUTanh returns the approximation of [GELU], elementwise:
//
//	y = x·(1 + tanh(√(2/π)·(x + 0.044715·x³)))/2
//
// It is gelu_new and gelu_pytorch_tanh of transformers@5.23.0, which GPT-2 and GPT-J use, and differs from GELU by up to
// 4.8e-4.
func GELUTanh(x *ad.Var) *ad.Var {
	cube := ad.Mul(ad.Mul(x, x), x)
	inner := ad.Scale(ad.Add(x, ad.Scale(cube, 0.044715)), math.Sqrt(2/math.Pi))
	return ad.Mul(ad.Scale(x, 0.5), ad.AddScalar(ad.Tanh(inner), 1))
}
