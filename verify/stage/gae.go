package stage

import (
	"math"

	"plumbline/reference/rl"
	"plumbline/verify/convention"
	"plumbline/verify/tol"
)

func gaeChecks() []*Check {
	return []*Check{{
		ID: "gae/advantage", Stage: convention.Advantage, Output: "advantages",
		Title:   "generalised advantage estimate of a token",
		Formula: "δ_t = r_t + γV_{t+1} − V_t, A_t = δ_t + γλA_{t+1}, right to left; masked tokens as gae.hole says; whitened as whiten.* says",
		Source:  "Schulman et al. 2016, Eq. 16; TRL, verl, OpenRLHF, NeMo-RL, open-instruct by option; V14, V15",
		Fix:     "redo the last two tokens of the worst row by hand: γ, λ, and what the token after the last one contributes; if these are right, look at holes, then at whitening",
		Applies: func(c *Case) bool { return c.advantageKind() == "gae" && c.hasRecursion() },
		Predict: predictAdvantages,
	}, {
		ID: "gae/returns", Stage: convention.Advantage, Output: "returns",
		Title:   "target of the value function",
		Formula: "R_t = A_t + V_t, with A before whitening (returns.before_whiten true) or after; the return from there on for REINFORCE++ and ReMax",
		Source:  "Schulman et al. 2016; every framework takes A before whitening; V14, V18",
		Fix:     "look at whether A was whitened first, and at which values were added: those of the rollout",
		Applies: (*Case).hasTargets,
		Predict: predictReturns,
	}}
}

// estimate is GAE of a batch before whitening, with the errors of a correct program.
type estimate struct {
	adv, ret      Input
	reward, value Input
	rollout       rl.Rollout
	o             rl.GAEOptions
}

// gaeOptions returns the options of the recursion.
func (c *Case) gaeOptions() (o rl.GAEOptions) {
	o.Hole, _ = rl.ParseHole(c.Enum("gae.hole"))
	o.Gamma, o.Lambda = c.Num("gae.gamma"), 0
	if c.EnumOr("gae.lambda_policy", "none") == "vapo" {
		o.LambdaPolicy = rl.LambdaVAPO
		o.Alpha = c.FactOr("vapo_alpha", 0.05)
	} else {
		o.Lambda = c.Num("gae.lambda")
	}
	if o.Hole == rl.HoleNone || o.Hole == rl.HoleZeroStep {
		o.Value, _ = rl.ParseValueMask(c.inapplicable("gae.value_mask", "response"))
	}
	if c.EnumOr("gae.truncated_bootstrap", "none") == "value" {
		o.Bootstrap = rl.BootstrapValue
	}
	return o
}

// gae computes the advantages and returns before whitening.
func (c *Case) gae() (e estimate) { return c.gaeBy(c.gaeOptions()) }

// gaeBy is gae with the options of the recursion.
func (c *Case) gaeBy(o rl.GAEOptions) (e estimate) {
	b := c.B
	e.o = o
	e.reward, e.value = c.Token("token_rewards"), c.Token("values")
	var next Input
	if e.o.Bootstrap == rl.BootstrapValue {
		next = c.Row("next_values")
	}
	if !c.OK() {
		return e
	}
	n := len(b.Mask)
	if len(e.reward.X) != n || len(e.value.X) != n || len(next.X) != 0 && len(next.X) != b.Rows {
		note(&c.Absent, "token_rewards and values per token")
		return e
	}
	if c.whitensRewards() && !(c.Has("token_rewards") && c.rewardsAreWhite(e.reward.X)) {
		if e.reward = c.whitenRewards(e.reward); !c.OK() {
			return e
		}
	}
	e.reward, e.value = c.settled(e.reward), c.settled(e.value)
	r := rl.Rollout{Rows: b.Rows, Cols: b.Cols, Reward: e.reward.X, Value: e.value.X, Mask: b.Mask, Next: next.X}
	if dones := c.Optional("dones"); dones.X != nil {
		r.Done = make([]bool, n)
		for i, d := range dones.X {
			r.Done[i] = d != 0
		}
	}
	if e.o.Bootstrap == rl.BootstrapValue && c.eosIDs() != nil {
		if r.Truncated = c.finished(); r.Truncated == nil {
			return e
		}
		for i, done := range r.Truncated {
			r.Truncated[i] = !done
		}
	}
	e.rollout = r
	e.adv.X, e.ret.X = rl.GAE(nil, nil, r, e.o)
	e.adv.Err = gaeErrors(e.adv.X, r, e.reward, e.value, next, e.o, c.Unit)
	e.ret.Err = make([]float64, n)
	for i, v := range e.ret.X {
		e.ret.Err[i] = e.adv.Err[i] + e.value.E(i) + (c.Unit+tol.U64)*math.Abs(v)
	}
	c.promoted16(&e)
	return e
}

// settled replaces what is not finite outside the mask by 0: it is what the hook filled in, unless the advantages are not
// finite either, and then they are wrong.
func (c *Case) settled(x Input) Input {
	copied := false
	for i, v := range x.X {
		if !c.B.Mask[i] && (math.IsNaN(v) || math.IsInf(v, 0)) {
			if !copied {
				x.X = append([]float64(nil), x.X...)
				copied = true
			}
			x.X[i] = 0
		}
	}
	return x
}

// gaeErrors bounds the advantages, right to left next to the recursion:
//
//	e_t = γλ·e_{t+1}·(1+3u) + k·u·|γλA'| + 2u·|γV'| + u·(s + |δ_t| + |A_t|) + e_r + e_V + γ·e_V'
//
// where A' and V' are what the recursion takes from the right ([rl.GAEOptions.Steps]), k counts the roundings of γλA' (of γ and of λ, as
// constants of the format, of γλ and of the product with A'), and s is the largest of |r + γV'|, |r − V| and |γV' − V|, so that δ may be
// summed in any order. A factor of 1 is exact, and so are the product by it and a sum with 0, which leaves its term of s + |δ_t| + |A_t|
// out. The λ of VAPO, 1 − 1/(αl), is computed: it is off by u for
// the difference and by 3u/(αl) for α, a constant of the format, the product and the quotient.
func gaeErrors(adv []float64, b rl.Rollout, reward, value, next Input, o rl.GAEOptions, unit float64) []float64 {
	u := unit + tol.U64
	errs := make([]float64, len(adv))
	tokens := make([]float64, b.Rows)
	for k, m := range b.Mask {
		if m {
			tokens[k/b.Cols]++
		}
	}
	eVs := make([]float64, len(adv)) // of V where a step used it
	for s := range o.Steps(b) {
		i, k := s.Cell/b.Cols, s.Cell
		if s.V == s.Raw {
			eVs[k] = value.E(k)
		}
		var a1, e1, eV1 float64
		switch {
		case s.Boot:
			eV1 = next.E(i)
		case s.Next >= 0:
			a1, e1, eV1 = adv[s.Next], errs[s.Next], eVs[s.Next]
		}
		if !s.Step {
			errs[k] = e1
			continue
		}
		gl := s.Gamma * s.Lambda
		ofV, ofLambda := 2*u, u
		if o.LambdaPolicy == rl.LambdaVAPO && tokens[i] > 0 {
			ofLambda = u + 3*u/math.Abs(o.Alpha*tokens[i]*s.Lambda)
		}
		ofA := 3*u + ofLambda
		switch {
		case s.Gamma == 1 && s.Lambda == 1:
			ofA = 0
		case s.Gamma == 1:
			ofA = u + ofLambda
		case s.Lambda == 1:
			ofA = 2 * u
		}
		if s.Gamma == 1 {
			ofV = 0
		}
		gv := s.Gamma * s.NextV
		delta := s.R + gv - s.V
		ofSums := math.Abs(delta)
		switch {
		case s.R != 0 && gv != 0 && s.V != 0:
			ofSums += max(math.Abs(s.R+gv), math.Abs(s.R-s.V), math.Abs(gv-s.V))
		case s.R == 0 && (gv == 0 || s.V == 0) || gv == 0 && s.V == 0:
			ofSums = 0
		}
		if gl*a1 != 0 && delta != 0 {
			ofSums += math.Abs(adv[k])
		}
		var eR float64
		if s.True || o.Hole != rl.HoleZeroStep {
			eR = reward.E(k)
		}
		errs[k] = math.Abs(gl)*e1*(1+3*u) + ofA*math.Abs(gl*a1) + ofV*math.Abs(gv) + u*ofSums + eR + eVs[k] + s.Gamma*eV1
	}
	return errs
}

func predictGAE(c *Case) *Prediction {
	b := c.B
	if perRow, ok := c.layout("advantages"); !ok || perRow {
		return c.lacks("advantages per token")
	}
	if c.holdsRaw() {
		return c.predictFromReturns()
	}
	e := c.gae()
	if !c.OK() {
		return nil
	}
	y, whitening := c.whitenAdvantages(e.adv, false)
	if !c.OK() {
		return nil
	}
	p := &Prediction{Want: y.X, Bound: y.Err, Judge: append([]bool(nil), b.Mask...)}
	p.Terms = func(i int) []Term {
		return append(append(e.terms(i), Term{"advantage, not whitened", e.adv.X[i]}), whitening...)
	}
	return p
}

// terms are what the recursion reads at a cell, under its rule for holes.
func (e *estimate) terms(i int) []Term {
	row := i / e.rollout.Cols
	for s := range e.o.Steps(e.rollout.Row(row)) {
		if row*e.rollout.Cols+s.Cell != i {
			continue
		}
		if !s.Step {
			return []Term{{"advantage of the next true token, not whitened", e.adv.X[i]}}
		}
		t := []Term{{"reward", s.R}, {"value", s.V}, {"next value", s.NextV}}
		if s.Next < 0 {
			return append(t, Term{"next advantage", 0})
		}
		return append(t, Term{"next advantage, not whitened", e.adv.X[row*e.rollout.Cols+s.Next]})
	}
	panic("no cell of the batch")
}

// predictReturns predicts returns. Where the advantages that they are the sum of were dumped and cannot be recomputed, or are
// the whitened ones, the dumped ones are taken.
func predictReturns(c *Case) *Prediction {
	b := c.B
	if perRow, ok := c.layout("returns"); !ok || perRow {
		return c.lacks("returns per token")
	}
	var y Input
	var terms func(i int) []Term
	switch kind := c.Enum("adv.kind"); kind {
	case "gae":
		if c.Has("token_rewards") && c.EnumOr("returns.of", "gae") == "reward_to_go" { // those of λ = 1
			o := c.gaeOptions()
			o.Lambda, o.LambdaPolicy = 1, rl.LambdaFixed
			e := c.gaeBy(o)
			if !c.OK() {
				return nil
			}
			y = e.ret
			terms = func(i int) []Term { return []Term{{"reward", e.reward.X[i]}, {"value", e.value.X[i]}} }
			break
		}
		whitens := c.inapplicable("whiten.scope", "none") != "none"
		raw := !whitens || c.Bool("returns.before_whiten")
		if !c.OK() {
			return nil
		}
		if b.Token("advantages") != nil && (!raw || !whitens && !c.Has("token_rewards")) {
			adv, v := c.Token("advantages"), c.Token("values")
			if !c.OK() {
				return nil
			}
			y = Input{X: make([]float64, len(adv.X)), Err: make([]float64, len(adv.X))}
			for i, a := range adv.X {
				y.X[i] = a + v.X[i]
				y.Err[i] = (c.Unit+tol.U64)*math.Abs(y.X[i]) + adv.E(i) + v.E(i)
			}
			terms = func(i int) []Term { return []Term{{"advantage", adv.X[i]}, {"value", v.X[i]}} }
			break
		}
		e := c.gae()
		if !c.OK() {
			return nil
		}
		a := e.adv
		if y = e.ret; !raw {
			if a, _ = c.whitenAdvantages(e.adv, false); !c.OK() {
				return nil
			}
			for i, w := range a.X {
				y.X[i] = w + e.value.X[i]
				y.Err[i] = a.Err[i] + e.value.E(i) + (c.Unit+tol.U64)*math.Abs(y.X[i])
			}
		}
		terms = func(i int) []Term {
			return []Term{{"advantage", a.X[i]}, {"value", e.value.X[i]}, {"reward", e.reward.X[i]}}
		}
	case "rfpp", "remax":
		var reward Input
		if y, reward = c.returnsOfRewards(kind); !c.OK() {
			return nil
		}
		terms = func(i int) []Term { return []Term{{"reward", reward.X[i]}} }
	default:
		if y.X = c.returnsOfOutcome(); y.X == nil {
			return nil
		}
		y.Err = make([]float64, len(y.X))
		terms = func(i int) []Term { return []Term{{"advantage", y.X[i]}} }
	}
	p := &Prediction{Want: y.X, Bound: y.Err, Judge: append([]bool(nil), b.Mask...), Terms: terms}
	for i := range p.Want {
		p.settle(i, overflow(c.Unit))
	}
	return p
}

// returnsOfOutcome are the advantages where an estimator without a critic gives them twice, as verl's and OpenRLHF's of groups do; nobody reads
// these returns, and nil stands for others.
func (c *Case) returnsOfOutcome() []float64 {
	adv, ret := c.B.Token("advantages"), c.B.Token("returns")
	if len(adv) != len(c.B.Mask) || len(ret) != len(adv) || c.Has("values") {
		return nil
	}
	for i, m := range c.B.Mask {
		if m && adv[i] != ret[i] {
			return nil
		}
	}
	return adv
}
