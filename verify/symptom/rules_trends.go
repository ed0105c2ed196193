package symptom

import (
	"fmt"
	"math"
	"strings"
)

// tutorial judges what any PPO logs: KL, clip fractions, gradient norm, entropy, value loss, reward.
func (j *judge) tutorial() {
	if j.Program == "arc" || j.Program == "grpo" {
		return
	}
	total, clip, norm, value, kl := j.of("loss"), j.of("clip_frac"), j.of("grad_norm"), j.of("loss_value"), j.of("approx_kl")
	reward := j.of("reward")
	if k2 := j.of("kl_k2"); kl == nil {
		kl = k2
	}
	mixed := j.mixed()
	high := math.NaN()
	if clip != nil && clip.n >= 2 {
		high = math.Max(clip.recent(), median(values(clip.points)))
		if clip.n >= 10 && clip.zeros > 0 { // the first update of each rollout is 0, and halves what a median sees of the others
			if most := highest(clip.points, 10); most > .2 {
				high = math.Max(high, math.Min(most, .5))
			}
		}
		if p, _ := clip.firstBeyond(math.Inf(-1), math.Min(high, .5)*.999); high > .5 {
			j.say("C13", Fail, Threshold, clip, "%s has a median of %s; healthy is below 0.1 to 0.2", clip.name, number(high)).at(p)
		} else if high > .2 {
			p, _ = clip.firstBeyond(math.Inf(-1), .2)
			j.say("C13", Warn, Threshold, clip, "%s has a median, or a mean of ten lines in a row, of %s; healthy is below 0.1 to 0.2", clip.name, number(high)).at(p)
		}
	}
	if v := j.of("value_clip_frac"); v != nil && v.n >= 5 {
		if x := math.Max(v.recent(), median(values(v.points))); x > .2 {
			p, _ := v.firstBeyond(math.Inf(-1), .2)
			j.say("C13", Warn, Threshold, v, "%s has a median of %s; healthy is below 0.1 to 0.2", v.name, number(x)).at(p)
		}
	}
	gradient := math.NaN()
	// Limits of the tutorial's PPO, whose gradient is clipped at 1. The norm of another loss has no such scale: SFT and DPO of transformers'
	// Trainer log a learning rate beside the loss, and nothing of PPO.
	ppo := clip != nil || value != nil || kl != nil || j.Program == "ppo" || j.isPPO() || j.of("lr") == nil
	if norm != nil && norm.n >= 3 && ppo && j.Program != "shielded" && j.Program != "trl-grpo" {
		gradient = norm.recent()
		p, _ := norm.firstBeyond(math.Inf(-1), 10)
		switch {
		case gradient > 100:
			j.say("C14", Fail, Threshold, norm, "%s has a median of %s in the last ten lines; more than 10 to 100 is unstable where max_grad_norm is 1", norm.name, number(gradient)).at(p)
		case gradient > 10:
			j.say("C14", Warn, Threshold, norm, "%s has a median of %s in the last ten lines; more than 10 is unstable where max_grad_norm is 1", norm.name, number(gradient)).at(p)
		}
	}
	if total != nil && ppo && !mixed && (j.Program == "ppo" || j.Program == "" || value != nil) {
		if b, ok := slope(total.points); ok && b < -2*slopeError(total.points, b) && (high > .5 || gradient > 10) { // a fall, and no scatter
			var why []string
			if high > .5 {
				why = append(why, fmt.Sprintf("%s is %s", clip.name, number(high)))
			}
			if gradient > 10 {
				why = append(why, fmt.Sprintf("%s is %s", norm.name, number(gradient)))
			}
			if value != nil {
				if b, ok := slope(value.points); ok && b >= 0 {
					why = append(why, value.name+" does not fall")
				}
			}
			var p point
			if high > .5 {
				p, _ = clip.firstBeyond(math.Inf(-1), .5)
			} else {
				p, _ = norm.firstBeyond(math.Inf(-1), 10)
			}
			j.say("C15", Fail, Threshold, total, "%s falls by %s a line while %s", total.name, number(-b), strings.Join(why, " and ")).at(p)
		}
	}
	if value != nil && !mixed && value.n >= 10 {
		steps := bySteps(value.points)
		a, z := thirds(steps)
		tail := value.lastOf(50)
		more := j.spread(reward, value)
		low, top := math.Inf(1), math.Inf(-1)
		for _, p := range tail {
			low, top = math.Min(low, p.mean), math.Max(top, p.mean)
		}
		switch {
		case len(tail) >= 50 && top-low < .01*math.Max(math.Abs(top), math.Abs(low)):
			j.say("C11", Warn, Trend, value, "%s stays between %s and %s over the last 50 lines", value.name, number(low), number(top)).at(tail[0])
		case j.constantCritic():
			e := j.of("explained")
			j.say("C11", Warn, Exact, e, "%s is 0 in all %d lines: what the critic says of all states is one number", e.name, e.n).at(e.first)
		case len(steps) >= 20 && j.biased(reward) && mean(z) > 3*mean(steps[:5]) && mean(z)-3*mean(steps[:5]) > 4*math.Hypot(3*scatter(steps[:5])/math.Sqrt(5), scatter(z)/math.Sqrt(float64(len(z)))):
			j.say("C11", Warn, Trend, value, "%s rises from %s to %s, in means of the first five steps and the last third, where the reward keeps its scale and the explained variance does not rise", value.name, number(mean(steps[:5])), number(mean(z))).at(value.first)
		case len(steps) >= 20 && !j.explainsMore() && mean(z)-more*mean(a) > 2*math.Hypot(more*deviation(a), deviation(z))/math.Sqrt(float64(len(a))): // a critic that has learned what it can neither rises nor falls
			j.say("C11", Warn, Trend, value, "%s rises from %s to %s, in means of the first and last third of %d steps", value.name, number(mean(a)), number(mean(z)), len(steps)).at(value.first)
		}
	}
	if kl != nil && kl.n >= 3 {
		b, ok := slope(kl.points)
		a, z := thirds(kl.points)
		switch {
		case median(values(kl.lastOf(10))) > .1 || highest(kl.points, 10) > .1:
			p, _ := kl.firstBeyond(math.Inf(-1), .1)
			most := ""
			if m := highest(kl.points, 10); !math.IsNaN(m) {
				most = fmt.Sprintf("a mean of %s in the largest ten lines in a row and ", number(m))
			}
			j.say("C12", Warn, Threshold, kl, "%s has %sa median of %s in the last; 0.1 is large", kl.name, most, number(kl.recent())).at(p)
			if text, given := j.option("kl_coeff"); given && j.optionNumber(1, "kl_coeff") == 0 {
				j.about(j.say("C7", Warn, Exact, kl, "%s has a median of %s in the last ten lines and kl_coeff is %s: nothing holds the policy back", kl.name, number(kl.recent()), clip2(text)).at(p), "kl_coeff")
			} else if ok && b > 0 && mean(z) > 2*math.Abs(mean(a)) && !mixed {
				j.say("C7", Warn, Trend, kl, "%s grows from %s to %s, in means of the first and last third: kl_coeff is too low", kl.name, number(mean(a)), number(mean(z))).at(p)
			}
		case ok && !mixed && b > 0 && mean(z) > 3*math.Abs(mean(a)) && mean(z) > .02:
			j.say("C12", Warn, Trend, kl, "%s grows from %s to %s, in means of the first and last third", kl.name, number(mean(a)), number(mean(z))).at(z[0])
		}
	}
	if !mixed {
		j.coefficient(kl, reward)
	}
	for _, s := range append(j.all("entropy"), j.all("loss_entropy")...) {
		if s.n < 10 || mixed {
			continue
		}
		first, last := math.Abs(median(values(s.points[:min(3, len(s.points))]))), math.Abs(s.recent())
		if first > 1e-3 && last < .1*first {
			j.say("C8", Warn, Threshold, s, "%s falls from %s to %s", s.name, number(s.first.mean), number(s.recent())).at(s.lastOf(10)[0])
			break
		}
	}
	if reward != nil && !mixed && reward.n >= 20 && (j.Program == "ppo" || j.Program == "trl-ppo" || j.Program == "") {
		steps := reward.last.step - reward.first.step
		if b, ok := slope(reward.points); ok && b <= 0 {
			a, z := thirds(reward.points)
			if mean(z) <= mean(a) {
				severity := Note
				if steps > 200 {
					severity = Warn
				}
				j.say("C10", severity, Trend, reward, "%s has slope %s a line over %d steps", reward.name, number(b), steps).at(reward.first)
			}
		}
	}
	if text, ok := j.option("max_grad_norm", "grad_clip"); ok && j.Program != "shielded" {
		if v := strings.ToLower(strings.TrimSpace(text)); v == "" || v == "0" || v == "0.0" || v == "null" || v == "none" {
			j.about(j.say("C16", Warn, Exact, nil, "max_grad_norm is %s", clip2(text)), "max_grad_norm", "grad_clip")
		}
	}
	if j.Program == "ppo" && value != nil && j.optionNumber(1, "vf_coeff") == 0 {
		j.about(j.say("C11", Warn, Exact, value, "vf_coeff is 0: nothing trains the critic").at(value.first), "vf_coeff")
	}
	if text, ok := j.option("do_sample"); ok && strings.EqualFold(text, "false") {
		j.about(j.say("C17", Warn, Exact, nil, "do_sample is %s", clip2(text)), "do_sample")
	} else if t := j.optionNumber(1, "generation.temperature"); t == 0 {
		j.about(j.say("C17", Warn, Exact, nil, "temperature is 0"), "generation.temperature")
	}
	if n := j.optionNumber(2, "ppo.epochs"); n < 2 || n > 10 {
		j.about(j.say("C18", Note, Exact, nil, "ppo.epochs is %s", number(n)), "ppo.epochs")
	}
}

// constantCritic reports whether the explained variance, 1 − Var(R − V)/Var(R), is 0 up to the rounding of float32 in every line: V is a constant.
func (j *judge) constantCritic() bool {
	s := j.of("explained")
	return s != nil && s.n >= 20 && s.bad == 0 && math.Max(math.Abs(s.low.mean), math.Abs(s.high.mean)) < 1e-4
}

// biased reports whether a value loss that grows threefold is not of the returns: ½E(V − R)² is half of Var(R − V) and of the square of the
// bias, the first of which the explained variance tells beside the spread of R, and that goes with the square of the scale of the rewards, at most 9/4 here.
func (j *judge) biased(reward *series) bool {
	s := j.of("explained")
	if s == nil || s.n < 20 || reward == nil || reward.n < 20 {
		return false
	}
	a, z := thirds(bySteps(s.points))
	first, last := thirds(bySteps(reward.points))
	scale := mean(last) / mean(first)
	return mean(z) < mean(a)+.05 && scale > 2./3 && scale < 1.5
}

// explainsMore reports whether the explained variance is logged and does not fall: the value loss is then Var(R)·(1 − it)/2, and rises with
// the spread of the returns.
func (j *judge) explainsMore() bool {
	s := j.of("explained")
	if s == nil || s.n < 10 {
		return false
	}
	a, z := thirds(bySteps(s.points))
	return mean(z) >= mean(a)
}

// spread returns by which factor the value loss of an honest critic may rise because the rewards do, 1 or more. Rewards R in [0, 1] have
// E[R²] ≤ E[R], with equality where each is 0 or 1: the variance that no critic can explain grows with their mean. A loss above the mean
// reward is of other rewards, those that may be negative have no such law, and a logged explained variance says it better.
func (j *judge) spread(reward, value *series) float64 {
	if s := j.of("explained"); reward == nil || reward.n < 20 || s != nil && s.n >= 10 {
		return 1
	}
	for _, p := range reward.points {
		if p.min < 0 {
			return 1
		}
	}
	a, z := thirds(bySteps(reward.points))
	first, last := thirds(bySteps(value.points))
	if mean(a) <= 0 || mean(first) > mean(a) || mean(last) > mean(z) {
		return 1
	}
	return math.Max(1, mean(z)/mean(a))
}

// coefficient judges kl_coeff by the KL to the reference, where it is logged: at 1 nat per token the policy has left it, and a KL of 0
// with a flat reward is stuck. The KL to the policy of the rollout says the latter only where it can move: with one update per rollout
// it is exactly 0.
func (j *judge) coefficient(kl, reward *series) {
	if j.Program == "trl-grpo" {
		return
	}
	reference := j.of("kl_k1")
	if reference != nil && reference.n >= 10 {
		if a, z := thirds(reference.points); mean(z) > 1 && mean(z) > 2*math.Abs(mean(a)) {
			p, _ := reference.firstBeyond(math.Inf(-1), 1)
			j.say("C7", Warn, Trend, reference, "%s grows from %s to %s nats per token, in means of the first and last third: kl_coeff is too low", reference.name, number(mean(a)), number(mean(z))).at(p)
			return
		}
	}
	small := func(s *series) bool {
		for _, p := range s.lastOf(50) {
			if !(math.Abs(p.mean) < 1e-4) {
				return false
			}
		}
		return s.n >= 50
	}
	if reward == nil || reward.n < 50 {
		return
	}
	stuck := reference
	for _, id := range []string{"kl_any", "kl_k3", "kl_seq"} {
		if s := j.of(id); stuck == nil && s != nil && s.n >= 50 && s.zeros < s.n {
			stuck = s
		}
	}
	if stuck == nil {
		if stuck = kl; stuck == nil || stuck.zeros == stuck.n {
			return
		}
	}
	tail := reward.lastOf(50)
	if a, z := thirds(bySteps(reward.points)); mean(z)-mean(a) > certain(len(a))*math.Hypot(deviation(a), deviation(z))/math.Sqrt(float64(len(a))) {
		return // it has learned what it can
	}
	if b, ok := slope(tail); ok && math.Abs(b)*float64(len(tail)) <= .05*math.Max(math.Abs(mean(tail)), deviation(reward.points)) && small(stuck) {
		j.say("C7", Warn, Trend, stuck, "|%s| is below 1e-4 in the last 50 lines and %s is flat: kl_coeff is too high, or nothing is trained", stuck.name, reward.name).at(stuck.lastOf(50)[0])
	}
}

// frameworks judges what TRL, verl, OpenRLHF and others log beside it.
func (j *judge) frameworks() {
	if j.Program == "arc" {
		return
	}
	mixed := j.mixed()
	if s := j.of("kl_seq"); s == nil {
		j.k1(j.of("kl_k1"))
	} else {
		j.k1(s)
	}
	if s := j.of("lr"); s != nil && s.n >= 5 && s.zeros == s.n && (s.level > 0 || s.exact || s.half < 1e-9) {
		j.say("LR-ZERO", Fail, Exact, s, "%s is 0 in all %d lines", s.name, s.n).at(s.first)
	}
	// Adam moves a weight by about the learning rate at most (Kingma and Ba 2015, Section 2.1). A weight of float32 changes where that is
	// half its spacing, 2⁻²⁵ of it, so that below 10⁻¹¹ none above 3·10⁻⁴ does.
	// A schedule that reaches 0 does so at the last step of the run; one that is counted in other steps than the run ends before it.
	if s := j.of("lr"); s != nil && s.zeros < s.n && s.zero.n >= 5 && 10*s.zero.n >= s.n && (s.level > 0 || s.exact || s.half < 1e-9) && !mixed {
		f := j.say("LR-ZERO", Warn, Exact, s, "%s is 0 in the last %d of %d lines, from step %d: the schedule ends before the run does", s.name, s.zero.n, s.n, s.zero.from)
		f.Step, f.Line = s.zero.from, s.zero.line
	}
	if s := j.of("lr"); s != nil && s.n >= 5 && s.zeros < s.n && s.high.mean < 1e-11 {
		j.say("LR-ZERO", Warn, Threshold, s, "%s is at most %s in all %d lines: no weight of float32 above 3e-04 can change", s.name, number(s.high.mean), s.n).at(s.first)
	}
	if a, b := j.of("advantage_max"), j.of("advantage_min"); a != nil && b != nil && a.n >= 3 {
		switch {
		case a.high.mean <= 1e-6 && b.low.mean >= -1e-6:
			j.say("ZERO-STD", Warn, Exact, a, "%s and %s are 0 up to rounding in all %d lines: every group has equal rewards", a.name, b.name, a.n).at(a.first)
		case a.n >= 10 && 10*a.zeros >= 8*a.n && 10*b.zeros >= 8*b.n:
			j.say("ZERO-STD", Warn, Exact, a, "%s and %s are 0 in %d and %d of %d lines: every group of those has equal rewards", a.name, b.name, a.zeros, b.zeros, a.n).at(a.first)
		}
	}
	j.falls()
	zero := j.of("zero_std_share")
	if zero != nil && zero.n >= 3 && zero.level == 1 && j.Program == "trl-grpo" && j.of("reward") == nil {
		j.say("NONFINITE", Fail, Exact, zero, "there is %s and no reward, which TRL logs beside it: transformers' Trainer leaves NaN out of TensorBoard", zero.name).at(zero.first)
	}
	if zero != nil && zero.n >= 3 && zero.recent() > .9 && j.Program != "grpo" {
		p, _ := zero.firstBeyond(math.Inf(-1), .9)
		j.say("ZERO-STD", Warn, Threshold, zero, "%s has a median of %s in the last ten lines", zero.name, number(zero.recent())).at(p)
	}
	// The mean of equal numbers in float32 is off by a few 2⁻²⁴ of them, and so is their standard deviation.
	if s, r := j.of("reward_std"), j.of("reward"); s != nil && s.n >= 3 && j.Program != "grpo" && (s.zeros == s.n || r != nil && math.Max(s.high.mean, -s.low.mean) <= 0x1p-22*math.Max(math.Abs(r.low.mean), math.Abs(r.high.mean))) {
		j.say("ZERO-STD", Warn, Threshold, s, "%s is 0 up to rounding in all %d lines", s.name, s.n).at(s.first)
	}
	if s := j.of("grad_norm"); s != nil && s.n >= 3 && j.Program != "grpo" {
		if s.zeros == s.n && (s.level > 0 || s.half < 1e-4) {
			j.say("GRAD-ZERO", Fail, Exact, s, "%s is exactly 0 in all %d lines", s.name, s.n).at(s.first)
		} else if s.longest.n >= 20 && (s.level > 0 || s.half < 1e-4) {
			f := j.say("GRAD-ZERO", Warn, Exact, s, "%s is exactly 0 in %d lines in a row, from step %d", s.name, s.longest.n, s.longest.from)
			f.Step, f.Line = s.longest.from, s.longest.line
		}
		if m := median(values(s.points)); s.n >= 20 && s.high.mean > 100*m && s.high.mean > 10 && m > 0 {
			j.say("SPIKE", Warn, Threshold, s, "%s is %s in step %d, its median %s", s.name, number(s.high.mean), s.high.step, number(m)).at(s.high)
		}
	}
	if s := j.of("ratio"); s != nil && j.Program == "trl-ppo" && j.named["objective/kl"] != nil && s.n >= 5 && s.low.mean == 1 && s.high.mean == 1 {
		j.say("RATIO-STUCK", Warn, Exact, s, "%s is exactly 1 in all %d lines", s.name, s.n).at(s.first)
	}
	// A KL of 0.03 is a log-ratio of 0.25, its square over 2: two in five ratios are beyond 1 ± 0.2, of which the sign of A lets half be clipped.
	drift := j.of("approx_kl")
	if drift == nil {
		drift = j.of("kl_k2")
	}
	if c, k := j.of("clip_frac"), drift; c != nil && k != nil && c.n >= 20 && c.zeros == c.n && highest(k.points, 10) > .03 {
		j.say("CLIP-ALWAYS-0", Warn, Exact, c, "%s is exactly 0 in all %d lines and %s has a mean of %s in ten of them in a row", c.name, c.n, k.name, number(highest(k.points, 10))).at(c.first)
	}
	// −ρ has mean −1 where −log ρ, of mean 0 in the first update, is meant.
	if s := j.of("approx_kl"); s != nil && s.n >= 3 && math.Abs(s.first.mean+1) < .1 && math.Abs(median(values(s.points))+1) < .1 {
		j.say("KL-NEGATIVE", Fail, Exact, s, "%s has a median of %s: the negative ratio, whose mean is -1, and not the negative log-ratio, whose mean is near 0", s.name, number(median(values(s.points)))).at(s.first)
	}
	// One of n rewards apart from n − 1 equal ones is (n − 1)/√n standard deviations, of n − 1 degrees of freedom, from the mean; none is further.
	if s, n := j.of("advantage_max"), j.optionNumber(0, "rollout.n"); s != nil && n > 1 && j.groupNormalised() {
		limit := (n - 1) / math.Sqrt(n)
		if p, bad := s.firstBeyond(math.Inf(-1), limit*1.01+s.half); bad {
			j.say("ADV-SCALE", Fail, Exact, s, "%s is %s in step %d; (score − mean)/standard deviation of a group of %s is at most %s", s.name, number(p.mean), p.step, number(n), number(limit)).at(p)
		}
	}
	if s := j.of("advantage_max"); s != nil && s.high.mean > 100 {
		p, _ := s.firstBeyond(math.Inf(-1), 100)
		severity := Warn
		if s.high.mean > 1e4 {
			severity = Fail
		}
		j.say("ADV-SCALE", severity, Threshold, s, "%s is %s in step %d", s.name, number(s.high.mean), s.high.step).at(p)
	}
	gap := false
	// A gap Δ of mean |Δ| = 0.1 with a normal distribution has a variance of 0.1²·π/2, and a KL of half of that, 0.008; engines have heavier
	// tails, which count double here.
	for _, limit := range []struct {
		id    string
		value float64
	}{{"engine_gap", .1}, {"engine_probs", .05}, {"engine_kl", .016}, {"engine_k3", .016}, {"engine_tmpe", 1.05}} {
		if s := j.of(limit.id); s != nil && s.n >= 1 {
			if v := math.Max(math.Abs(s.recent()), math.Abs(median(values(s.points)))); v > limit.value {
				p, _ := s.firstBeyond(-limit.value, limit.value)
				j.say("ENGINE-GAP", Warn, Threshold, s, "%s has a median of %s; rounding in bfloat16 stays below %s", s.name, number(v), number(limit.value)).at(p)
				gap = true
			}
		}
	}
	if s := j.of("correlation"); s != nil && s.n > 0 && s.recent() < .95 && s.recent() != 0 {
		j.say("ENGINE-GAP", Warn, Threshold, s, "%s has a median of %s; 0.99 and more is healthy", s.name, number(s.recent())).at(s.low)
		gap = true
	}
	if s := j.of("is_ratio"); s != nil && s.n >= 1 && !gap {
		if v := s.recent(); v < .9 || v > 1.1 {
			j.say("IS-SEQUENCE", Warn, Threshold, s, "%s has a median of %s and the log-probs agree", s.name, number(v)).at(s.first)
		}
	}
	if s := j.of("kl_k3"); s != nil && j.Program != "shielded" && s.n >= 3 && s.recent() > 1 && !mixed {
		p, _ := s.firstBeyond(math.Inf(-1), 1)
		j.say("A3", Warn, Threshold, s, "%s has a median of %s nats per token in the last ten lines", s.name, number(s.recent())).at(p)
	}
	// A state of the task, and behind what names a bug.
	if s := j.of("truncated"); s != nil && s.n >= 3 && s.recent() > .5 {
		p, _ := s.firstBeyond(math.Inf(-1), .5)
		j.say("TRUNCATED", Warn, Threshold, s, "%s has a median of %.0f%% in the last ten lines", s.name, 100*s.recent()).at(p)
	}
}

// k1 judges a k1 estimate: its mean over many samples of the policy is not negative.
func (j *judge) k1(s *series) {
	if s == nil || s.n < 10 || j.mixed() {
		return
	}
	points := bySteps(s.points)
	_, z := thirds(points)
	if len(z) < 3 {
		return
	}
	m, se := mean(z), deviation(z)/math.Sqrt(float64(len(z)))
	if b, ok := slope(points); ok && b < 0 && m < -certain(len(z))*se && m < -.01 {
		p, _ := s.firstBeyond(-4*se, math.Inf(1))
		j.say("KL-K1-FALLING", Warn, Trend, s, "%s is %s ± %s in the last third and falls", s.name, number(m), number(se)).at(p)
	}
}

// falls judges a reward that falls while a policy is trained on it. Ascent of E[r] does not lower it but by noise: the means of six parts of the
// first third are all above those of the last, and the thirds are five standard errors apart, a limit as any other. A sign that is wrong in the advantages shows in
// nothing else: loss, ratio and clip fraction are those of a policy that ascends −r.
func (j *judge) falls() {
	const blocks = 6
	s := j.of("reward")
	if s == nil || j.mixed() || j.Program == "ppo" || j.Program == "trl-ppo" || j.Program == "shielded" {
		return
	}
	steps := bySteps(s.points)
	if len(steps) < 36 {
		return
	}
	a, z := thirds(steps)
	least, most := math.Inf(1), math.Inf(-1)
	for i := range blocks {
		least = math.Min(least, mean(a[i*len(a)/blocks:(i+1)*len(a)/blocks]))
		most = math.Max(most, mean(z[i*len(z)/blocks:(i+1)*len(z)/blocks]))
	}
	// A collapse in the first steps: each of five is above all of a third of twelve or more, once in 6188 orders that are drawn.
	early, late := math.Inf(1), math.Inf(-1)
	for _, p := range steps[:5] {
		early = math.Min(early, p.mean)
	}
	for _, p := range z {
		late = math.Max(late, p.mean)
	}
	if early > 2*late && late >= 0 && early > 0 {
		j.say("C10", Warn, Threshold, s, "%s is %s or more in the first five steps and at most %s in the last third of %d: what it pays for is unlearned", s.name, number(early), number(late), len(steps)).at(steps[5])
		return
	}
	apart := (mean(a) - mean(z)) / (math.Hypot(deviation(a), deviation(z)) / math.Sqrt(float64(len(a))))
	if most < least && apart > 5 {
		j.say("C10", Warn, Threshold, s, "%s falls from %s to %s, in means of the first and last third of %d steps, by %s standard errors: a policy that ascends it does not, one of the opposite sign does", s.name, number(mean(a)), number(mean(z)), len(steps), number(apart)).at(z[0])
	}
}

// groupNormalised reports whether the configuration says that advantages are scores of a group in its standard deviations: verl's grpo.
func (j *judge) groupNormalised() bool {
	estimator, _ := j.option("adv_estimator")
	scaled, _ := j.option("norm_adv_by_std_in_grpo")
	return strings.Trim(estimator, `"' `) == "grpo" && !strings.EqualFold(strings.TrimSpace(scaled), "false")
}
