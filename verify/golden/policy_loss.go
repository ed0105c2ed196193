package golden

import (
	"plumbline/reference/rl"
)

// PolicyLoss judges policy losses with gradients and metrics, and the aggregation of token losses.
var PolicyLoss = policyLoss.check()

var policyLoss = &section{
	name:  "policy_loss",
	title: "policy losses, gradients and metrics are those of the frameworks",
	doc: `Recomputes the policy losses of verl, OpenRLHF's PolicyLoss, TRL's GRPO and RLOO losses and Liger's copy of them, and
agg_loss. Compares the loss, ∂loss/∂lp, the token losses at true cells, and what the frameworks log beside: clip fractions,
approximate KL, entropy. Where covariances tie, kl_cov may hold any of the tied tokens.`,
	source: "options loss.*, ratio.*, clip.*, agg.*, tis.*, metric.*; reference/rl Policy, Aggregate, ISWeights, Clipped, ApproxKL",
	functions: map[string]recompute{
		"verl agg_loss": aggregateLoss, "openrlhf aggregate_loss": aggregateLoss,
		"verl compute_policy_loss_vanilla":               verlPolicy,
		"verl compute_policy_loss_gspo":                  verlPolicy,
		"verl compute_policy_loss_dppo_tv":               verlPolicy,
		"verl compute_policy_loss_dppo_kl":               verlPolicy,
		"verl compute_policy_loss_sapo":                  verlPolicy,
		"verl compute_policy_loss_gpg":                   verlPolicy,
		"verl compute_policy_loss_cispo":                 verlPolicy,
		"verl compute_policy_loss_dro":                   verlPolicy,
		"verl compute_policy_loss_clip_cov":              verlPolicy,
		"verl compute_policy_loss_kl_cov":                verlKLCov,
		"verl compute_policy_loss_geo_mean":              verlPolicy,
		"verl compute_policy_loss_reinforce":             verlPolicy,
		"openrlhf PolicyLoss":                            openrlhfPolicy,
		"trl GRPOTrainer._compute_loss":                  trlPolicy,
		"trl RLOOTrainer._compute_loss":                  trlRLOOLoss,
		"liger LigerFusedLinearGRPOFunction.ppo_loss_fn": trlPolicy,
		"liger LigerFusedLinearGRPOLoss":                 ligerFused,
	},
	faults: policyLossFaults,
}

// policyCase is what an entry's call is in terms of the reference.
type policyCase struct {
	batch rl.PolicyBatch
	opt   rl.PolicyOptions
}

// policyBatch reads the tensors that most entries have.
func policyBatch(c *call) rl.PolicyBatch {
	_, rows, cols := c.grid("response_mask")
	b := rl.PolicyBatch{Rows: rows, Cols: cols, LogProbs: c.shaped("log_prob", rows, cols), Old: c.shaped("old_log_prob", rows, cols),
		Mask: c.mask("response_mask", rows, cols)}
	if c.has("advantages_seq") {
		seq := c.shaped("advantages_seq", rows)
		if c.ok() {
			b.Adv = repeated(seq, cols)
		}
	} else {
		b.Adv = c.shaped("advantages", rows, cols)
	}
	return b
}

// repeated returns each x cols times.
func repeated(x []float64, cols int) []float64 {
	y := make([]float64, len(x)*cols)
	for i := range y {
		y[i] = x[i/cols]
	}
	return y
}

// counted adds to an aggregation of verl or OpenRLHF what the call counts: tokens, rows and ranks.
func (c *call) counted(o rl.AggOptions) rl.AggOptions {
	o.Outside, o.Scale, o.Length = rl.OutsideIgnore, c.numOr("dp_size", 1), c.numOr("loss_scale_factor", 0)
	if c.e.Options["global_batch_size"] != nil {
		o.Denominator, o.Tokens, o.Rows = rl.AggGlobal, c.value("batch_num_tokens"), c.value("global_batch_size")
	}
	return o
}

// openrlhfMode is the name of OpenRLHF's aggregation.
func openrlhfMode(c *call) string {
	if c.flag("token_level_loss") {
		return "token-mean"
	}
	return "seq-mean-token-mean"
}

func aggregateLoss(c *call) []answer {
	loss, rows, cols := c.grid("loss_mat")
	mask := c.mask("loss_mask", rows, cols)
	profile, mode := verlGRPOProfile, ""
	if c.e.Peer == "verl" {
		mode = c.text("loss_agg_mode")
	} else {
		profile, mode = openrlhfGroupProfile, openrlhfMode(c)
	}
	by := c.conventions(profile, native{{Name: "loss_agg_mode", Value: mode}})
	o := c.counted(by.Aggregation())
	if c.said(by); !c.ok() {
		return nil
	}
	got, w, err := rl.Aggregate(nil, loss, mask, rows, cols, o)
	return []answer{refused("loss", []float64{got}, err), {output: "dloss_dmat", got: w, err: err}}
}

// answers computes the loss of p and everything that an entry may have beside it. leaked is p with what the framework
// computes in float32, nil where it does not.
func (p *policyCase) answers(c *call, bonus float64, leaked *policyCase, leak Leak) []answer {
	var r rl.PolicyResult
	if err := rl.Policy(&r, p.batch, p.opt); err != nil {
		return []answer{refused("loss", nil, err)}
	}
	l := r
	if leaked != nil {
		l = rl.PolicyResult{}
		if err := rl.Policy(&l, leaked.batch, leaked.opt); err != nil {
			return []answer{refused("loss", nil, err)}
		}
	}
	out := []answer{
		leaking("loss", []float64{r.Loss + bonus}, []float64{l.Loss + bonus}, leak),
		leaking("dloss_dlogp", r.DLogp, l.DLogp, leak),
		{output: "loss_mat", got: r.Token, only: p.batch.Mask, maybe: true}, // the weights of masked cells are 0 here
	}
	return append(out, p.metrics(c, &r, &l, leak)...)
}

// trlRLOOLoss is TRL's RLOO loss: the surrogate on one ratio exp(Σnew − Σold) per row, averaged over the rows.
func trlRLOOLoss(c *call) []answer {
	b := policyBatch(c)
	seq := c.shaped("advantages_seq", b.Rows)
	o := c.conventions(trlRLOOProfile, native{{Name: "epsilon", Value: c.value("epsilon_low")}, {Name: "epsilon_high", Value: c.value("epsilon_high")}})
	clip := o.Policy().Clip
	if c.said(o); !c.ok() {
		return nil
	}
	rows := rl.PolicyBatch{Rows: b.Rows, Cols: 1, Adv: seq,
		LogProbs: rl.RowSums(nil, b.LogProbs, b.Mask, b.Rows, b.Cols), Old: rl.RowSums(nil, b.Old, b.Mask, b.Rows, b.Cols)}
	p := policyCase{batch: rows, opt: rl.PolicyOptions{Clip: clip, Ratio: rl.RatioOptions{Level: rl.RatioSeqMean}}} // of one cell
	var r rl.PolicyResult
	if err := rl.Policy(&r, p.batch, p.opt); err != nil {
		return []answer{refused("loss", nil, err)}
	}
	grad := make([]float64, len(b.LogProbs))
	for i, m := range b.Mask {
		if m {
			grad[i] = r.DLogp[i/b.Cols]
		}
	}
	return append([]answer{plain("loss", r.Loss), plain("dloss_dlogp", grad...)}, p.metrics(c, &r, &r, "")...)
}
