package symptom

import (
	"cmp"
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
	for _, rule := range []func(*judge){(*judge).impossible, (*judge).vanished, (*judge).sumsUp, (*judge).form, (*judge).shielded, (*judge).masked, (*judge).tutorial, (*judge).arc, (*judge).supervised, (*judge).first, (*judge).reference, (*judge).frameworks, (*judge).memory} {
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

// about names the option that a finding is about.
func (j *judge) about(f *Finding, names ...string) { f.Option, _ = j.key(names...) }

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
			old.Severity, old.Kind, old.Evidence, old.Step, old.Line, old.Metric, old.Level, old.Hypothesis, old.Quantity, old.Option = f.Severity, f.Kind, f.Evidence, f.Step, f.Line, f.Metric, f.Level, f.Hypothesis, f.Quantity, f.Option
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
			if at[root].Severity != Note {
				at[root].Severity = max(at[root].Severity, f.Severity)
			}
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

// quantity is the id of what the series is, "" where no dictionary has it.
func (s *series) quantity() string {
	if s.what == nil {
		return ""
	}
	return s.what.ID
}

// impossible finds values that are not finite and values outside the range of their formula.
func (j *judge) impossible() {
	j.filter()
	var first *series
	for _, s := range j.series {
		if s == nil || s.bad == 0 || s.what == nil && !NamesLoss(s.name) {
			continue
		}
		if _, history := j.named["_step"]; history && s.sparse() {
			continue
		}
		if s.what != nil && (s.what.ID == "explained" || s.what.ID == "correlation") && !s.infinite { // 0/0 where all returns, or all probabilities, are equal
			continue
		}
		if j.unscored(s) {
			j.say("NONFINITE", Note, Exact, s, "%s is NaN %d times while the reward is finite: the function scored no completion (None), of which TRL takes nanmean", s.name, s.bad).at(s.firstBad)
			continue
		}
		if j.stepsSkipped(s) {
			severity := Warn
			if s.lastBad < mostHalvings {
				severity = Note
			}
			j.say("NONFINITE", severity, Exact, s, "%s is not finite in %d lines and every loss is finite, after them as well: these steps were not made, as a float16 scaler skips those that overflow", s.name, s.bad).at(s.firstBad)
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
		id := cmp.Or(map[string]string{"arc": "D10", "ppo": "C3"}[j.Program], "NONFINITE")
		if (first == &j.micro.std || first.what != nil && first.what.ID == "reward_std") && (first == &j.micro.std && j.micro.std.n == 0 || j.optionNumber(2, "group_size", "num_generations", "n_samples_per_prompt", "n") == 1) {
			id = "H7e"
		}
		what := "NaN"
		if first.infinite {
			what = "infinite"
		}
		var others []string
		for _, s := range j.series {
			if s != nil && s != first && s.bad > 0 && !j.unscored(s) {
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
		j.absent(s)
		if id := s.quantity(); j.Program == "verl" && s.missing > 0 && id != "" && id != "explained" && id != "correlation" { // those are 0/0 of numbers without spread
			j.say("NONFINITE", Fail, Exact, s, "%s is null in %d lines: verl's file logger writes NaN and infinity so", s.name, s.missing).at(s.firstMiss)
		}
		if s.what == nil || s.what.Range == "" || s.n == 0 {
			continue
		}
		low, high := s.what.Low, s.what.High
		if s.what.ID == "entropy" && j.Vocab > 1 {
			high = math.Log(j.Vocab)
		}
		if s.what.ID == "loss_entropy" && j.Vocab > 1 {
			low, high = -math.Log(j.Vocab), math.Log(j.Vocab)
		}
		if j.negated(s) {
			low = -high
			j.say("C21", Note, Exact, s, "%s is below 0 in all %d lines: it is −H, which rises where the entropy falls", s.name, s.n).at(s.first)
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
		below := room
		if s.what.ID == "entropy" {
			below = max(below, float32Entropy)
		}
		if p, bad := s.firstBeyond(low-below, high+room); bad {
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
			severity, may := Fail, ""
			switch {
			case s.what.ID == "entropy" && s.known != nil && s.known.Program == "" && p.mean > 0:
				severity = Warn // of an unknown program it may be a sum over a sequence
			case s.what.ID == "kl_k3" && j.Program == "trl-grpo" && !j.grpoOnly():
				severity, may = Note, "; TRL's RLOO logs the same names, and k1 as kl, which may be negative"
				if belowZero(s) { // its mean over many samples of the policy is a KL as well
					severity, may = Warn, "; TRL's RLOO logs the same names, and k1 as kl, which may be negative, but not in the mean"
				}
			case id == "KL-NEGATIVE" && s.low.mean > -bfloat16K3:
				severity, may = Warn, "; in bfloat16 k3 may round to this"
			}
			j.say(id, severity, Exact, s, "%s is %s in step %d (line %d); %s is %s%s", s.name, number(p.mean), p.step, p.line, s.what.Formula, limit, may).at(p)
		}
	}
}

// mostHalvings is how many values of a gradient norm a scaler may begin with that are not finite: torch's begins at 2¹⁶ and DeepSpeed's at 2³²,
// and each halves at an overflow, which none can cause below 1.
const mostHalvings = 32

// stepsSkipped reports whether the steps of a gradient norm that is not finite were left out: a step with NaN makes the weights NaN, and
// each loss and norm after it. verl leaves out such steps as well. A total of 0 may be a NaN that was filtered.
func (j *judge) stepsSkipped(s *series) bool {
	loss := j.of("loss")
	zeros := loss != nil && loss.zeros > 0
	if loss == nil {
		loss = j.of("loss_policy")
	}
	if s.quantity() != "grad_norm" || loss == nil || loss.n < 3 || loss.bad > 0 || loss.missing > 0 || j.filtered != nil {
		return false
	}
	return s.n > 0 && s.badRun == 0 && 2*s.bad <= s.n && !zeros && loss.last.line > s.firstBad.line
}

// unscored reports whether the NaN of a metric are those of a reward function that returned None for every completion: TRL logs nanmean and
// nanstd of what it scored, and adds the functions up by nansum, so that the reward stays finite.
func (j *judge) unscored(s *series) bool {
	if s.infinite || s.quantity() != "reward_of" && !(strings.HasPrefix(strings.TrimPrefix(s.name, "train/"), "rewards/") && strings.HasSuffix(s.name, "/std")) {
		return false
	}
	total := j.of("reward")
	return total != nil && total.n > 0 && total.bad == 0
}

// belowZero reports whether the mean of a series is negative by more than the scatter of its steps allows. k1 over samples of the policy
// estimates a KL, which is not negative.
func belowZero(s *series) bool {
	p := bySteps(s.points)
	return len(p) >= 4 && mean(p) < -certain(len(p))*deviation(p)/math.Sqrt(float64(len(p)))
}

// certain is how many standard errors of a mean of n steps are no chance: four from ten steps, eight from fewer, where Student's t has heavier
// tails.
func certain(n int) float64 {
	if n < 10 {
		return 8
	}
	return 4
}

// float32Entropy is how far an entropy near 0 may come below it: ln Σ e^z − Σ p·z in float32 is off by an ulp of the largest logit z, 2⁻²⁴·z
// at each of two roundings, and temperatures of 10⁻³ make logits of 2¹⁴.
const float32Entropy = 0x1p-9

// bfloat16K3 is how far below 0 a k3 near 0 may come in bfloat16: e^d rounds by 2⁻⁹ at d ≤ 0 and by 2⁻⁸ above, e^d − d again, and both
// roundings may fall on the same side.
const bfloat16K3 = 0x1p-7

// grpoOnly reports whether the program was named, or the log has a name that TRL 1.16's GRPOTrainer logs and its RLOOTrainer does not.
func (j *judge) grpoOnly() bool {
	if j.Given {
		return true
	}
	for _, s := range j.series {
		if s == nil || s.n == 0 {
			continue
		}
		short := strings.TrimPrefix(s.name, "train/")
		if short == "clip_ratio" || short == "completion_length" { // of GRPOTrainer before 0.17; RLOOTrainer logs these names with a suffix
			return true
		}
		for _, own := range []string{"cispo_clip_ratio", "policy_loss", "entropy_coef", "sampling/", "vespo/", "tools/"} {
			if strings.HasPrefix(short, own) {
				return true
			}
		}
	}
	return false
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
			severity, may := Fail, ""
			if s.rule == "REWARD-SUM" && s.weight != nil {
				if order := s.reordered(); order != "" {
					severity, may = Note, "; "+order+" gives all lines, and loggers sort names"
				} else if !s.beyond && !s.constant() {
					severity, may = Note, partial
				}
			}
			j.say(s.rule, severity, Exact, j.named[s.total], "%s is %s and %s is %s%s in step %d; off in %d of %d lines%s", s.total, number(s.got), s.weighted(s.weight), number(s.want), quotient, s.bad.step, s.off, s.n, may).at(*s.bad)
			continue
		}
		if c, worst, ok := s.settle(s.weight); ok && worst > 4 {
			severity, may := Warn, ""
			if s.rule == "REWARD-SUM" {
				severity, may = Note, partial
			}
			j.say(s.rule, severity, Exact, j.named[s.total], "%s is no constant combination of %s: the nearest one, %s, is off by %s%s", s.total, strings.Join(s.terms, ", "), coefficients(c), number(worst)+" roundings", may)
		}
	}
	if p := j.micro.mismatch; p != nil {
		f := j.say("LOSS-SUM", Fail, Exact, &j.micro.total, "total=%s and pg_loss + kl = %s + %s = %s (line %d)", number(p.mean), number(p.min), number(p.max), number(p.min+p.max), p.line)
		f.at(*p)
	}
}

const partial = "; a function that leaves completions out (None) counts by the share that it scored, which is in no log"

// constant reports whether other weights, the same in all lines, explain the sum.
func (s *sum) constant() bool {
	free := make([]float64, len(s.terms))
	for i := range free {
		free[i] = math.NaN()
	}
	_, worst, ok := s.settle(free)
	return ok && worst <= 4
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
	case j.pass.twice():
		j.say("TWO-RUNS", Warn, Exact, nil, "%d epochs stand in two lines with a loss each, one after the other, and %d in one", j.pass.equal, j.pass.up-j.pass.equal).at(j.pass.firstEqual)
	case j.pairs.twice():
		j.say("TWO-RUNS", Warn, Exact, nil, "%d of %d steps stand in two lines one after the other, with another reward in each", j.pairs.twins, j.pairs.steps).at(j.pairs.first)
	case j.back == 0:
	case j.back == 1 && j.hasStep && j.backFrom[1] < j.begin && !j.resumed:
		f := j.say("STEPS-BACK", Warn, Exact, nil, "line %d goes from step %d back to %d, before step %d of the first line: two logs stand in the wrong order, or are of two runs", j.backLine, j.backFrom[0], j.backFrom[1], j.begin)
		f.Step, f.Line = j.backFrom[1], j.backLine
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
func (j *judge) mixed() bool {
	return j.back*4 >= j.forward+j.back && j.back > 0 || j.pass.twice() || j.pairs.twice()
}

// memory judges what nvidia-smi prints.
func (j *judge) memory() {
	s := j.of("gpu_memory")
	if s == nil {
		return
	}
	const gib, gb = 18432, 17166 // 18 GiB and 18·10⁹ bytes, in MiB
	const guide = 24576          // of the largest card that the guide has in mind, 24 GiB
	severity, if8 := Warn, "; a limit where the base is int8, which no option says"
	if eight, known := j.option("int8", "load_in_8bit"); known && !strings.EqualFold(eight, "true") {
		return
	} else if known {
		severity, if8 = Fail, ""
	} else if total := j.named["memory.total [MiB]"]; total != nil && total.n > 0 && total.low.mean > guide {
		severity = Note
	}
	switch {
	case s.high.mean > gib:
		p, _ := s.firstBeyond(math.Inf(-1), gib)
		j.say("A9", severity, Threshold, s, "%s MiB in line %d; 18 GiB are %d MiB%s", number(s.high.mean), s.high.line, gib, if8).at(p)
	case s.high.mean > gb:
		p, _ := s.firstBeyond(math.Inf(-1), gb)
		j.say("A9", min(severity, Warn), Threshold, s, "%s MiB in line %d; 18 GB are %d MiB, 18 GiB %d%s", number(s.high.mean), s.high.line, gb, gib, if8).at(p)
	}
}

func clip2(s string) string {
	if s == "" {
		return "empty"
	}
	return clip(s)
}

// negated reports whether a metric that an unknown program calls an entropy is −H in every line: a convention (C21), where +H would be a bug.
func (j *judge) negated(s *series) bool {
	return s.what != nil && (s.what.ID == "entropy" || s.what.ID == "loss_entropy") && s.known != nil && s.known.Program == "" && s.n >= 3 && s.high.mean < -float32Entropy
}
