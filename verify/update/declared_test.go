package update

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/check"
)

// What runs with other numbers than the declared ones is said with both.
func TestDeclared(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*Declared)
		id     string
		says   string
	}{
		"rate":  {func(d *Declared) { d.Rate = 1e-4 }, "OPTIM-RATE", "0.001, and 0.0001 is"},
		"betas": {func(d *Declared) { d.Beta2 = 0.99 }, "OPTIM-DECLARED", "beta2 is 0.999, and 0.99 is declared"},
		"eps":   {func(d *Declared) { d.Eps = 1e-5 }, "OPTIM-DECLARED", "eps is 1e-08, and 1e-05 is declared"},
		"decay": {func(d *Declared) { d.Decay = 0.1 }, "OPTIM-DECLARED", "weight_decay is 0.01, and 0.1 is declared"},
		"clip":  {func(d *Declared) { d.Clip = 0.1 }, "OPTIM-DECLARED", "clip_norm is 0.2, and 0.1 is declared"},
		"which": {func(d *Declared) { d.Spare = "biases_and_norms" }, "OPTIM-DECLARED", "no_decay is none, and biases_and_norms is declared"},
	} {
		p := healthy()
		d := declaredOf(p)
		c.change(&d)
		r := p.run(rand.New(rand.NewPCG(3, 7)), 6, "weights")
		for _, rec := range r.steps {
			rec.rate = math.NaN()
		}
		var reasons []string
		for _, res := range Judge(r, d) {
			if res.Verdict == check.Fail {
				require.Equal(t, c.id, res.Explanations[0].Fault, name)
				reasons = append(reasons, res.Reason)
			}
		}
		require.Len(t, reasons, 1, name)
		require.Contains(t, reasons[0], c.says, name)
	}
}

// Without a word on the optimiser a bug's numbers are a lead: another optimiser may be meant.
func TestUndeclared(t *testing.T) {
	p := healthy()
	p.reset = true
	for _, res := range Judge(p.run(rand.New(rand.NewPCG(3, 7)), 6, "all"), Undeclared()) {
		require.NotEqual(t, check.Fail, res.Verdict, "%+v", res)
		if res.Check == stepID {
			require.Equal(t, check.Undetermined, res.Verdict)
			require.True(t, res.Explanations[0].Lead)
			require.Equal(t, "OPTIM-RESET", res.Explanations[0].Fault)
		}
	}
}

// What is not in the dump is said, and never a pass.
func TestLacking(t *testing.T) {
	p := healthy()
	r := p.run(rand.New(rand.NewPCG(3, 10)), 6, "weights")
	late := &Run{index: r.index, names: r.names, steps: r.steps[2:]}
	require.Equal(t, check.NotSeen, verdicts(Judge(late, declaredOf(p)))[stepID], "moments of earlier steps")
	gap := &Run{index: r.index, names: r.names, steps: append(append([]*record(nil), r.steps[:2]...), r.steps[4:]...)}
	require.Equal(t, check.NotSeen, verdicts(Judge(gap, declaredOf(p)))[stepID])
	for _, rec := range r.steps {
		for _, k := range rec.of {
			k.weights = nil
		}
	}
	require.Equal(t, check.NotSeen, verdicts(Judge(r, declaredOf(p)))[stepID])
	require.Empty(t, Judge(&Run{}, Undeclared()))
}

// Numbers that stand on no list are solved for: they are what the program runs where nobody declares others, and what is said where
// somebody does.
func TestSolved(t *testing.T) {
	for name, c := range map[string]struct {
		change func(*program)
		free   func(*Declared)
		says   string
		value  string
	}{
		"beta1": {func(p *program) { p.beta1 = 0.85 }, func(d *Declared) { d.Beta1 = math.NaN() }, "betas 0.85 and 0.999", "beta1 is 0.85, and 0.9 is declared"},
		"beta2": {func(p *program) { p.beta2 = 0.97 }, func(d *Declared) { d.Beta2 = math.NaN() }, "betas 0.9 and 0.97", "beta2 is 0.97, and 0.999 is declared"},
		"eps":   {func(p *program) { p.eps = 3e-4 }, func(d *Declared) { d.Eps = math.NaN() }, "eps 0.0003", "eps is 0.0003, and 1e-08 is declared"},
		"clip":  {func(p *program) { p.clip = 0.13 }, func(d *Declared) { d.Clip = math.NaN() }, "clipped to 0.13", "clip_norm is 0.13, and 0.2 is declared"},
		"decay": {func(p *program) { p.decay = 0.3 }, func(d *Declared) { d.Decay = math.NaN() }, "decay 0.3", "weight_decay is 0.3, and 0.01 is declared"},
	} {
		p := healthy()
		d := declaredOf(p)
		c.change(&p)
		r := p.run(rand.New(rand.NewPCG(5, 7)), 4, "all")
		step := func(d Declared) check.Result {
			results := Judge(r, d)
			return results[slices.IndexFunc(results, func(res check.Result) bool { return res.Check == stepID })]
		}
		res := step(d)
		require.Equal(t, check.Fail, res.Verdict, "%s %+v", name, res)
		require.Equal(t, "OPTIM-DECLARED", res.Explanations[0].Fault, name)
		require.Contains(t, res.Reason, c.value, name)
		c.free(&d)
		res = step(d)
		require.Equal(t, check.Pass, res.Verdict, "%s %+v", name, res)
		require.Contains(t, res.Reason, c.says, name)
	}
}

// A number that stands on no list is found beside a usual bound of the norm, where nothing is declared.
func TestSolvedUnderABound(t *testing.T) {
	p := healthy()
	p.beta1, p.clip, p.spare = 0.85, 0.1, true
	for _, res := range Judge(p.run(rand.New(rand.NewPCG(5, 7)), 4, "all"), Undeclared()) {
		if res.Check == stepID {
			require.Equal(t, check.Pass, res.Verdict, "%+v", res)
			require.Contains(t, res.Reason, "betas 0.85 and 0.999")
			require.Contains(t, res.Reason, "clipped to 0.1")
		}
	}
}

// A count of the bias correction that jumps behind the first step is solved for: the moments are as young as the steps.
func TestSolvedCount(t *testing.T) {
	for _, c := range []program{{count: 1001}, {count: 60, goesOn: true}} {
		p := healthy()
		p.count, p.goesOn, p.eps = c.count, c.goesOn, 1e-6
		for _, res := range Judge(p.run(rand.New(rand.NewPCG(5, 9)), 5, "all"), declaredOf(p)) {
			if res.Check == stepID {
				require.Equal(t, check.Fail, res.Verdict, "%+v", res)
				require.Equal(t, "OPTIM-COUNT", res.Explanations[0].Fault)
			}
		}
		for _, res := range Judge(p.run(rand.New(rand.NewPCG(5, 9)), 5, "all"), Undeclared()) {
			require.NotEqual(t, check.Fail, res.Verdict, "%+v", res)
		}
	}
}

// A default of a framework that a run does not follow is a convention; what the framework has in its code is a bug.
func TestOfProfile(t *testing.T) {
	p := healthy()
	d := declaredOf(p)
	d.Eps, d.Clip = 1e-5, 0.1
	d.From = map[string]string{optionEps: "cleanrl@020cf0e", optionClip: "cleanrl@020cf0e"}
	r := p.run(rand.New(rand.NewPCG(5, 8)), 4, "all")
	find := func() check.Result {
		results := Judge(r, d)
		return results[slices.IndexFunc(results, func(res check.Result) bool { return res.Check == stepID })]
	}
	res := find()
	require.Equal(t, check.Convention, res.Verdict, "%+v", res)
	require.Equal(t, []check.OptionChange{{Option: optionEps, Value: "1e-08", Declared: "1e-05", Origin: "cleanrl@020cf0e"}, {Option: optionClip, Value: "0.2", Declared: "0.1", Origin: "cleanrl@020cf0e"}},
		res.Explanations[0].Options)
	d.Fixed = map[string]bool{optionEps: true}
	require.Equal(t, check.Fail, find().Verdict)
}
