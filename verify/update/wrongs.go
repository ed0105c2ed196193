package update

import (
	"cmp"
	"fmt"
	"math"
	"slices"
	"strings"

	"plumbline/verify/check"
)

// wrong is a bug of an optimiser's use, as what it makes of the declared one.
type wrong struct {
	id      string
	say     string
	needs   string // what has to be declared for it to be a bug; "": nothing, no optimiser does it
	of      func(r rule) []rule
	visible func(r rule, s *sample) bool // nil: always
	solved  [][]unknown                  // numbers that are solved for where those that are declared, or usual, do not give the run
}

// What a bug needs to be one: another optimiser may be meant where nobody says which, and a number that nobody declares is no other one.
const (
	needsKind     = "kind"
	needsKindSaid = "kind of the run"
	needsClip     = "clip"
	needsClipSaid = "clip of the run"
	needsDecay    = "decay"
)

func (d Declared) has(what string) bool {
	switch what {
	case needsKind:
		return d.Kind != ""
	case needsKindSaid:
		return d.Kind != "" && d.From[optionKind] == ""
	case needsClip:
		return !math.IsNaN(d.Clip)
	case needsClipSaid:
		return !math.IsNaN(d.Clip) && d.From[optionClip] == ""
	case needsDecay:
		return !math.IsNaN(d.Decay)
	}
	return true
}

// mostEvery is the largest number of steps after which moments are tried to begin anew: the updates of a rollout.
const mostEvery = 16

// late is the bug that weights alone, read behind the step where they are taken for those before it, look like.
const late = "OPTIM-LATE"

func alone(change func(r *rule)) func(rule) []rule {
	return func(r rule) []rule { change(&r); return []rule{r} }
}

func clipped(change func(r *rule)) func(rule) []rule {
	return func(r rule) []rule {
		if math.IsInf(r.clip, 1) {
			return nil
		}
		change(&r)
		return []rule{r}
	}
}

func ofAdam(change func(r *rule)) func(rule) []rule {
	return func(r rule) []rule {
		if r.kind == "sgd" {
			return nil
		}
		change(&r)
		return []rule{r}
	}
}

func decayed(change func(r *rule)) func(rule) []rule {
	return func(r rule) []rule {
		if !(r.decay > 0) || r.kind != "adamw" {
			return nil
		}
		change(&r)
		return []rule{r}
	}
}

var wrongs = []wrong{
	{"OPTIM-RESET", "the moments are 0 before every step", needsKind, ofAdam(func(r *rule) { r.anew = 1 }), nil, nil}, // of SGD it is no momentum
	{"OPTIM-RESET", "the moments are 0 again after every few steps", needsKind, func(r rule) []rule {
		var list []rule
		for every := 2; every <= mostEvery; every++ {
			c := r
			c.anew = every
			list = append(list, c)
		}
		return list
	}, nil, nil},
	{"OPTIM-FORM", "the momentum is Nesterov's", needsKind, func(r rule) []rule {
		if r.kind != "sgd" || r.beta1 == 0 {
			return nil
		}
		r.form = formNesterov
		return []rule{r}
	}, nil, nil},
	{"OPTIM-FORM", "the momentum is dampened", needsKind, func(r rule) []rule {
		var list []rule
		for _, by := range []float64{r.beta1, 0.5, 0.1, 1 - r.beta1} {
			if r.kind == "sgd" && r.beta1 > 0 && by > 0 {
				c := r
				c.dampen = by
				list = append(list, c)
			}
		}
		return list
	}, nil, nil},
	{"OPTIM-FORM", "the root is of the largest v so far, as AMSGrad's", needsKind, ofAdam(func(r *rule) { r.form = formAMSGrad }), nil, [][]unknown{{ofBeta2}, {ofBeta1, ofBeta2}}},
	{"OPTIM-FORM", "the direction looks a step ahead, as NAdam's", needsKind, ofAdam(func(r *rule) { r.form = formNAdam }), nil, nil},
	{"OPTIM-GRAD-ZERO", "the weights only decay, as of gradients that are 0", "", func(r rule) []rule {
		if r.decay == 0 || math.IsNaN(r.decay) {
			return nil
		}
		r.blank = true
		return []rule{r}
	}, nil, nil},
	{"OPTIM-L2", "the decay goes through the moments", needsKind, func(r rule) []rule {
		var list []rule
		decays := []float64{r.decay}
		if math.IsNaN(r.decay) {
			decays = []float64{0.01, 0.1, 0.001}
		}
		for _, decay := range decays {
			if r.kind != "adamw" || decay == 0 {
				continue
			}
			c := r
			c.kind, c.decay = "adam", decay
			list = append(list, c)
		}
		return list
	}, nil, nil},
	{"OPTIM-NO-CORRECTION", "m and v are not divided by 1 − βᵗ", needsKind, alone(func(r *rule) { r.uncorrected = true }), nil, nil},
	{"OPTIM-COUNT", "the bias correction does not count the steps", needsKind, func(r rule) []rule {
		one, first := r, r
		one.ahead, first.frozen = 1, true
		return []rule{one, first}
	}, nil, nil},
	{"OPTIM-COUNT", "from the second step on the bias correction is that of one other step", needsKind, ofAdam(func(r *rule) { r.count = 100 }), nil, [][]unknown{{ofCount}}},
	{"OPTIM-COUNT", "from the second step on the bias correction counts from another step on", needsKind, ofAdam(func(r *rule) { r.count, r.goesOn = 100, true }), nil, [][]unknown{{ofCount}}},
	{"OPTIM-EPS-FORM", "eps stands outside the bias correction", needsKind, func(r rule) []rule {
		if r.kind == "adam_tf1" {
			return nil
		}
		r.kind = "adam_tf1"
		return []rule{r}
	}, nil, nil},
	{"OPTIM-EPS-ROOT", "eps stands inside the root", needsKind, func(r rule) []rule {
		one, two := r, r
		one.root, two.root = 1, 2
		return []rule{one, two}
	}, nil, nil},
	{"OPTIM-CLIP-MISSING", "the gradients were not clipped by their norm", needsClipSaid, clipped(func(r *rule) { r.clip = math.Inf(1) }), nil, nil},
	{"OPTIM-CLIP-TENSOR", "every tensor was clipped by its own norm", needsClip, clipped(func(r *rule) { r.perTensor = true }),
		func(r rule, s *sample) bool { // a bound that no tensor reaches alone is no clipping
			return slices.ContainsFunc(s.list, func(p *pair) bool { return slices.ContainsFunc(p.norms, func(n float64) bool { return n > r.clip }) })
		}, nil},
	{"OPTIM-CLIP-VALUE", "every element was held to a bound", needsClip, clipped(func(r *rule) { r.byValue = true }),
		func(r rule, s *sample) bool {
			return slices.ContainsFunc(s.list, func(p *pair) bool {
				return slices.ContainsFunc(p.g, func(x float64) bool { return math.Abs(x) > r.clip })
			})
		}, [][]unknown{{ofClip}}},
	{late, "each step uses the gradient of the step before", needsKind, alone(func(r *rule) { r.late = 1 }), nil, nil},
	{"OPTIM-GRAD-KEPT", "each step uses the sum of all gradients so far", "", alone(func(r *rule) { r.summed = true }), nil, nil},
	{"OPTIM-TWICE", "each gradient is applied twice", "", alone(func(r *rule) { r.twice = true }), nil, nil},
	{"OPTIM-DECAY-RATE", "the decay is not multiplied by the rate", needsKind, decayed(func(r *rule) { r.flat = true }), nil, nil},
	{"OPTIM-DECAY-SIGN", "the decay is added to the weights", needsDecay, decayed(func(r *rule) { r.decay = -r.decay }), nil, nil},
	{"OPTIM-DECLARED", "the optimiser is another one than declared", needsKindSaid, func(r rule) []rule {
		if r.kind == "sgd" {
			return nil
		}
		s := r
		s.kind, s.beta1, s.decay, s.spare = "sgd", 0, 0, spareNone
		return []rule{s}
	}, nil, nil},
}

// claim is a bug whose numbers are those of the run.
type claim struct {
	wrong
	fit *fit
}

// claims are the bugs that give the numbers of the run, of the optimisers that are declared.
func claims(d Declared, s *search) (found []claim) {
	base := d
	base.Kind = cmp.Or(base.Kind, "adamw")
	var legal []rule
	for _, v := range variants(base, s.sample) {
		if len(v.off) == 0 {
			legal = append(legal, v.rule)
		}
	}
	for _, w := range wrongs {
		if (w.needs == needsClipSaid || w.needs == needsKindSaid) && !d.has(w.needs) {
			continue // a default of the framework that the run may have changed
		}
		if w.id == late && slices.ContainsFunc(s.list, func(p *pair) bool { return !p.told }) {
			continue
		}
		var rules []rule
		for _, r := range legal {
			if w.visible == nil || w.visible(r, s.sample) {
				rules = append(rules, w.of(r)...)
			}
		}
		if f := s.first(rules); f != nil && f.tells() {
			found = append(found, claim{w, f})
		}
	}
	for _, w := range wrongs {
		if len(found) > 0 {
			break
		}
		if f := s.bent(d, w, legal); f != nil {
			found = append(found, claim{w, f})
		}
	}
	return found
}

// accused returns the finding on a run that no declared optimiser gives: the one bug, or the other number, that gives all of it. Of bugs
// that give the same numbers none is named for sure; nil where nothing gives them.
func accused(d Declared, s *search) *check.Result {
	found := claims(d, s)
	if len(found) == 0 {
		return nil
	}
	run := s.list
	var other *fit // an optimiser of which some number is one that nobody declares
	if f := solve(d, s, true); f != nil {
		other = f
	}
	best := found[0]
	res := &check.Result{Check: stepID, Subject: count(len(run), "step"), Compared: best.fit.of, Steps: &check.Steps{Judged: len(run), Bad: len(run), First: run[0].step}}
	named(res, best.id, "")
	res.Explanations = nil
	var also []string
	for _, c := range found {
		one := &check.Result{}
		named(one, c.id, fmt.Sprintf("%s: reproduces %d numbers of %d steps (%s)", c.say, c.fit.of, len(run), c.fit.words()))
		one.Explanations[0].Lead = len(found) > 1 || other != nil || !d.has(c.needs)
		res.Explanations = append(res.Explanations, one.Explanations...)
		also = append(also, c.say)
	}
	res.Reason = res.Explanations[0].Evidence
	switch sure := !slices.ContainsFunc(found, func(c claim) bool { return !d.has(c.needs) }); {
	case other != nil:
		res.Verdict, res.Steps.Bad = check.Undetermined, 0
		res.Reason = fmt.Sprintf("%s; but so does %s, which nothing declared excludes", strings.Join(also, ", or "), other.words())
	case !sure:
		res.Verdict, res.Steps.Bad = check.Undetermined, 0
		res.Reason = "no optimiser that was tried gives these steps"
	case len(found) > 1:
		res.Reason = fmt.Sprintf("the declared optimiser does not give these steps; that %s does", strings.Join(also, ", or that "))
	}
	return res
}
