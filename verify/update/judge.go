package update

import (
	"fmt"
	"math"

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
	freshID = "update/fresh"
)

// Infos describes the checks.
var Infos = []check.Info{
	{Name: movesID, Doc: "weights that have a gradient move\n\nin steps that follow each other, a tensor whose gradient is not 0 is not the same bit by bit",
		Source: "torch.optim.Optimizer.param_groups@2.15.0", Fix: "give the optimiser every parameter that is trained, after adapters are in place, and call its step"},
	{Name: sumID, Doc: "the update is what the weights change by\n\nW(t+1) = W(t) + U(t), up to the rounding of both", Source: "dump.md, Tensors",
		Fix: "take weights and update at the same parameters, before and behind optimizer.step()"},
	{Name: freshID, Doc: "a gradient does not hold the one of the step before\n\nelements to which a batch adds nothing are 0, and not what clipping left of the last gradient; the bias of a value head has the sum of dvalues", Source: "torch.optim.Optimizer.zero_grad@2.15.0",
		Fix: "call zero_grad once per step of the optimiser"},
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
	held := fresh(r, d)
	if held == nil || held.Verdict != check.Fail {
		if of := freshHead(r, d); of != nil {
			held = of
		}
	}
	for _, res := range []*check.Result{moved, sum(r), held, norm(r, d)} {
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
	var above, at, equal, judged, sums int
	bound := d.Clip
	if math.IsNaN(bound) {
		bound = 1
	}
	for _, rec := range r.steps {
		if math.IsNaN(rec.norm) || rec.whole == 0 || rec.parts > 1 {
			continue
		}
		judged++
		if rec.logsSum() {
			sums++
		}
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
	case sums == judged && sums >= 2:
		res.Steps.Bad, res.Steps.First = sums, r.steps[0].number
		named(res, "OPTIM-NORM-SUM", fmt.Sprintf("in all %d steps the logged norm is the sum of the norms of the tensors", sums))
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
