package golden

import (
	"math"

	"plumbline/reference/rl"
)

// ppoBatch is the rollout of TRL's PPOTrainer as an entry has it.
type ppoBatch struct {
	rows, cols       int
	last             []int  // sequence_lengths: the index of the last token, −1 of a response that is empty
	mask, p1         []bool // up to the last token, and one cell more
	old, ref, values []float64
	score            []float64
	finished         []bool
	k3               bool // the estimator of KL: k1, or k3
	whiten           bool
	eos              rl.EOSRule
	penalty          float64
	beta             float64
	gae              rl.GAEOptions
	variance         rl.WhitenOptions
	clip             rl.ClipOptions
	loss             rl.ValueOptions
	coef             float64
}

// ppoRewards is what the rollout statements make of a batch.
type ppoRewards struct{ kl, rewards, adv, ret []float64 }

func readPPO(c *call) *ppoBatch {
	b := new(ppoBatch)
	b.old, b.rows, b.cols = c.grid("logprobs")
	b.ref, b.values = c.shaped("ref_logprobs", b.rows, b.cols), c.shaped("values", b.rows, b.cols)
	b.score, b.finished = c.shaped("scores", b.rows), c.mask("contains_eos", b.rows)
	b.mask, b.p1 = make([]bool, len(b.old)), make([]bool, len(b.old))
	b.last = c.ints("sequence_lengths", -1, b.cols, b.rows)
	for i, l := range b.last {
		for t := 0; t < b.cols && i*b.cols+t < len(b.mask); t++ {
			b.mask[i*b.cols+t], b.p1[i*b.cols+t] = t <= l, t <= l+1
		}
	}
	given := native{{Name: "kl_estimator", Value: c.text("kl_estimator")}, {Name: "kl_coef", Value: c.value("kl_coef")}, {Name: "gamma", Value: c.value("gamma")},
		{Name: "lam", Value: c.value("lam")}, {Name: "whiten_rewards", Value: c.flag("whiten_rewards")}, {Name: "missing_eos_penalty", Value: c.option("missing_eos_penalty")}}
	for _, name := range []string{"cliprange", "cliprange_value", "vf_coef"} { // of a minibatch
		given.number(c, name, name)
	}
	o := c.conventions(trlPPOProfile, given)
	b.k3, b.beta, b.gae = o.Word("kl.kind") == "k3", o.Number("kl.beta"), o.GAE()
	b.whiten, b.variance = o.Word("rewards.whiten") == "shift_mean_false", c.whitenOf("trl-ppo", true)
	if b.penalty = o.Number("eos.penalty"); !math.IsInf(b.penalty, 1) {
		b.eos, _ = rl.ParseEOSRule(o.Word("eos.rule"))
	}
	b.clip, b.loss, b.coef = o.Policy().Clip, o.Value(), o.Number("value.coef")
	c.said(o)
	return b
}

// compute runs the rollout statements, with leak under the float32 Bessel factors of both whitenings.
func (b *ppoBatch) compute(leak bool) (*ppoRewards, error) {
	r := &ppoRewards{kl: make([]float64, len(b.old))}
	for i := range r.kl {
		if b.mask[i] { // elsewhere both are the sentinel 1
			if r.kl[i] = b.old[i] - b.ref[i]; b.k3 {
				r.kl[i] += math.Expm1(-r.kl[i])
			}
		}
	}
	score := b.score
	if b.eos != rl.EOSNone {
		score = rl.MissingEOS(nil, score, b.finished, b.eos, b.penalty)
	}
	r.rewards = rl.TokenRewards(nil, score, r.kl, b.mask, nil, b.rows, b.cols, rl.RewardOptions{Beta: b.beta, Index: rl.ScoreEOSPlus1})
	for i, l := range b.last { // the cell after the last token of nothing is the first
		if l < 0 && b.cols > 0 {
			r.rewards[i*b.cols] = score[i]
		}
	}
	var err error
	if b.whiten {
		if r.rewards, err = b.whitened(r.rewards, b.p1, false, leak); err != nil {
			return nil, err
		}
	}
	r.adv, r.ret = rl.GAE(nil, nil, rl.Rollout{Rows: b.rows, Cols: b.cols, Reward: r.rewards, Value: b.values, Mask: b.mask}, b.gae)
	for i, l := range b.last { // likewise its value: one step of reward and value, and its return is the reward
		if l < 0 && b.cols > 0 {
			clear(r.adv[i*b.cols : (i+1)*b.cols])
			clear(r.ret[i*b.cols : (i+1)*b.cols])
			v := b.values[i*b.cols]
			r.adv[i*b.cols] = r.rewards[i*b.cols] - v
			r.ret[i*b.cols] = r.adv[i*b.cols] + v
		}
	}
	r.adv, err = b.whitened(r.adv, b.mask, true, leak)
	return r, err
}

// both runs the statements without and with the leak.
func (b *ppoBatch) both() (r, leaked *ppoRewards, err error) {
	if r, err = b.compute(false); err == nil {
		leaked, err = b.compute(true)
	}
	return r, leaked, err
}

func trlRollout(c *call) []answer {
	b := readPPO(c)
	if !c.ok() {
		return nil
	}
	r, leaked, err := b.both()
	if err != nil {
		return []answer{refused("advantages", nil, err)}
	}
	return []answer{
		plain("kl", r.kl...),
		leaking("rewards", r.rewards, leaked.rewards, LeakBessel),
		leaking("returns", r.ret, leaked.ret, LeakBessel),
		leaking("advantages", r.adv, leaked.adv, LeakBessel),
		plain("padding_mask", padding(b.mask)...),
		plain("padding_mask_p1", padding(b.p1)...),
	}
}

// padding returns 1 where mask is false.
func padding(mask []bool) []float64 {
	x := make([]float64, len(mask))
	for i, m := range mask {
		if !m {
			x[i] = 1
		}
	}
	return x
}

// ppoUpdate is the losses of a minibatch.
type ppoUpdate struct {
	policy, value, loss float64
	dlogp, dvalue       []float64
	clipped, vclipped   float64
}

// trlMinibatch runs the losses of the minibatch on the rollout of the same batch, recomputed, so that an error of any step
// before shows in the loss.
func trlMinibatch(c *call) []answer {
	b := readPPO(c)
	lp, v := c.shaped("new_logprobs", b.rows, b.cols), c.shaped("vpred", b.rows, b.cols)
	if !c.ok() {
		return nil
	}
	r, leaked, err := b.both()
	if err != nil {
		return []answer{refused("loss", nil, err)}
	}
	x, err := b.update(r, lp, v)
	if err != nil {
		return []answer{refused("loss", nil, err)}
	}
	y, err := b.update(leaked, lp, v)
	if err != nil {
		return []answer{refused("loss", nil, err)}
	}
	half := make([]float64, len(lp)) // ½Δ², whose mean counts padding, where Δ = 0
	for i := range half {
		if b.mask[i] {
			d := lp[i] - b.old[i]
			half[i] = .5 * float64(d*d)
		}
	}
	approx, err := rl.MaskedMean(half, nil, rl.MeanOptions{})
	scalar := func(output string, a, b float64) answer {
		return leaking(output, []float64{a}, []float64{b}, LeakBessel)
	}
	return []answer{
		scalar("pg_loss", x.policy, y.policy), scalar("vf_loss", x.value, y.value), scalar("loss", x.loss, y.loss),
		leaking("dloss_dnew_logprobs", x.dlogp, y.dlogp, LeakBessel), leaking("dloss_dvpred", x.dvalue, y.dvalue, LeakBessel),
		relative("pg_clipfrac", []float64{x.clipped}, u32, LeakFlags), relative("vf_clipfrac", []float64{x.vclipped}, u32, LeakFlags),
		refused("approxkl", []float64{approx}, err),
	}
}

// update computes the losses for the advantages and returns of r.
func (b *ppoBatch) update(r *ppoRewards, lp, v []float64) (*ppoUpdate, error) {
	var policy rl.PolicyResult
	if err := rl.Policy(&policy, rl.PolicyBatch{Rows: b.rows, Cols: b.cols, LogProbs: lp, Old: b.old, Adv: r.adv, Mask: b.mask},
		rl.PolicyOptions{Clip: b.clip, Agg: rl.AggOptions{Outside: rl.OutsideIgnore}}); err != nil {
		return nil, err
	}
	var value rl.ValueResult
	v, before := rl.Remask(nil, v, b.p1), rl.Remask(nil, b.values, b.p1)
	if err := rl.ValueLoss(&value, v, before, r.ret, b.p1, b.rows, b.cols, b.loss); err != nil {
		return nil, err
	}
	for i := range value.DValue {
		value.DValue[i] *= b.coef
	}
	u := &ppoUpdate{policy: policy.Loss, value: value.Loss, loss: policy.Loss + float64(b.coef*value.Loss), dlogp: policy.DLogp, dvalue: value.DValue}
	var err error
	if u.clipped, err = rl.MaskedMean(rl.Clipped(nil, policy.Ratio, r.adv, rl.ClipFracBinding, b.clip), b.mask, rl.MeanOptions{}); err != nil {
		return nil, err
	}
	u.vclipped, err = rl.MaskedMean(rl.ValueClipped(nil, v, before, r.ret, b.loss.Clip), b.p1, rl.MeanOptions{})
	return u, err
}
