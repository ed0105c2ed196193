package stage

import (
	"math"
	"slices"

	"plumbline/verify/convention"
	"plumbline/verify/tol"
)

// rewarded reports whether the dump has rewards of any kind.
func (c *Case) rewarded() bool {
	return c.Has("token_rewards") || c.Has("scores") || c.Has("rewards_per_func")
}

// holdsRaw reports whether returns hold the advantages as they were before they were whitened, and nothing else does: a hook in the loss has
// returns and values, and no rewards of which the recursion could be done again. Where nobody says whether advantages are whitened, they
// are if their mean is 0 and their variance is 1.
func (c *Case) holdsRaw() bool {
	n := len(c.B.Mask)
	adv := c.B.Token("advantages")
	if c.rewarded() || len(c.B.Token("returns")) != n || len(c.B.Token("values")) != n || len(adv) != n {
		return false
	}
	if scope := c.Set.Value("whiten.scope"); scope.Kind() == convention.Enum && c.Set.Origin("whiten.scope") != "search" {
		return scope.Text() != "none" && c.BoolOr("returns.before_whiten", true)
	}
	var cells []float64
	for i := range c.B.Tokens() {
		cells = append(cells, adv[i])
	}
	m := momentsOf(cells, nil, 0, 0, tol.U64)
	return len(cells) > 1 && math.Abs(m.mean) < 0.02 && math.Abs(m.v-1) < 0.05
}

// predictFromReturns predicts advantages as the whitened R − V. With R the rounded sum of A and V, R − V is off by u·|R|.
func (c *Case) predictFromReturns() *Prediction {
	ret, value := c.Token("returns"), c.Token("values")
	if !c.OK() {
		return nil
	}
	ret, value = c.settled(ret), c.settled(value)
	raw := Input{X: make([]float64, len(ret.X)), Err: make([]float64, len(ret.X))}
	for i, r := range ret.X {
		raw.X[i] = r - value.X[i]
		raw.Err[i] = (c.Unit+tol.U64)*math.Abs(r) + ret.E(i) + value.E(i)
	}
	y, whitening := c.whitenAdvantages(raw, false)
	if !c.OK() {
		return nil
	}
	p := &Prediction{Want: y.X, Bound: y.Err, Judge: slices.Clone(c.B.Mask)}
	p.Terms = func(i int) []Term {
		return append([]Term{{"return", ret.X[i]}, {"value", value.X[i]}}, whitening...)
	}
	return p
}

// hasTargets reports whether there is something to judge returns by: advantages that are predicted from them are no more, and without
// values, rewards or an estimator that is declared nobody has a use for them.
func (c *Case) hasTargets() bool {
	if c.holdsRaw() {
		return false
	}
	return c.Has("values") || c.Has("token_rewards") || c.Set.Declares("adv.kind")
}

// hasRecursion reports whether advantages can be judged beside returns: without rewards they are what returns are judged by.
func (c *Case) hasRecursion() bool {
	n := len(c.B.Mask)
	return c.rewarded() || c.holdsRaw() || len(c.B.Token("returns")) != n || len(c.B.Token("values")) != n
}
