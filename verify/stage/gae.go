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
		Applies: func(c *Case) bool { return c.advantageKind() == "gae" },
		Predict: predictAdvantages,
	}, {
		ID: "gae/returns", Stage: convention.Advantage, Output: "returns",
		Title:   "target of the value function",
		Formula: "R_t = A_t + V_t, with A before whitening (returns.before_whiten true) or after; the return from there on for REINFORCE++ and ReMax",
		Source:  "Schulman et al. 2016; every framework takes A before whitening; V14, V18",
		Fix:     "look at whether A was whitened first, and at which values were added: those of the rollout",
		Predict: predictReturns,
	}}
}

// estimate is GAE of a batch before whitening, with the errors of a correct program.
type estimate struct {
	adv, ret      Input
	reward, value Input
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
func (c *Case) gae() (e estimate) {
	b := c.B
	e.o = c.gaeOptions()
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
	e.adv.X, e.ret.X = rl.GAE(nil, nil, r, e.o)
	e.adv.Err = gaeErrors(e.adv.X, r, e.reward, e.value, next, e.o, c.Unit)
	e.ret.Err = make([]float64, n)
	for i, v := range e.ret.X {
		e.ret.Err[i] = e.adv.Err[i] + e.value.E(i) + (c.Unit+tol.U64)*math.Abs(v)
	}
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
//	e_t = γλ·e_{t+1}·(1+3u) + 2u·|γλA'| + 2u·|γV'| + u·(s + |δ_t| + |A_t|) + e_r + e_V + γ·e_V'
//
// where A' and V' are what the recursion hands to the left, and s the largest of |r + γV'|, |r − V| and |γV' − V|, so that
// δ may be summed in any order. Products by 1 are exact.
func gaeErrors(adv []float64, b rl.Rollout, reward, value, next Input, o rl.GAEOptions, unit float64) []float64 {
	u := unit + tol.U64
	errs := make([]float64, len(adv))
	for i := range b.Rows {
		lo := i * b.Cols
		last, tokens := -1, 0.0
		for t := range b.Cols {
			if b.Mask[lo+t] {
				last = t
				tokens++
			}
		}
		lambda, rounding := o.Lambda, 2*u
		if o.LambdaPolicy == rl.LambdaVAPO && tokens > 0 {
			lambda = 1 - 1/(o.Alpha*tokens)
			rounding += u + 2*u/math.Abs(o.Alpha*tokens*lambda) // of λ itself
		}
		gl := o.Gamma * lambda
		ofA, ofV := rounding, 2*u
		if gl == 1 {
			ofA = 0
		}
		if o.Gamma == 1 {
			ofV = 0
		}
		var v1, a1, eV1, e1 float64 // what the cell at t+1 hands to the left, and the errors
		for t := b.Cols - 1; t >= 0; t-- {
			k := lo + t
			m := b.Mask[k]
			r, eR, v, eV := b.Reward[k], reward.E(k), b.Value[k], value.E(k)
			inV := m
			if o.Hole == rl.HoleNone {
				inV = t <= last
			}
			inV = inV || o.Value == rl.ValueP1 && t == last+1 && last >= 0
			switch o.Hole {
			case rl.HoleNone, rl.HoleZeroStep:
				if !inV {
					v, eV = 0, 0
				}
				if !m && o.Hole == rl.HoleZeroStep {
					r, eR = 0, 0
				}
			case rl.HoleCut:
				if !m || t == last {
					v1, a1, eV1, e1 = 0, 0, 0, 0
				}
			}
			if t == last && o.Bootstrap == rl.BootstrapValue && (b.Truncated == nil || b.Truncated[i]) {
				v1, a1, eV1, e1 = b.Next[i], 0, next.E(i), 0
			}
			if b.Done != nil && b.Done[k] {
				v1, a1, eV1, e1 = 0, 0, 0, 0
			}
			e := e1
			if m || o.Hole != rl.HoleCarry {
				gv := o.Gamma * v1
				delta := r + gv - v
				s := max(math.Abs(r+gv), math.Abs(r-v), math.Abs(gv-v))
				e = math.Abs(gl)*e1*(1+3*u) + ofA*math.Abs(gl*a1) + ofV*math.Abs(gv) + u*(s+math.Abs(delta)+math.Abs(adv[k])) + eR + eV + o.Gamma*eV1
				v1, eV1 = v, eV
			}
			a1, e1 = adv[k], e
			errs[k] = e
			if o.Hole == rl.HoleCutNext && !m {
				v1, a1, eV1, e1 = 0, 0, 0, 0
			}
		}
	}
	return errs
}

func predictGAE(c *Case) *Prediction {
	b := c.B
	if perRow, ok := c.layout("advantages"); !ok || perRow {
		note(&c.Absent, "advantages per token")
		return nil
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
		t := []Term{{"reward", e.reward.X[i]}, {"value", e.value.X[i]}}
		if (i+1)%b.Cols != 0 {
			t = append(t, Term{"next value", e.value.X[i+1]}, Term{"next advantage, not whitened", e.adv.X[i+1]})
		}
		return append(append(t, Term{"advantage, not whitened", e.adv.X[i]}), whitening...)
	}
	return p
}

// predictReturns predicts returns. Where the advantages that they are the sum of were dumped and cannot be recomputed, or are
// the whitened ones, the dumped ones are taken.
func predictReturns(c *Case) *Prediction {
	b := c.B
	if perRow, ok := c.layout("returns"); !ok || perRow {
		note(&c.Absent, "returns per token")
		return nil
	}
	var y Input
	var terms func(i int) []Term
	switch kind := c.Enum("adv.kind"); kind {
	case "gae":
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
		return nil
	}
	p := &Prediction{Want: y.X, Bound: y.Err, Judge: append([]bool(nil), b.Mask...), Terms: terms}
	for i := range p.Want {
		p.settle(i, overflow(c.Unit))
	}
	return p
}
