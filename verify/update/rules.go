package update

import (
	"cmp"
	"math"
	"slices"
	"strconv"
)

// Values that optimisers of RL programs are run with, tried where nothing is declared.
var (
	commonBetas = [][2]float64{{0.9, 0.999}, {0.9, 0.95}, {0.9, 0.99}, {0.95, 0.999}, {0.9, 0.98}}
	commonEps   = []float64{1e-8, 1e-5, 1e-6, 1e-15}
	commonClips = []float64{math.Inf(1), 1, 0.5, 0.1, 0.2, 10}
)

// variant is an optimiser that a program may run, and the options in which it is not what is declared.
type variant struct {
	rule
	off []string
}

// The options of an optimiser.
const (
	optionKind  = "optim.kind"
	optionBeta1 = "optim.beta1"
	optionBeta2 = "optim.beta2"
	optionEps   = "optim.eps"
	optionClip  = "optim.clip_norm"
	optionDecay = "optim.weight_decay"
	optionSpare = "optim.no_decay"
)

// variants are the optimisers that a program may run, those that are declared first, then those that differ from it in one option, in two,
// and so on.
func variants(d Declared, s *sample) []variant {
	var list []variant
	for _, kind := range kinds(d) {
		for _, clip := range around(d.Clip, commonClips) {
			for _, b := range betas(d, kind) {
				for _, eps := range around(d.Eps, commonEps) {
					for _, decay := range decays(d, kind) {
						for _, sp := range s.spares("") {
							if decay == 0 && sp != spareNone || kind == "sgd" && eps != around(d.Eps, commonEps)[0] {
								continue
							}
							v := variant{rule: rule{kind: kind, beta1: b[0], beta2: b[1], eps: eps, decay: decay, clip: clip, spare: sp}}
							v.off = v.against(d, s)
							list = append(list, v)
						}
					}
				}
			}
		}
	}
	slices.SortStableFunc(list, func(a, b variant) int { return cmp.Compare(len(a.off), len(b.off)) })
	return list
}

// against returns the options in which a rule is not what is declared.
func (r rule) against(d Declared, s *sample) (off []string) {
	other := func(x, declared float64) bool {
		if math.IsNaN(declared) || x == declared {
			return false
		}
		return math.IsInf(declared, 0) || !(math.Abs(x-declared) <= 1e-6*math.Abs(declared))
	}
	say := func(option string, differs bool) {
		if differs {
			off = append(off, option)
		}
	}
	say(optionKind, d.Kind != "" && r.kind != d.Kind)
	if r.kind == "sgd" {
		say(optionBeta1, d.Kind == "sgd" && other(r.beta1, d.Beta1))
	} else {
		say(optionBeta1, other(r.beta1, d.Beta1))
		say(optionBeta2, other(r.beta2, d.Beta2))
		say(optionEps, other(r.eps, d.Eps))
	}
	clipped := slices.ContainsFunc(s.list, func(p *pair) bool { return p.norm > d.Clip*(1+1e-5) })
	say(optionClip, other(r.clip, d.Clip) && !(math.IsInf(r.clip, 1) && !clipped)) // clipped before they were dumped
	say(optionDecay, other(r.decay, d.Decay))
	say(optionSpare, r.decay != 0 && !slices.Contains(s.spares(d.Spare), r.spare) && len(s.left(r.spare))+len(s.left(spareVectors)) > 0)
	return off
}

func kinds(d Declared) []string {
	all := []string{"adamw", "adam", "adam_tf1", "sgd"}
	switch {
	case d.Kind == "":
		return all
	case d.From[optionKind] == "":
		return []string{d.Kind}
	}
	return append([]string{d.Kind}, slices.DeleteFunc(all, func(k string) bool { return k == d.Kind })...)
}

// around returns the declared number before the common ones.
func around(declared float64, common []float64) []float64 {
	if math.IsNaN(declared) {
		return common
	}
	return append([]float64{declared}, slices.DeleteFunc(slices.Clone(common), func(x float64) bool { return x == declared })...)
}

func betas(d Declared, kind string) [][2]float64 {
	if kind == "sgd" {
		list := [][2]float64{{0, 0}, {0.9, 0}}
		if d.Kind == "sgd" && !math.IsNaN(d.Beta1) {
			list = append([][2]float64{{d.Beta1, 0}}, list...)
		}
		return list
	}
	list := slices.Clone(commonBetas)
	if !math.IsNaN(d.Beta1) || !math.IsNaN(d.Beta2) {
		first := [2]float64{d.Beta1, d.Beta2}
		for k, usual := range commonBetas[0] {
			if math.IsNaN(first[k]) {
				first[k] = usual
			}
		}
		list = append([][2]float64{first}, slices.DeleteFunc(list, func(b [2]float64) bool { return b == first })...)
	}
	return list
}

// decays are what is tried: where it is solved for, the decay needs no list, but one that goes through the moments does.
func decays(d Declared, kind string) []float64 {
	switch {
	case kind == "adam" || kind == "sgd":
		return around(d.Decay, []float64{0, 0.01, 0.1, 1e-4})
	case math.IsNaN(d.Decay):
		return []float64{math.NaN()}
	}
	return []float64{d.Decay, math.NaN()}
}

// few returns the sample on its first elements, evenly taken.
func few(s *sample) (*sample, bool) {
	n := len(s.of)
	if n <= fewElements {
		return s, false
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
	some := &sample{groups: s.groups}
	for j := 0; j < n; j += stride {
		some.of = append(some.of, s.of[j])
	}
	for _, p := range s.list {
		q := *p
		q.g, q.w, q.u, q.noise = thin(p.g), thin(p.w), thin(p.u), thin(p.noise)
		some.list = append(some.list, &q)
	}
	return some, true
}

// search holds the elements on which rules are tried first.
type search struct {
	*sample
	some    *sample
	thinned bool
	found   map[bool]*fit // what [solve] found
}

func searched(s *sample) *search {
	some, thinned := few(s)
	return &search{sample: s, some: some, thinned: thinned, found: map[bool]*fit{}}
}

// fit returns how a rule gives the run, nil if it does not.
func (s *search) fit(r rule) *fit {
	if s.thinned && !(r.summed && !math.IsInf(r.clip, 1)) { // whose norm needs all elements
		if f := r.fits(s.some); !f.holds() {
			return nil
		}
	}
	if f := r.fits(s.sample); f.holds() {
		return f
	}
	return nil
}

// first returns the fit of the first rule that gives every number of the run, nil if none does.
func (s *search) first(rules []rule) *fit {
	for _, r := range rules {
		if f := s.fit(r); f != nil {
			return f
		}
	}
	return nil
}

// settled replaces a decay that was solved step by step by one number, the one of fewest digits that gives the run; nil where none does.
func (s *search) settled(f *fit) *fit {
	if !math.IsNaN(f.decay) {
		return f
	}
	decay, ok := f.median()
	if !ok {
		return nil
	}
	for _, x := range append([]float64{0}, rounded(decay)...) {
		r := f.rule
		if r.decay = x; x == 0 {
			r.spare = spareNone
		}
		if g := s.fit(r); g != nil {
			g.solved = f.solved
			return g
		}
	}
	return nil
}

// rounded returns x with one to six digits.
func rounded(x float64) (list []float64) {
	if x == 0 || math.IsNaN(x) || math.IsInf(x, 0) {
		return []float64{x}
	}
	for digits := range 6 {
		short, err := strconv.ParseFloat(strconv.FormatFloat(x, 'e', digits, 64), 64)
		if err != nil {
			panic("update: " + err.Error())
		}
		list = append(list, short)
	}
	return list
}
