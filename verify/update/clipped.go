package update

import (
	"fmt"
	"math"
)

// boundOfRates solves for a bound C of the norm that nobody declares, of SGD without momentum, whose direction is the gradient: there a
// clipped step is one of a smaller rate, and nothing else tells them apart. The rates a_t are then what is logged, α_t, times
//
//	min(1, C/(‖g_t‖ + 1e-6))        torch.nn.utils.clip_grad_norm_
//
// of one C in all steps, and some step was not clipped or the norms differ, so that C is no factor of the rate. 0: there is none.
func boundOfRates(f *fit, list []*pair, d Declared) float64 {
	const part = 1e-3
	if f.kind != "sgd" || f.beta1 != 0 || !math.IsNaN(d.Clip) || !math.IsInf(f.clip, 1) {
		return 0
	}
	var bound, least, most, free float64
	for i, p := range list {
		if math.IsNaN(p.rate) || math.IsNaN(f.rates[i]) || !(p.rate > 0) {
			continue
		}
		norm, q := p.norm+1e-6, f.rates[i]/p.rate
		switch near := part + f.apart[i]/p.rate; {
		case math.Abs(q-1) <= near:
			free = max(free, norm)
		case q > 1 || bound > 0 && math.Abs(q*norm-bound) > near*bound:
			return 0
		default:
			if bound == 0 {
				bound, least, most = q*norm, norm, norm
			}
			least, most = min(least, norm), max(most, norm)
		}
	}
	if bound == 0 || free > bound*(1+part) || free == 0 && most < least*(1+10*part) {
		return 0
	}
	return bound
}

func boundSaid(bound float64) string {
	return fmt.Sprintf("the logged ones, of gradients that are clipped at a norm of %.4g, which nobody declares", bound)
}
