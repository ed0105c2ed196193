package symptom

import (
	"math"
	"strings"
)

// reference judges the KL to the reference, and the mean ratio to the policy of the rollout, where their size alone says something.
func (j *judge) reference() {
	if j.Program == "arc" || j.mixed() {
		return
	}
	j.still()
	j.negativeInLoss()
	j.firstRegularizer()
	j.farFromReference()
	j.meanRatio()
}

// still finds a policy that is trained and never leaves its reference. k3 = e^d − d − 1 is 0 only at d = 0, and with any other estimator,
// too, a mean over thousands of tokens is exactly 0 only where every log-prob is that of the reference. Rates of 0 and gradients of 0 have
// findings of their own. OpenRLHF logs zeros where no KL is computed, and other programs are not known to do otherwise.
func (j *judge) still() {
	const least = 20
	lr, norm := j.of("lr"), j.of("grad_norm")
	if lr == nil || norm == nil || lr.n-lr.zeros < least || !(median(values(norm.points)) > 0) {
		return
	}
	always0 := func(s *series) bool {
		return s != nil && s.n >= least && s.zeros == s.n && s.bad == 0 && (s.level > 0 || s.exact)
	}
	kl := j.of("kl_k3")
	if j.Program == "verl" {
		kl = j.of("kl_any")
	}
	if (j.Program == "verl" || j.Program == "trl-grpo") && always0(kl) {
		j.say("KL-ALWAYS-0", Warn, Exact, kl, "%s is exactly 0 in all %d lines, while %s has a median of %s and %s is above 0 in %d of them", kl.name, kl.n, norm.name, number(median(values(norm.points))), lr.name, lr.n-lr.zeros).at(kl.first)
		return
	}
	chosen, rejected := j.preferenceSeries("rewards/chosen"), j.preferenceSeries("rewards/rejected")
	if always0(chosen) && always0(rejected) {
		j.say("KL-ALWAYS-0", Warn, Exact, chosen, "%s and %s, each β·(log π − log π_ref), are exactly 0 in all %d lines, while %s is above 0 in %d of them", chosen.name, rejected.name, chosen.n, lr.name, lr.n-lr.zeros).at(chosen.first)
	}
}

// negativeInLoss judges a KL of verl's loss that is below 0. Of its kl_loss_types k2, k3 and |k1| are not negative at any token, in float32 but
// for roundings, so that k1 is what remains; k1+ has its value and the gradient of k2.
func (j *judge) negativeInLoss() {
	const rounding = 1e-5
	kl := j.named["actor/kl_loss"]
	if kl == nil || j.Program != "verl" || kl.n == 0 || !(kl.low.mean < -rounding-kl.half) {
		return
	}
	text, given := j.option("kl_loss_type")
	kind, through := strings.CutSuffix(strings.Trim(text, `"' `), "+")
	p, _ := kl.firstBeyond(-rounding-kl.half, math.Inf(1))
	switch {
	case !given:
		j.say("H7c", Warn, Exact, kl, "%s is %s in step %d; of verl's kl_loss_types only k1 is ever negative", kl.name, number(p.mean), p.step).at(p)
	case kind != "kl" && kind != "k1":
		j.about(j.say("KL-NEGATIVE", Fail, Exact, kl, "%s is %s in step %d with kl_loss_type %s", kl.name, number(p.mean), p.step, clip2(text)).at(p), "kl_loss_type")
	case !through:
		j.about(j.say("H7c", Warn, Exact, kl, "%s is %s in step %d with kl_loss_type %s", kl.name, number(p.mean), p.step, clip2(text)).at(p), "kl_loss_type")
	}
}

// preferenceSeries is a metric of TRL's preference trainers, in the console or under W&B's prefix.
func (j *judge) preferenceSeries(name string) *series {
	if s := j.named[name]; s != nil {
		return s
	}
	return j.named["train/"+name]
}

// firstRegularizer judges the KL in the first line of TRL's GRPO. Before the first update the policy is the reference, and two passes whose
// log-probs differ by a rounding of σ have k3 = σ²/2: 0.005 for the 0.1 that bfloat16 comes to, of which 0.01 is twice. A first line over
// several updates holds less than the lines after it, since the KL grows from 0: only one above half the median of the next ones counts.
func (j *judge) firstRegularizer() {
	const most, next = .01, 9
	kl := j.of("kl_k3")
	if kl == nil || j.Program != "trl-grpo" || kl.first.step > 1 || kl.each > 1 || len(kl.points) < 1+next || j.resumed {
		return
	}
	if later := median(values(kl.points[1 : 1+next])); kl.first.mean > most+kl.half && kl.first.mean > .5*later {
		j.say("H7a", Warn, Threshold, kl, "%s is %s in the first line and has a median of %s in the next %d: the policy begins apart from its reference, or the reference is another model", kl.name, number(kl.first.mean), number(later), next).at(kl.first)
	}
}

// farFromReference judges the KL that verl logs. At 1 nat a token is e times as likely under the policy as under the reference. It is a mean
// over tokens but in the modes that sum over a row: a tenth of a nat for each token of a mean response is asked for, so that a sum over a long
// row does not count.
func (j *judge) farFromReference() {
	kl := j.named["actor/kl_loss"]
	if kl == nil || j.Program != "verl" || kl.n < 10 || !(kl.recent() > 1) {
		return
	}
	if s := j.named["response_length/mean"]; s != nil && s.n > 0 && !(kl.recent() > .1*s.recent()) {
		return
	}
	if mode, ok := j.option("loss_agg_mode"); ok && strings.Contains(mode, "token-sum") {
		return
	}
	p, _ := kl.firstBeyond(math.Inf(-1), 1)
	j.say("A3", Warn, Threshold, kl, "%s has a median of %s nats per token in the last ten lines", kl.name, number(kl.recent())).at(p)
}

// meanRatio judges the mean of π/π_old in the first line of TRL's PPO. Over tokens of π_old it is 1 whatever the update did, as is
// Σ π_old·π/π_old, and padding, which TRL averages in, has a ratio of 1: below a half, π_old is not what the tokens were drawn from.
func (j *judge) meanRatio() {
	s := j.of("ratio")
	if s == nil || j.Program != "trl-ppo" || s.n < 3 || s.first.step > 1 && j.hasStep {
		return
	}
	if s.first.mean < .5 && s.recent() < .5 {
		j.say("H1", Fail, Exact, s, "%s is %s in the first line and has a median of %s in the last ten; over tokens of the old policy the mean of a ratio is 1", s.name, number(s.first.mean), number(s.recent())).at(s.first)
	}
}
