package nn

import "plumbline/reference/ad"

// SiLU returns y = x·σ(x) = x/(1 + e^{−x}), elementwise; it is also called swish.
func SiLU(x *ad.Var) *ad.Var { return ad.Mul(x, ad.Sigmoid(x)) }

// SwiGLU returns y = SiLU(gate)·up, elementwise: the gated unit of Shazeer 2020 (https://arxiv.org/abs/2002.05202),
// Equation 5, between the two projections in and the one out.
func SwiGLU(gate, up *ad.Var) *ad.Var { return ad.Mul(SiLU(gate), up) }
