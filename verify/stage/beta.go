package stage

import (
	"math"
	"slices"

	"plumbline/verify/convention"
	"plumbline/verify/tol"
)

// betaWithin returns the coefficient of the KL term, and what it is off by where it was read off numbers. Of one that a controller moves the declared one is that of the first batch; that of a later batch is
// read off its rewards, and what is judged then is that one number explains all of them.
func (c *Case) betaWithin() (beta, e float64) {
	note(&c.Read, "kl.adaptive")
	kind, _ := c.Set.Fact("algorithm.kl_ctrl.type")
	moved := c.Set.Value("kl.adaptive").Kind() == convention.Tuple || kind == "adaptive"
	if !moved || c.B.Meta.Step <= 0 {
		return c.Num("kl.beta"), 0
	}
	beta, e, ok, shared := c.betaShown()
	if ok && (shared || c.Set.Value("kl.beta").Kind() != convention.Number) {
		return beta, e
	}
	if ok { // no number explains the rewards: they are wrong under any, and the declared one is the nearest to what ran
		return c.Num("kl.beta"), 0
	}
	if c.B.Meta.Step == 1 && kind != "adaptive" { // the first of those that count from 1
		return c.Num("kl.beta"), 0
	}
	note(&c.Absent, "the present kl.beta (by kl.adaptive the declared one is that of the first batch only: declare kl.beta of each step in its files, and no kl.adaptive)")
	return 0, 0
}

// beta is [Case.betaWithin] without the error.
func (c *Case) beta() float64 {
	beta, _ := c.betaWithin()
	return beta
}

// betaShown reads β off the rewards of a batch, r_t = −β·kl_t but for the one token of a response that has the score: the median of −r/kl over the tokens
// whose KL is above the median in size. Each of these is off by β·(e_kl/|kl| + 4u) where nothing else is in the reward, e_kl being the error of the KL, and so
// is their median by the largest of that. It is not ok where rewards are whitened, or fewer than eight tokens tell, and
// not shared where less than half of these say the same.
func (c *Case) betaShown() (beta, e float64, ok, shared bool) {
	const enough = 8
	b := c.B
	r, kl := b.Token("token_rewards"), c.Token("kl")
	if len(r) != len(b.Mask) || len(kl.X) != len(r) || c.EnumOr("rewards.whiten", "no") != "no" {
		return 0, 0, false, false
	}
	var sizes, ratios []float64
	for i := range b.Tokens() {
		sizes = append(sizes, math.Abs(kl.X[i]))
	}
	if len(sizes) < enough {
		return 0, 0, false, false
	}
	slices.Sort(sizes)
	least := sizes[len(sizes)/2]
	u := c.Unit + tol.U64
	for i, m := range b.Mask {
		if m && math.Abs(kl.X[i]) >= least && least > 0 {
			ratios = append(ratios, -r[i]/kl.X[i])
			e = max(e, kl.E(i)/math.Abs(kl.X[i])+4*u)
		}
	}
	if len(ratios) < enough {
		return 0, 0, false, false
	}
	slices.Sort(ratios)
	beta = ratios[len(ratios)/2]
	same := 0
	for _, x := range ratios {
		if math.Abs(x-beta) <= max(1e-3, 2*e)*beta {
			same++
		}
	}
	return beta, e * beta, beta > 0 && !math.IsInf(beta, 0), 2*same >= len(ratios)
}

// loggedBeta returns what a controller's coefficient is by the rewards of a rollout.
func loggedBeta(c *Case, rows []span) (x, e []float64) {
	beta, off := c.betaWithin()
	if shown, within, ok, _ := c.betaShown(); ok {
		beta, off = shown, within
	}
	if !c.OK() || math.IsNaN(beta) {
		return nil, nil
	}
	return perSpan(rows, func(_ span) (x, e float64) { return beta, off + 2*(c.Unit+tol.U64)*beta })
}
