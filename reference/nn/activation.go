package nn

import (
	"fmt"
	"math"

	"plumbline/reference/ad"
)

// Activation returns the elementwise function that a config.json of transformers names: gelu, gelu_new, gelu_pytorch_tanh,
// relu, silu, swish. The slope of relu at 0 is 0. Another name is an error.
func Activation(name string) (func(x *ad.Var) *ad.Var, error) {
	switch name {
	case "gelu":
		return GELU, nil
	case "gelu_new", "gelu_pytorch_tanh":
		return GELUTanh, nil
	case "silu", "swish":
		return SiLU, nil
	case "relu":
		return func(x *ad.Var) *ad.Var { return ad.Clamp(x, 0, math.Inf(1)) }, nil
	}
	return nil, fmt.Errorf("nn: activation %q is not one of gelu, gelu_new, gelu_pytorch_tanh, relu, silu, swish", name)
}
