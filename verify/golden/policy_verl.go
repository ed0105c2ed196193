package golden

import (
	"math"

	"plumbline/reference/rl"
)

func verlPolicy(c *call) []answer { return computed(c, readVerl) }

func openrlhfPolicy(c *call) []answer { return computed(c, readOpenRLHF) }

// computed is the answers of a case that read makes of an entry.
func computed(c *call, read func(*call) (*policyCase, float64)) []answer {
	p, bonus := read(c)
	if !c.ok() {
		return nil
	}
	return p.answers(c, bonus, nil, "")
}

// readVerl maps the loss functions of verl.
func readVerl(c *call) (p *policyCase, bonus float64) {
	p = &policyCase{batch: policyBatch(c)}
	o := &p.opt
	o.Ratio.LogClamp = 20
	o.Clip = rl.ClipOptions{Low: c.numOr("clip_ratio_low", 0.2), High: c.numOr("clip_ratio_high", 0.2)}
	dual := c.numOr("clip_ratio_c", 3)
	c.within("clip_ratio_c", dual, dual > 1, "more than 1")
	if c.has("rollout_is_weights") && c.flagOr("rollout_is_weights", true) {
		p.batch.Weight = c.shaped("rollout_is_weights", p.batch.Rows, p.batch.Cols)
	} else if c.flagOr("rollout_is_weights", false) {
		c.malformed("option rollout_is_weights is true, and there is no such input")
	}
	switch c.e.Function {
	case "compute_policy_loss_vanilla":
		o.Clip.Dual = dual
	case "compute_policy_loss_gspo":
		o.Kind = rl.LossGSPO
		o.Ratio = rl.RatioOptions{Level: rl.RatioSeqMean, SeqLogMax: 10, PerToken: true}
	case "compute_policy_loss_dppo_tv":
		o.Kind, o.DPPOLimit = rl.LossDPPOTV, dual
	case "compute_policy_loss_dppo_kl":
		o.Kind, o.DPPOLimit = rl.LossDPPOKL, dual
	case "compute_policy_loss_sapo":
		o.Kind, o.TauPos, o.TauNeg = rl.LossSAPO, c.value("tau_pos"), c.value("tau_neg")
		c.within("tau_pos", o.TauPos, o.TauPos > 0, "more than 0")
		c.within("tau_neg", o.TauNeg, o.TauNeg > 0, "more than 0")
	case "compute_policy_loss_gpg", "compute_policy_loss_reinforce":
		o.Kind = rl.LossReinforce
	case "compute_policy_loss_cispo":
		o.Kind = rl.LossCISPO
	case "compute_policy_loss_dro":
		o.Kind, o.DROBeta = rl.LossDRO, nested(c, "policy_loss", "dro_beta")
	case "compute_policy_loss_clip_cov":
		o.Kind = rl.LossClipCov
		o.Ratio.LogClamp = 0
		o.Cov = rl.CovOptions{Lower: nested(c, "policy_loss", "clip_cov_lb"), Upper: nested(c, "policy_loss", "clip_cov_ub"), MeanEps: 1e-8}
		if share := nested(c, "policy_loss", "clip_cov_ratio"); !(share >= 1) {
			c.undetermined("clip_cov_ratio %v: which of the candidates are left out is random", share)
		}
	case "compute_policy_loss_geo_mean":
		eps := c.value("clip_ratio")
		o.Kind, o.GMPO = rl.LossGMPO, rl.GMPOOptions{Low: eps, High: eps, LenEps: 1e-8}
		if p.batch.Weight != nil {
			c.undetermined("geo_mean with importance weights")
		}
	}
	if c.e.Function != "compute_policy_loss_geo_mean" {
		o.Agg = verlAgg(c, c.text("loss_agg_mode"))
	}
	return p, 0
}

// verlKLCov holds back the tokens of highest covariance. Where covariances tie at the cut, which of them are held is the
// order of a sort: the recorded token losses tell, and only their number is judged.
func verlKLCov(c *call) []answer {
	p := policyCase{batch: policyBatch(c)}
	b, o := &p.batch, &p.opt
	c.ignore("clip_ratio_low", "clip_ratio_high", "clip_ratio_c") // not read by this loss
	if c.has("rollout_is_weights") || c.flagOr("rollout_is_weights", false) {
		c.undetermined("kl_cov with importance weights")
	}
	o.Kind, o.Cov = rl.LossKLCov, rl.CovOptions{Fraction: nested(c, "policy_loss", "kl_cov_ratio"), Coef: nested(c, "policy_loss", "ppo_kl_coef")}
	c.within("policy_loss.kl_cov_ratio", o.Cov.Fraction, o.Cov.Fraction > 0 && o.Cov.Fraction <= 1, "more than 0 and at most 1")
	o.Agg = verlAgg(c, c.text("loss_agg_mode"))
	if !c.ok() {
		return nil
	}
	cov := rl.TokenCovariance(nil, b.LogProbs, b.Adv, b.Mask, 0)
	held := rl.KLCovSelect(nil, cov, b.Mask, o.Cov)
	tied, free := tiedCovariances(cov, held, b)
	if free == 0 {
		return p.answers(c, 0, nil, "")
	}
	recorded := c.e.Out["loss_mat"]
	if recorded == nil || len(recorded.Data) != len(cov) {
		c.undetermined("covariances tie, and there is no loss_mat that tells which tokens are held")
		return nil
	}
	ratio := rl.Ratio(nil, b.LogProbs, b.Old, b.Mask, b.Rows, b.Cols, o.Ratio)
	for i, t := range tied {
		if !t {
			continue
		}
		plain := -b.Adv[i] * ratio[i]
		with := plain + float64(o.Cov.Coef*math.Abs(b.LogProbs[i]-b.Old[i]))
		held[i] = free > 0 && math.Abs(recorded.Data[i]-with) < math.Abs(recorded.Data[i]-plain)
		if held[i] {
			free--
		}
	}
	for i, t := range tied { // what is left over holds tokens without a change
		if t && !held[i] && free > 0 && b.LogProbs[i] == b.Old[i] {
			held[i] = true
			free--
		}
	}
	token, dratio, dlp := rl.KLCov(nil, nil, nil, ratio, b.LogProbs, b.Old, b.Adv, held, o.Cov.Coef)
	loss, weight, err := rl.Aggregate(nil, token, b.Mask, b.Rows, b.Cols, o.Agg)
	if err != nil {
		return []answer{refused("loss", nil, err)}
	}
	for i, w := range weight {
		dlp[i] = float64(w * (dlp[i] + float64(dratio[i]*ratio[i])))
	}
	r := rl.PolicyResult{Loss: loss, Token: token, Ratio: ratio, DLogp: dlp, Weights: weight}
	out := []answer{plain("loss", loss), plain("dloss_dlogp", dlp...), {output: "loss_mat", got: token, only: b.Mask, maybe: true}}
	return append(out, p.metrics(c, &r, &r, "")...)
}

// tiedCovariances returns the true cells whose covariance is the smallest that is held, within the rounding of the means,
// and how many of them are held; 0 if all of them are.
func tiedCovariances(cov []float64, held []bool, b *rl.PolicyBatch) (tied []bool, free int) {
	cut, largest := math.Inf(1), 0.0
	for i, m := range b.Mask {
		if m {
			largest = max(largest, math.Abs(b.Adv[i]*b.LogProbs[i]))
		}
		if held[i] {
			cut = min(cut, cov[i])
		}
	}
	tied = make([]bool, len(cov))
	left := 0
	for i, m := range b.Mask {
		if m && math.Abs(cov[i]-cut) <= 1e-13*largest {
			tied[i] = true
			if left++; held[i] {
				free++
			}
		}
	}
	if left == free {
		return tied, 0
	}
	return tied, free
}

// nested returns a number in an option that is an object.
func nested(c *call, key, name string) float64 {
	object, ok := c.option(key).(map[string]any)
	if !ok {
		c.malformed("option %s is no object", key)
		return 0
	}
	x, ok := object[name].(float64)
	if !ok {
		c.malformed("option %s.%s is no number", key, name)
	}
	return x
}

// readOpenRLHF maps OpenRLHF's PolicyLoss.
func readOpenRLHF(c *call) (p *policyCase, bonus float64) {
	p = &policyCase{batch: policyBatch(c)}
	b, o := &p.batch, &p.opt
	o.Clip.Low, o.Clip.High = c.value("clip_eps_low"), c.value("clip_eps_high")
	dual, on := c.num("dual_clip")
	c.within("dual_clip", dual, !on || dual > 1, "more than 1")
	o.Clip.Dual = dual
	o.Agg = openrlhfAgg(c)
	level, mode, gating := c.text("is_correction_level"), c.text("is_correction_mode"), c.text("is_correction_gating")
	lo, hi, bounded := c.bounds("is_correction_threshold")
	var w rl.TISOptions
	switch kind := c.text("policy_loss_type"); kind {
	case "ppo":
		o.Ratio.LogClamp = 20
	case "gspo":
		o.Kind = rl.LossGSPO
		o.Ratio = rl.RatioOptions{Level: rl.RatioSeqMean}
		o.Agg = verlAgg(c, "seq-mean-token-mean")
	default:
		c.undetermined("policy_loss_type %q", short(kind))
	}
	switch level {
	case "off":
	case "token":
		w = rl.TISOptions{Level: rl.TISToken, Rule: rl.TISZeroOutside, Low: lo, High: hi}
	case "seq":
		w = rl.TISOptions{Level: rl.TISSeqGeo, Rule: rl.TISSeqFilter, Low: lo, High: hi}
	default:
		c.undetermined("is_correction_level %q", short(level))
	}
	if w.Level != rl.TISNone {
		switch {
		case !bounded:
			c.malformed("option is_correction_threshold is null, want two numbers")
		case o.Kind == rl.LossGSPO:
			c.undetermined("is_correction_level %q with gspo", level)
		case mode == "clip":
			w.Rule = rl.TISClamp
		case mode != "mask":
			c.undetermined("is_correction_mode %q", short(mode))
		}
		var err error
		if w.Gate, err = rl.ParseTISGate(gating); err != nil {
			c.undetermined("is_correction_gating %q", short(gating))
		}
	}
	if c.has("rollout_log_prob") {
		c.shaped("rollout_log_prob", b.Rows, b.Cols) // of a metric, too
	} else if w.Level != rl.TISNone {
		c.malformed("input rollout_log_prob is missing")
	}
	if w.Level != rl.TISNone && c.ok() {
		b.Weight = rl.ISWeights(nil, b.Old, c.e.In["rollout_log_prob"].Data, b.Mask, b.Rows, b.Cols, w)
	}
	return p, 0
}
