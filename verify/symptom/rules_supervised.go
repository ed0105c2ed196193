package symptom

import "math"

// supervised judges what supervised and preference training log: a loss without a policy's.
func (j *judge) supervised() {
	if j.mixed() {
		return
	}
	j.explodes()
	j.preference()
	j.margins()
}

// explodes judges a loss that is at least 0 in every line, so that a multiple of its beginning has a meaning: three times that, the limit of
// the fourth guide, as the median of a tenth of the run. With mean_token_accuracy beside it it is a cross-entropy, of which more than ln V is
// worse than guessing.
func (j *judge) explodes() {
	loss := j.of("loss")
	if loss == nil || j.Program != "" || loss.n < 5 || loss.low.mean < 0 || !(loss.first.mean > 0) {
		return
	}
	for _, id := range []string{"loss_policy", "loss_value", "clip_frac", "approx_kl", "kl_k2", "kl_any", "reward", "advantage_max"} {
		if j.of(id) != nil {
			return
		}
	}
	few := int(min(10, max(3, loss.n/10)))
	begin := loss.first.mean
	uniform := quantity["entropy"].High
	if j.Vocab > 1 {
		uniform = math.Log(j.Vocab)
	}
	worst, from, to := 0., point{}, int64(0)
	for i := few; i <= len(loss.points); i++ {
		p := loss.points[i-few : i]
		m := median(values(p))
		if m > 3*begin && worst == 0 {
			from = p[0]
		}
		if m > 3*begin && m > worst {
			worst, to = m, p[len(p)-1].step
		}
	}
	if worst == 0 {
		return
	}
	severity, more := Warn, ""
	if (j.named["mean_token_accuracy"] != nil || j.named["train/mean_token_accuracy"] != nil) && worst > uniform {
		severity, more = Fail, "; guessing all tokens of a vocabulary alike has at most "+number(uniform)
	}
	j.say("LOSS-EXPLODES", severity, Threshold, loss, "%s has a median of %s in %d lines to step %d and began at %s%s", loss.name, number(worst), few, to, number(begin), more).at(from)
}

// preference judges the margin between chosen and rejected answers: no preference loss falls with it.
func (j *judge) preference() {
	find := j.preferenceSeries
	margin, accuracy, loss := find("rewards/margins"), find("rewards/accuracies"), j.of("loss")
	if margin == nil || accuracy == nil || loss == nil || margin.n < 10 || accuracy.n < 10 || loss.n < 10 {
		return
	}
	first, last := thirds(margin.points)
	_, right := thirds(accuracy.points)
	from, to := thirds(loss.points)
	apart := func(a, z []point) float64 { // the fall in standard errors
		return (mean(a) - mean(z)) / (math.Hypot(deviation(a), deviation(z)) / math.Sqrt(float64(len(a))))
	}
	// The margin is β times log π/π_ref of the chosen less that of the rejected: over a run it moves as log π of the chosen less the rejected does,
	// with the sign of β.
	if chosen, rejected := find("logps/chosen"), find("logps/rejected"); chosen != nil && rejected != nil && chosen.n == margin.n && rejected.n == margin.n && len(chosen.points) == len(rejected.points) {
		gap := make([]point, len(chosen.points))
		for i := range gap {
			gap[i] = point{mean: chosen.points[i].mean - rejected.points[i].mean}
		}
		a, z := thirds(gap)
		if apart(last, first) > 5 && apart(a, z) > 5 {
			j.say("PREFERENCE-SIGN", Fail, Trend, margin, "%s rises from %s to %s while %s − %s falls from %s to %s: beta, or the order of the pair, has the wrong sign", margin.name, number(mean(first)), number(mean(last)), chosen.name, rejected.name, number(mean(a)), number(mean(z))).at(last[0])
			return
		}
	}
	if mean(last) < 0 && mean(right) < .5 && apart(first, last) > 4 && apart(from, to) > 4 {
		j.say("PREFERENCE-SIGN", Fail, Trend, margin, "%s falls from %s to %s, with %s of the pairs in order, while %s falls from %s to %s", margin.name, number(mean(first)), number(mean(last)), number(mean(right)), loss.name, number(mean(from)), number(mean(to))).at(last[0])
	}
}

// margins judges rewards/margins, the mean over pairs of the chosen reward less the rejected one. Means are linear, so that it is the
// difference of the two means. Each difference in bfloat16 is rounded by 2⁻⁹ of it, whose mean size may be four times what the means show.
func (j *judge) margins() {
	margin, chosen, rejected := j.preferenceSeries("rewards/margins"), j.preferenceSeries("rewards/chosen"), j.preferenceSeries("rewards/rejected")
	if margin == nil || chosen == nil || rejected == nil || margin.n < 5 || margin.n != chosen.n || margin.n != rejected.n || margin.each > 1 {
		return
	}
	off, at := 0, -1
	for i, m := range margin.points {
		c, r := chosen.points[i], rejected.points[i]
		if c.step != m.step || r.step != m.step {
			return
		}
		if room := margin.half + chosen.half + rejected.half + 0x1p-7*(math.Abs(c.mean)+math.Abs(r.mean)+math.Abs(m.mean)) + 1e-4; math.Abs(m.mean-(c.mean-r.mean)) > room {
			if off++; at < 0 {
				at = i
			}
		}
	}
	if 2*off < len(margin.points) {
		return
	}
	m, c, r := margin.points[at], chosen.points[at], rejected.points[at]
	j.say("LOSS-SUM", Fail, Exact, margin, "%s is %s and %s − %s is %s − %s = %s in step %d; off in %d of %d lines", margin.name, number(m.mean), chosen.name, rejected.name, number(c.mean), number(r.mean), number(c.mean-r.mean), m.step, off, margin.n).at(m)
}
