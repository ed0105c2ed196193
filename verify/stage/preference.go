package stage

import (
	"math"

	"plumbline/reference/rl"
	"plumbline/verify/convention"
	"plumbline/verify/tol"
)

// pairFormulas are the losses of pairs by their words.
const pairFormulas = "−(1 − ε)·ln σ(βh) − ε·ln σ(−βh) (sigmoid), max(0, 1 − βh) (hinge), (h − 1/(2β))² (ipo), −β·ln σ(h) (orpo), " +
	"(−(1 − ε)·ln σ(βh) + ε·ln σ(−βh))/(1 − 2ε) (robust), q·ln(q/(1 − ε)) + (1 − q)·ln((1 − q)/ε), q = σ(βh) (exo_pair), " +
	"−ln σ(βc) − ½·ln σ(−βc) − ½·ln σ(−βr) (nca_pair), −ln σ(βc) − ln σ(−βr) (bco_pair), (c − 1/(2β))² + (r + 1/(2β))² (sppo_hard), " +
	"1 − σ(βc) + σ(βr) (apo_zero), σ(βc) + 1 − σ(β(c − r)) (apo_down), −(1 − m)·ln σ(βh) + m·e^{−βh}, m = σ(βh/τ) (discopop), " +
	"or the sigmoid of sorted log-ratios of a batch, rank by rank (aot: chosen − rejected of policy and reference; aot_unpaired: c and r)"

func preferenceChecks() []*Check {
	return []*Check{{
		ID: "preference/sft_loss", Stage: convention.Aggregate, Output: "loss",
		Title:   "cross-entropy of supervised fine-tuning",
		Formula: "loss = −Σ logp_new·labels_mask / N, N the labels of the file, or num_items_in_batch",
		Source:  "transformers ForCausalLMLoss, TRL SFTTrainer; V19 (transformers#34191, verl#3332)",
		Fix:     "compare the denominator: labels of the micro-batch or of all that are accumulated; a mask shifted by one shows as another set of tokens",
		Applies: func(c *Case) bool { return c.supervised() && !c.distilled() },
		Predict: predictSFTLoss,
	}, {
		ID: "preference/dpo_loss", Stage: convention.Aggregate, Output: "loss",
		Title:   "preference loss of pairs",
		Formula: "mean over pairs of preference/pair_loss, plus dpo.nll_weight·nll_loss; h = (logp_chosen − logp_rejected) − (ref_chosen − ref_rejected), of log-probs per token where dpo.per_token says so, by dpo.divergence or the ratio of odds otherwise",
		Source:  "as preference/pair_loss; TRL DPOTrainer, ORPOTrainer",
		Fix:     "compare dpo.beta, the order of chosen and rejected, and whether log-probs are sums over the response tokens or means (dpo.per_token)",
		Applies: func(c *Case) bool { return c.preference() && !c.unpaired() },
		Predict: predictDPOLoss,
	}, nllCheck(), {
		ID: "preference/pair_loss", Stage: convention.TokenLoss, Output: "pair_loss",
		Title:   "preference loss of each pair",
		Formula: "with the log-ratios c and r and their margin h: " + pairFormulas + "; or the sum dpo.mix of them",
		Source:  "Rafailov et al. 2023, Eq. 7; Zhao et al. 2023; Azar et al. 2023, Eq. 17; Hong et al. 2024, Eqs. 4 and 7; TRL 1.16 DPOTrainer._compute_loss and the papers that it names",
		Fix:     "compare dpo.beta, the order of chosen and rejected, and the reference",
		Applies: func(c *Case) bool { return c.preference() && !c.unpaired() },
		Predict: predictPairLoss,
	}, {
		ID: "preference/dlogp_chosen", Stage: convention.Gradient, Output: "dlogp_chosen",
		Title:   "gradient by the log-prob of the chosen answers",
		Formula: "∂loss/∂logp_chosen = −β·((1 − ε)·σ(−βh) − ε·σ(βh))/pairs (sigmoid), −β/pairs where βh < 1 (hinge), 2·(h − 1/(2β))/pairs (ipo); of the other losses the derivative of preference/pair_loss",
		Source:  "Rafailov et al. 2023, section 4; the derivative of preference/dpo_loss",
		Fix:     "the loss falls as logp_chosen rises, by β·σ(−βh) a pair: look for a detach, a sign, and what the mean is divided by",
		Applies: func(c *Case) bool { return c.preference() && !c.unpaired() },
		Predict: func(c *Case) *Prediction { return predictPairGradient(c, true) },
	}, {
		ID: "preference/dlogp_rejected", Stage: convention.Gradient, Output: "dlogp_rejected",
		Title:   "gradient by the log-prob of the rejected answers",
		Formula: "∂loss/∂logp_rejected = −∂loss/∂logp_chosen (reverse KL, sums)",
		Source:  "Rafailov et al. 2023, section 4; the derivative of preference/dpo_loss",
		Fix:     "the loss rises with logp_rejected: look for a detach, a sign, and what the mean is divided by",
		Applies: func(c *Case) bool { return c.preference() && !c.unpaired() },
		Predict: func(c *Case) *Prediction { return predictPairGradient(c, false) },
	}, {
		ID: "preference/unpaired_loss", Stage: convention.Aggregate, Output: "loss",
		Title:   "loss of answers that are good or bad",
		Formula: "mean over answers of w·(1 − σ(±β·(g − z))) (kto) or −w·ln σ(±(β·g − z)) (bco), g = logp_policy − logp_reference, z reference_point, + where desirable",
		Source:  "Ethayarajh et al. 2024, Eq. 8; Jung et al. 2024; TRL KTOTrainer, BCOTrainer",
		Fix:     "compare dpo.beta, the reference point, and what the mean is divided by under accumulation",
		Applies: func(c *Case) bool { return c.unpaired() },
		Predict: predictUnpairedLoss,
	}}
}

func predictSFTLoss(c *Case) *Prediction {
	red := c.reduction()
	lp := c.Token("logp_new")
	if !c.OK() || red == nil {
		return nil
	}
	s := red.apply(c, Input{X: times(lp.X, -1), Err: lp.Err}, c.poisoned("loss"))
	if !c.OK() {
		return nil
	}
	return s.prediction(func(f int) []Term { return red.denominatorTerms(s, f) })
}

// predictDPOLoss is the mean of pair_loss where that was dumped, so that a bug of a pair's loss shows there, and else that of what the
// log-probs give.
func predictDPOLoss(c *Case) *Prediction {
	each := c.B.Row("pair_loss")
	var p *pairs
	if each == nil {
		p = c.readPairs()
	}
	nll := c.nllTerm(c.oddsRatio()) // the loss of a pair says nothing more of the mean
	steps := c.pairSteps()
	loss, err := each, c.rounding("pair_loss")
	if !c.OK() {
		return nil
	}
	if loss == nil {
		loss, err = p.losses(c.Unit + tol.U64)
	}
	s, u := c.pairSums(loss, func(r int) float64 { return Input{Err: err}.E(r) }), c.Unit+tol.U64
	if nll != nil {
		s.add(1, *nll, u)
	}
	s.divide(steps, u)
	return c.orDivided(s.prediction(func(f int) []Term {
		file := c.B.Files[f]
		n := float64(file.Hi - file.Lo)
		if p == nil {
			return []Term{{"pairs", n}, {"accumulation steps", steps}}
		}
		var sum float64
		for r := file.Lo; r < file.Hi; r++ {
			h, _, _ := p.parts[0].margin(r)
			sum += h
		}
		return []Term{{"pairs", n}, {"mean h", sum / n}, {"dpo.beta", p.parts[0].o.Beta}, {"accumulation steps", steps}}
	}))
}

// nllWeight returns dpo.nll_weight: 1 for ORPO, whose paper has it, and 0 for others unless it is said.
func (c *Case) nllWeight(odds bool) float64 {
	weight := 0.0
	if odds {
		weight = 1
	}
	return c.Default("dpo.nll_weight", weight)
}

// nllTerm returns dpo.nll_weight·nll_loss of every file; nil where there is none.
func (c *Case) nllTerm(odds bool) *sums {
	weight := c.nllWeight(odds)
	x := c.B.PerFile("nll_loss")
	if x == nil {
		if weight != 0 {
			note(&c.Absent, "nll_loss")
		}
		return nil
	}
	s := c.newSums()
	for f, e := range x {
		s.x[f], s.size[f], s.err[f] = weight*e, weight*math.Abs(e), 2*(c.Unit+tol.U64)*weight*math.Abs(e)
	}
	return &s
}

// pairSums returns the mean over the rows of each file of losses that are off by err.
func (c *Case) pairSums(loss []float64, err func(row int) float64) sums {
	s, u := c.newSums(), c.Unit+tol.U64
	for f, file := range c.B.Files {
		n := float64(file.Hi - file.Lo)
		for r := file.Lo; r < file.Hi; r++ {
			s.x[f] += loss[r]
			s.size[f] += math.Abs(loss[r])
			s.err[f] += err(r)
		}
		s.err[f] = (s.err[f] + (foldError(int(n), c.Unit)+2*u)*s.size[f]) / n
		s.x[f] /= n
		s.size[f] /= n
	}
	return s
}

// divide divides by the accumulation steps.
func (s *sums) divide(steps, u float64) {
	if steps == 1 {
		return
	}
	for f := range s.x {
		s.x[f] /= steps
		s.size[f] /= steps
		s.err[f] = s.err[f]/steps + u*math.Abs(s.x[f])
	}
}

func predictUnpairedLoss(c *Case) *Prediction {
	o := rl.UnpairedOptions{Beta: c.Num("dpo.beta"), Desirable: c.Default("kto.desirable", 1), Undesirable: c.Default("kto.undesirable", 1)}
	o.Kind, _ = rl.ParseUnpairedKind(c.B.Meta.Algorithm)
	policy, reference, labels, point := c.B.Row("logp_policy"), c.B.Row("logp_reference"), c.B.Row("desirable"), c.B.PerFile("reference_point")
	for _, name := range []string{"logp_policy", "logp_reference", "desirable", "reference_point"} {
		if !c.Has(name) {
			note(&c.Absent, name)
		}
	}
	steps := c.pairSteps()
	if !c.OK() {
		return nil
	}
	stored := make([]float64, c.B.Rows)
	for _, name := range []string{"logp_policy", "logp_reference"} {
		for r, e := range c.rounding(name) {
			stored[r] += e
		}
	}
	u := c.Unit + tol.U64
	loss, slope := make([]float64, c.B.Rows), make([]float64, c.B.Rows)
	bound := make([]float64, c.B.Rows)
	for f, file := range c.B.Files {
		good := make([]bool, file.Hi-file.Lo)
		for i := range good {
			good[i] = labels[file.Lo+i] == 1
		}
		rl.Unpaired(loss[file.Lo:file.Hi], slope[file.Lo:file.Hi], policy[file.Lo:file.Hi], reference[file.Lo:file.Hi], good, point[f], o)
		for r := file.Lo; r < file.Hi; r++ {
			bound[r] = unpairedError(o, policy[r], reference[r], point[f], stored[r], loss[r], slope[r], max(o.Desirable, o.Undesirable), u)
		}
	}
	s := c.pairSums(loss, func(r int) float64 { return bound[r] })
	s.divide(steps, u)
	return s.prediction(func(f int) []Term {
		return []Term{{"answers", float64(c.B.Files[f].Hi - c.B.Files[f].Lo)}, {"reference point", point[f]}, {"dpo.beta", o.Beta}, {"accumulation steps", steps}}
	})
}

// unpairedError bounds the loss of an answer whose log-probs have errors of the sum e, w the larger of the weights. With g = policy −
// reference and x the argument of the sigmoid,
//
//	e_x = β·(e + u·(|policy| + |reference| + |g| + |z|)) + 3u·(|βg| + |βz| + |z|)
//	|ℓ′|·e_x + ½·w·e_x² + (e_log + 3u)·ℓ, and for KTO u·w of the subtraction from 1
//
// since σ′ and the second derivative of −ln σ are at most ¼, that of σ at most 1/10.
func unpairedError(o rl.UnpairedOptions, policy, reference, z, e, loss, slope, w, u float64) float64 {
	g := policy - reference
	ex := o.Beta*(e+u*(math.Abs(policy)+math.Abs(reference)+math.Abs(g)+math.Abs(z))) + 3*u*(math.Abs(o.Beta*g)+math.Abs(o.Beta*z)+math.Abs(z))
	b := math.Abs(slope/o.Beta)*ex + w*ex*ex/2 + (elementary+3)*u*loss
	if o.Kind == rl.UnpairedKTO {
		b += (elementary + 2) * u * w
	}
	return b
}
