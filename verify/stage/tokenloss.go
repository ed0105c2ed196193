package stage

import (
	"math"
	"slices"
	"strings"

	"plumbline/internal/format/dump"
	"plumbline/reference/rl"
	"plumbline/verify/convention"
	"plumbline/verify/tol"
)

func tokenLossChecks() []*Check {
	return []*Check{{
		ID: "token_loss/policy", Stage: convention.TokenLoss, Output: "token_loss",
		Title:   "policy objective of every token",
		Formula: "ℓ = max(−A·ρ, −A·clip(ρ, 1 − clip.low, 1 + clip.high)) or another loss.kind, × the engine weight, + kl.beta·KL where the KL stands in the loss; ρ = exp(logp_new − logp_old)",
		Source:  "Schulman et al. 2017, Eq. 7; the papers of the other kinds; TRL 1.16 _compute_loss, verl compute_policy_loss, OpenRLHF PolicyLoss; V17",
		Fix:     "compare sign of the advantage, clip bounds and the order of weight and KL term with the options; a minimum instead of a maximum shows only where the clip acts",
		Applies: func(c *Case) bool { return !c.preference() && !c.distilled() },
		Predict: predictTokenLoss,
	}}
}

// preference reports whether the batch has pairs or labelled answers instead of a policy loss.
func (c *Case) preference() bool {
	return c.B.Meta.Algorithm == "dpo" || c.B.Row("logp_chosen") != nil || c.unpaired()
}

// unpaired reports whether the batch has answers that are each good or bad.
func (c *Case) unpaired() bool { return c.B.Meta.Algorithm == "kto" || c.B.Meta.Algorithm == "bco" }

// supervised reports whether the batch is one of supervised fine-tuning or of distillation: what is trained on has labels.
func (c *Case) supervised() bool { return c.B.Meta.Algorithm == "sft" || c.distilled() }

// distilled reports whether the loss is a divergence from a teacher.
func (c *Case) distilled() bool { return c.B.Meta.Algorithm == "gkd" }

// policy is the policy loss of a batch: options, inputs and ratios. Its fields are set where the loss reads them.
type policy struct {
	o         rl.PolicyOptions // without KL and aggregation
	mask      []bool           // cells that count
	lp, old   Input            // old.X nil: a detached copy of lp
	adv       Input
	weight    Input // multiplies the policy term; X nil: none
	gamma     Input // of vespo: the engine's weights, which go into its own; X nil: none
	ref       Input // read for the gradient of a KL term
	stored    Input // logp_old where old was replaced by what a ratio in 16 bits is that of, see promotedOld; X nil: old
	klOld     Input // what the weight of a KL term is taken to where the ratio is taken to something else; X nil: old
	ratio     ratios
	uses      bool    // the policy term is a function of the ratio
	beta      float64 // of a KL term in the loss, else 0
	klInside  bool    // the weight multiplies the KL term, too
	unit, u   float64
	randomCut bool   // clip_cov: which tokens are left out is drawn
	drop      []bool // of a gradient: the tokens that were

	rowHalf           bool      // the ratio of a row has the 16-bit type of the log-probs
	loose             Input     // of a ratio of a row: old where the sum of the differences is float32
	tied              []policy  // others of whose ratios of rows the dump tells as little
	rowGrad, rowGradE []float64 // of a gradient: what every token has through such a ratio, see rowPaths
	coef              []float64 // of a gradient of cispo: the clipped ratios
	reach             []float64 // of a gradient in 16 bits: the weights of the cells in the aggregation, as the type has them

	inclusive bool // of a gradient in 16 bits: a clamp passes it on its bound, see slopes16

	beside []float64 // of the gradient of kl_cov and dro, the path beside the first
	cut    []choice  // of kl_cov
	rho    []float64 // where the ratio of sapo was replaced by what its difference from 1 was rounded to: the ratio itself; else nil
}

// policy reads the policy loss, for its gradient with the estimator of the KL term; nil if something is not there.
func (c *Case) policy(gradient bool) *policy {
	p := &policy{mask: c.lossMask(), unit: c.Unit, u: c.Unit + tol.U64}
	if c.supervised() {
		p.o.Kind = rl.LossReinforce
		p.lp = c.Token("logp_new")
		if !c.OK() {
			return nil
		}
		p.adv.X = slices.Repeat([]float64{1}, c.B.Rows*c.B.Cols)
		p.old = p.lp
		return p
	}
	kind := c.Enum("loss.kind")
	if kind == "" {
		return nil
	}
	p.o.Kind, _ = rl.ParseLossKind(kind)
	c.kindOptions(p)
	if gradient || !c.withoutKL() {
		c.klTerm(p, gradient)
	}
	if !c.OK() {
		return nil
	}
	p.lp, p.adv = c.Token("logp_new"), c.Token("advantages")
	if p.readsOld() {
		p.old = c.oldLogp()
		if k := p.o.KL; p.beta != 0 && k.Grad == rl.KLStraightThroughK2 && k.ISCap > 0 && c.toEngine() {
			p.klOld = c.trainersOld()
		}
		if u := half(p.lp, p.old); u > 0 && p.old.X != nil {
			p.stored = p.old
			p.promotedOld(c.B.Rows, c.B.Cols)
			if p.o.Ratio.Level == rl.RatioToken { // that of a row may be float32
				p.o.Clip = promotedClip(p.o.Clip, u)
			}
		}
	} else {
		p.old = p.lp
	}
	p.weight = c.isWeights()
	if p.o.Kind == rl.LossVESPO {
		p.gamma, p.weight = p.weight, Input{}
	}
	if p.weight.X != nil && p.beta != 0 {
		p.klInside = c.underWeight()
	}
	c.keeps(p)
	if !c.OK() {
		return nil
	}
	if p.o.Kind == rl.LossGMPO && p.weight.X != nil {
		if p.klInside {
			note(&c.Absent, "what the geometric mean of is_weights does to a KL term")
			return nil
		}
		p.geometricWeights(c.B.Rows, c.B.Cols)
	}
	if p.uses || p.ratioInKL() {
		p.ratio = c.ratios(p.lp, p.old, p.mask, p.o.Ratio)
		p.chooseRowRatio(c, func(q *policy) int { return q.misses(c) })
	}
	return p
}

// kindOptions reads the options of the loss kind.
func (c *Case) kindOptions(p *policy) {
	o := &p.o
	if o.Kind != rl.LossReinforce && o.Kind != rl.LossVESPO && o.Kind != rl.LossDRO && o.Kind != rl.LossGMPO {
		p.uses = true
		o.Ratio = c.ratioOptions()
		if o.Kind == rl.LossGSPO && c.OK() && o.Ratio.Level != rl.RatioSeqMean {
			note(&c.Absent, "ratio.level seq_mean, the only one of loss.kind gspo")
		}
	}
	switch o.Kind {
	case rl.LossPPO, rl.LossGSPO, rl.LossLUSPO, rl.LossClipCov:
		o.Clip = c.clipOptions()
	case rl.LossCISPO, rl.LossDPPOTV, rl.LossDPPOKL:
		o.Clip.Low, o.Clip.High = c.NumOr("clip.low", math.Inf(1)), c.NumOr("clip.high", math.Inf(1))
		if o.Kind == rl.LossCISPO {
			o.Clip.HighAbsolute = c.Bool("clip.high_is_absolute")
		} else {
			o.DPPOLimit = c.Num("dppo.limit")
		}
	case rl.LossGMPO:
		o.GMPO.Low, o.GMPO.High = c.NumOr("clip.low", math.Inf(1)), c.NumOr("clip.high", math.Inf(1))
		o.GMPO.LogClamp = c.NumOr("ratio.log_clamp", 0)
		o.GMPO.LenEps = c.Default("agg.len_eps", 0)
	case rl.LossSAPO:
		o.TauPos, o.TauNeg = c.Num("sapo.tau_pos"), c.Num("sapo.tau_neg")
	case rl.LossVESPO:
		o.VESPO = rl.VESPOOptions{KPos: c.Num("vespo.k_pos"), LambdaPos: c.Num("vespo.lambda_pos"), KNeg: c.Num("vespo.k_neg"), LambdaNeg: c.Num("vespo.lambda_neg")}
	case rl.LossDRO:
		o.DROBeta = c.Num("dro.beta")
	}
	switch o.Kind {
	case rl.LossClipCov:
		o.Cov.Lower, o.Cov.Upper = c.Num("cov.lower"), c.Num("cov.upper")
		p.randomCut = true
	case rl.LossKLCov:
		o.Cov.Fraction, o.Cov.Coef = c.Num("cov.fraction"), c.Num("cov.coef")
	}
}

// clipOptions returns the bounds of a clipped surrogate.
func (c *Case) clipOptions() rl.ClipOptions {
	return rl.ClipOptions{
		Low: c.NumOr("clip.low", math.Inf(1)), High: c.NumOr("clip.high", math.Inf(1)),
		Dual: c.NumOr("clip.dual", 0), Delta: c.NumOr("clip.delta", 0),
	}
}

// klInLoss reads the coefficient of a KL term in the loss, 0 without one.
func (c *Case) klInLoss() float64 {
	if c.inapplicable("kl.place", "none") != "loss" {
		return 0
	}
	return c.NumOr("kl.beta", 0)
}

// klTerm reads the KL term of the loss; for a gradient its estimator, and the ratio where that has one and the loss has not.
func (c *Case) klTerm(p *policy, gradient bool) {
	if p.beta = c.klInLoss(); p.beta == 0 {
		return
	}
	p.o.KLBeta = p.beta
	if !gradient {
		return
	}
	p.o.KL = c.klOptions(true)
	if p.ref = c.Token("logp_ref"); p.ref.Half > 0 && p.o.KL.Grad != rl.KLISCorrected && c.wideKL() { // an estimate times a ratio has the type of that
		p.ref.Half = 0
	}
	if c.OK() && p.ratioInKL() && !p.uses {
		p.o.Ratio = c.ratioOptions()
	}
}

// underWeight reports whether importance weights multiply the KL term. Two options say it: what a run declares of one is not searched by the other.
func (c *Case) underWeight() bool {
	const one, other = "kl.under_is_weight", "tis.applies_to_kl"
	if v := c.Set.Value(other); v.Kind() == convention.Bool {
		searched := c.Set.Origin(one) == "search" && c.Set.Origin(other) != "search" && !strings.Contains(c.Set.Origin(other), "@")
		if c.Set.Value(one).Kind() != convention.Enum || searched {
			return c.Bool(other)
		}
	}
	return c.inapplicable("kl.under_is_weight", "outside") == "inside"
}

// readsOld reports whether the loss depends on the log-probs of the start of the update.
func (p *policy) readsOld() bool {
	return p.o.Kind != rl.LossReinforce || p.ratioInKL()
}

// ratioInKL reports whether the KL term of a gradient, whose options are set by then, holds the ratio.
func (p *policy) ratioInKL() bool {
	k := p.o.KL
	return p.beta != 0 && (k.Grad == rl.KLISCorrected || k.Kind == rl.KLRatioD || k.Grad == rl.KLStraightThroughK2 && k.ISCap > 0)
}

// lossMask returns the cells that count in losses.
func (c *Case) lossMask() []bool {
	if c.EnumOr("mask.tokens", "response") != "none" {
		return c.B.Mask
	}
	mask := make([]bool, len(c.B.Mask))
	for i := range mask {
		mask[i] = extent(c.B, i)
	}
	return mask
}

// lossHasKL reports whether token_loss holds the KL term, and notes that neither the file nor the numbers say so.
func (c *Case) lossHasKL(p *policy) bool {
	if p.beta == 0 || !c.Has("token_loss") { // what is predicted in its place holds it
		return true
	}
	if has := c.B.Meta.TokenLossIncludesKL; has != nil {
		return *has
	}
	holds, told := c.showsKL()
	if !told {
		note(&c.Absent, "token_loss_includes_kl")
	}
	return holds
}

// withoutKL reports whether the file says that its token_loss is the policy term alone: then no option of the KL changes it.
func (c *Case) withoutKL() bool {
	has := c.B.Meta.TokenLossIncludesKL
	return c.Has("token_loss") && has != nil && !*has
}

func predictTokenLoss(c *Case) *Prediction {
	p := c.policy(false)
	if p == nil {
		return nil
	}
	withKL := p.beta != 0
	if has := c.B.Meta.TokenLossIncludesKL; withKL && has == nil && c.B.Token("token_loss") != nil {
		withKL, _ = c.showsKL()
	} else if withKL {
		withKL = c.lossHasKL(p)
	}
	var kl Input
	if withKL {
		kl = c.tokenKL()
	}
	if !c.OK() {
		return nil
	}
	perRow := c.B.Row("token_loss") != nil
	if perRow && p.o.Kind != rl.LossGMPO {
		return c.lacks("token_loss per token")
	}
	if p.randomCut && !c.Has("token_loss") {
		return c.lacks("token_loss (clip_cov draws the tokens that it leaves out)")
	}
	q := p.tokenLoss(c, kl)
	q.Terms = func(i int) []Term {
		if perRow {
			return []Term{{"advantage", p.adv.X[i*c.B.Cols]}}
		}
		t := []Term{{"logp_new", p.lp.X[i]}}
		if p.readsOld() && p.old.X != nil {
			t = append(t, Term{"logp_old", p.old.X[i]})
		}
		if p.ratio.x != nil {
			t = append(t, Term{"ratio", p.ratio.x[i]})
		}
		t = append(t, Term{"advantage", p.adv.X[i]})
		if p.weight.X != nil {
			t = append(t, Term{"is_weight", p.weight.X[i]})
		}
		if withKL {
			t = append(t, Term{"kl", kl.X[i]})
		}
		return t
	}
	if perRow {
		return q.firstOfRow(c.B)
	}
	return q
}

// tokenKL returns the KL estimates of the tokens.
func (c *Case) tokenKL() Input {
	if c.B.Row("kl") != nil {
		note(&c.Absent, "kl per token")
		return Input{}
	}
	return c.Token("kl")
}

// firstOfRow keeps the first column of a prediction that is equal along rows.
func (p *Prediction) firstOfRow(b *dump.Batch) *Prediction {
	q := &Prediction{Want: make([]float64, b.Rows), Bound: make([]float64, b.Rows), Scale: p.Scale, Terms: p.Terms}
	for r := range b.Rows {
		if b.Cols > 0 {
			q.Want[r], q.Bound[r] = p.Want[r*b.Cols], p.Bound[r*b.Cols]
		}
	}
	return q
}
