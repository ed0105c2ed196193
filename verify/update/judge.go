package update

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"plumbline/verify/bug"
	"plumbline/verify/check"
	"plumbline/verify/tol"
)

// The checks of an optimiser's steps.
const (
	sumID   = "update/sum"
	movesID = "update/moves"
	normID  = "update/norm"
	stepID  = "update/step"
	rateID  = "update/rate"
)

// Infos describes the checks.
var Infos = []check.Info{
	{Name: movesID, Doc: "weights that have a gradient move\n\nin steps that follow each other, a tensor whose gradient is not 0 is not the same bit by bit",
		Source: "torch.optim.Optimizer.param_groups@2.15.0", Fix: "give the optimiser every parameter that is trained, after adapters are in place, and call its step"},
	{Name: sumID, Doc: "the update is what the weights change by\n\nW(t+1) = W(t) + U(t), up to the rounding of both", Source: "dump.md, Tensors",
		Fix: "take weights and update at the same parameters, before and behind optimizer.step()"},
	{Name: normID, Doc: "the logged norm is that before clipping\n\n‖g‖ over all trained tensors, as torch.nn.utils.clip_grad_norm_ returns it", Source: "torch.nn.utils.clip_grad_norm_@2.15.0",
		Fix: "log what clip_grad_norm_ returns, not the norm that is left"},
	{Name: stepID, Doc: "the steps are those of the declared optimiser\n\np ← p − lr·λ·p − lr·(m/c₁)/(√v/√c₂ + ε), m ← β₁m + (1−β₁)g, v ← β₂v + (1−β₂)g², g clipped by its global norm; the rate of each step is solved for",
		Source: "Loshchilov and Hutter 2019, Algorithm 2; torch.optim.AdamW@2.15.0; transformers.Trainer 5.23 (max_grad_norm)", Fix: "make the optimiser once, of all parameters, and call clip, step and zero_grad in this order once for every accumulated batch"},
	{Name: rateID, Doc: "the rate of the steps is the one that is declared and logged\n\nlr of each step, solved from update and direction by least squares", Source: "optim.lr, optim.schedule; metric lr",
		Fix: "hand the declared rate to the optimiser, and call the scheduler once per step of the optimiser"},
}

// Judge returns the verdicts on the run, none where the dump says nothing of an optimiser.
func Judge(r *Run, d Declared) []check.Result {
	if r.Empty() {
		return nil
	}
	var out []check.Result
	moved, still := moves(r)
	for _, res := range []*check.Result{moved, sum(r), norm(r, d)} {
		if res != nil {
			out = append(out, *res)
		}
	}
	if len(still) < len(r.names) {
		out = append(out, optimiser(r, d, still)...)
	}
	return out
}

// named fills in a bug of the registry.
func named(res *check.Result, id, evidence string) {
	b := bug.MustFind(id)
	res.Verdict, res.Fix = check.Fail, b.Fix
	res.Explanations = []check.Explanation{{Fault: id, Title: b.Title, Cause: b.Cause, Evidence: evidence}}
}

func stepsOf(judged int) *check.Steps { return &check.Steps{Judged: judged} }

// moves judges whether tensors with a gradient move, and returns those that stand still.
func moves(r *Run) (res *check.Result, still []string) {
	var moving []string
	judged, coarse := 0, false
	first := -1
	for _, name := range r.names {
		pushed, moved := 0, false
		for i, rec := range r.steps {
			k := rec.of[name]
			if k == nil || !k.hasGrad || !k.finite {
				continue
			}
			switch {
			case k.update != nil:
				pushed++
				moved = moved || k.moved
			case k.weights != nil && i+1 < len(r.steps) && r.steps[i+1].number == rec.number+1:
				if next := r.steps[i+1].of[name]; next != nil && next.weights != nil {
					pushed++
					moved = moved || next.digest != k.digest
				}
			}
			if coarse = coarse || k.unitW > tol.U32 || k.unitU > tol.U32 && k.weights == nil; first < 0 {
				first = rec.number
			}
		}
		if judged = max(judged, pushed); pushed < 3 { // the first rate of a warm-up is 0
			continue
		}
		if moved {
			moving = append(moving, name)
		} else {
			still = append(still, name)
		}
	}
	if len(still)+len(moving) == 0 {
		return nil, nil
	}
	res = &check.Result{Check: movesID, Verdict: check.Pass, Subject: count(len(still)+len(moving), "tensor"), Compared: judged, Steps: stepsOf(judged)}
	if len(still) == 0 {
		return res, nil
	}
	what := fmt.Sprintf("%s of %s with a gradient stand still in all %d steps, the first: %.80s", count(len(still), "tensor"), count(len(still)+len(moving), "tensor"), judged, still[0])
	res.Reason, res.Where = what, still[0]
	if coarse { // an update below half the spacing of the weights is lost
		res.Verdict, res.Reason = check.Warn, what+"; in 16 bits an update of less than half the spacing of a weight is lost in it: dump weights in float32"
		return res, still
	}
	res.Steps.Bad, res.Steps.First = judged, first
	if len(moving) == 0 {
		named(res, "OPTIM-NOT-STEPPED", what)
	} else {
		named(res, "OPTIM-PARAM-MISSED", what)
	}
	return res, still
}

// sum judges whether the weights change by the update.
func sum(r *Run) *check.Result {
	compared := 0
	worst := [2]float64{}
	var unmoved, pushed int
	for i := 1; i < len(r.steps); i++ {
		a, b := r.steps[i-1], r.steps[i]
		if b.number != a.number+1 {
			continue
		}
		for _, name := range r.names {
			x, y := a.of[name], b.of[name]
			if x == nil || y == nil || x.weights == nil || y.weights == nil {
				continue
			}
			for when, k := range []*kept{x, y} {
				if k.update == nil || len(k.update) != len(x.weights) {
					continue
				}
				noise := roundings(x.weights, k.update, max(tol.U32, x.unitW, y.unitW), k.unitU)
				for j, u := range k.update {
					e := math.Abs(y.weights[j] - x.weights[j] - u)
					worst[when] = max(worst[when], e/max(noise[j], 0x1p-1000))
				}
				if when == 0 {
					compared += len(k.update)
				}
			}
			if x.moved || y.moved {
				if pushed++; x.digest == y.digest {
					unmoved++
				}
			}
		}
	}
	if compared == 0 {
		return nil
	}
	res := &check.Result{Check: sumID, Verdict: check.Pass, Compared: compared, Metric: "|Δ|/limit", Measured: min(worst[0], worst[1]), Limit: 1}
	switch {
	case min(worst[0], worst[1]) <= 1:
	case unmoved == pushed && pushed >= 3:
		res.Metric = ""
		named(res, "OPTIM-NOT-STEPPED", "updates are not 0, and the weights are the same in every step")
	default:
		res.Verdict, res.Metric = check.Note, ""
		res.Reason = "the weights of a step are not those of the step before plus its update: several steps of the optimiser between two dumps, or weights that something else writes"
	}
	return res
}

// norm judges the logged norm of the gradient: where it stands at the bound while the gradients are larger, it is what clipping left.
func norm(r *Run, d Declared) *check.Result {
	const part = 1e-3 // of a norm, more than its float32 sum is off
	var above, at, equal, judged int
	bound := d.Clip
	if math.IsNaN(bound) {
		bound = 1
	}
	for _, rec := range r.steps {
		if math.IsNaN(rec.norm) || rec.whole == 0 || rec.parts > 1 {
			continue
		}
		judged++
		switch {
		case math.Abs(rec.norm-rec.whole) <= part*rec.whole:
			equal++
		case rec.whole > rec.norm*(1+part):
			if above++; math.Abs(rec.norm-bound) <= part*bound {
				at++
			}
		}
	}
	if judged == 0 {
		return nil
	}
	res := &check.Result{Check: normID, Verdict: check.Pass, Compared: judged, Steps: stepsOf(judged)}
	switch {
	case above == 0 && equal == 0: // of parameters that are not in the dump, too
		res.Verdict, res.Reason = check.NotSeen, "the logged norm is larger than that of the tensors in the dump"
	case above == 0:
	case above == at && above >= 2:
		res.Steps.Bad, res.Steps.First = at, r.steps[0].number
		named(res, "OPTIM-NORM-CLIPPED", fmt.Sprintf("in %d of %d steps the gradients are larger than the logged norm, which is the bound %.4g", at, judged, bound))
	default:
		res.Verdict, res.Reason = check.Note, "the gradients in the dump are larger than the logged norm: of one rank, or times a loss scale"
	}
	return res
}

func count(n int, what string) string {
	if n == 1 {
		return "1 " + what
	}
	return fmt.Sprintf("%d %ss", n, what)
}

// lacking is the verdict where the dump has too little for the steps to be recomputed: a hook may well leave that out.
func lacking(reason string) []check.Result {
	return []check.Result{{Check: stepID, Verdict: check.NotSeen, Subject: "update", Reason: reason}}
}

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
	type reading struct {
		list []*pair
		per  []int
	}
	var readings []reading
	for _, w := range []moment{beforeUpdate, afterUpdate} {
		if list, per := r.pairs(w, still); len(list) > 0 {
			readings = append(readings, reading{list, per})
		}
	}
	known := func(x reading) int {
		n := 0
		for _, p := range x.list {
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
	if d.Kind == "adam8bit" {
		return lacking("moments of 8 bits are not recomputed")
	}
	for _, x := range readings {
		for _, p := range x.list {
			if !p.consistent {
				return lacking(fmt.Sprintf("the steps before step %d are not in the dump, and the moments hold their gradients: dump consecutive steps from the first on", p.step))
			}
		}
	}
	var legal *fit
	var list []*pair
	for _, x := range readings {
		if legal = first(legalRules(d, x.list), x.list, x.per); legal != nil {
			list = x.list
			break
		}
	}
	if legal == nil {
		for _, x := range readings {
			if res := accused(d, x.list, x.per); res != nil {
				return []check.Result{*res}
			}
		}
		if start := readings[0].list[0].step; start > 1 {
			return lacking(fmt.Sprintf("the run begins at step %d, and the moments hold the gradients before it: dump consecutive steps from the first on", start))
		}
		return []check.Result{{Check: stepID, Verdict: check.Undetermined, Reason: fmt.Sprintf("no %s that was tried gives these steps", kindWords(d.Kind))}}
	}
	res := check.Result{Check: stepID, Verdict: check.Pass, Subject: count(len(list), "step"), Compared: legal.of, Steps: stepsOf(len(list)), Reason: legal.words(),
		Metric: "|Δ|/limit", Measured: legal.worst, Limit: 1}
	if !legal.tells() {
		res.Verdict, res.Metric = check.NotSeen, ""
		res.Reason = "the weights are known to fewer digits than the updates change: dump weights or update in float32"
		return []check.Result{res}
	}
	if text := legal.differs(d); text != "" {
		res.Steps.Bad, res.Steps.First, res.Metric = len(list), list[0].step, ""
		named(&res, "OPTIM-DECLARED", text)
		res.Reason = text
	}
	out := []check.Result{res}
	if rate := rates(legal, list, d); rate != nil {
		out = append(out, *rate)
	}
	return out
}

func kindWords(kind string) string {
	if kind == "" {
		return "optimiser"
	}
	return kind
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
	if decay, ok := f.solved(); ok && decay > 0 {
		text += fmt.Sprintf(", decay %.3g", decay)
	}
	if !math.IsInf(f.clip, 1) {
		text += fmt.Sprintf(", clipped to %.4g", f.clip)
	}
	return text
}

// solved returns the decay: the one that was given, or the median of those that the steps gave; 0 where it cannot be told from 0.
func (f *fit) solved() (float64, bool) {
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
	if median := all[len(all)/2]; median > 1e-4 {
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

// differs says in what a fit of a legal rule is not what is declared, "" if in nothing.
func (f *fit) differs(d Declared) string {
	var text []string
	say := func(what string, got, want float64) {
		if !math.IsNaN(want) && math.Abs(got-want) > 1e-6*math.Abs(want) {
			text = append(text, fmt.Sprintf("%s is %.4g, and %.4g is declared", what, got, want))
		}
	}
	if f.kind != "sgd" {
		say("beta1", f.beta1, d.Beta1)
		say("beta2", f.beta2, d.Beta2)
		say("eps", f.eps, d.Eps)
	}
	return strings.Join(text, "; ")
}

// rates judges the rates that were solved.
func rates(f *fit, list []*pair, d Declared) *check.Result {
	const part = 1e-3 // of a rate, that a schedule in float32 and a logged number of four digits may be off
	res := &check.Result{Check: rateID, Verdict: check.Pass, Compared: len(list), Steps: stepsOf(len(list))}
	slack := func(i int, want float64) float64 { return part*math.Abs(want) + f.apart[i] }
	lo, hi := extremes(f.rates)
	if lo < 0 {
		i := slices.IndexFunc(f.rates, func(a float64) bool { return a < 0 })
		if f.rates[i] < -f.apart[i] {
			res.Steps.Bad, res.Steps.First = len(list), list[i].step
			res.Reason = fmt.Sprintf("the weights move along the gradient: the rate of step %d is %.4g", list[i].step, f.rates[i])
			named(res, "OPTIM-ASCENT", res.Reason)
			return res
		}
	}
	told := false
	logged := func(shift int) bool { // the scheduler may have stepped before or behind the line of the log
		seen := 0
		for i := range list {
			k := i + shift
			if k < 0 || k >= len(list) || math.IsNaN(list[k].rate) || math.IsNaN(f.rates[i]) {
				continue
			}
			if seen++; math.Abs(f.rates[i]-list[k].rate) > slack(i, list[k].rate) {
				return false
			}
		}
		return seen > 0
	}
	if slices.ContainsFunc(list, func(p *pair) bool { return !math.IsNaN(p.rate) }) {
		told = true
		if !logged(0) && !logged(-1) && !logged(1) {
			i := slices.IndexFunc(list, func(p *pair) bool { return !math.IsNaN(p.rate) })
			res.Steps.Bad, res.Steps.First = len(list), list[i].step
			res.Reason = fmt.Sprintf("the rate of step %d is %.4g, and %.4g is logged", list[i].step, f.rates[i], list[i].rate)
			named(res, "OPTIM-RATE", res.Reason)
			return res
		}
	}
	if !math.IsNaN(d.Rate) {
		told = true
		for i, a := range f.rates {
			if math.IsNaN(a) {
				continue
			}
			if off := a - d.Rate; off > slack(i, d.Rate) || d.Constant && -off > slack(i, d.Rate) && hi-lo <= part*hi {
				res.Steps.Bad, res.Steps.First = len(list), list[i].step
				res.Reason = fmt.Sprintf("the rate of step %d is %.4g, and %.4g is declared", list[i].step, a, d.Rate)
				named(res, "OPTIM-RATE", res.Reason)
				return res
			}
		}
	}
	if !told {
		return nil
	}
	res.Reason = fmt.Sprintf("%.4g to %.4g", lo, hi)
	return res
}
