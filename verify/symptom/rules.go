package symptom

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"plumbline/verify/bug"
)

// judge collects the findings of a watch.
type judge struct {
	*Watch
	list []*Finding
}

// Findings judges what was seen so far: the firmest first, what follows from another finding below it.
func (w *Watch) Findings() []*Finding {
	j := &judge{Watch: w}
	for _, h := range w.texts {
		id := h.id
		switch {
		case id == "A4" && (w.Program == "ppo" || w.isPPO()):
			id = "C6"
		case id == "D1" && w.Program == "ppo":
			id = "C3"
		}
		f := j.say(id, Fail, Exact, nil, "")
		if id == "C1" || id == "C2" || id == "C6" || id == "C9" {
			f.Severity = Warn
		}
		if id == "C9" {
			f.Severity = Fail
		}
		f.Step, f.Line, f.Evidence = h.step, h.line, fmt.Sprintf("line %d: %s", h.line, h.text)
	}
	for _, rule := range []func(*judge){(*judge).impossible, (*judge).sumsUp, (*judge).form, (*judge).shielded, (*judge).masked, (*judge).tutorial, (*judge).arc, (*judge).frameworks, (*judge).memory} {
		rule(j)
	}
	return Rank(j.list)
}

func (w *Watch) isPPO() bool {
	_, ok := w.option("mini_batch_size")
	return ok
}

// say adds a finding about a series at its point p.
func (j *judge) say(id string, severity Severity, kind Kind, s *series, format string, a ...any) *Finding {
	f := &Finding{Symptom: bug.MustFindSymptom(id), Severity: severity, Kind: kind, Step: -1, Evidence: fmt.Sprintf(format, a...), order: len(j.list)}
	if s != nil {
		f.Metric, f.Level = s.name, s.level
		if s.what != nil {
			f.Quantity = s.what.ID
		}
	}
	j.list = append(j.list, f)
	return f
}

func (f *Finding) at(p point) *Finding {
	f.Step, f.Line = p.step, p.line
	return f
}

// Stall is the finding that nothing was logged for so many seconds.
func Stall(seconds float64) *Finding {
	return &Finding{Symptom: bug.MustFindSymptom("STALL"), Severity: Fail, Kind: Exact, Step: -1, Evidence: fmt.Sprintf("no line for %s s; or the run has ended", number(math.Round(seconds)))}
}

// Rank orders findings: notes last, else texts and impossible numbers before limits and these before trends; of equal ones the worse
// first. One of each id stays, and what another explains goes below it.
func Rank(list []*Finding) []*Finding {
	var one []*Finding
	at := map[string]*Finding{}
	for _, f := range list {
		old := at[f.ID]
		if old == nil {
			at[f.ID] = f
			one = append(one, f)
			continue
		}
		if f.Severity > old.Severity || f.Severity == old.Severity && f.Level > old.Level {
			old.Severity, old.Kind, old.Evidence, old.Step, old.Line, old.Metric, old.Level, old.Hypothesis, old.Quantity = f.Severity, f.Kind, f.Evidence, f.Step, f.Line, f.Metric, f.Level, f.Hypothesis, f.Quantity
		}
	}
	weight := func(f *Finding) int {
		if f.Severity == Note {
			return 9
		}
		k := int(f.Kind)
		if f.Hypothesis {
			k = int(Threshold)
		}
		return k
	}
	slices.SortStableFunc(one, func(a, b *Finding) int {
		if d := weight(a) - weight(b); d != 0 {
			return d
		}
		if d := int(b.Severity) - int(a.Severity); d != 0 {
			return d
		}
		return a.order - b.order
	})
	// What explains stands before what it explains.
	parent := map[string]string{}
	for _, f := range one {
		for _, id := range f.Explains {
			if child := at[id]; child != nil && parent[f.ID] != id && parent[id] == "" && !(f.Severity == Note && child.Severity > Note) {
				if slices.Contains(child.Explains, f.ID) && weight(child) < weight(f) {
					continue
				}
				parent[id] = f.ID
			}
		}
	}
	var top []*Finding
	for _, f := range one {
		root := f.ID
		for i := 0; i < len(one) && parent[root] != ""; i++ {
			root = parent[root]
		}
		if root == f.ID {
			top = append(top, f)
		} else {
			at[root].Under = append(at[root].Under, f)
		}
	}
	// A cause below which something worse lies is as urgent as that.
	slices.SortStableFunc(top, func(a, b *Finding) int {
		if d := rank(a, weight) - rank(b, weight); d != 0 {
			return d
		}
		return int(b.Severity) - int(a.Severity)
	})
	return top
}

func rank(f *Finding, weight func(*Finding) int) int {
	best := weight(f)
	for _, u := range f.Under {
		best = min(best, weight(u))
	}
	return best
}

// impossible finds values that are not finite and values outside the range of their formula.
func (j *judge) impossible() {
	if p := j.filtered; p != nil {
		j.say("NAN-FILTERED", Fail, Exact, nil, "loss 0 and grad_norm NaN in one line").at(*p)
	}
	var first *series
	for _, s := range j.series {
		if s == nil || s.bad == 0 || s.what == nil && !strings.Contains(strings.ToLower(s.name), "loss") {
			continue
		}
		if _, history := j.named["_step"]; history && s.sparse() {
			continue
		}
		if s.what != nil && s.what.ID == "explained" && !s.infinite { // 0/0 where all returns are equal
			continue
		}
		if first == nil || s.firstBad.line < first.firstBad.line {
			first = s
		}
	}
	for _, s := range []*series{&j.micro.std, &j.micro.policy, &j.micro.kl, &j.micro.total} {
		if s.bad > 0 && (first == nil || s.firstBad.line < first.firstBad.line) {
			first = s
		}
	}
	if first != nil {
		id := map[string]string{"arc": "D10", "ppo": "C3"}[j.Program]
		if id == "" {
			id = "NONFINITE"
		}
		if (first == &j.micro.std || first.what != nil && first.what.ID == "reward_std") && (first == &j.micro.std && j.micro.std.n == 0 || j.optionNumber(2, "group_size", "num_generations", "n_samples_per_prompt", "n") == 1) {
			id = "H7e"
		}
		what := "NaN"
		if first.infinite {
			what = "infinite"
		}
		var others []string
		for _, s := range j.series {
			if s != nil && s != first && s.bad > 0 {
				others = append(others, s.name)
			}
		}
		more := ""
		if len(others) > 0 {
			more = fmt.Sprintf("; then %s", strings.Join(others[:min(4, len(others))], ", "))
			if len(others) > 4 {
				more += fmt.Sprintf(" and %d more", len(others)-4)
			}
		}
		j.say(id, Fail, Exact, first, "%s is the first that is %s: step %d, line %d, %d times%s", first.name, what, first.firstBad.step, first.firstBad.line, first.bad, more).at(first.firstBad)
	}
	for _, s := range j.series {
		if s == nil {
			continue
		}
		if s.missing > 0 && s.what != nil && s.n == 0 && s.what.ID == "loss" {
			j.say("NONFINITE", Warn, Exact, s, "%s is null in all %d lines: loggers write NaN so", s.name, s.missing).at(s.firstMiss)
		}
		if s.what == nil || s.what.Range == "" || s.n == 0 {
			continue
		}
		low, high := s.what.Low, s.what.High
		if s.what.ID == "entropy" && j.Vocab > 1 {
			high = math.Log(j.Vocab)
		}
		if s.what.ID == "loss_value" && j.Program == "openrlhf" {
			low = math.Inf(-1)
		}
		room := s.half + 1e-6*math.Max(1, math.Abs(high))
		if math.IsInf(high, 1) {
			room = s.half + 1e-6
		}
		if s.what.ID == "kl_k3" || s.what.ID == "kl_k2" || s.what.ID == "loss_kl" || s.what.ID == "engine_k3" {
			room = s.half + 1e-6 // e^d − d − 1 in float32 may fall a few ulp of d below 0
		}
		if p, bad := s.firstBeyond(low-room, high+room); bad {
			id := s.what.Range
			limit := fmt.Sprintf("from %s to %s", number(low), number(high))
			switch {
			case math.IsInf(high, 1):
				limit = "at least " + number(low)
			case math.IsInf(low, -1):
				limit = "at most " + number(high)
			}
			if s.what.ID == "entropy" && j.Vocab > 1 {
				limit = fmt.Sprintf("from 0 to ln %s = %s", number(j.Vocab), number(high))
			}
			severity := Fail
			if s.what.ID == "entropy" && s.known != nil && s.known.Program == "" && p.mean > 0 {
				severity = Warn // of an unknown program it may be a sum over a sequence
			}
			j.say(id, severity, Exact, s, "%s is %s in step %d (line %d); %s is %s", s.name, number(p.mean), p.step, p.line, s.what.Formula, limit).at(p)
		}
	}
}

// sumsUp finds numbers of one line that contradict each other.
func (j *judge) sumsUp() {
	for i := range j.families {
		if f := &j.families[i]; f.bad != nil {
			j.say("ORDER-RANGE", Fail, Exact, j.named[f.name], "%s is %s and %s is %s in step %d (line %d)", f.name, number(f.bad.mean), f.first, number(f.bad.min), f.bad.step, f.bad.line).at(*f.bad)
		}
	}
	for _, s := range j.sums.list {
		if s.bad != nil {
			quotient := ""
			if s.want != 0 {
				quotient = fmt.Sprintf(", %s times", number(s.got/s.want))
			}
			j.say(s.rule, Fail, Exact, j.named[s.total], "%s is %s and %s is %s%s in step %d; off in %d of %d lines", s.total, number(s.got), strings.Join(s.terms, " + "), number(s.want), quotient, s.bad.step, s.off, s.n).at(*s.bad)
			continue
		}
		if c, worst, ok := s.settle(); ok && worst > 4 {
			severity := Warn
			j.say(s.rule, severity, Exact, j.named[s.total], "%s is no constant combination of %s: the nearest one, %s, is off by %s", s.total, strings.Join(s.terms, ", "), coefficients(c), number(worst)+" roundings")
		}
	}
	if p := j.micro.mismatch; p != nil {
		f := j.say("LOSS-SUM", Fail, Exact, &j.micro.total, "total=%s and pg_loss + kl = %s + %s = %s (line %d)", number(p.mean), number(p.min), number(p.max), number(p.min+p.max), p.line)
		f.at(*p)
	}
}

func coefficients(c []float64) string {
	var list []string
	for _, v := range c {
		list = append(list, number(v))
	}
	return "(" + strings.Join(list, ", ") + ")"
}

// form judges the order of the steps.
func (j *judge) form() {
	moves := j.forward + j.back
	switch {
	case j.back == 0:
	case j.resumed && j.back*4 <= moves:
		f := j.say("STEPS-RESUMED", Note, Exact, nil, "line %d goes from step %d back to %d; the log has the marker of a resume", j.backLine, j.backFrom[0], j.backFrom[1])
		f.Step, f.Line = j.backFrom[1], j.backLine
	case j.back*4 >= moves && j.back > 2 && j.forward >= j.back:
		f := j.say("TWO-RUNS", Warn, Exact, nil, "steps fall %d times and rise %d times; the first time in line %d, from %d to %d", j.back, j.forward, j.backLine, j.backFrom[0], j.backFrom[1])
		f.Step, f.Line = j.backFrom[1], j.backLine
	case j.back*4 >= moves:
		f := j.say("STEPS-BACK", Fail, Exact, nil, "line %d goes from step %d back to %d; steps fall %d times and rise %d times", j.backLine, j.backFrom[0], j.backFrom[1], j.back, j.forward)
		f.Step, f.Line = j.backFrom[1], j.backLine
	default:
		f := j.say("STEPS-RESUMED", Note, Exact, nil, "line %d goes from step %d back to %d, %d times in all", j.backLine, j.backFrom[0], j.backFrom[1], j.back)
		f.Step, f.Line = j.backFrom[1], j.backLine
	}
}

// mixed reports whether trends are of a mixture of two runs.
func (j *judge) mixed() bool { return j.back*4 >= j.forward+j.back && j.back > 0 }

// shielded judges shielded PPO.
func (j *judge) shielded() {
	if s := j.of("project_time"); s != nil {
		if t := j.of("step_time"); t != nil && median(values(s.points)) > .1*median(values(t.points)) {
			j.say("A2", Warn, Threshold, s, "%s has a median of %s ms, %.0f%% of a step of %s ms; 10%% is the limit", s.name, number(median(values(s.points))), 100*median(values(s.points))/median(values(t.points)), number(median(values(t.points)))).at(s.first)
		}
	}
	beta := j.optionNumber(.05, "kl_beta", "beta")
	if text, ok := j.option("kl_beta"); ok && j.Program == "shielded" && beta < .05 && beta >= 0 {
		j.say("A3", Warn, Threshold, nil, "kl_beta is %s, below 0.05", text)
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
		case spread.low.mean < 1e-8+spread.half && typical < .01:
			flat = true
			j.say("B1", Fail, Exact, spread, "the standard deviation of the rewards is %s, its median %s over %d lines", number(spread.low.mean), number(typical), spread.n).at(spread.low)
		case typical < .01:
			flat = true
			j.say("B1", Warn, Threshold, spread, "the standard deviation of the rewards has a median of %s over %d lines; more than 0.01 is expected", number(typical), spread.n).at(spread.low)
		}
	}
	if j.unused > 0 {
		flat = true
		j.say("B1", Fail, Exact, spread, "no micro-step could be used in %d iterations: all completions of a group were identical, or nothing was masked", j.unused).at(j.unusedAt)
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
		}
		if kl.high.mean > 10*beta {
			p, _ := kl.firstBeyond(math.Inf(-1), 10*beta)
			j.say("B10", Fail, Threshold, kl, "%s is %s in step %d: 10 nats at kl_beta %s would be %s", kl.name, number(kl.high.mean), kl.high.step, number(beta), number(10*beta)).at(p)
		} else if typical := median(values(kl.points)); typical > .1+kl.half {
			p, _ := kl.firstBeyond(math.Inf(-1), .1)
			j.say("B10", Warn, Threshold, kl, "%s has a median of %s; 0 to 0.1 is usual", kl.name, number(typical)).at(p)
		}
		reference, known := j.option("reference_checkpoint")
		if kl.first.step <= 1 && math.Abs(kl.first.mean) > 1e-6+kl.half && (!known && len(j.Config) > 0 || known && reference == "") {
			j.say("H7a", Fail, Exact, kl, "%s is %s in the first iteration, where reference and generator are the same", kl.name, number(kl.first.mean)).at(kl.first)
		}
	}
	if s := j.named["skipped_micro_steps"]; s != nil && s.n > 0 && s.high.mean > 0 && j.named["num_masked"] == nil {
		j.say("H7b", Warn, Exact, s, "%s is %s in step %d", s.name, number(s.high.mean), s.high.step).at(s.high)
	}
	if pg := j.of("loss_policy"); pg != nil && pg.n >= 10 && pg.low.mean > 0 {
		j.say("B10", Note, Trend, pg, "%s is above 0 in all %d lines: its sign is undetermined, and no fault", pg.name, pg.n).at(pg.first)
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
		if p, _ := clip.firstBeyond(math.Inf(-1), math.Min(high, .5)*.999); high > .5 {
			j.say("C13", Fail, Threshold, clip, "%s has a median of %s; healthy is below 0.1 to 0.2", clip.name, number(high)).at(p)
		} else if high > .2 {
			p, _ = clip.firstBeyond(math.Inf(-1), .2)
			j.say("C13", Warn, Threshold, clip, "%s has a median of %s; healthy is below 0.1 to 0.2", clip.name, number(high)).at(p)
		}
	}
	if v := j.of("value_clip_frac"); v != nil && v.n >= 5 {
		if x := math.Max(v.recent(), median(values(v.points))); x > .2 {
			p, _ := v.firstBeyond(math.Inf(-1), .2)
			j.say("C13", Warn, Threshold, v, "%s has a median of %s; healthy is below 0.1 to 0.2", v.name, number(x)).at(p)
		}
	}
	gradient := math.NaN()
	if norm != nil && norm.n >= 3 && j.Program != "shielded" {
		gradient = norm.recent()
		p, _ := norm.firstBeyond(math.Inf(-1), 10)
		switch {
		case gradient > 100:
			j.say("C14", Fail, Threshold, norm, "%s has a median of %s in the last ten lines; more than 10 to 100 is unstable where max_grad_norm is 1", norm.name, number(gradient)).at(p)
		case gradient > 10:
			j.say("C14", Warn, Threshold, norm, "%s has a median of %s in the last ten lines; more than 10 is unstable where max_grad_norm is 1", norm.name, number(gradient)).at(p)
		}
	}
	if total != nil && !mixed && (j.Program == "ppo" || j.Program == "" || value != nil) {
		if b, ok := slope(total.points); ok && b < 0 && (high > .5 || gradient > 10) {
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
		b, _ := slope(value.points)
		tail := value.lastOf(50)
		low, top := math.Inf(1), math.Inf(-1)
		for _, p := range tail {
			low, top = math.Min(low, p.mean), math.Max(top, p.mean)
		}
		switch {
		case len(tail) >= 50 && top-low < .01*math.Max(math.Abs(top), math.Abs(low)):
			j.say("C11", Warn, Trend, value, "%s stays between %s and %s over the last 50 lines", value.name, number(low), number(top)).at(tail[0])
		case b >= 0 && value.n >= 20:
			j.say("C11", Warn, Trend, value, "%s has slope %s a line over %d lines", value.name, number(b), value.n).at(value.first)
		}
	}
	if kl != nil && kl.n >= 3 {
		b, ok := slope(kl.points)
		a, z := thirds(kl.points)
		switch {
		case median(values(kl.lastOf(10))) > .1 || kl.n >= 10 && len(z) > 0 && mean(z) > .1:
			p, _ := kl.firstBeyond(math.Inf(-1), .1)
			j.say("C12", Warn, Threshold, kl, "%s has a median of %s in the last ten lines; 0.1 is large", kl.name, number(kl.recent())).at(p)
			if ok && b > 0 && mean(z) > 2*math.Abs(mean(a)) && !mixed {
				j.say("C7", Warn, Trend, kl, "%s grows from %s to %s, in means of the first and last third: kl_coeff is too low", kl.name, number(mean(a)), number(mean(z))).at(p)
			}
		case ok && !mixed && b > 0 && mean(z) > 3*math.Abs(mean(a)) && mean(z) > .02:
			j.say("C12", Warn, Trend, kl, "%s grows from %s to %s, in means of the first and last third", kl.name, number(mean(a)), number(mean(z))).at(z[0])
		case kl.n >= 50 && reward != nil && !mixed && j.Program != "trl-grpo":
			small := true
			for _, p := range kl.lastOf(50) {
				small = small && math.Abs(p.mean) < 1e-4
			}
			tail := reward.lastOf(50)
			flat := len(tail) >= 50
			if b, ok := slope(tail); ok && flat {
				flat = math.Abs(b)*float64(len(tail)) < .05*math.Max(math.Abs(mean(tail)), deviation(reward.points))
			}
			if small && flat {
				j.say("C7", Warn, Trend, kl, "|%s| is below 1e-4 in the last 50 lines and %s is flat: kl_coeff is too high, or nothing is trained", kl.name, reward.name).at(kl.lastOf(50)[0])
			}
		}
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
			j.say("C16", Warn, Exact, nil, "max_grad_norm is %s", clip2(text))
		}
	}
	if text, ok := j.option("do_sample"); ok && strings.EqualFold(text, "false") {
		j.say("C17", Warn, Exact, nil, "do_sample is %s", clip2(text))
	} else if t := j.optionNumber(1, "generation.temperature"); t == 0 {
		j.say("C17", Warn, Exact, nil, "temperature is 0")
	}
	if n := j.optionNumber(2, "ppo.epochs"); n < 2 || n > 10 {
		j.say("C18", Note, Exact, nil, "ppo.epochs is %s", number(n))
	}
}

func clip2(s string) string {
	if s == "" {
		return "empty"
	}
	return clip(s)
}

// arc judges the solver of ARC grids.
func (j *judge) arc() {
	if j.Program != "arc" {
		return
	}
	reward, mask := j.of("reward"), j.of("mask_ratio")
	frozen, _ := j.option("encoder.train")
	if q := j.of("qwen_grad"); q != nil && q.n > 0 && frozen != "frozen" {
		zero := q.longest
		sparse := len(q.points) > 1 && q.points[1].step-q.points[0].step > 10
		switch {
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
	if loss != nil && reward != nil && mask != nil && loss.first.step <= 1 && loss.first.mean > 3.6 && reward.first.mean == 0 && mask.first.mean >= 1 {
		j.say("D7", Warn, Exact, loss, "%s is %s in batch 0 with reward 0 and mask_ratio 1; 2.45 to 2.88 ± 0.13 is expected with the factor 0.6", loss.name, number(loss.first.mean)).at(loss.first)
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
		if p := efe.since(200); !exploded && len(p) >= 10 && p[len(p)-1].step-p[0].step >= 150 {
			if b, ok := slope(p); ok && b >= 0 {
				j.say("D9", Warn, Trend, efe, "the loss without reward, curriculum and hard-cell weight has slope %s a line over the last %d batches", number(b), p[len(p)-1].step-p[0].step).at(p[0])
			}
		}
		if by := j.named["\x00mask"]; by != nil && mask != nil && efe.n >= 5 && mask.high.mean-mask.low.mean > .3 && mask.low.mean < .5 {
			if a, b := deviation(by.points)/math.Abs(mean(by.points)), deviation(efe.points)/math.Abs(mean(efe.points)); a < .5*b {
				j.say("D4", Warn, Threshold, loss, "loss / mask_ratio varies by %.0f%%, loss / (0.5 + 0.5·mask_ratio) by %.0f%%: the weight is mask_ratio", 100*a, 100*b).at(mask.low)
			}
		}
	}
	if h := j.of("hard_cell"); h != nil && h.n > 0 && h.low.mean < .5-1e-9 {
		j.say("D4", Warn, Exact, h, "%s is %s in batch %d; 0.5 is the least", h.name, number(h.low.mean), h.low.step).at(h.low)
	}
	if reward != nil && reward.n > 0 {
		switch {
		case reward.longest.to-reward.longest.from >= 100:
			f := j.say("D11", Warn, Exact, reward, "Reward is exactly 0 from batch %d to %d", reward.longest.from, reward.longest.to)
			f.Step, f.Line = reward.longest.from, reward.longest.line
		case reward.zeros < reward.n && math.Max(math.Abs(reward.low.mean), math.Abs(reward.high.mean)) < 1e-3:
			j.say("D5", Note, Threshold, reward, "|Reward| stays below 1e-3").at(reward.first)
		}
	}
	if mask != nil {
		if p := mask.since(300); len(p) >= 10 && p[len(p)-1].step-p[0].step >= 200 {
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
	if e := j.named["time_encoder_ms"]; e != nil && e.n > 10 {
		if t := j.of("step_time"); t != nil && median(values(e.points)) > .5*median(values(t.points)) {
			j.say("D6", Note, Threshold, e, "the encoder takes %.0f%% of a batch", 100*median(values(e.points))/median(values(t.points))).at(e.first)
		}
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
	if s := j.of("lr"); s != nil && s.n >= 5 && s.zeros == s.n && ((s.level > 0) || s.half < 1e-9) {
		j.say("LR-ZERO", Fail, Exact, s, "%s is 0 in all %d lines", s.name, s.n).at(s.first)
	}
	zero := j.of("zero_std_share")
	if zero != nil && zero.n >= 3 && zero.recent() > .9 && j.Program != "grpo" {
		p, _ := zero.firstBeyond(math.Inf(-1), .9)
		j.say("ZERO-STD", Warn, Threshold, zero, "%s has a median of %s in the last ten lines", zero.name, number(zero.recent())).at(p)
	}
	if s := j.of("reward_std"); s != nil && s.n >= 3 && s.zeros == s.n && j.Program != "grpo" {
		j.say("ZERO-STD", Warn, Threshold, s, "%s is 0 in all %d lines", s.name, s.n).at(s.first)
	}
	if s := j.of("grad_norm"); s != nil && s.n >= 3 && j.Program != "grpo" {
		if s.zeros == s.n && ((s.level > 0) || s.half < 1e-4) {
			j.say("GRAD-ZERO", Fail, Exact, s, "%s is exactly 0 in all %d lines", s.name, s.n).at(s.first)
		} else if s.longest.n >= 20 {
			f := j.say("GRAD-ZERO", Warn, Exact, s, "%s is exactly 0 in %d lines in a row, from step %d", s.name, s.longest.n, s.longest.from)
			f.Step, f.Line = s.longest.from, s.longest.line
		}
		if m := median(values(s.points)); s.n >= 20 && s.high.mean > 100*m && s.high.mean > 10 && m > 0 {
			j.say("SPIKE", Warn, Threshold, s, "%s is %s in step %d, its median %s", s.name, number(s.high.mean), s.high.step, number(m)).at(s.high)
		}
	}
	if s := j.of("truncated"); s != nil && s.n >= 3 && s.recent() > .5 {
		p, _ := s.firstBeyond(math.Inf(-1), .5)
		j.say("TRUNCATED", Warn, Threshold, s, "%s has a median of %.0f%% in the last ten lines", s.name, 100*s.recent()).at(p)
	}
	if s := j.of("ratio"); s != nil && j.Program == "trl-ppo" && s.n >= 5 && s.low.mean == 1 && s.high.mean == 1 {
		j.say("RATIO-STUCK", Warn, Exact, s, "%s is exactly 1 in all %d lines", s.name, s.n).at(s.first)
	}
	if c, k := j.of("clip_frac"), j.of("approx_kl"); c != nil && k != nil && c.n >= 20 && c.zeros == c.n && median(values(k.points)) > .03 {
		j.say("CLIP-ALWAYS-0", Warn, Threshold, c, "%s is exactly 0 in all %d lines and %s has a median of %s", c.name, c.n, k.name, number(median(values(k.points)))).at(c.first)
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
	for _, limit := range []struct {
		id    string
		value float64
	}{{"engine_gap", .1}, {"engine_probs", .05}, {"engine_kl", .05}, {"engine_k3", .05}, {"engine_tmpe", 1.05}} {
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
}

// k1 judges a k1 estimate: its mean over many samples of the policy is not negative.
func (j *judge) k1(s *series) {
	if s == nil || s.n < 10 || j.mixed() {
		return
	}
	_, z := thirds(s.points)
	if len(z) < 3 {
		return
	}
	m, se := mean(z), deviation(z)/math.Sqrt(float64(len(z)))
	if b, ok := slope(s.points); ok && b < 0 && m < -4*se && m < -.01 {
		p, _ := s.firstBeyond(-4*se, math.Inf(1))
		j.say("KL-K1-FALLING", Warn, Trend, s, "%s is %s ± %s in the last third and falls", s.name, number(m), number(se)).at(p)
	}
}

// memory judges what nvidia-smi prints.
func (j *judge) memory() {
	s := j.of("gpu_memory")
	if s == nil {
		return
	}
	const gib, gb = 18432, 17166 // 18 GiB and 18·10⁹ bytes, in MiB
	switch {
	case s.high.mean > gib:
		p, _ := s.firstBeyond(math.Inf(-1), gib)
		j.say("A9", Fail, Threshold, s, "%s MiB in line %d; 18 GiB are %d MiB", number(s.high.mean), s.high.line, gib).at(p)
	case s.high.mean > gb:
		p, _ := s.firstBeyond(math.Inf(-1), gb)
		j.say("A9", Warn, Threshold, s, "%s MiB in line %d; 18 GB are %d MiB, 18 GiB %d", number(s.high.mean), s.high.line, gb, gib).at(p)
	}
}
