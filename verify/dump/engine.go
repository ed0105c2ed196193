package dump

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

const acrossEngine = "across/engine"

// engineInfo describes the one check that is judged of a run, and of no step.
var engineInfo = check.Info{Name: acrossEngine, Doc: "the engine stays as near to the trainer as at the run's best step\n\nthe logit noise between engine and trainer is no more than 4 times that of the run's best step, or 0.12",
	Source: "an engine that gets the weights after every update differs by rounding alone, at every step; V09, V25 (GEN-UNADAPTED)",
	Fix:    "look at the step from which it grows: are the weights, or the adapter, sent to the engine after every update?"}

// fewestTokens is the number of tokens from which on the size of a difference is judged.
const fewestTokens = 64

// engineSizes is the engine's difference to the trainer over a run. Steps of fewer tokens than are judged wait for those that follow, until
// they have enough together.
type engineSizes struct {
	steps     int         // that have the difference
	pools     []stepSizes // that have enough tokens
	waiting   stepSizes
	rows      map[string]bool // of the steps that wait
	corrected bool            // importance weights stand between engine and trainer
	left      float64         // how far the step before had left its old log-probs
}

// stepSizes is the difference between engine and trainer at a step, or at n steps from first to last together.
type stepSizes struct {
	first, last, n int
	begins         bool // a rollout: the policy is that of the old log-probs, bit by bit or as it was not at the step before
	stage.Discrepancy
}

func (x stepSizes) String() string {
	if x.first == x.last {
		return fmt.Sprintf("step %d", x.first)
	}
	return fmt.Sprintf("steps %d to %d", x.first, x.last)
}

// add takes the difference of a step down. Rows that wait already, in a later epoch, are no more tokens; where rows have no names none can
// be told from another, and no steps are put together.
func (e *engineSizes) add(n *StepNotes) {
	e.steps++
	x := stepSizes{n.Step, n.Step, 1, false, n.Engine.discrepancy()}
	if n.Update != nil {
		left := n.Update.discrepancy().Scale
		x.begins = n.Update.Same || left < x.Scale/10 && left < e.left/4
	}
	if x.Tokens >= fewestTokens {
		e.pools = append(e.pools, x)
		return
	}
	known, named := 0, 0
	for _, k := range n.Keys {
		if k != "" {
			named++
			if e.rows[k] {
				known++
			}
		}
	}
	if 2*known >= named {
		return
	}
	if e.rows == nil {
		e.rows, e.waiting = map[string]bool{}, stepSizes{}
	}
	for _, k := range n.Keys {
		e.rows[k] = k != ""
	}
	e.waiting = e.waiting.with(x)
	if e.waiting.Tokens >= fewestTokens {
		e.pools, e.rows = append(e.pools, e.waiting), nil
	}
}

// with returns the difference over the tokens of x and y. The mean square of the logit noise, and so its root, is never above that of the
// worse of the two: what is ordinary at each step is so at both.
func (x stepSizes) with(y stepSizes) stepSizes {
	if x.Tokens == 0 {
		return y
	}
	p, q := float64(x.Tokens), float64(y.Tokens)
	n := p + q
	p, q = p/n, q/n
	mean := func(a, b float64) float64 { return float64(p*a) + float64(q*b) }
	// The squared standard error of a mean over both is that within each, and that of their distance.
	se := func(a, b, ea, eb float64) float64 {
		return math.Sqrt(float64(p*p)*float64(ea*ea) + float64(q*q)*float64(eb*eb) + float64(p*q)*float64((a-b)*(a-b))/n)
	}
	return stepSizes{x.first, y.last, x.n + y.n, x.begins && y.begins, stage.Discrepancy{
		Tokens:  x.Tokens + y.Tokens,
		MeanAbs: mean(x.MeanAbs, y.MeanAbs), AbsSE: se(x.MeanAbs, y.MeanAbs, x.AbsSE, y.AbsSE),
		K3: mean(x.K3, y.K3), K3SE: se(x.K3, y.K3, x.K3SE, y.K3SE),
		ESS:     1 / mean(1/x.ESS, 1/y.ESS), // for Σρ ≈ n, as of tokens that the engine sampled
		Outside: mean(x.Outside, y.Outside),
		Scale:   math.Sqrt(mean(float64(x.Scale*x.Scale), float64(y.Scale*y.Scale))),
		Slope:   1,
	}}
}

// corrects reports whether the loss is declared to have importance weights between engine and trainer.
func corrects(set *convention.Set) bool {
	level := set.Value("tis.level")
	return level.Kind() == convention.Enum && level.Text() != "none"
}

// lags reports whether the engine may have older weights by design, with importance weights that correct for it. TRL's trainers send the
// weights before every rollout, and their importance weights correct for rounding.
func (s *session) lags() bool {
	return s.history.engine.corrected && (s.profile == nil || s.profile.Framework != "TRL")
}

// engineOverSteps judges the engine's difference at each step against the run's own best step. It is ordinary up to the noise of
// bfloat16; above, four times that of the best step, by more than six standard errors of both, is no rounding of the same format. Whether older
// weights are a bug no number tells where importance weights correct for them: an asynchronous engine has them by design.
func (s *session) engineOverSteps() (check.Result, bool) {
	pools := s.history.engine.pools
	_, formula, _ := strings.Cut(engineInfo.Doc, "\n\n")
	res := check.Result{Check: acrossEngine, Verdict: check.Pass, Subject: steps(s.history.engine.steps, "step"), Steps: &check.Steps{Judged: s.history.engine.steps},
		Formula: formula, Fix: engineInfo.Fix}
	if s.history.asynchronous || len(pools) < 2 && !s.history.uses.found() || !s.o.Selection.Takes(acrossEngine) {
		return res, false
	}
	if len(pools) < 2 {
		s.history.uses.result(&res)
		return res, true
	}
	best, worst, begins, bad := pools[0], stepSizes{}, stepSizes{}, 0
	for _, x := range pools {
		if x.Scale < best.Scale {
			best = x
		}
	}
	for _, x := range pools {
		res.Compared += x.Tokens
		if x.Scale > stage.OrdinaryScale && x.Scale > 4*best.Scale*sizeError(x.Tokens, best.Tokens) {
			if bad++; bad == 1 {
				res.Steps.First, begins = x.first, x
			}
			res.Steps.Bad += x.n
			if x.Scale > worst.Scale {
				worst = x
			}
		}
	}
	last := pools[len(pools)-1]
	res.Reason = fmt.Sprintf("%s: %s; %s: %s", best, best.Discrepancy, last, last.Discrepancy)
	if bad > 0 {
		lead := best.first != pools[0].first || 2*bad < len(pools)-1 // what is right at first and then grows is a matter of weights; all else that differs does so from the start
		res.Subject = fmt.Sprintf("%s (%d of %s)", begins, res.Steps.Bad, steps(res.Steps.Judged, "step"))
		s.engineApart(&res, best, worst, lead)
		if s.profile == nil && lagsEvenly(pools, res.Limit) {
			res.Reason = fmt.Sprintf("from %s on the engine stays about as far behind (%s: %s; %s: %s): its weights are a rollout or two older, and no older with time, as those of an asynchronous engine are",
				begins, begins, begins.Discrepancy, last, last.Discrepancy)
			if res.Fix = declareLag; res.Verdict == check.Undetermined {
				res.Verdict, res.Where, res.Explanations = check.Warn, "", nil
				res.Reason += ", for which the importance weights of this run may correct"
			} else {
				res.Verdict, res.Explanations[0].Lead = check.Undetermined, true
			}
		}
	}
	s.history.uses.result(&res)
	return res, true
}

// lagsEvenly reports whether an engine that was near at first has stopped to fall behind: from some rollout on, j since it was near, none is further behind than
// that. Updates of one size in directions that do not oppose each other lead √i as far or further in i rollouts, so that weights which are never sent are √(i/j) as far
// behind at the i-th as at the j-th, and those of an engine that is at most j rollouts late as far; ⁴√(i/j) lies between, and tells them where i is half as much again as j.
func lagsEvenly(pools []stepSizes, limit float64) bool {
	behind := slices.DeleteFunc(slices.Clone(pools), func(x stepSizes) bool { return !x.begins })
	first := slices.IndexFunc(behind, func(x stepSizes) bool { return x.Scale > limit })
	if first < 1 {
		return false
	}
	behind = behind[first-1:]
	last := len(behind) - 1
	for j := 1; 2*last >= 3*j; j++ {
		even := true
		for i := j + 1; i <= last; i++ {
			even = even && behind[i].Scale <= math.Pow(float64(i)/float64(j), 0.25)*behind[j].Scale
		}
		if even {
			return true
		}
	}
	return false
}

// sizeError is the factor that six standard errors of the sizes of two differences make, of so many tokens each.
func sizeError(n, m int) float64 {
	return math.Exp(6 * 1.2 * math.Sqrt(1/float64(2*n)+1/float64(2*m)))
}

const declareLag = "if rollouts are asynchronous, say so (async_rollout: true or max_staleness: N among the options); else send the weights to the engine after every update"

// engineApart says that the engine is further from the trainer than at its best.
func (s *session) engineApart(res *check.Result, best, worst stepSizes, lead bool) {
	limit := max(stage.OrdinaryScale, 4*best.Scale)
	res.Verdict = check.Fail
	res.Where = fmt.Sprintf("%s  got %.4g  want at most %.4g", worst, worst.Scale, limit)
	res.Repeat = "--select " + acrossEngine
	res.Metric, res.Measured, res.Limit = "logit noise", worst.Scale, limit
	apart := fmt.Sprintf("engine and trainer drift apart: %s: %s; at best, %s: %s", worst, worst.Discrepancy, best, best.Discrepancy)
	res.Reason = apart + ": the engine's weights are older than the policy, or lack its adapter"
	named := check.Explanation{Fault: "GEN-UNADAPTED", Title: "the engine has not got the trained weights or the adapter", Lead: lead}
	if s.lags() {
		res.Verdict, named.Lead = check.Undetermined, true
		res.Reason = apart + ": older weights, which an asynchronous engine has by design and the importance weights of this run may correct for; no number tells them from weights that are never sent"
		named.Evidence = fmt.Sprintf("logit noise %.2g at %s, and %.2g at %s", best.Scale, best, worst.Scale, worst)
		res.Fix = declareLag
	}
	res.Explanations = []check.Explanation{named}
}
