package symptom

import (
	"math"
	"strings"
)

// shielded judges shielded PPO.
func (j *judge) shielded() {
	if s := j.of("project_time"); s != nil {
		if t := j.of("step_time"); t != nil && median(values(s.points)) > .1*median(values(t.points)) {
			j.say("A2", Warn, Threshold, s, "%s has a median of %s ms, %.0f%% of a step of %s ms; 10%% is the limit", s.name, number(median(values(s.points))), 100*median(values(s.points))/median(values(t.points)), number(median(values(t.points)))).at(s.first)
		}
	}
	if eight, _ := j.option("int8", "load_in_8bit"); strings.EqualFold(eight, "true") {
		text, _ := j.option("device_map")
		if gpus := j.optionNumber(0, "gpus", "num_gpus", "n_gpus", "n_gpus_per_node"); gpus > 1 && strings.Trim(text, `"' `) == "auto" {
			j.about(j.say("A6", Fail, Exact, nil, "device_map is auto, the weights are int8 and there are %s devices: layers of bitsandbytes that are spread over devices hang in generation", number(gpus)), "device_map")
		}
	}
	beta := j.optionNumber(.05, "kl_beta", "beta")
	if text, ok := j.option("kl_beta"); ok && j.Program == "shielded" && beta < .05 && beta >= 0 {
		j.about(j.say("A3", Warn, Threshold, nil, "kl_beta is %s, below 0.05", text), "kl_beta")
	}
	// Ten nats for a sequence, where the KL is of sequences as in the source; one for a token, where it is a mean over tokens as here.
	nats, of := 10., "a sequence"
	if j.Program == "shielded" && (j.named["time_project_ms"] != nil || j.named["tokens"] != nil) {
		nats, of = 1, "a token"
	}
	if s := j.of("loss_kl"); s != nil && beta > 0 {
		limit := nats * beta
		first := s.first.mean / beta
		grown := 10 * median(values(s.points[:min(10, len(s.points))]))
		switch {
		case first > nats && s.first.step <= 1:
			j.say("H1", Fail, Exact, s, "%s is %s in the first line: %s nats for %s at beta %s, where policy and reference are equal", s.name, number(s.first.mean), number(first), of, number(beta)).at(s.first)
			fallthrough
		case s.high.mean > limit:
			p, _ := s.firstBeyond(math.Inf(-1), limit)
			j.say("A3", Fail, Threshold, s, "%s rises to %s in step %d: %s nats for %s at beta %s; %s is the limit, passed in step %d", s.name, number(s.high.mean), s.high.step, number(s.high.mean/beta), of, number(beta), number(nats), p.step).at(p)
		case s.n > 10 && s.high.mean > grown && s.high.mean/beta > 1:
			p, _ := s.firstBeyond(math.Inf(-1), grown)
			j.say("A3", Fail, Threshold, s, "%s rises to %s in step %d, more than ten times the median of the first ten lines (%s)", s.name, number(s.high.mean), s.high.step, number(grown/10)).at(p)
		}
	}
	if s := j.of("ratio"); s != nil && j.Program == "shielded" && s.first.step <= 1 && !(math.Abs(s.first.mean-1) <= .05) {
		j.say("H1", Fail, Exact, s, "%s is %s in the first line, where it must be 1", s.name, number(s.first.mean)).at(s.first)
	}
	if j.Program == "shielded" && !j.mixed() {
		j.learns()
	}
	if s := j.named["mean"]; s != nil && s.n > 0 && j.flow() { // of the gradient-flow print
		zero := s.longest
		switch {
		case s.n == 1 && j.idle():
			j.say("A10", Note, Exact, s, "Gradient flow: mean=0 in the only print, of a step whose loss is 0: rewards without spread have no gradient").at(s.first)
		case s.zeros == s.n:
			j.say("A10", Fail, Exact, s, "Gradient flow: mean=0 in all %d prints", s.n).at(s.first)
		case zero.n > 0 && !(zero.n == 1 && zero.line == s.first.line):
			f := j.say("A10", Fail, Exact, s, "Gradient flow: mean=0 in %d prints in a row, from line %d", zero.n, zero.line)
			f.Step, f.Line = zero.from, zero.line
		}
	}
}

// flow reports whether a series named "mean" is that of the gradient-flow print.
func (j *judge) flow() bool { return j.named["min"] != nil && j.named["max"] != nil }

// idle reports whether the first logged loss is exactly 0.
func (j *judge) idle() bool {
	l := j.of("loss")
	return l != nil && l.n > 0 && l.first.mean == 0
}

// learns judges the toy run: loss_pg falls, and the KL is stable.
func (j *judge) learns() {
	pg, kl, reward := j.of("loss_policy"), j.of("kl_k3"), j.of("reward")
	if pg == nil {
		return
	}
	if kl != nil && len(kl.points) >= 15 {
		a, b := thirds(kl.points)
		if x, y := deviation(a), deviation(b); y > 2*x && y > .05 && mean(b) > .5 { // from 0 the KL first spreads in any run
			j.say("A7", Warn, Trend, kl, "the standard deviation of %s is %s in the first third and %s in the last", kl.name, number(x), number(y)).at(b[0])
		}
	}
	b, ok := slope(pg.points)
	if !ok || b < 0 {
		return
	}
	if reward != nil {
		if r, ok := slope(reward.points); ok && r > 0 {
			return // whitened advantages: loss_pg rises towards 0 while the policy learns
		}
		j.say("A7", Warn, Trend, pg, "%s has slope %s a step over %d lines and %s does not rise either", pg.name, number(b), pg.n, reward.name).at(pg.first)
		return
	}
	severity, why := Warn, ""
	if math.Abs(mean(pg.points)) < .1 {
		severity, why = Note, "; it stays near 0, as with whitened advantages, where it rises while the policy learns"
	}
	j.say("A7", severity, Trend, pg, "%s has slope %s a step over %d lines%s", pg.name, number(b), pg.n, why).at(pg.first)
}

// masked judges GRPO of a masked language model.
func (j *judge) masked() {
	if j.Program != "grpo" {
		return
	}
	m := &j.micro
	loss := j.of("loss")
	spread, masked := j.of("reward_std"), j.of("num_masked")
	if m.std.n > 0 && (spread == nil || spread.level == 0) {
		spread = &m.std
	}
	flat := false
	if spread != nil {
		typical := median(values(spread.points))
		switch {
		case typical < 1e-8+spread.half: // single groups without spread are usual where few tokens are masked
			flat = true
			j.say("B1", Fail, Exact, spread, "the standard deviation of the rewards is %s, its median %s over %d lines", number(spread.low.mean), number(typical), spread.n).at(spread.low)
		case typical < .01:
			flat = true
			j.say("B1", Warn, Threshold, spread, "the standard deviation of the rewards has a median of %s over %d lines; more than 0.01 is expected", number(typical), spread.n).at(spread.low)
		}
	}
	if j.unused > 0 {
		flat = true
		severity := Warn
		if 2*j.unused > j.rows {
			severity = Fail
		}
		j.say("B1", severity, Exact, spread, "no micro-step could be used in %d iterations: all completions of a group were identical, or nothing was masked", j.unused).at(j.unusedAt)
	}
	none := masked != nil && masked.zeros > 0
	if none {
		f := j.say("B2", Fail, Exact, masked, "%s is 0 in %d of %d lines", masked.name, masked.zeros, masked.n)
		f.Step, f.Line = masked.longest.from, masked.longest.line
	}
	if loss != nil && loss.zeros > 0 {
		said := flat || none || j.seen["B1"] || j.seen["B2"]
		if loss.level > 0 || m.total.zeros > 0 && m.policy.zeros > 0 && m.kl.zeros > 0 {
			f := j.say("B4", Fail, Exact, loss, "%s is exactly 0 in %d of %d iterations", loss.name, loss.zeros, loss.n)
			f.Step, f.Line = loss.longest.from, loss.longest.line
		} else {
			f := j.say("B4", Warn, Exact, loss, "loss 0.0000 in %d of %d iterations; four digits may hide a loss below 0.00005", loss.zeros, loss.n)
			f.Step, f.Line = loss.longest.from, loss.longest.line
		}
		if !said && loss.zeros < loss.n {
			f := j.say("H5", Warn, Exact, loss, "the loss is 0 in %d iterations and %s in step %d: as if one position alone counted. rewards= of the [Micro] lines and num_masked would tell", loss.zeros, number(loss.high.mean), loss.high.step)
			f.Hypothesis, f.Or = true, []string{"B1", "B2"}
			f.Step, f.Line = loss.longest.from, loss.longest.line
		} else if !said {
			j.list[len(j.list)-1].Or = []string{"B1", "B2", "H5"}
		}
	} else if loss != nil && loss.n > 0 {
		if v := math.Max(math.Abs(loss.low.mean), math.Abs(loss.high.mean)); v > 0 && v < 1e-6 && loss.level > 0 {
			j.say("B3", Note, Threshold, loss, "|%s| stays below 1e-6", loss.name).at(loss.first)
		}
	}
	if loss == nil && m.total.zeros > 0 && m.policy.zeros > 0 {
		f := j.say("B4", Fail, Exact, &m.total, "total=0.000000 in %d of %d micro-steps", m.total.zeros, m.total.n)
		f.Step, f.Line, f.Or = m.total.longest.from, m.total.longest.line, []string{"B1", "B2", "H5"}
	}
	j.maskedTime()
	kl := j.of("kl_penalty")
	if m.kl.n > 0 && (kl == nil || kl.level == 0) {
		kl = &m.kl
	}
	if kl != nil && kl.n > 0 {
		beta := j.optionNumber(.1, "kl_beta")
		estimator, _ := j.option("kl_estimator")
		switch {
		case estimator == "k3" && kl.low.mean < -1e-6-kl.half:
			j.say("KL-NEGATIVE", Fail, Exact, kl, "%s is %s in step %d with k3", kl.name, number(kl.low.mean), kl.low.step).at(kl.low)
		case kl.low.mean < -1e-6-kl.half:
			j.say("H7c", Warn, Exact, kl, "%s is %s in step %d", kl.name, number(kl.low.mean), kl.low.step).at(kl.low)
		case estimator == "k1":
			j.about(j.say("H7c", Warn, Exact, kl, "kl_estimator is k1, and the loss has it: the expected gradient of log π − log π_ref over samples of π is 0").at(kl.first), "kl_estimator")
		}
		j.maskedKL(kl, beta, masked)
		reference, known := j.option("reference_checkpoint")
		if kl.first.step <= 1 && math.Abs(kl.first.mean) > 1e-6+kl.half && reference == "" {
			severity, may := Fail, ""
			if !known && len(j.Config) == 0 {
				severity, may = Warn, ", as they are without a reference_checkpoint"
			}
			f := j.say("H7a", severity, Exact, kl, "%s is %s in the first iteration, where reference and generator are the same%s", kl.name, number(kl.first.mean), may).at(kl.first)
			f.Hypothesis = severity == Warn
		}
	}
	if s := j.named["skipped_micro_steps"]; s != nil && s.n > 0 && s.high.mean > 0 && j.named["num_masked"] == nil {
		j.say("H7b", Warn, Exact, s, "%s is %s in step %d", s.name, number(s.high.mean), s.high.step).at(s.high)
	}
	if pg := j.of("loss_policy"); pg != nil && pg.n >= 10 && pg.low.mean > 0 {
		j.say("B10", Note, Trend, pg, "%s is above 0 in all %d lines: its sign is undetermined, and no fault", pg.name, pg.n).at(pg.first)
	}
}

// maskedKL judges the size of the KL term, beta times the KL of a row: a sum over its masked tokens, whose number the notes leave open.
// With k3, E[e^d − d − 1] = KL(π‖π_ref), so that kl/(beta·tokens) is nats per token where num_masked is logged. At 1 nat a token is e
// times as likely under the policy as under the reference; above ln V the reference finds the policy's tokens less likely than tokens
// drawn at random, which no drift of the policy explains: another reference. One line proves nothing, since k3 has a heavy tail, so the
// median of the last ten lines is judged. Without num_masked the size is a warning.
func (j *judge) maskedKL(kl *series, beta float64, masked *series) {
	typical := kl.recent()
	beyond := func(limit float64) point { p, _ := kl.firstBeyond(math.Inf(-1), limit); return p }
	perRow, tokens := typical/beta, math.NaN()
	if masked != nil && masked.n > 0 {
		tokens = median(values(masked.points))
	}
	most := quantity["entropy"].High
	if j.Vocab > 1 {
		most = math.Log(j.Vocab)
	}
	switch {
	case beta > 0 && perRow > most*tokens:
		j.say("B10", Fail, Threshold, kl, "%s has a median of %s: %s nats per masked token at kl_beta %s, more than ln V: the reference is not the model that the policy began as", kl.name, number(typical),
			number(perRow/tokens), number(beta)).at(beyond(most * tokens * beta))
	case beta > 0 && perRow > tokens:
		j.say("B10", Warn, Threshold, kl, "%s has a median of %s: %s nats per masked token at kl_beta %s; the policy has left the reference at 1", kl.name, number(typical), number(perRow/tokens), number(beta)).at(beyond(tokens * beta))
	case beta > 0 && math.IsNaN(tokens) && perRow > 10:
		j.say("B10", Warn, Threshold, kl, "%s has a median of %s: %s nats for a row at kl_beta %s; it is a sum over masked tokens, and their number is not logged", kl.name, number(typical), number(perRow), number(beta)).at(beyond(10 * beta))
	default:
		if m := median(values(kl.points)); m > .1+kl.half {
			j.say("B10", Warn, Threshold, kl, "%s has a median of %s; 0 to 0.1 is usual", kl.name, number(m)).at(beyond(.1))
		}
	}
}

// maskedTime judges the times of iterations and phases.
func (j *judge) maskedTime() {
	m := &j.micro
	scale := j.optionNumber(1, "batch_size") * j.optionNumber(8, "group_size")
	samples := scale * j.optionNumber(16, "gradient_accumulation_steps")
	compiled := len(j.Config) == 0
	if text, ok := j.option("compile"); ok {
		compiled = strings.EqualFold(text, "true")
	}
	if share := &m.share; share.n > 0 && median(values(share.points)) < .6 {
		j.say("H7d", Warn, Threshold, nil, "the phases are %.0f%% of an iteration, in the median of %d; the rest is in none of the lines", 100*median(values(share.points)), share.n).at(share.first)
	}
	j.maskedPhases(scale)
	t := j.of("iter_time")
	if t == nil || t.n == 0 {
		return
	}
	gas := j.optionNumber(16, "gradient_accumulation_steps")
	if _, ok := j.option("gradient_accumulation_steps"); ok || len(j.Config) == 0 {
		j.say("B6", Note, Exact, nil, "%s micro-steps of %s samples: %s samples and 3·%s = %s forward passes in an iteration, %s with the judge's", number(gas), number(scale), number(samples), number(gas), number(3*gas), number(4*gas))
	}
	if n := j.optionNumber(0, "max_iters"); n > 0 && n <= 10 && gas == 1 && j.optionNumber(8, "group_size") == 4 && mean(t.points)*float64(t.n) > 60e3 {
		j.say("B11", Fail, Threshold, t, "%d iterations of the quick test take %s s; 60 s is the limit", t.n, number(mean(t.points)*float64(t.n)/1e3)).at(t.first)
	}
	limit := 64e3 * samples / 128
	if typical := median(values(t.points)); t.high.mean > limit && (typical > limit || t.n <= 4) {
		p, _ := t.firstBeyond(math.Inf(-1), limit)
		j.say("B5", Warn, Threshold, t, "an iteration takes %s s in step %d; %s s is the budget of %s samples", number(t.high.mean/1e3), t.high.step, number(limit/1e3), number(samples)).at(p)
	}
	if len(t.points) > 1 && compiled && t.points[1].mean >= 1.05*t.points[0].mean && t.points[1].mean > 1e3 && t.first.step <= 1 {
		j.say("B5", Warn, Threshold, t, "iteration 1 takes %s s and iteration 0 %s s: a compilation that is over after the first would be seen the other way round", number(t.points[1].mean/1e3), number(t.points[0].mean/1e3)).at(t.points[1])
	}
}

// maskedPhases finds the longest phase of a micro-step.
func (j *judge) maskedPhases(scale float64) {
	m := &j.micro
	slowest, longest := -1, 0.0
	for k := range m.phases {
		if s := &m.phases[k]; s.n > 0 {
			if v := median(values(s.points)); v > longest {
				slowest, longest = k, v
			}
		}
	}
	if slowest < 1 {
		return
	}
	budget := []float64{0, 1, .5, 2}[slowest] * math.Max(1, scale/8)
	if longest > budget {
		id := []string{"", "B7", "B8", "B9"}[slowest]
		j.say(id, Warn, Threshold, &m.phases[slowest], "%s takes %s s of a micro-step in the median, the longest of the phases; %s s is the budget", phaseNames[slowest], number(longest), number(budget)).at(m.phases[slowest].first)
	}
}

// behindEncoder reports whether the projection between encoder and prompt has a gradient: the graph is not cut there.
func (j *judge) behindEncoder() bool {
	s := j.named["grad_norm/qwen"]
	return s != nil && s.n > 0 && s.zeros < s.n
}

// proportional is by how much loss / mask_ratio may vary where the weight is mask_ratio. A cross-entropy falls about as the share of wrong
// cells does, and loss / mask_ratio then varies less than loss / (0.5 + 0.5·mask_ratio) whatever the weight is: only a ratio that stands still tells.
const proportional = .1

// arc judges the solver of ARC grids.
func (j *judge) arc() {
	if j.Program != "arc" {
		return
	}
	reward, mask := j.of("reward"), j.of("mask_ratio")
	if reward != nil && reward.n > 0 {
		switch {
		case reward.longest.to-reward.longest.from >= 100 && reward.zeros < reward.n: // a prediction compared with itself is never anything else
			f := j.say("D11", Note, Exact, reward, "Reward is exactly 0 from batch %d to %d, and %s in batch %d: the refined prompt seldom changes the argmax", reward.longest.from, reward.longest.to, number(reward.high.mean), reward.high.step)
			f.Step, f.Line = reward.longest.from, reward.longest.line
		case reward.longest.to-reward.longest.from >= 100:
			f := j.say("D11", Warn, Exact, reward, "Reward is exactly 0 from batch %d to %d", reward.longest.from, reward.longest.to)
			f.Step, f.Line = reward.longest.from, reward.longest.line
		case reward.zeros < reward.n && math.Max(math.Abs(reward.low.mean), math.Abs(reward.high.mean)) < 1e-3:
			j.say("D5", Note, Threshold, reward, "|Reward| stays below 1e-3").at(reward.first)
		}
	}
	if e := j.named["time_encoder_ms"]; e != nil && e.n > 10 {
		if t := j.of("step_time"); t != nil && median(values(e.points)) > .5*median(values(t.points)) {
			j.say("D6", Note, Threshold, e, "the encoder takes %.0f%% of a batch", 100*median(values(e.points))/median(values(t.points))).at(e.first)
		}
	}
	frozen, _ := j.option("encoder.train")
	if q := j.of("qwen_grad"); q != nil && q.n > 0 && frozen != "frozen" {
		zero := q.longest
		sparse := len(q.points) > 1 && q.points[1].step-q.points[0].step > 10
		switch {
		case q.zeros == q.n && j.behindEncoder():
			j.say("D2", Note, Exact, q, "Qwen_grad is 0 and grad_norm/qwen, which has the projection behind the encoder in it, is not: the encoder is frozen, and the graph is whole").at(q.first)
		case zero.to-zero.from >= 100 && zero.from > q.first.step && !j.toldFresh: // a cached prompt has no gradient either
			f := j.say("D2", Warn, Exact, q, "Qwen_grad: 0.00e+00 in every line from batch %d to %d, and not before: the gradient is cut, or the prompts are cached (fresh_prompt in metrics.jsonl tells)", zero.from, zero.to)
			f.Step, f.Line = zero.from, zero.line
		case zero.to-zero.from >= 100:
			f := j.say("D2", Fail, Exact, q, "Qwen_grad: 0.00e+00 in every line from batch %d to %d", zero.from, zero.to)
			f.Step, f.Line = zero.from, zero.line
		case zero.n >= 3:
			f := j.say("D2", Warn, Exact, q, "Qwen_grad: 0.00e+00 in %d lines in a row, from batch %d", zero.n, zero.from)
			f.Step, f.Line = zero.from, zero.line
		case len(q.points) > 1 && q.points[0].mean == 0 && q.points[1].mean == 0 && (sparse || q.n == 2), !sparse && q.n >= 5 && q.zeros == q.n:
			j.say("D20", Warn, Exact, q, "Qwen_grad: 0.00e+00 in the first %d lines", min(q.n, max(2, zero.n))).at(q.first)
		}
		if q.zeros < q.n {
			low := math.Inf(1)
			for _, p := range q.points {
				if p.min > 0 {
					low = math.Min(low, p.min)
				}
			}
			switch {
			case q.high.mean > 1e3:
				j.say("D8", Warn, Threshold, q, "Qwen_grad is %s in batch %d", number(q.high.mean), q.high.step).at(q.high)
			case low < 1e-6 || q.high.mean > 1e-4:
				j.say("D8", Note, Threshold, q, "Qwen_grad is %s to %s where it is not 0; norms before clipping of 1.56 were published", number(low), number(q.high.mean)).at(q.first)
			}
		}
	}
	loss := j.of("loss")
	if loss != nil && reward != nil && mask != nil && loss.first.step <= 1 && loss.first.mean+.3*reward.first.mean > 3.6 && mask.first.mean >= 1 {
		j.say("D7", Warn, Exact, loss, "%s is %s in batch 0 with reward %s and mask_ratio 1; 2.45 to 2.88 ± 0.13 less 0.3·reward is expected with the factor 0.6", loss.name, number(loss.first.mean), number(reward.first.mean)).at(loss.first)
	}
	efe := j.named["\x00efe"]
	if efe != nil && efe.n > 0 {
		few := int(min(10, max(1, efe.n/10)))
		exploded := false
		if efe.n >= 3 {
			for i := few; i <= len(efe.points); i++ {
				if p := efe.points[i-few : i]; mean(p) > 3*math.Abs(efe.first.mean) && efe.first.mean > 0 {
					j.say("D19", Fail, Threshold, efe, "the loss without its weights is %s by batch %d and %s in the first", number(mean(p)), p[len(p)-1].step, number(efe.first.mean)).at(p[0])
					exploded = true
					break
				}
			}
		}
		if p := efe.window(200); !exploded && len(p) >= 10 && p[len(p)-1].step-p[0].step >= 150 {
			if b, ok := slope(p); ok && b >= 0 {
				j.say("D9", Warn, Trend, efe, "the loss without reward, curriculum and hard-cell weight has slope %s a line over the last %d batches", number(b), p[len(p)-1].step-p[0].step).at(p[0])
			}
		}
		if by := j.named["\x00mask"]; by != nil && mask != nil && efe.n >= 5 && mask.high.mean-mask.low.mean > .3 && mask.low.mean < .5 {
			if a, b := deviation(by.points)/math.Abs(mean(by.points)), deviation(efe.points)/math.Abs(mean(efe.points)); a < min(.5*b, proportional) {
				j.say("D4", Warn, Threshold, loss, "loss / mask_ratio varies by %.0f%%, loss / (0.5 + 0.5·mask_ratio) by %.0f%%: the weight is mask_ratio", 100*a, 100*b).at(mask.low)
			}
		}
	}
	if h := j.of("hard_cell"); h != nil && h.n > 0 && h.low.mean < .5-1e-9 {
		j.say("D4", Warn, Exact, h, "%s is %s in batch %d; 0.5 is the least", h.name, number(h.low.mean), h.low.step).at(h.low)
	}
	if mask != nil {
		if p := mask.window(300); len(p) >= 10 && p[len(p)-1].step-p[0].step >= 200 {
			if b, ok := slope(p); ok && b >= 0 {
				j.say("D12", Warn, Trend, mask, "%s has slope %s a line over the last %d batches", mask.name, number(b), p[len(p)-1].step-p[0].step).at(p[0])
			}
		}
	}
	if v := j.of("val_accuracy"); v != nil && v.n >= 3 {
		later := v.points[2].mean
		if len(v.points) > 3 {
			later = math.Max(later, v.points[3].mean)
		}
		if later <= v.points[0].mean {
			j.say("D13", Warn, Trend, v, "%s is %s in epoch 0 and %s by epoch 2 or 3", v.name, number(v.points[0].mean), number(later)).at(v.points[2])
		}
	}
}
