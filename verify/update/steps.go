package update

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"plumbline/verify/bug"
	"plumbline/verify/check"
)

// optimiser judges steps and rates of the tensors that move.
func optimiser(r *Run, d Declared, still []string) []check.Result {
	grads := false
	for _, rec := range r.steps {
		for _, k := range rec.of {
			grads = grads || k.grad != nil
		}
		if rec.parts > 1 {
			return lacking("a gradient stands in each of several micro-batches: dump that of the optimiser once, with the last")
		}
	}
	if !grads {
		return nil
	}
	var readings []*search
	for _, w := range []moment{beforeUpdate, afterUpdate} {
		if s := r.pairs(w, still); len(s.list) > 0 {
			readings = append(readings, searched(s))
		}
	}
	known := func(s *search) int {
		n := 0
		for _, p := range s.list {
			n += len(p.u)
		}
		return n
	}
	if len(readings) == 2 { // under the wrong one weights and updates contradict each other
		switch a, b := known(readings[0]), known(readings[1]); {
		case a > 2*b:
			readings = readings[:1]
		case b > 2*a:
			readings = readings[1:]
		}
	}
	if len(readings) == 0 {
		return lacking("gradients alone: dump update/NAME and weights/NAME of the same tensors, too, or weights of consecutive steps")
	}
	if d.Kind == "adam8bit" && d.From[optionKind] == "" {
		return lacking("moments of 8 bits are not recomputed")
	}
	for _, s := range readings {
		for _, p := range s.list {
			if !p.consistent {
				return lacking(fmt.Sprintf("the steps before step %d are not in the dump, and the moments hold their gradients: dump consecutive steps from the first on", p.step))
			}
		}
	}
	for _, s := range readings {
		if f := s.declared(d); f != nil {
			return passed(f, s, d)
		}
	}
	for _, s := range readings {
		if results := s.grouped(d); results != nil {
			return results
		}
	}
	var accusation *check.Result
	for _, s := range readings {
		if res := accused(d, s); res != nil && (accusation == nil || res.Verdict == check.Fail && accusation.Verdict != check.Fail) {
			accusation = res
		}
	}
	if accusation != nil {
		return []check.Result{*accusation}
	}
	for _, s := range readings {
		if f := s.differing(d); f != nil {
			return passed(f, s, d)
		}
	}
	if start := readings[0].list[0].step; start > 1 {
		return lacking(fmt.Sprintf("the run begins at step %d, and the moments hold the gradients before it: dump consecutive steps from the first on", start))
	}
	return []check.Result{{Check: stepID, Verdict: check.Undetermined, Reason: fmt.Sprintf("no %s that was tried gives these steps", kindWords(d.Kind))}}
}

// declared returns the fit of the first optimiser that is in nothing other than what is declared.
func (s *search) declared(d Declared) *fit {
	for _, v := range variants(d, s.sample) {
		if len(v.off) > 0 {
			break
		}
		if f := s.fit(v.rule); f != nil {
			return f
		}
	}
	return nil
}

// differing returns the fit of an optimiser that is in some numbers other than what is declared, in as few as can be: one of the usual
// numbers, or one that is solved for.
func (s *search) differing(d Declared) *fit {
	var usual *fit
	for _, v := range variants(d, s.sample) {
		if len(v.off) > 0 {
			if f := s.fit(v.rule); f != nil {
				if f = s.settled(f); f != nil {
					usual = f
					break
				}
			}
		}
	}
	if usual != nil && len(usual.against(d, s.sample)) == 1 {
		return usual
	}
	if f := solve(d, s, false); f != nil {
		if f = s.settled(f); f != nil && (usual == nil || len(f.against(d, s.sample)) < len(usual.against(d, s.sample))) {
			return f
		}
	}
	return usual
}

// passed returns the results of a fit of an optimiser, whose numbers may be others than the declared ones.
func passed(f *fit, s *search, d Declared) []check.Result {
	list := s.list
	res := check.Result{Check: stepID, Verdict: check.Pass, Subject: count(len(list), "step"), Compared: f.of, Steps: stepsOf(len(list)), Reason: f.words(),
		Metric: "|Δ|/limit", Measured: f.worst, Limit: 1}
	if !f.tells() {
		res.Verdict, res.Metric = check.NotSeen, ""
		res.Reason = "the weights are known to fewer digits than the updates change: dump weights or update in float32"
		return []check.Result{res}
	}
	if f.judge(&res, s, d); math.IsNaN(f.decay) && res.Verdict == check.Pass {
		if g := s.settled(f); g != nil && g.decay < 0 {
			res.Reason = fmt.Sprintf("weights grow by %.4g of themselves times the rate, where a decay takes that off", -g.decay)
			res.Steps.Bad, res.Steps.First, res.Metric = len(list), list[0].step, ""
			named(&res, "OPTIM-DECAY-SIGN", res.Reason)
		}
	}
	out := []check.Result{res}
	if rate := rates(f, list, d); rate != nil {
		out = append(out, *rate)
	}
	return out
}

// judge says in which numbers a fit is another one than declared: against what the run declares a bug, against a default of its framework a
// convention, unless no configuration of it changes that number.
func (f *fit) judge(res *check.Result, s *search, d Declared) {
	off := f.against(d, s.sample)
	if len(off) == 0 {
		return
	}
	if f.partly(off, s, d) {
		res.Verdict, res.Metric, res.Compared = check.Undetermined, "", 0
		res.Reason = fmt.Sprintf("the gradients in the dump fit a bound of %.4g, and %.4g is declared: their norm is that of all parameters only if grad_norm is logged and equals it", f.clip, d.Clip)
		return
	}
	if f.scaled(off, d) {
		res.Verdict, res.Metric, res.Compared = check.Undetermined, "", 0
		res.Reason = fmt.Sprintf("eps is %.4g of the gradients in the dump, which is %.4g times the declared one: they may be those before they were divided by a loss scale or by micro-batches", f.eps, f.eps/d.Eps)
		return
	}
	var all []string
	var changed []check.OptionChange
	hard := false
	for _, option := range off {
		got, want := f.atMost(option, s), d.value(option)
		from := d.From[option]
		hard = hard || from == "" || d.Fixed[option]
		all = append(all, fmt.Sprintf("%s is %s, and %s is %s", strings.TrimPrefix(option, "optim."), got, want, declaredBy(from)))
		changed = append(changed, check.OptionChange{Option: option, Value: f.value(option), Declared: want, Origin: from})
	}
	text := strings.Join(all, "; ")
	res.Steps.Bad, res.Steps.First, res.Metric = len(s.list), s.list[0].step, ""
	id := "OPTIM-DECLARED"
	if len(off) == 1 && off[0] == optionClip && math.IsInf(f.clip, 1) {
		id = "OPTIM-CLIP-MISSING"
	}
	if slices.Contains(off, optionClip) && len(off) == 1 && f.beforeScale(d) {
		id = "OPTIM-CLIP-SCALED"
		text += fmt.Sprintf(": the gradient was clipped while it was %.4g times as large", d.Clip/f.clip)
	}
	named(res, id, fmt.Sprintf("%s: reproduces %d numbers of %d steps (%s)", text, f.of, len(s.list), f.words()))
	res.Reason = text
	if !hard {
		res.Verdict = check.Convention
		res.Explanations[0].Options = changed
		b := bug.MustFind(id)
		res.Fix = b.Fix + "; where the run is configured to do so, judge it with its configuration (--config)"
	}
}

func declaredBy(profile string) string {
	if profile == "" {
		return "declared"
	}
	return "that of " + profile
}

// partly reports whether a bound below the declared one may be the declared one of a larger gradient, of which the dump has a part.
func (f *fit) partly(off []string, s *search, d Declared) bool {
	if !slices.Contains(off, optionClip) || !(f.clip < d.Clip) {
		return false
	}
	return slices.ContainsFunc(s.list, func(p *pair) bool { return !(math.Abs(p.logged-p.norm) <= 1e-3*p.norm) })
}

// scaled reports whether the one difference is an eps that is the declared one times a number by which gradients are scaled.
func (f *fit) scaled(off []string, d Declared) bool {
	if len(off) != 1 || off[0] != optionEps || !slices.Contains(f.solved, optionEps) {
		return false
	}
	ratio := f.eps / d.Eps
	power := math.Exp2(math.Round(math.Log2(ratio)))
	return ratio > 1.5 && (math.Abs(ratio-power) <= 0.01*power || d.Micro > 1 && math.Abs(ratio-d.Micro) <= 0.01*d.Micro)
}

// beforeScale reports whether the bound is the declared one divided by the micro-batches of a step, or by a loss scale, which begins at 2¹⁶.
func (f *fit) beforeScale(d Declared) bool {
	ratio := d.Clip / f.clip
	power := math.Exp2(math.Round(math.Log2(ratio)))
	return d.Micro > 1 && math.Abs(ratio-d.Micro) <= 1e-3*ratio || power >= 256 && math.Abs(ratio-power) <= 1e-3*ratio
}

// atMost prints an option of a rule, as a bound where smaller values give the run, too: of the norm where every step is clipped, of eps
// where it is lost beside the root.
func (f *fit) atMost(option string, s *search) string {
	r, text := f.rule, f.value(option)
	switch option {
	case optionClip:
		r.clip /= 2
	case optionEps:
		r.eps = 0
	default:
		return text
	}
	if r.eps == f.eps && math.IsInf(f.clip, 1) || s.fit(r) == nil {
		return text
	}
	return "at most " + text
}

// value prints an option of a rule.
func (f *fit) value(option string) string {
	switch option {
	case optionKind:
		return f.kind
	case optionSpare:
		return f.spare.words()
	case optionDecay:
		if decay, ok := f.median(); ok {
			return number(decay)
		}
		return "one that changes"
	}
	return number(map[string]float64{optionBeta1: f.beta1, optionBeta2: f.beta2, optionEps: f.eps, optionClip: f.clip}[option])
}

func (d Declared) value(option string) string {
	switch option {
	case optionKind:
		return d.Kind
	case optionSpare:
		return d.Spare
	}
	return number(map[string]float64{optionBeta1: d.Beta1, optionBeta2: d.Beta2, optionEps: d.Eps, optionClip: d.Clip, optionDecay: d.Decay}[option])
}

func number(x float64) string {
	if math.IsInf(x, 1) {
		return "none"
	}
	return fmt.Sprintf("%.6g", x)
}

func kindWords(kind string) string {
	return cmp.Or(kind, "optimiser")
}

// words says what a fit found.
func (f *fit) words() string {
	text := fmt.Sprintf("%s, betas %.4g and %.4g, eps %.3g", f.kind, f.beta1, f.beta2, f.eps)
	if f.kind == "sgd" {
		text = fmt.Sprintf("sgd, momentum %.4g", f.beta1)
	}
	lo, hi := extremes(f.rates)
	text += fmt.Sprintf(", rate %.4g", hi)
	if hi-lo > 1e-3*hi {
		text = strings.Replace(text, fmt.Sprintf(", rate %.4g", hi), fmt.Sprintf(", rates %.4g to %.4g", lo, hi), 1)
	}
	if decay, ok := f.median(); ok && decay != 0 {
		text += fmt.Sprintf(", decay %.3g", decay)
		if f.spare != spareNone {
			text += " but of biases and norms"
		}
	}
	if !math.IsInf(f.clip, 1) {
		text += fmt.Sprintf(", clipped to %.4g", f.clip)
	}
	if f.anew > 1 {
		text += fmt.Sprintf(", anew every %d steps", f.anew)
	}
	return text
}

// median returns the decay: the one that was given, or the median of those that the steps gave; 0 where it cannot be told from 0.
func (f *fit) median() (float64, bool) {
	if !math.IsNaN(f.decay) {
		return f.decay, true
	}
	var all []float64
	for i, b := range f.decays {
		if f.rates[i] > 0 && !math.IsNaN(b) {
			all = append(all, b/f.rates[i])
		}
	}
	if len(all) == 0 {
		return 0, false
	}
	slices.Sort(all)
	if median := all[len(all)/2]; math.Abs(median) > 1e-4 {
		return median, true
	}
	return 0, true
}

func extremes(x []float64) (lo, hi float64) {
	lo, hi = math.Inf(1), math.Inf(-1)
	for _, v := range x {
		if !math.IsNaN(v) {
			lo, hi = min(lo, v), max(hi, v)
		}
	}
	return lo, hi
}
