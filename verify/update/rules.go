package update

import (
	"fmt"
	"math"
	"slices"

	"plumbline/verify/check"
)

// Values that optimisers of RL programs are run with, tried where nothing is declared.
var (
	commonBetas = [][2]float64{{0.9, 0.999}, {0.9, 0.95}, {0.9, 0.99}, {0.95, 0.999}, {0.9, 0.98}}
	commonEps   = []float64{1e-8, 1e-5, 1e-6, 1e-15}
	commonClips = []float64{math.Inf(1), 1, 0.5, 0.1, 0.2, 10}
)

// legalRules are the optimisers that a program may run, given what is declared, the likely ones first. Other betas and another eps than the
// declared ones stand at the end: they are what differs, not what is wrong with the steps.
func legalRules(d Declared, run []*pair) []rule {
	betas := commonBetas
	if !math.IsNaN(d.Beta1) && !math.IsNaN(d.Beta2) {
		betas = append([][2]float64{{d.Beta1, d.Beta2}}, betas...)
	}
	eps := commonEps
	if !math.IsNaN(d.Eps) {
		eps = append([]float64{d.Eps}, eps...)
	}
	clips := commonClips
	if !math.IsNaN(d.Clip) {
		if clips = []float64{d.Clip}; !slices.ContainsFunc(run, func(p *pair) bool { return p.norm > d.Clip*(1+1e-5) }) {
			clips = append(clips, math.Inf(1)) // clipped before they were dumped
		}
	}
	kinds := []string{"adamw", "adam", "adam_tf1", "sgd"}
	if d.Kind != "" {
		kinds = []string{d.Kind}
	}
	var list []rule
	for _, kind := range kinds {
		for _, clip := range clips {
			if kind == "sgd" {
				for _, momentum := range []float64{0, 0.9} {
					list = append(list, rule{kind: kind, beta1: momentum, decay: d.Decay, clip: clip})
				}
				continue
			}
			for _, b := range betas {
				for _, e := range eps {
					decays := []float64{d.Decay}
					if kind == "adam" && math.IsNaN(d.Decay) {
						decays = []float64{0, 0.01, 0.1}
					}
					for _, decay := range decays {
						list = append(list, rule{kind: kind, beta1: b[0], beta2: b[1], eps: e, decay: decay, clip: clip})
					}
				}
			}
		}
	}
	return list
}

// few returns the run on its first elements, evenly taken.
func few(run []*pair) ([]*pair, bool) {
	n := len(run[0].g)
	if n <= fewElements {
		return run, false
	}
	stride := n / fewElements
	thin := func(x []float64) []float64 {
		if x == nil {
			return nil
		}
		out := make([]float64, 0, fewElements+1)
		for j := 0; j < n; j += stride {
			out = append(out, x[j])
		}
		return out
	}
	var list []*pair
	for _, p := range run {
		q := *p
		q.g, q.w, q.u, q.noise = thin(p.g), thin(p.w), thin(p.u), thin(p.noise)
		list = append(list, &q)
	}
	return list, true
}

// first returns the fit of the first rule that gives every number of the run, nil if none does.
func first(rules []rule, run []*pair, per []int) *fit {
	some, thinned := few(run)
	for _, r := range rules {
		if r.perTensor {
			if f := r.fits(run, per); f.holds() {
				return f
			}
			continue
		}
		f := r.fits(some, per)
		if !f.holds() {
			continue
		}
		if thinned {
			if f = r.fits(run, per); !f.holds() {
				continue
			}
		}
		return f
	}
	return nil
}

// wrong is a bug of an optimiser's use, as what it makes of the declared one.
type wrong struct {
	id  string
	say string
	of  func(r rule) []rule
}

// late is the bug that weights alone, read behind the step where they are taken for those before it, look like.
const late = "OPTIM-LATE"

var wrongs = []wrong{
	{"OPTIM-RESET", "the moments are 0 before every step", func(r rule) []rule { r.anew = true; return []rule{r} }},
	{"OPTIM-L2", "the decay goes through the moments", func(r rule) []rule {
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
	}},
	{"OPTIM-NO-CORRECTION", "m and v are not divided by 1 − βᵗ", func(r rule) []rule { r.uncorrected = true; return []rule{r} }},
	{"OPTIM-EPS-FORM", "eps stands outside the bias correction", func(r rule) []rule {
		if r.kind == "adam_tf1" {
			return nil
		}
		r.kind = "adam_tf1"
		return []rule{r}
	}},
	{"OPTIM-CLIP-MISSING", "the gradients were not clipped", func(r rule) []rule {
		if math.IsInf(r.clip, 1) {
			return nil
		}
		r.clip = math.Inf(1)
		return []rule{r}
	}},
	{"OPTIM-CLIP-TENSOR", "every tensor was clipped by its own norm", func(r rule) []rule {
		if math.IsInf(r.clip, 1) {
			return nil
		}
		r.perTensor = true
		return []rule{r}
	}},
	{late, "each step uses the gradient of the step before", func(r rule) []rule { r.late = 1; return []rule{r} }},
	{"OPTIM-TWICE", "each gradient is applied twice", func(r rule) []rule { r.twice = true; return []rule{r} }},
	{"OPTIM-DECAY-RATE", "the decay is not multiplied by the rate", func(r rule) []rule {
		if !(r.decay > 0) {
			return nil
		}
		r.flat = true
		return []rule{r}
	}},
	{"OPTIM-DECLARED", "the decay is another one than declared", func(r rule) []rule {
		if math.IsNaN(r.decay) || r.kind == "adam" {
			return nil
		}
		r.decay = math.NaN()
		return []rule{r}
	}},
	{"OPTIM-DECLARED", "the optimiser is another one than declared", func(r rule) []rule {
		s := r
		s.kind, s.beta1 = "sgd", 0
		return []rule{s}
	}},
}

// accused returns the finding that a bug gives the numbers that no legal rule does, nil if none does. Where nobody says which optimiser
// runs, another one may be meant, and the bug is a lead.
func accused(d Declared, run []*pair, per []int) *check.Result {
	base := d
	if base.Kind == "" {
		base.Kind = "adamw"
	}
	legal := legalRules(base, run)
	for _, w := range wrongs {
		if w.id == late && slices.ContainsFunc(run, func(p *pair) bool { return !p.told }) {
			continue
		}
		var rules []rule
		for _, r := range legal {
			rules = append(rules, w.of(r)...)
		}
		f := first(rules, run, per)
		if f == nil || !f.tells() {
			continue
		}
		res := &check.Result{Check: stepID, Subject: count(len(run), "step"), Compared: f.of, Steps: &check.Steps{Judged: len(run), Bad: len(run), First: run[0].step}}
		reason := fmt.Sprintf("%s: reproduces %d numbers of %d steps (%s)", w.say, f.of, len(run), f.words())
		named(res, w.id, reason)
		res.Reason = reason
		if d.Kind == "" {
			res.Verdict, res.Steps.Bad = check.Undetermined, 0
			res.Explanations[0].Lead = true
			res.Reason = "no optimiser that was tried gives these steps"
		}
		return res
	}
	return nil
}
