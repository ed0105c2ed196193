package golden_test

import (
	"math"
	"testing"

	"plumbline/reference/rl"

	"github.com/stretchr/testify/require"
)

// policyCase is what an entry's call is in terms of the reference.
type policyCase struct {
	batch rl.PolicyBatch
	opt   rl.PolicyOptions
}

// batchOf reads the tensors that most entries have.
func batchOf(t *testing.T, e *entry) rl.PolicyBatch {
	t.Helper()
	mask := e.input(t, "response_mask")
	rows, cols := mask.dims(t)
	b := rl.PolicyBatch{Rows: rows, Cols: cols, LogProbs: e.input(t, "log_prob").Data, Old: e.input(t, "old_log_prob").Data, Mask: mask.bools()}
	if seq, ok := e.In["advantages_seq"]; ok {
		b.Adv = make([]float64, rows*cols)
		for i := range b.Adv {
			b.Adv[i] = seq.Data[i/cols]
		}
	} else {
		b.Adv = e.input(t, "advantages").Data
	}
	return b
}

// option returns a numeric option, or def if it is absent or null.
func option(t *testing.T, e *entry, key string, def float64) float64 {
	t.Helper()
	if o, ok := e.Options[key]; ok && o != nil {
		return number(t, o)
	}
	return def
}

// verlAgg maps verl's aggregation mode.
func verlAgg(t *testing.T, e *entry, mode string) rl.AggOptions {
	t.Helper()
	o := rl.AggOptions{LenEps: 1e-8, Outside: rl.OutsideIgnore, Scale: option(t, e, "dp_size", 1)}
	switch mode {
	case "token-mean":
		o.Kind = rl.AggToken
	case "token-sum":
		o.Kind = rl.AggTokenSum
	case "seq-mean-token-sum":
		o.Kind = rl.AggSeqMeanTokenSum
	case "seq-mean-token-sum-norm":
		o.Kind, o.DivBatch, o.Length = rl.AggSeqSumConst, true, option(t, e, "loss_scale_factor", 0)
	case "seq-mean-token-mean":
		o.Kind = rl.AggSeqMeanTokenMean
	default:
		t.Fatalf("%s: unknown mode", e.name())
	}
	if _, ok := e.Options["global_batch_size"]; ok {
		o.Denominator = rl.AggGlobal
		o.Tokens, o.Rows = option(t, e, "batch_num_tokens", 0), option(t, e, "global_batch_size", 0)
	}
	return o
}

// openrlhfAgg maps OpenRLHF's aggregation.
func openrlhfAgg(t *testing.T, e *entry) rl.AggOptions {
	t.Helper()
	if e.flag(t, "token_level_loss") {
		return verlAgg(t, e, "token-mean")
	}
	return verlAgg(t, e, "seq-mean-token-mean")
}

// verlPolicy maps the loss functions of verl.
func verlPolicy(t *testing.T, e *entry) policyCase {
	t.Helper()
	c := policyCase{batch: batchOf(t, e)}
	low, high := option(t, e, "clip_ratio_low", 0.2), option(t, e, "clip_ratio_high", 0.2)
	o := &c.opt
	o.Ratio.LogClamp = 20
	o.Clip = rl.ClipOptions{Low: low, High: high}
	if w, ok := e.In["rollout_is_weights"]; ok {
		c.batch.Weight = w.Data
	}
	policyLoss, _ := e.Options["policy_loss"].(map[string]any)
	sub := func(key string) float64 { return number(t, policyLoss[key]) }
	switch e.Function {
	case "compute_policy_loss_vanilla":
		o.Clip.Dual = option(t, e, "clip_ratio_c", 3)
	case "compute_policy_loss_gspo":
		o.Kind = rl.LossGSPO
		o.Ratio = rl.RatioOptions{Level: rl.RatioSeqMean, SeqLogMax: 10, PerToken: true}
	case "compute_policy_loss_dppo_tv":
		o.Kind, o.DPPOLimit = rl.LossDPPOTV, 3
	case "compute_policy_loss_dppo_kl":
		o.Kind, o.DPPOLimit = rl.LossDPPOKL, 3
	case "compute_policy_loss_sapo":
		o.Kind, o.TauPos, o.TauNeg = rl.LossSAPO, option(t, e, "tau_pos", 0), option(t, e, "tau_neg", 0)
	case "compute_policy_loss_gpg", "compute_policy_loss_reinforce":
		o.Kind = rl.LossReinforce
	case "compute_policy_loss_cispo":
		o.Kind = rl.LossCISPO
	case "compute_policy_loss_dro":
		o.Kind, o.DROBeta = rl.LossDRO, sub("dro_beta")
	case "compute_policy_loss_clip_cov":
		o.Kind = rl.LossClipCov
		o.Ratio.LogClamp = 0
		o.Cov = rl.CovOptions{Lower: sub("clip_cov_lb"), Upper: sub("clip_cov_ub"), MeanEps: 1e-8}
	case "compute_policy_loss_kl_cov":
		o.Kind = rl.LossKLCov
		o.Ratio.LogClamp = 0
		o.Cov = rl.CovOptions{Fraction: sub("kl_cov_ratio"), Coef: sub("ppo_kl_coef")}
	case "compute_policy_loss_geo_mean":
		eps := option(t, e, "clip_ratio", 0)
		o.Kind, o.GMPO = rl.LossGMPO, rl.GMPOOptions{Low: eps, High: eps, LenEps: 1e-8}
	default:
		t.Fatalf("%s: unknown function", e.name())
	}
	if mode, ok := e.Options["loss_agg_mode"].(string); ok {
		o.Agg = verlAgg(t, e, mode)
	}
	return c
}

// openrlhfPolicy maps OpenRLHF's PolicyLoss.
func openrlhfPolicy(t *testing.T, e *entry) policyCase {
	t.Helper()
	c := policyCase{batch: batchOf(t, e)}
	o := &c.opt
	o.Clip.Low, _ = e.num(t, "clip_eps_low")
	o.Clip.High, _ = e.num(t, "clip_eps_high")
	o.Clip.Dual, _ = e.num(t, "dual_clip")
	o.Agg = openrlhfAgg(t, e)
	if e.str(t, "policy_loss_type") == "gspo" {
		o.Kind = rl.LossGSPO
		o.Ratio = rl.RatioOptions{Level: rl.RatioSeqMean}
		o.Agg = verlAgg(t, e, "seq-mean-token-mean")
		return c
	}
	o.Ratio.LogClamp = 20
	level := e.str(t, "is_correction_level")
	if level == "off" {
		return c
	}
	bounds := e.nums(t, "is_correction_threshold")
	gate, err := rl.ParseTISGate(e.str(t, "is_correction_gating"))
	require.NoError(t, err)
	w := rl.TISOptions{Level: rl.TISToken, Rule: rl.TISZeroOutside, Gate: gate, Low: bounds[0], High: bounds[1]}
	if level == "seq" {
		w.Level, w.Rule = rl.TISSeqGeo, rl.TISSeqFilter
	}
	if e.str(t, "is_correction_mode") == "clip" {
		w.Rule = rl.TISClamp
	}
	b := &c.batch
	b.Weight = rl.ISWeights(nil, b.Old, e.input(t, "rollout_log_prob").Data, b.Mask, b.Rows, b.Cols, w)
	return c
}

// trlPolicy maps TRL's GRPOTrainer and Liger's copy of it.
func trlPolicy(t *testing.T, e *entry) policyCase {
	t.Helper()
	c := policyCase{batch: batchOf(t, e)}
	b, o := &c.batch, &c.opt
	low, high := option(t, e, "epsilon_low", 0.2), option(t, e, "epsilon_high", 0.2)
	o.Clip = rl.ClipOptions{Low: low, High: high, Delta: option(t, e, "delta", 0)}
	o.Agg = rl.AggOptions{EmptyRows: rl.AggCounted, Outside: rl.OutsidePropagate, Empty: rl.EmptyZero}
	steps := option(t, e, "current_gradient_accumulation_steps", 1)
	if e.str(t, "importance_sampling_level") == "sequence" {
		o.Ratio.Level = rl.RatioSeqMean
	}
	global := func() {
		o.Agg.Kind, o.Agg.Denominator, o.Agg.Tokens = rl.AggToken, rl.AggGlobal, e.input(t, "num_items_in_batch").scalar(t)
	}
	switch kind := e.str(t, "loss_type"); kind {
	case "grpo":
		o.Agg.Kind, o.Agg.Steps = rl.AggSeqMeanTokenMean, steps
	case "sapo":
		o.Kind, o.TauPos, o.TauNeg = rl.LossSAPO, 1, 1.05
		if e.Peer == "trl" {
			o.TauNeg = float64(float32(1.05)) // torch.where makes the two numbers a float32 tensor
		}
		o.Agg.Kind, o.Agg.Steps = rl.AggSeqMeanTokenMean, steps
	case "bnpo":
		o.Agg.Kind, o.Agg.Steps = rl.AggToken, steps
	case "dr_grpo":
		o.Agg.Kind, o.Agg.DivBatch, o.Agg.Steps = rl.AggSeqSumConst, true, steps
		o.Agg.Length = option(t, e, "max_completion_length", 0)
	case "luspo":
		o.Kind, o.Agg.Kind, o.Agg.Steps = rl.LossLUSPO, rl.AggSeqMeanTokenSum, steps
		if e.Peer == "liger" {
			o.Agg.Kind = rl.AggLUSPO
		}
	case "dapo":
		global()
	case "cispo":
		o.Kind = rl.LossCISPO
		o.Clip = rl.ClipOptions{Low: math.Inf(1), High: high, HighAbsolute: true}
		global()
	case "vespo":
		o.Kind, o.VESPO = rl.LossVESPO, rl.VESPODefaults
		global()
	default:
		t.Fatalf("%s: unknown loss", e.name())
	}
	if beta := option(t, e, "beta", 0); beta != 0 {
		b.Ref, o.KLBeta = e.input(t, "ref_log_prob").Data, beta
		o.KL.Kind = rl.KLK3
		if on, _ := e.Options["use_bias_correction_kl"].(bool); on {
			o.KL.Grad = rl.KLISCorrected
		}
	}
	for _, key := range []string{"importance_sampling_ratio", "vllm_is_ratio"} {
		if w, ok := e.In[key]; ok {
			b.Weight = w.Data
		}
	}
	if top := option(t, e, "top_entropy_quantile", 0); top != 0 {
		b.Weight = rl.HighEntropyMask(nil, e.input(t, "entropies").Data, b.Mask, top)
	}
	if threshold := option(t, e, "off_policy_mask_threshold", 0); threshold != 0 {
		b.Weight = rl.OffPolicyMask(nil, b.LogProbs, b.Old, b.Adv, b.Mask, b.Rows, b.Cols, threshold)
	}
	return c
}

func TestPolicyLoss(t *testing.T) {
	compared, outputs := map[string]int{}, map[string]int{}
	for _, e := range load(t, "policy_loss") {
		compared[e.Peer+" "+e.Function]++
		var c policyCase
		switch {
		case e.Function == "agg_loss" || e.Function == "aggregate_loss":
			loss, mask := e.input(t, "loss_mat"), e.input(t, "loss_mask")
			rows, cols := mask.dims(t)
			var o rl.AggOptions
			if e.Peer == "verl" {
				o = verlAgg(t, e, e.str(t, "loss_agg_mode"))
			} else {
				o = openrlhfAgg(t, e)
			}
			got, w, err := rl.Aggregate(nil, loss.Data, mask.bools(), rows, cols, o)
			require.NoError(t, err)
			requireNear(t, e, "loss", []float64{got}, e.output(t, "loss").Data, exact)
			requireNear(t, e, "dloss_dmat", w, e.output(t, "dloss_dmat").Data, exact)
			continue
		case e.Function == "RLOOTrainer._compute_loss":
			compareRLOO(t, e)
			continue
		case e.Function == "LigerFusedLinearGRPOLoss":
			compareFusedLinear(t, e)
			continue
		case e.Peer == "verl":
			c = verlPolicy(t, e)
		case e.Peer == "openrlhf":
			c = openrlhfPolicy(t, e)
		default:
			c = trlPolicy(t, e)
		}
		b := &c.batch
		var r rl.PolicyResult
		require.NoError(t, rl.Policy(&r, *b, c.opt), e.name())
		metrics := policyMetrics(t, e, &c, &r)
		if on, _ := e.Options["_entropy_bonus_enabled"].(bool); on {
			bonus, _, err := rl.EntropyBonus(nil, e.input(t, "entropies").Data, b.Mask, b.Rows, b.Cols,
				option(t, e, "entropy_coef", 0), rl.AggOptions{})
			require.NoError(t, err)
			r.Loss += bonus
		}
		requireNear(t, e, "loss", []float64{r.Loss}, e.output(t, "loss").Data, exact)
		requireNear(t, e, "dloss_dlogp", r.DLogp, e.output(t, "dloss_dlogp").Data, exact)
		for what, out := range e.Out {
			switch want, ok := metrics[what]; {
			case what == "loss" || what == "dloss_dlogp":
			case what == "loss_mat": // at true cells: the weights of masked ones are 0 here
				var got, wanted []float64
				for i, m := range b.Mask {
					if m {
						got, wanted = append(got, r.Token[i]), append(wanted, out.Data[i])
					}
				}
				requireNear(t, e, what, got, wanted, exact)
				outputs[what]++
			case ok:
				tol := exact
				if e.Peer == "trl" && c.opt.Ratio.Level == rl.RatioSeqMean {
					tol = f32 // a mean of float32 flags
				}
				requireNear(t, e, what, []float64{want}, out.Data, tol)
				outputs[what]++
			case notCompared[what] == "":
				t.Errorf("%s: output %s is neither compared nor excused", e.name(), what)
			}
		}
	}
	require.Equal(t, map[string]int{
		"verl agg_loss": 44, "openrlhf aggregate_loss": 16, "verl compute_policy_loss_vanilla": 56,
		"verl compute_policy_loss_gspo": 16, "verl compute_policy_loss_dppo_tv": 4, "verl compute_policy_loss_dppo_kl": 4,
		"verl compute_policy_loss_sapo": 8, "verl compute_policy_loss_gpg": 4, "verl compute_policy_loss_cispo": 4,
		"verl compute_policy_loss_dro": 8, "verl compute_policy_loss_clip_cov": 4, "verl compute_policy_loss_kl_cov": 4,
		"verl compute_policy_loss_geo_mean": 4, "verl compute_policy_loss_reinforce": 4, "openrlhf PolicyLoss": 60,
		"trl GRPOTrainer._compute_loss": 92, "trl RLOOTrainer._compute_loss": 4,
		"liger LigerFusedLinearGRPOFunction.ppo_loss_fn": 56, "liger LigerFusedLinearGRPOLoss": 4,
	}, compared)
	require.Equal(t, map[string]int{"loss_mat": 172, "pg_clipfrac": 100, "pg_clipfrac_lower": 96, "ppo_kl": 172, "clip_ratio": 60,
		"vllm_kl": 40, "entropy": 92, "clip_ratio_low_mean": 76, "clip_ratio_high_mean": 76, "clip_ratio_region_mean": 76,
		"cispo_clip_ratio": 8, "clip_fraction": 56, "kl": 8, "policy_loss": 4}, outputs)
}

// compareRLOO checks TRL's RLOO loss: the surrogate on one ratio exp(Σnew − Σold) per row, averaged over the rows.
func compareRLOO(t *testing.T, e *entry) {
	t.Helper()
	b := batchOf(t, e)
	low, _ := e.num(t, "epsilon_low")
	high, _ := e.num(t, "epsilon_high")
	rows := rl.PolicyBatch{Rows: b.Rows, Cols: 1, Adv: e.input(t, "advantages_seq").Data,
		LogProbs: rl.RowSums(nil, b.LogProbs, b.Mask, b.Rows, b.Cols), Old: rl.RowSums(nil, b.Old, b.Mask, b.Rows, b.Cols)}
	clip := rl.ClipOptions{Low: low, High: high}
	var r rl.PolicyResult
	require.NoError(t, rl.Policy(&r, rows, rl.PolicyOptions{Clip: clip}))
	grad := make([]float64, len(b.LogProbs))
	for i, m := range b.Mask {
		if m {
			grad[i] = r.DLogp[i/b.Cols]
		}
	}
	requireNear(t, e, "loss", []float64{r.Loss}, e.output(t, "loss").Data, exact)
	requireNear(t, e, "dloss_dlogp", grad, e.output(t, "dloss_dlogp").Data, exact)
	// The fraction is a mean of float32 flags.
	frac := mean(t, rl.Clipped(nil, r.Ratio, rows.Adv, rl.ClipFracBinding, clip), nil, 0)
	requireNear(t, e, "clip_ratio_region_mean", []float64{frac}, e.output(t, "clip_ratio_region_mean").Data, f32)
}

// compareFusedLinear checks Liger's loss from hidden states and a head's weight, float32 inside. Its inputs are float32;
// the tolerance is 32 roundings relative to the largest gradient, for a chain of a product over 8, a softmax over 13, the
// loss, and sums over at most 13.
func compareFusedLinear(t *testing.T, e *entry) {
	t.Helper()
	hidden, weight, mask := e.input(t, "hidden"), e.input(t, "weight"), e.input(t, "mask")
	rows, cols := mask.dims(t)
	width, vocab := hidden.Shape[2], weight.Shape[0]
	cells := rows * cols
	var ids []int
	for _, id := range e.input(t, "ids").Data {
		ids = append(ids, int(id))
	}
	logits := make([]float64, cells*vocab)
	for n := range cells {
		for v := range vocab {
			for h := range width {
				logits[n*vocab+v] += hidden.Data[n*width+h] * weight.Data[v*width+h]
			}
		}
	}
	adv := make([]float64, cells)
	for i := range adv {
		adv[i] = e.input(t, "advantages").Data[i/cols]
	}
	beta, _ := e.num(t, "beta")
	b := rl.PolicyBatch{Rows: rows, Cols: cols, Mask: mask.bools(), Adv: adv, LogProbs: rl.LogProbs(nil, logits, ids, vocab, rl.LogProbOptions{}),
		Old: e.input(t, "old_logp").Data, Ref: e.input(t, "ref_logp").Data}
	o := rl.PolicyOptions{Clip: rl.ClipOptions{Low: option(t, e, "epsilon_low", 0), High: option(t, e, "epsilon_high", 0)},
		KLBeta: beta, KL: rl.KLOptions{Kind: rl.KLK3}}
	switch e.str(t, "loss_type") {
	case "grpo":
		o.Agg = rl.AggOptions{Kind: rl.AggSeqMeanTokenMean, EmptyRows: rl.AggCounted}
	case "bnpo", "dapo": // without num_items, dapo counts the tokens at hand
	case "dr_grpo":
		o.Agg = rl.AggOptions{Kind: rl.AggSeqSumConst, DivBatch: true, Length: option(t, e, "max_completion_length", 0)}
	}
	var r rl.PolicyResult
	require.NoError(t, rl.Policy(&r, b, o))
	dlogits := rl.LogProbsBackward(nil, r.DLogp, logits, ids, vocab, rl.LogProbOptions{})
	dhidden, dweight := make([]float64, len(hidden.Data)), make([]float64, len(weight.Data))
	for n := range cells {
		for v := range vocab {
			for h := range width {
				dhidden[n*width+h] += dlogits[n*vocab+v] * weight.Data[v*width+h]
				dweight[v*width+h] += dlogits[n*vocab+v] * hidden.Data[n*width+h]
			}
		}
	}
	requireNear(t, e, "loss", []float64{r.Loss}, e.output(t, "loss").Data, 32*f32)
	for what, got := range map[string][]float64{"dloss_dhidden": dhidden, "dloss_dweight": dweight} {
		requireNear(t, e, what, got, e.output(t, what).Data, 32*f32)
	}
}
