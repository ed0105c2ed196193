package symptom

import (
	"math"
	"strings"

	"plumbline/internal/format/runlog"
)

// first judges what must hold before anything has moved: the ratio of a first update is 1, the policy is its reference, the engine has the
// trainer's weights.
func (j *judge) first() {
	if j.Program == "arc" || j.mixed() {
		return
	}
	j.firstRatio()
	j.firstReference()
	j.firstEngine()
	j.driftingEngine()
	j.leftover()
	j.samePrompts()
}

// ratioRounding is the mean log-ratio, and the share of clipped tokens, that bfloat16 may show where the ratio is 1: a log-prob of 2 to 4 nats
// has a spacing of 2⁻⁶, of which the mean of signed roundings keeps less than 2⁻⁷, and no rounding reaches the clip range of 0.2.
const ratioRounding = 1e-2

// firstRatio finds updates at which nothing can have moved since the rollout, and whose ratio is not 1: those at a learning rate of 0, the
// first update from each rollout where the log tells which these are, and epochs over one rollout that begin as far from it as they end.
func (j *judge) firstRatio() {
	kl, clip, lr := j.of("approx_kl"), j.of("clip_frac"), j.of("lr")
	for _, s := range []*series{kl, clip} {
		if s == nil || lr == nil || lr.n < 3 || lr.first.mean != 0 || !(lr.level > 0 || lr.exact || lr.half < 1e-9) {
			continue
		}
		for i, p := range s.points {
			if i >= len(lr.points) || lr.points[i].step != p.step || lr.points[i].max != 0 {
				break
			}
			if p.max > ratioRounding || p.min < -ratioRounding {
				j.say("RATIO-FIRST", Fail, Exact, s, "%s is %s in step %d, where the learning rate has been 0: no update has moved the policy, and every ratio must be 1", s.name, number(p.mean), p.step).at(p).Or = []string{"H13c"}
				break
			}
		}
	}
	e := &j.epochs
	first := func(s *series, of [2][]float64, one bool) {
		if s == nil || len(of[0]) < 5 {
			return
		}
		a, b := median(of[0]), math.NaN()
		if len(of[1]) > 0 {
			b = median(of[1])
		}
		switch {
		case one && a > ratioRounding:
			j.say("RATIO-FIRST", Fail, Exact, s, "%s has a median of %s over the first updates of %d rollouts, where every ratio must be 1", s.name, number(a), len(of[0])).at(s.first).Or = []string{"H13c"}
		// Without clipping the k-th of 2u updates is k moves away from the rollout: the KL goes with k², and the mean over the first u is a seventh
		// of that over the other u; the share of clipped tokens grows with k as well.
		case !one && a > 2*ratioRounding && a >= .9*b:
			j.say("RATIO-FIRST", Warn, Trend, s, "%s has a median of %s in the first epoch over a rollout and of %s in the second: it does not grow with the updates, as what they move does", s.name, number(a), number(b)).at(s.first)
		}
	}
	first(kl, e.kl, j.perEpoch == 1)
	first(clip, e.clip, j.perEpoch == 1)
	// TRL generates for num_iterations updates at a time: each of these begins with a ratio of 1.
	if k := int64(j.optionNumber(0, "num_iterations")); clip != nil && j.Program == "trl-grpo" && k >= 1 && clip.each == 1 && clip.n >= 5*k && clip.last.step-clip.first.step == clip.n-1 {
		if _, other := j.option("steps_per_generation"); !other && clip.first.step == 1 {
			var list []float64
			for i := int64(0); i < int64(len(clip.points)); i += k {
				list = append(list, clip.points[i].mean)
			}
			if m := median(list); m > ratioRounding {
				j.say("RATIO-FIRST", Fail, Exact, clip, "%s has a median of %s over the first updates of %d rollouts (num_iterations %d), where every ratio must be 1", clip.name, number(m), len(list), k).at(clip.first)
			}
		}
	}
	if k := j.optionNumber(1, "num_iterations", "ppo_epochs", "num_ppo_epochs", "max_epochs", "ppo.epochs"); k > 1 && kl != nil && kl.n >= 5 && kl.zeros == kl.n && (kl.level > 0 || kl.exact) && lr != nil && lr.n-lr.zeros >= 5 {
		j.say("RATIO-STUCK", Warn, Exact, kl, "%s is exactly 0 in all %d lines, with %s passes over each rollout", kl.name, kl.n, number(k)).at(kl.first)
	}
}

// firstReference judges the KL to the reference in the first line, where no token was clipped: each ratio that clipping looks at is then
// within 1 ± ε, and k3 of a policy that began as its reference is at most 1/(1 − ε) − 1 + ln(1 − ε), 0.027 for an ε of 0.2. Tokens that
// move against their advantage are clipped by no rule, so 0.1 is the limit, and it is a warning: another reference may be meant.
func (j *judge) firstReference() {
	kl, clip, drift := j.of("kl_any"), j.of("clip_frac"), j.of("approx_kl")
	if kl == nil || clip == nil || drift == nil || kl.n < 3 || kl.first.step > 1 || clip.first.step != kl.first.step || drift.first.step != kl.first.step || strings.Contains(kl.name, "reward") {
		return
	}
	if clip.first.mean == 0 && math.Abs(drift.first.mean) < ratioRounding && math.Abs(kl.first.mean) > .1 {
		j.say("H1", Warn, Threshold, kl, "%s is %s in the first line, with %s 0 and %s %s: the policy has not moved from its rollout, and is not its reference", kl.name, number(kl.first.mean), clip.name, drift.name, number(drift.first.mean)).at(kl.first)
	}
}

// firstEngine judges a gap between engine and trainer that is not there in the first step. Rounding does not depend on the step: means over
// thousands of tokens that differ by a factor of ten are of another kind, and the weights are what changes after the first update. The
// factor is 10 for a mean |Δ| and 100 for k3, which goes with its square; a KL by k1 is judged by its scatter as well.
func (j *judge) firstEngine() {
	for _, of := range []struct {
		id            string
		factor, least float64
	}{{"engine_gap", 10, .005}, {"engine_probs", 10, .002}, {"engine_k3", 100, 2.5e-5}, {"engine_kl", 10, .002}} {
		s := j.of(of.id)
		if s == nil || s.n < 10 || s.first.step > 1 || s.each > 1 {
			continue
		}
		later := s.points[1:]
		m := mean(later)
		if of.id != "engine_kl" {
			m = median(values(later))
		} else if m < 5*deviation(later)/math.Sqrt(float64(len(later))) { // its mean over samples of the engine is a KL, not negative
			continue
		}
		if m > of.least+s.half && m > of.factor*math.Max(math.Abs(s.first.mean), s.half) {
			j.say("ENGINE-GAP", Warn, Threshold, s, "%s is %s in step %d and %s after it: not there before the first update, so the engine's weights are not those of the trainer", s.name, number(s.first.mean), s.first.step, number(m)).at(later[0])
		}
	}
}

// driftingEngine judges a gap that grows while the entropy does not move. The variance of a rounded log-prob is the error of the logits times
// 1 − 2p + Σp², which the distribution decides: a gap that grows threefold at the same entropy is of weights that part. A k3 goes with its square.
func (j *judge) driftingEngine() {
	h := j.of("entropy")
	if h == nil || h.n < 15 || h.each > 1 {
		return
	}
	if a, z := thirds(h.points); !(math.Abs(mean(z)-mean(a)) < .2*math.Abs(mean(a))) {
		return
	}
	for _, of := range []struct {
		id            string
		factor, least float64
	}{{"engine_gap", 3, .01}, {"engine_k3", 9, 1e-4}} {
		s := j.of(of.id)
		if s == nil || s.n < 15 || s.each > 1 {
			continue
		}
		a := s.points[:5]
		_, z := thirds(s.points)
		rise := mean(z) - of.factor*mean(a)
		if mean(z) > of.least && rise > 4*math.Hypot(of.factor*scatter(a)/math.Sqrt(float64(len(a))), scatter(z)/math.Sqrt(float64(len(z)))) {
			j.say("ENGINE-GAP", Warn, Trend, s, "%s grows from %s, the mean of the first five lines, to %s, that of the last third, and the entropy stays: the engine's weights are not those of the trainer", s.name, number(mean(a)), number(mean(z))).at(z[0])
			return
		}
	}
}

// leftover compares the updates of an epoch that a log tells with those that its batch sizes make.
func (j *judge) leftover() {
	rows, mini, accumulation := j.optionNumber(0, "rollout_samples"), j.optionNumber(0, "mini_batch_size"), j.optionNumber(0, "gradient_accumulation_steps")
	if j.perEpoch <= 0 || !(rows > 0 && mini > 0 && accumulation > 1) {
		return
	}
	micros := math.Ceil(rows / mini)
	if left := math.Mod(micros, accumulation); left != 0 && float64(j.perEpoch) == math.Floor(micros/accumulation) {
		f := j.say("H13d", Warn, Exact, nil, "%s micro-batches in an epoch, %s to an update and %d updates: %s are left over, and no update is made of them", number(micros), number(accumulation), j.perEpoch, number(left))
		f.Line = j.perEpochLine
	}
}

// epochLines are the KL and the share of clipped tokens by epoch over a rollout, the first epoch and the second.
type epochLines struct {
	step     int64
	kl, clip [2][]float64
}

// addEpoch takes a line of an epoch over a rollout.
func (w *Watch) addEpoch(value func(string) (float64, bool)) {
	const most = 4096
	epoch, ok := value("epoch")
	if !ok || w.Program != "ppo" || (epoch != 1 && epoch != 2) {
		return
	}
	e, k := &w.epochs, int(epoch)-1
	if k == 1 && e.step != w.step { // without its first epoch
		return
	}
	e.step = w.step
	for _, of := range []struct {
		name string
		to   *[]float64
	}{{"params/approx_kl", &e.kl[k]}, {"params/policy_clip_frac", &e.clip[k]}} {
		if v, ok := value(of.name); ok && !math.IsNaN(v) && len(*of.to) < most {
			*of.to = append(*of.to, v)
		}
	}
}

// passes are the epochs of lines that have no step, as the console of transformers' Trainer prints them: one line with a loss and a learning
// rate for each update.
type passes struct {
	has        bool
	last, rate float64
	up, equal  int64   // lines with an epoch above that of the line before, or equal to it
	least      float64 // the smallest such rise
	unit       float64 // of the last digit that an epoch has
	moved      int64   // lines of up whose learning rate is not that of the line before
	shared     int64   // lines of equal whose learning rate is
	turns      int64   // lines at which the learning rate turns
	rising     int     // the sign of its last change
	firstEqual point
}

// twice reports whether the lines of two runs, or of two ranks, alternate: most epochs stand in two of them. Those of one run do so where
// epochs are rounded, as releases before 4.40 do, to two digits, or where a batch is used for two updates. Then a learning rate that moves
// moves between the two; that of two ranks is the same in both, that of two runs goes to and fro.
func (p *passes) twice() bool {
	if p.equal < 5 || p.equal*10 < p.up*9 || p.equal*9 > p.up*10 { // an epoch of many lines is one that is rounded
		return false
	}
	if p.moved*2 < p.up {
		return p.least > 1.5*p.unit
	}
	return p.shared*10 >= p.equal*9 || p.turns*10 >= (p.up+p.equal)*7
}

// byEpoch takes the order of a line without a step from its epoch.
func (w *Watch) byEpoch(row *runlog.Row) {
	epoch, ok := w.value(row, "epoch")
	_, loss := w.value(row, "loss")
	lr, rate := w.value(row, "learning_rate")
	if !ok || !loss || !rate || math.IsNaN(epoch) {
		return
	}
	p := &w.pass
	for _, f := range row.Fields {
		if w.names[f.Name] == "epoch" && (p.unit == 0 || 2*f.Half < p.unit) {
			p.unit = 2 * f.Half
		}
	}
	if !p.has {
		p.has, p.last, p.rate, p.up, p.least = true, epoch, lr, 1, math.Inf(1)
		return
	}
	if sign := compare(lr, p.rate); sign != 0 {
		if p.rising != 0 && sign != p.rising {
			p.turns++
		}
		p.rising = sign
	}
	switch {
	case epoch > p.last:
		w.forward++
		p.up++
		p.least = math.Min(p.least, epoch-p.last)
		if lr != p.rate {
			p.moved++
		}
	case epoch < p.last:
		if w.back++; w.back == 1 {
			w.backFrom, w.backLine = [2]int64{w.step - 1, w.step}, row.Line
		}
	default:
		if lr == p.rate {
			p.shared++
		}
		if p.equal++; p.equal == 1 {
			p.firstEqual = point{step: w.step, line: row.Line}
		}
	}
	p.last, p.rate = epoch, lr
}

// compare is the sign of a − b.
func compare(a, b float64) int {
	switch {
	case a > b:
		return 1
	case a < b:
		return -1
	}
	return 0
}

// samePrompts finds prompt lengths that stand still: two batches drawn from lengths that differ, which is what a least one below the longest
// says, have the same mean by chance in at most half of the cases (two lengths, two prompts), in ten lines in 2⁻⁹.
func (j *judge) samePrompts() {
	mean, low, high := j.named["prompt_length/mean"], j.named["prompt_length/min"], j.named["prompt_length/max"]
	if mean == nil || low == nil || high == nil || mean.n < 10 || mean.bad > 0 || low.n == 0 || high.n == 0 {
		return
	}
	still := func(s *series) bool { return s.low.mean == s.high.mean }
	if !still(mean) || !still(low) || !still(high) || low.first.mean == high.first.mean {
		return
	}
	severity, why := Warn, ""
	if e := j.named["training/epoch"]; e != nil && e.last.mean-e.first.mean >= float64(e.n-1) {
		severity, why = Note, "; an epoch is a step, so the data are one batch"
	}
	j.say("H13b", severity, Exact, mean, "%s is %s in all %d lines, %s %s and %s %s: prompts that differ in length, and the same ones each time%s", mean.name, number(mean.first.mean), mean.n, low.name, number(low.first.mean), high.name, number(high.first.mean), why).at(mean.first)
}
