package stage

import (
	"math"
	"slices"
)

// decided settles the weights, predicted, that lie within their error of a bound of the rule, where either decision is as good: the gradient of the
// token says which was taken, and where it does not, the error holds both. A gradient of 0 tells of no weight where the ratio may have been cut,
// and no gradient tells where such tokens are most of those that are kept: then any rule would fit.
func (c *Case) decided(w Input) Input {
	uncut := 0.5 * min(c.NumOr("clip.low", 0), c.NumOr("clip.high", 0)) // |logp_new − logp_old| well inside of the clip range
	p := c.chain["is_weights"]
	if w.X == nil || p == nil || len(p.Alt) != len(w.X) {
		return w
	}
	d, lp, old, adv := c.B.Token("dlogp"), c.B.Token("logp_new"), c.B.Token("logp_old"), c.Optional("advantages").X
	x, e := slices.Clone(w.X), slices.Clone(w.Err)
	var kept [2]int // surely, and by their gradients
	for i, alt := range p.Alt {
		if !c.B.Mask[i] {
			continue
		}
		if math.IsNaN(alt) || x[i] != 0 && alt != 0 {
			if x[i] != 0 {
				kept[0]++
			}
			continue
		}
		told := d != nil && adv != nil && adv[i] != 0 && !math.IsNaN(d[i])
		if told && c.NumOr("kl.beta", 0) != 0 {
			keeps, known := c.weighedBesideKL(w, p.Alt, i)
			switch {
			case known && keeps:
				x[i] += alt
				kept[1]++
			case known:
				x[i] = 0
			default:
				x[i], e[i] = c.reading.of(c.decision(i), x[i], e[i], alt)
			}
			continue
		}
		switch {
		case told && d[i] != 0:
			x[i] += alt // the one that is not 0
			kept[1]++
		case told && lp != nil && old != nil && math.Abs(lp[i]-old[i]) <= uncut:
			x[i] = 0
		default:
			x[i], e[i] = c.reading.of(c.decision(i), x[i], e[i], alt)
		}
	}
	if kept[1] > 0 && kept[1] >= kept[0] {
		for i, alt := range p.Alt {
			if c.B.Mask[i] && !math.IsNaN(alt) {
				x[i], e[i] = w.X[i], w.Err[i]+math.Abs(alt-w.X[i])
			}
		}
	}
	return Input{X: x, Err: e, Half: w.Half}
}

// weighedBesideKL reports whether the gradient of a token is that of a weight or of none where a KL in the loss has one, too: the rest of its row shows what a token
// of that advantage has, to which the KL adds little, as far as it is known.
func (c *Case) weighedBesideKL(w Input, alt []float64, i int) (keeps, known bool) {
	b, d, adv := c.B, c.B.Token("dlogp"), c.Optional("advantages").X
	var of []float64
	for j := range b.TokensOf(i / b.Cols) {
		if j != i && math.IsNaN(alt[j]) && w.X[j] > 0 && adv[j] != 0 && !math.IsNaN(d[j]) {
			of = append(of, -d[j]/(adv[j]*w.X[j]))
		}
	}
	if len(of) == 0 {
		return false, false
	}
	unit := middle(of, 1)
	r := d[i] / (-unit * adv[i] * (w.X[i] + alt[i]))
	return r > 0.75 && r < 1.5, unit > 0 && math.Abs(adv[i]) > 1e-3 && (r > 0.75 && r < 1.5 || math.Abs(r) < 0.25)
}
