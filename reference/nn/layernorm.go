package nn

import "plumbline/reference/ad"

// LayerNorm returns the layer normalisation of x [..., C] over its last axis, with weight w [C] and bias b [C]:
//
//	y = w·(x − μ)/√(v + ε) + b,   μ = Σx/C,   v = Σ(x − μ)²/C
//
// Ba et al. 2016 (https://arxiv.org/abs/1607.06450), as torch.nn.LayerNorm: the variance is biased and ε stands inside the
// root. The variance is that of the differences, never E[x²] − μ².
func LayerNorm(x, w, b *ad.Var, eps float64) *ad.Var {
	c := ad.Sub(x, ad.Mean(x, true, -1))
	v := ad.Mean(ad.Mul(c, c), true, -1)
	y := ad.Mul(ad.Div(c, ad.Sqrt(ad.AddScalar(v, eps))), w)
	return addBias("layernorm", y, b)
}
