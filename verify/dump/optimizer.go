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

// trained reports whether a step has tensors that an optimiser worked on.
func (n *StepNotes) trained() bool {
	return slices.ContainsFunc(n.Names, func(name string) bool {
		prefix, _, _ := strings.Cut(name, "/")
		return slices.Contains(ofOptimizer, prefix)
	})
}

// optimizer collects what the first steps say of their optimiser; the steps are read again where notes alone are known.
type optimizer struct {
	run  update.Run
	set  *convention.Set // of the first step
	full bool
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
		o.set = set
	}
	o.full = !o.run.Add(stepOf(b))
	return nil
}

// stepOf returns the tensors of parameters of a batch, and what it logged of them.
func stepOf(b *dump.Batch) *update.Step {
	s := &update.Step{Number: b.Meta.Step, Norm: logged(b, "grad_norm"), Rate: logged(b, "lr", "learning_rate")}
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
// dump: they convict nobody.
func (o *optimizer) results(s *session) []check.Result {
	if o.set == nil {
		return nil
	}
	d := update.Undeclared()
	said := func(option string) (convention.Value, bool) {
		v := o.set.Value(option)
		return v, v.Kind() != convention.Unknown && !(s.profile != nil && o.set.Origin(option) == s.profile.Name)
	}
	number := func(option string, to *float64) {
		if v, ok := said(option); ok && v.Kind() == convention.Number {
			*to = v.Num()
		}
	}
	fact := func(name string, to *float64) {
		if v, ok := o.set.Fact(name); ok {
			if x, ok := v.(float64); ok {
				*to = x
			}
		}
	}
	if v := o.set.Value("optim.kind"); v.Kind() == convention.Enum {
		d.Kind = v.String()
	}
	if v, ok := said("optim.schedule"); ok {
		d.Constant = v.String() == "constant"
	}
	number("optim.lr", &d.Rate)
	number("optim.eps", &d.Eps)
	if v, ok := said("optim.clip_norm"); ok {
		if d.Clip = math.Inf(1); v.Kind() == convention.Number {
			d.Clip = v.Num()
		}
	}
	fact("adam_beta1", &d.Beta1)
	fact("adam_beta2", &d.Beta2)
	fact("weight_decay", &d.Decay)
	var kept []check.Result
	for _, res := range update.Judge(&o.run, d) {
		if s.o.Selection.Takes(res.Check) {
			res.Demanded = s.o.Selection.Demands(res.Check)
			kept = append(kept, res)
		}
	}
	return kept
}
