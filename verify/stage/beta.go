package stage

import (
	"math"
	"slices"

	"plumbline/verify/convention"
)

// beta returns the coefficient of the KL term. Of one that a controller moves the declared one is that of the first batch; that of a later batch is
// read off its rewards, and what is judged then is that one number explains all of them.
func (c *Case) beta() float64 {
	note(&c.Read, "kl.adaptive")
	kind, _ := c.Set.Fact("algorithm.kl_ctrl.type")
	moved := c.Set.Value("kl.adaptive").Kind() == convention.Tuple || kind == "adaptive"
	if !moved || c.B.Meta.Step <= 0 {
		return c.Num("kl.beta")
	}
	if beta, ok := c.betaShown(); ok {
		return beta
	}
	if c.B.Meta.Step == 1 && kind != "adaptive" { // the first of those that count from 1
		return c.Num("kl.beta")
	}
	note(&c.Absent, "the present kl.beta (by kl.adaptive the declared one is that of the first batch only: declare kl.beta of each step in its files, and no kl.adaptive)")
	return 0
}

// betaShown reads β off the rewards of a batch, r_t = −β·kl_t but for the one token of a response that has the score: the median of −r/kl over the tokens
// whose KL is above the median in size. It is false where rewards are whitened, or fewer than eight tokens tell.
func (c *Case) betaShown() (beta float64, ok bool) {
	const enough = 8
	b := c.B
	r, kl := b.Token("token_rewards"), c.Token("kl")
	if len(r) != len(b.Mask) || len(kl.X) != len(r) || c.EnumOr("rewards.whiten", "no") != "no" {
		return 0, false
	}
	var sizes, ratios []float64
	for i, m := range b.Mask {
		if m {
			sizes = append(sizes, math.Abs(kl.X[i]))
		}
	}
	if len(sizes) < enough {
		return 0, false
	}
	slices.Sort(sizes)
	least := sizes[len(sizes)/2]
	for i, m := range b.Mask {
		if m && math.Abs(kl.X[i]) >= least && least > 0 {
			ratios = append(ratios, -r[i]/kl.X[i])
		}
	}
	if len(ratios) < enough {
		return 0, false
	}
	slices.Sort(ratios)
	beta = ratios[len(ratios)/2]
	return beta, beta > 0 && !math.IsInf(beta, 0)
}

// loggedBeta returns what a controller's coefficient is by the rewards of a rollout.
func loggedBeta(c *Case, rows []span) (x, e []float64) {
	beta := c.beta()
	if shown, ok := c.betaShown(); ok {
		beta = shown
	}
	if !c.OK() || math.IsNaN(beta) {
		return nil, nil
	}
	x, e = make([]float64, len(rows)), make([]float64, len(rows))
	for i := range rows {
		x[i], e[i] = beta, 1e-4*beta
	}
	return x, e
}
