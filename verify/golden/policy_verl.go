package golden

import (
	"math"
	"strings"

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

// readVerl maps the loss functions of verl, whose names end in the loss_mode of its configuration.
func readVerl(c *call) (p *policyCase, bonus float64) {
	p = &policyCase{batch: policyBatch(c)}
	mode := strings.TrimPrefix(c.e.Function, "compute_policy_loss_")
	given := native{{Name: "loss_mode", Value: mode}}
	if mode == "reinforce" { // one of rollout_correction
		given = native{{Name: "loss.kind", Value: mode}}
	}
	given.number(c, "clip_ratio_low", "clip_ratio_low")
	given.number(c, "clip_ratio_high", "clip_ratio_high")
	dual := c.numOr("clip_ratio_c", 3)
	if c.within("clip_ratio_c", dual, dual > 1, "more than 1"); c.e.Options["clip_ratio_c"] != nil || strings.HasPrefix(mode, "dppo_") {
		given.set("clip_ratio_c", dual)
	}
	if c.has("rollout_is_weights") && c.flagOr("rollout_is_weights", true) {
		p.batch.Weight = c.shaped("rollout_is_weights", p.batch.Rows, p.batch.Cols)
	} else if c.flagOr("rollout_is_weights", false) {
		c.malformed("option rollout_is_weights is true, and there is no such input")
	}
	switch mode {
	case "sapo":
		for _, name := range []string{"tau_pos", "tau_neg"} {
			x := c.value(name)
			c.within(name, x, x > 0, "more than 0")
			given.set(name, x)
		}
	case "dro":
		given.set("dro_beta", nested(c, "policy_loss", "dro_beta"))
	case "clip_cov":
		given.set("clip_cov_lb", nested(c, "policy_loss", "clip_cov_lb"))
		given.set("clip_cov_ub", nested(c, "policy_loss", "clip_cov_ub"))
		if share := nested(c, "policy_loss", "clip_cov_ratio"); !(share >= 1) {
			c.undetermined("clip_cov_ratio %v: which of the candidates are left out is random", share)
		}
	case "kl_cov":
		given.set("kl_cov_ratio", nested(c, "policy_loss", "kl_cov_ratio"))
		given.set("ppo_kl_coef", nested(c, "policy_loss", "ppo_kl_coef"))
	case "geo_mean":
		given.set("clip_ratio", c.value("clip_ratio"))
		if p.batch.Weight != nil {
			c.undetermined("geo_mean with importance weights")
		}
	}
	if mode != "geo_mean" {
		given.set("loss_agg_mode", c.text("loss_agg_mode"))
	}
	o := c.conventions(verlGRPOProfile, given)
	p.opt = o.Policy()
	p.opt.Agg = c.counted(p.opt.Agg)
	p.opt.Ratio.PerToken = mode == "gspo"
	if mode == "clip_cov" {
		p.opt.Cov.MeanEps = o.Mean().Eps
	}
	c.said(o)
	return p, 0
}

// verlKLCov holds back the tokens of highest covariance. Where covariances tie at the cut, which of them are held is the
// order of a sort: the recorded token losses tell, and only their number is judged.
func verlKLCov(c *call) []answer {
	p, _ := readVerl(c)
	b, o := &p.batch, &p.opt
	if b.Weight != nil {
		c.undetermined("kl_cov with importance weights")
	}
	c.within("policy_loss.kl_cov_ratio", o.Cov.Fraction, o.Cov.Fraction > 0 && o.Cov.Fraction <= 1, "more than 0 and at most 1")
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
	b := &p.batch
	dual, on := c.num("dual_clip")
	c.within("dual_clip", dual, !on || dual > 1, "more than 1")
	given := native{{Name: "eps_clip_low_high", Value: []any{c.value("clip_eps_low"), c.value("clip_eps_high")}}, {Name: "loss_agg_mode", Value: openrlhfMode(c)},
		{Name: "dual_clip", Value: c.option("dual_clip")}}
	for _, name := range []string{"policy_loss_type", "is_correction_level", "is_correction_mode", "is_correction_gating"} {
		given.set(name, c.text(name))
	}
	if lo, hi, bounded := c.bounds("is_correction_threshold"); bounded {
		given.set("is_correction_threshold", []any{lo, hi})
	} else if c.text("is_correction_level") != "off" {
		c.malformed("option is_correction_threshold is null, want two numbers")
	}
	o := c.conventions(openrlhfGroupProfile, given)
	p.opt = o.Policy()
	p.opt.Agg = c.counted(p.opt.Agg)
	w := o.Weights()
	c.said(o)
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
