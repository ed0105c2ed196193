package stage

import (
	"math"
	"slices"

	"plumbline/reference/rl"
	"plumbline/verify/convention"
	"plumbline/verify/tol"
)

func preferenceChecks() []*Check {
	return []*Check{{
		ID: "preference/sft_loss", Stage: convention.Aggregate, Output: "loss",
		Title:   "cross-entropy of supervised fine-tuning",
		Formula: "loss = −Σ logp_new·labels_mask / N, N the labels of the file, or num_items_in_batch",
		Source:  "transformers ForCausalLMLoss, TRL SFTTrainer; V19 (transformers#34191, verl#3332)",
		Fix:     "compare the denominator: labels of the micro-batch or of all that are accumulated; a mask shifted by one shows as another set of tokens",
		Applies: func(c *Case) bool { return c.supervised() },
		Predict: predictSFTLoss,
	}, {
		ID: "preference/dpo_loss", Stage: convention.Aggregate, Output: "loss",
		Title:   "preference loss of pairs",
		Formula: "mean over pairs of −(1 − ε)·ln σ(βh) − ε·ln σ(−βh) (sigmoid), max(0, 1 − βh) (hinge) or (h − 1/(2β))² (ipo); h = (logp_chosen − logp_rejected) − (ref_chosen − ref_rejected)",
		Source:  "Rafailov et al. 2023, Eq. 7; Zhao et al. 2023; Azar et al. 2023, Eq. 17; TRL DPOTrainer",
		Fix:     "compare dpo.beta, the order of chosen and rejected, and whether log-probs are sums (ipo: means) over the response tokens",
		Applies: func(c *Case) bool { return c.preference() },
		Predict: predictDPOLoss,
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
	return s.prediction(func(f int) []Term { return red.denominatorTerms(c, s, f) })
}

func predictDPOLoss(c *Case) *Prediction {
	kind := c.Enum("dpo.loss")
	o := rl.DPOOptions{Beta: c.Num("dpo.beta")}
	o.Kind, _ = rl.ParseDPOKind(kind)
	if kind == "sigmoid" {
		o.LabelSmoothing = c.NumOr("dpo.label_smoothing", 0)
	}
	var x [4][]float64
	stored := make([]float64, c.B.Rows) // what rounding on storing adds to the errors of a pair
	for i, name := range []string{"logp_chosen", "logp_rejected", "ref_chosen", "ref_rejected"} {
		if x[i] = c.B.Row(name); x[i] == nil {
			note(&c.Absent, name)
		}
		for r, e := range c.rounding(name) {
			stored[r] += e
		}
	}
	divided := c.divides()
	steps := 1.0
	if divided {
		steps = c.accumulation()
	}
	if !c.OK() {
		return nil
	}
	loss, slope := rl.DPO(nil, nil, x[0], x[1], x[2], x[3], o)
	s, u := c.newSums(), c.Unit+tol.U64
	for f, file := range c.B.Files {
		n := float64(file.Hi - file.Lo)
		for r := file.Lo; r < file.Hi; r++ {
			s.x[f] += loss[r]
			s.size[f] += math.Abs(loss[r])
			s.err[f] += dpoError(o, x[0][r], x[1][r], x[2][r], x[3][r], stored[r], loss[r], slope[r], u)
		}
		s.err[f] = (s.err[f] + (foldError(int(n), c.Unit)+2*u)*s.size[f]) / (n * steps)
		s.x[f] /= n * steps
		s.size[f] /= n * steps
	}
	return s.prediction(func(f int) []Term {
		file := c.B.Files[f]
		h := slices.Clone(x[0][file.Lo:file.Hi])
		var sum float64
		for i := range h {
			r := file.Lo + i
			sum += (x[0][r] - x[1][r]) - (x[2][r] - x[3][r])
		}
		return []Term{{"pairs", float64(len(h))}, {"mean h", sum / float64(len(h))}, {"dpo.beta", o.Beta}, {"accumulation steps", steps}}
	})
}

// dpoError bounds the loss of a pair whose log-probs have errors of the sum e. They may be subtracted in either order:
//
//	e_h = e + 2u·(|chosen| + |rejected| + |ref chosen| + |ref rejected|)   e_x = β·e_h + 2u·|βh|
//	sigmoid  |ℓ′|·e_x + ½·e_x² + e_log·ℓ + 2u·ℓ    |dℓ/dx| ≤ 1       hinge  e_x + u·(1 + ℓ), 0 beyond it
//	ipo      2|r|·e_r + e_r² + 2u·ℓ,   e_r = e_h + 2u·(|h| + 1/(2β))
func dpoError(o rl.DPOOptions, c, r, rc, rr, e, loss, slope, u float64) float64 {
	h := (c - r) - (rc - rr)
	eh := e + 2*u*(math.Abs(c)+math.Abs(r)+math.Abs(rc)+math.Abs(rr))
	ex := o.Beta*eh + 2*u*math.Abs(o.Beta*h)
	switch o.Kind {
	case rl.DPOHinge:
		if o.Beta*h-1 > ex+u {
			return 0
		}
		return ex + u*(1+loss)
	case rl.DPOIPO:
		root := math.Sqrt(loss)
		er := eh + 2*u*(math.Abs(h)+1/(2*o.Beta))
		return 2*root*er + er*er + 2*u*loss
	}
	e = math.Abs(slope/o.Beta)*ex + ex*ex/2 + (elementary+2)*u*loss
	if o.LabelSmoothing > 0 { // two terms
		e += ex*o.LabelSmoothing + 2*u*math.Abs(o.Beta*h)*o.LabelSmoothing + u*loss
	}
	return e
}
