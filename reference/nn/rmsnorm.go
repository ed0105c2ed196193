package nn

import "plumbline/reference/ad"

// RMSNorm returns the root-mean-square normalisation of x [..., C] over its last axis, with weight w [C]:
//
//	y = w·x/√(Σx²/C + ε)
//
// Zhang and Sennrich 2019 (https://arxiv.org/abs/1910.07467), Equation 4, with the ε inside the root that
// transformers@5.23.0 LlamaRMSNorm has and the paper leaves out.
func RMSNorm(x, w *ad.Var, eps float64) *ad.Var {
	ms := ad.Mean(ad.Mul(x, x), true, -1)
	return ad.Mul(w, ad.Div(x, ad.Sqrt(ad.AddScalar(ms, eps))))
}
