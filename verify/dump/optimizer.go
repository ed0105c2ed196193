package dump

import (
	"math"
	"slices"
	"strings"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/tol"
	"plumbline/verify/update"
)

// ofOptimizer are the prefixes of tensors of parameters, as "grad/NAME", or of one vector of all.
var ofOptimizer = []string{"grad", "update", "weights"}

// ofSteps are the last parts of the names of logged numbers that the steps of the optimiser are held against.
var ofSteps = []string{"lr", "learning_rate", "grad_norm"}

// trained reports whether a step has tensors that an optimiser worked on.
func (n *StepNotes) trained() bool {
	return slices.ContainsFunc(n.Names, func(name string) bool {
		prefix, _, _ := strings.Cut(name, "/")
		return slices.Contains(ofOptimizer, prefix)
	})
}

// optimizer collects what the first steps say of their optimiser; the steps are read again where notes alone are known.
type optimizer struct {
	run   update.Run
	set   *convention.Set // of the first step
	micro int             // micro-batches of a step
	full  bool
}

// see takes down what a step has.
func (o *optimizer) see(v *view, n *StepNotes, set *convention.Set) error {
	if o.full || !n.trained() {
		return nil
	}
	b, err := v.whole()
	if err != nil {
		return err
	}
	if o.set == nil {
		o.set, o.micro = set, b.Meta.MicroBatches
	}
	o.full = !o.run.Add(stepOf(b))
	return nil
}

// stepOf returns the tensors of parameters of a batch, and what it logged of them.
func stepOf(b *dump.Batch) *update.Step {
	s := &update.Step{Number: b.Meta.Step, Norm: logged(b, "grad_norm"), Rate: logged(b, "lr", "learning_rate")}
	if t := b.Tensors["dvalues"]; t != nil && len(t.Data) == len(b.Mask) {
		for i := range b.Tokens() {
			s.Slope, s.SlopeSize = s.Slope+t.Data[i], s.SlopeSize+math.Abs(t.Data[i])
		}
	}
	ranks := map[int]bool{}
	for _, f := range b.Files {
		ranks[f.Rank] = true
	}
	at := map[string]int{}
	for _, name := range b.Names() {
		prefix, of, _ := strings.Cut(name, "/")
		if !slices.Contains(ofOptimizer, prefix) {
			continue
		}
		t := b.Tensors[name]
		v := &update.Values{X: t.Data, Unit: roundoff(t.Type)}
		i, known := at[of]
		if !known {
			i, at[of] = len(s.Tensors), len(s.Tensors)
			s.Tensors = append(s.Tensors, update.Tensor{Name: of})
		}
		switch to := &s.Tensors[i]; prefix {
		case "grad":
			to.Grad, to.Parts = v, (t.Files+len(ranks)-1)/len(ranks)
			to.Dims = len(t.Shape)
		case "update":
			to.Update = v
		default:
			to.Weights = v
		}
	}
	return s
}

// roundoff is what rounding to a format of 16 bits loses, 0 for wider ones.
func roundoff(d format.DType) float64 {
	switch d {
	case format.BF16:
		return tol.UB
	case format.F16:
		return tol.U16
	}
	return 0
}

// logged returns a logged number by the last part of its name, NaN where there is none.
func logged(b *dump.Batch, names ...string) float64 {
	for _, s := range b.Files[0].Scalars {
		if slices.Contains(names, s.Name[strings.LastIndexByte(s.Name, '/')+1:]) && !strings.HasPrefix(s.Name, "critic/") {
			return s.Value
		}
	}
	return math.NaN()
}

// results judges what was seen. Numbers of a profile are defaults of its release, which a run may have changed without a word in its
// dump: other ones are a convention. Rate and schedule are everybody's own, and a default of them says nothing.
func (o *optimizer) results(s *session) []check.Result {
	if o.set == nil {
		return nil
	}
	d := update.Undeclared()
	d.From, d.Fixed = map[string]string{}, map[string]bool{}
	ofProfile := func(option string) bool { return s.profile != nil && o.set.Origin(option) == s.profile.Name }
	known := func(option string) bool {
		kind := o.set.Value(option).Kind()
		if kind == convention.Unknown || kind == convention.NotApplicable {
			return false
		}
		if ofProfile(option) {
			d.From[option], d.Fixed[option] = s.profile.Name, !configurable(s.profile, option)
		}
		return true
	}
	number := func(option string, to *float64) {
		if known(option) && o.set.Value(option).Kind() == convention.Number {
			*to = o.set.Value(option).Num()
		}
	}
	fact := func(name string, to *float64) {
		if v, ok := o.set.Fact(name); ok {
			if x, ok := v.(float64); ok {
				*to = x
			}
		}
	}
	if known("optim.kind") {
		d.Kind = o.set.Value("optim.kind").String()
	}
	if known("optim.schedule") && !ofProfile("optim.schedule") {
		d.Schedule = o.set.Value("optim.schedule").String()
		d.Constant = d.Schedule == "constant"
	}
	d.Falls = s.profile != nil && strings.HasPrefix(s.profile.Name, "cleanrl@") // ppo.py: frac = 1 − (iteration − 1)/num_iterations
	if !ofProfile("optim.lr") {
		number("optim.lr", &d.Rate)
	}
	number("optim.eps", &d.Eps)
	number("optim.beta1", &d.Beta1)
	number("optim.beta2", &d.Beta2)
	number("optim.weight_decay", &d.Decay)
	if known("optim.no_decay") {
		d.Spare = o.set.Value("optim.no_decay").String()
	}
	if known("optim.clip_norm") {
		if d.Clip = math.Inf(1); o.set.Value("optim.clip_norm").Kind() == convention.Number {
			d.Clip = o.set.Value("optim.clip_norm").Num()
		}
	}
	fact("max_steps", &d.Steps)
	fact("warmup_steps", &d.WarmUp)
	d.Micro = float64(o.micro)
	fact("gradient_accumulation_steps", &d.Micro)
	var kept []check.Result
	for _, res := range update.Judge(&o.run, d) {
		if s.o.Selection.Takes(res.Check) {
			res.Demanded = s.o.Selection.Demands(res.Check)
			kept = append(kept, res)
		}
	}
	return kept
}

// configurable reports whether some configuration of the profile's framework sets the option. Every framework takes the bound of the norm
// and the decay as arguments.
func configurable(p *convention.Profile, option string) bool {
	if option == "optim.clip_norm" || option == "optim.weight_decay" {
		return true
	}
	set, err := p.Setting(option)
	if err != nil || set.Value.Kind() != convention.Number {
		return true
	}
	other, err := convention.Parse(option, "0.123")
	return err != nil || p.Possible(option, other)
}
