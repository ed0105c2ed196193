package update

import (
	"fmt"
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"plumbline/verify/check"
	"plumbline/verify/tol"
)

// program is an optimiser in float32, operation by operation, with the bugs that programs have.
type program struct {
	kind                                    string
	lr, beta1, beta2, eps, decay, clip      float64
	reset, l2, raw, late, twice, eachTensor bool
	noClip, flat, ascent, still, without    bool
	after                                   bool // the hook reads weights behind the step
	byValue, kept, ahead, frozen, grows     bool
	spare                                   bool      // the bias does not decay
	rates                                   []float64 // of each tensor, times the rate
	root                                    int       // eps inside the root
	clipScale                               float64   // of the gradient when it is clipped
	shapes                                  []int
	schedule                                func(step int) float64
}

func f32(x float64) float64 { return float64(float32(x)) }

// run lets the program take n steps on gradients that are random, with a part that stays, and returns what it dumps.
func (p program) run(r *rand.Rand, n int, fields string) *Run {
	out := &Run{}
	var w, m, v, drift [][]float64
	for _, size := range p.shapes {
		a, b := make([]float64, size), make([]float64, size)
		for i := range a {
			a[i], b[i] = f32(r.NormFloat64()*0.05), r.NormFloat64()*1e-3
		}
		w, drift = append(w, a), append(drift, b)
		m, v = append(m, make([]float64, size)), append(v, make([]float64, size))
	}
	var last [][]float64
	taken, lastNorm := 0, 0.0
	var sums [][]float64
	for step := 1; step <= n; step++ {
		lr := p.lr
		if p.schedule != nil {
			lr *= p.schedule(step)
		}
		var g [][]float64
		var sum float64
		for k, size := range p.shapes {
			a := make([]float64, size)
			for i := range a {
				a[i] = f32(drift[k][i] + r.NormFloat64()*2e-3*float64(1+step%3))
				sum += a[i] * a[i]
			}
			g = append(g, a)
		}
		norm := math.Sqrt(sum)
		use := g
		if p.kept {
			if sums == nil {
				sums = clone(w)
				for _, x := range sums {
					clear(x)
				}
			}
			norm = 0
			for k := range g {
				for i, x := range g[k] {
					sums[k][i] = f32(sums[k][i] + x)
					norm += sums[k][i] * sums[k][i]
				}
			}
			if norm = math.Sqrt(norm); p.clip > 0 && norm > p.clip {
				for k := range g {
					for i := range g[k] {
						sums[k][i] = f32(sums[k][i] * f32(p.clip/(norm+1e-6)))
					}
				}
			}
			use = sums
		}
		s := &Step{Number: step, Norm: norm, Rate: lr}
		if p.late {
			use = last
		}
		before := clone(w)
		times := 1
		if p.twice {
			times = 2
		}
		if use != nil {
			taken++ // without gradients torch does not count a step
		}
		for k := range w {
			if p.still || p.without && k == 0 || use == nil {
				continue
			}
			scale := 1.0
			if p.clip > 0 && !p.noClip {
				of := norm
				if p.late {
					of = lastNorm
				}
				if p.eachTensor {
					of = 0
					for _, x := range use[k] {
						of += x * x
					}
					of = math.Sqrt(of)
				}
				scale = min(1, f32(p.clip/(of+1e-6)))
				if p.clipScale > 0 {
					scale = min(1, f32(p.clip/(of*p.clipScale+1e-6)))
				}
				if p.kept {
					scale = 1
				}
			}
			given := use[k]
			if p.byValue {
				given, scale = append([]float64(nil), given...), 1
				for i, x := range given {
					given[i] = max(-p.clip, min(p.clip, x))
				}
			}
			one := p
			lr := lr
			if p.rates != nil {
				lr *= p.rates[k]
			}
			if p.spare && k == 1 {
				one.decay = 0
			}
			for again := range times {
				one.apply(w[k], given, m[k], v[k], scale, lr, times*(taken-1)+again+1)
			}
		}
		last, lastNorm = g, norm
		for k := range w {
			u := make([]float64, len(w[k]))
			for i := range u {
				u[i] = f32(w[k][i] - before[k][i])
			}
			t := Tensor{Name: fmt.Sprintf("layer.%d.weight", k), Parts: 1, Grad: &Values{X: g[k], Unit: 0}, Dims: 2}
			if k == 1 {
				t.Name, t.Dims = "layer.1.bias", 1
			}
			if fields != "weights" {
				t.Update = &Values{X: u, Unit: tol.U32}
			}
			of := before[k]
			if p.after {
				of = append([]float64(nil), w[k]...)
			}
			t.Weights = &Values{X: of, Unit: tol.U32}
			s.Tensors = append(s.Tensors, t)
		}
		out.Add(s)
	}
	return out
}

func clone(x [][]float64) [][]float64 {
	var out [][]float64
	for _, v := range x {
		out = append(out, append([]float64(nil), v...))
	}
	return out
}

func (p program) apply(w, g, m, v []float64, scale, lr float64, t int) {
	c1, c2 := 1-math.Pow(p.beta1, float64(t)), 1-math.Pow(p.beta2, float64(t))
	if p.ahead {
		c1, c2 = 1-math.Pow(p.beta1, float64(t+1)), 1-math.Pow(p.beta2, float64(t+1))
	}
	if p.reset || p.frozen {
		c1, c2 = 1-p.beta1, 1-p.beta2
	}
	if p.raw {
		c1, c2 = 1, 1
	}
	if p.ascent {
		lr = -lr
	}
	for i := range w {
		x := g[i]
		if scale < 1 {
			x = f32(x * scale)
		}
		switch {
		case p.kind == "sgd":
			m[i] = f32(f32(p.beta1*m[i]) + x)
			w[i] = f32(w[i] - f32(lr*m[i]))
			continue
		case p.kind == "adam" || p.l2:
			x = f32(x + f32(p.decay*w[i]))
		case p.grows:
			w[i] = f32(w[i] * f32(1+lr*p.decay))
		case p.flat:
			w[i] = f32(w[i] * f32(1-p.decay))
		default:
			w[i] = f32(w[i] * f32(1-lr*p.decay))
		}
		if p.reset {
			m[i], v[i] = 0, 0
		}
		m[i] = f32(m[i] + f32(f32(1-p.beta1)*f32(x-m[i])))
		v[i] = f32(f32(f32(p.beta2)*v[i]) + f32(f32(f32(1-p.beta2)*x)*x))
		if p.kind == "adam_tf1" {
			w[i] = f32(w[i] - f32(f32(lr*math.Sqrt(c2)/c1)*f32(m[i]/f32(f32(math.Sqrt(v[i]))+f32(p.eps)))))
			continue
		}
		d := f32(f32(f32(math.Sqrt(v[i]))/f32(math.Sqrt(c2))) + f32(p.eps))
		switch p.root {
		case 1:
			d = f32(math.Sqrt(f32(f32(v[i]/f32(c2)) + f32(p.eps))))
		case 2:
			d = f32(f32(math.Sqrt(f32(v[i]+f32(p.eps)))) / f32(math.Sqrt(c2)))
		}
		w[i] = f32(w[i] - f32(f32(lr/c1)*f32(m[i]/d)))
	}
}

func healthy() program {
	return program{kind: "adamw", lr: 1e-3, beta1: 0.9, beta2: 0.999, eps: 1e-8, decay: 0.01, clip: 0.2, shapes: []int{300, 64, 900}}
}

func declaredOf(p program) Declared {
	d := Undeclared()
	d.Kind, d.Rate, d.Constant, d.Beta1, d.Beta2, d.Eps, d.Decay, d.Clip = p.kind, p.lr, p.schedule == nil, p.beta1, p.beta2, p.eps, p.decay, math.Inf(1)
	if d.Spare = "none"; p.spare {
		d.Spare = "biases_and_norms"
	}
	if p.clip > 0 {
		d.Clip = p.clip
	}
	return d
}

func verdicts(results []check.Result) map[string]check.Verdict {
	m := map[string]check.Verdict{}
	for _, r := range results {
		m[r.Check] = r.Verdict
	}
	return m
}

// Optimisers that do what they say pass, with everything declared and with nothing, with update and with weights alone, read before the
// step or behind it.
func TestHealthy(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		p := healthy()
		p.kind = rapid.SampledFrom([]string{"adamw", "adamw", "adam", "adam_tf1", "sgd"}).Draw(t, "kind")
		p.lr = rapid.SampledFrom([]float64{1e-2, 1e-3, 1e-4}).Draw(t, "lr")
		betas := rapid.SampledFrom([][2]float64{{0.9, 0.999}, {0.9, 0.95}}).Draw(t, "betas")
		p.beta1, p.beta2 = betas[0], betas[1]
		p.eps = rapid.SampledFrom([]float64{1e-8, 1e-5}).Draw(t, "eps")
		p.decay = rapid.SampledFrom([]float64{0, 0.01, 0.1}).Draw(t, "decay")
		p.clip = rapid.SampledFrom([]float64{0, 1, 0.1}).Draw(t, "clip")
		p.after = rapid.Bool().Draw(t, "after")
		p.spare = rapid.Bool().Draw(t, "spare")
		if p.kind == "sgd" {
			p.decay, p.lr = 0, 0.1
		}
		if rapid.Bool().Draw(t, "warm") {
			p.schedule = func(step int) float64 { return min(1, float64(step-1)/3) }
		}
		fields := rapid.SampledFrom([]string{"all", "weights"}).Draw(t, "fields")
		r := p.run(rand.New(rand.NewPCG(rapid.Uint64().Draw(t, "seed"), 1)), rapid.IntRange(3, 8).Draw(t, "steps"), fields)
		d := declaredOf(p)
		if rapid.Bool().Draw(t, "nothing declared") {
			d = Undeclared()
		}
		for _, res := range Judge(r, d) {
			require.NotEqual(t, check.Fail, res.Verdict, "%s: %s", res.Check, res.Reason)
		}
		want := check.Pass
		if p.kind == "adam" && p.decay > 0 && p.after && fields == "weights" {
			want = check.Undetermined // the moments hold weights that are not in the dump
		}
		require.Equal(t, want, verdicts(Judge(r, d))[stepID], "%+v", Judge(r, d))
	})
}

// Each bug is found and named where the optimiser is declared.
func TestBugs(t *testing.T) {
	for id, plant := range map[string]func(*program){
		"OPTIM-RESET":         func(p *program) { p.reset = true },
		"OPTIM-L2":            func(p *program) { p.l2, p.decay = true, 0.1 },
		"OPTIM-NO-CORRECTION": func(p *program) { p.raw = true },
		"OPTIM-EPS-FORM":      func(p *program) { p.kind, p.eps = "adam_tf1", 1e-5 },
		"OPTIM-CLIP-MISSING":  func(p *program) { p.noClip = true },
		"OPTIM-CLIP-TENSOR":   func(p *program) { p.eachTensor, p.clip = true, 0.05 },
		"OPTIM-LATE":          func(p *program) { p.late = true },
		"OPTIM-TWICE":         func(p *program) { p.twice = true },
		"OPTIM-DECAY-RATE":    func(p *program) { p.flat = true },
		"OPTIM-ASCENT":        func(p *program) { p.ascent = true },
		"OPTIM-NOT-STEPPED":   func(p *program) { p.still = true },
		"OPTIM-PARAM-MISSED":  func(p *program) { p.without = true },
		"OPTIM-CLIP-VALUE":    func(p *program) { p.byValue, p.clip = true, 2e-3 },
		"OPTIM-CLIP-SCALED":   func(p *program) { p.clipScale, p.clip = 4, 0.5 },
		"OPTIM-GRAD-KEPT":     func(p *program) { p.kept = true },
		"OPTIM-EPS-ROOT":      func(p *program) { p.root, p.eps = 1, 1e-7 },
		"OPTIM-COUNT":         func(p *program) { p.ahead = true },
		"OPTIM-DECAY-SIGN":    func(p *program) { p.grows = true },
	} {
		t.Run(id, func(t *testing.T) {
			for seed := range uint64(4) {
				p := healthy()
				d := declaredOf(p)
				plant(&p)
				if p.decay != healthy().decay || p.eps != healthy().eps || p.clip != healthy().clip {
					kind := d.Kind
					d = declaredOf(p)
					d.Kind = kind
				}
				d.Micro = 4
				p.after = seed == 1 // with the update: weights alone behind the first step lack those before it
				fields := []string{"all", "weights"}[seed/2]
				if p.late {
					fields = "all"
				}
				results := Judge(p.run(rand.New(rand.NewPCG(seed, 7)), 6, fields), d)
				var names []string
				for _, r := range results {
					if r.Verdict == check.Fail {
						names = append(names, r.Explanations[0].Fault)
					}
				}
				require.Contains(t, names, id, "%+v", results)
				require.Len(t, names, 1, "%+v", results)
			}
		})
	}
}

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

// The rate that is logged is held against the one that is in the steps, a step earlier or later allowed.
func TestLoggedRate(t *testing.T) {
	p := healthy()
	p.schedule = func(step int) float64 { return 1 / float64(step) }
	r := p.run(rand.New(rand.NewPCG(3, 8)), 6, "weights")
	d := Undeclared()
	require.Equal(t, check.Pass, verdicts(Judge(r, d))[rateID])
	for i, rec := range r.steps {
		rec.rate = p.lr / float64(i+2)
	}
	require.Equal(t, check.Pass, verdicts(Judge(r, d))[rateID], "as the Trainer logs it, behind the step of the scheduler")
	for _, rec := range r.steps {
		rec.rate = p.lr / 10
	}
	require.Equal(t, check.Fail, verdicts(Judge(r, d))[rateID])
}

// A norm that stands at the bound while the gradients are larger was taken behind the clipping.
func TestNorm(t *testing.T) {
	p := healthy()
	r := p.run(rand.New(rand.NewPCG(3, 9)), 6, "weights")
	d := declaredOf(p)
	require.Equal(t, check.Pass, verdicts(Judge(r, d))[normID])
	p.clip, d.Clip = 0.05, 0.05
	r = p.run(rand.New(rand.NewPCG(3, 9)), 6, "weights")
	for _, rec := range r.steps {
		rec.norm = min(rec.norm, 0.05)
	}
	require.Equal(t, check.Fail, verdicts(Judge(r, d))[normID])
	for _, rec := range r.steps {
		rec.norm = rec.whole * 2
	}
	require.Equal(t, check.NotSeen, verdicts(Judge(r, Undeclared()))[normID], "other parameters are trained, too")
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

// What no optimiser does is a bug, whoever says nothing, and so is another decay than the declared one.
func TestConvictsUndeclared(t *testing.T) {
	for id, plant := range map[string]func(*program){
		"OPTIM-TWICE":      func(p *program) { p.twice = true },
		"OPTIM-GRAD-KEPT":  func(p *program) { p.kept = true },
		"OPTIM-DECAY-SIGN": func(p *program) { p.grows, p.decay = true, 0.1 },
	} {
		p := healthy()
		plant(&p)
		results := Judge(p.run(rand.New(rand.NewPCG(6, 8)), 5, "all"), Undeclared())
		res := results[slices.IndexFunc(results, func(res check.Result) bool { return res.Check == stepID })]
		require.Equal(t, check.Fail, res.Verdict, "%s %+v", id, res)
		require.Equal(t, id, res.Explanations[0].Fault)
	}
	p := healthy()
	d := Undeclared()
	d.Decay = 0.1
	results := Judge(p.run(rand.New(rand.NewPCG(6, 9)), 5, "all"), d)
	res := results[slices.IndexFunc(results, func(res check.Result) bool { return res.Check == stepID })]
	require.Equal(t, check.Fail, res.Verdict, "%+v", res)
	require.Contains(t, res.Reason, "weight_decay is 0.01, and 0.1 is declared")
}

// A schedule that is stepped in every micro-batch, or once too early, is told from the declared one.
func TestSchedule(t *testing.T) {
	for name, c := range map[string]struct{ per, ahead int }{"right": {1, 0}, "every micro-batch": {4, 0}, "before the first step": {1, 1}} {
		for kind, course := range map[string]func(x float64) float64{
			"linear": func(x float64) float64 { return max(0, 1-x) },
			"cosine": func(x float64) float64 { return 0.5 * (1 + math.Cos(math.Pi*min(1, x))) },
		} {
			p := healthy()
			p.schedule = func(step int) float64 {
				at := float64((step-1)*c.per + c.ahead)
				if at < 2 {
					return at / 2
				}
				return course((at - 2) / 38)
			}
			r := p.run(rand.New(rand.NewPCG(9, 8)), 6, "all")
			d := declaredOf(p)
			d.Schedule, d.Steps, d.WarmUp = kind, 40, 2
			results := Judge(r, d)
			res := results[slices.IndexFunc(results, func(res check.Result) bool { return res.Check == rateID })]
			if c.per == 1 && c.ahead == 0 {
				require.Equal(t, check.Pass, res.Verdict, "%s %s: %+v", name, kind, res)
				continue
			}
			require.Equal(t, check.Fail, res.Verdict, "%s %s: %+v", name, kind, res)
			require.Equal(t, "OPTIM-SCHEDULE", res.Explanations[0].Fault)
		}
	}
}

// A bound that is smaller than the declared one of a gradient whose other parameters are not in the dump is no finding.
func TestPartOfTheParameters(t *testing.T) {
	p := healthy()
	d := declaredOf(p)
	d.Clip = 0.5
	r := p.run(rand.New(rand.NewPCG(9, 9)), 5, "all")
	for _, rec := range r.steps {
		rec.norm = math.NaN()
	}
	require.NotEqual(t, check.Fail, verdicts(Judge(r, d))[stepID])
}

// Groups of parameters may have rates of their own.
func TestGroups(t *testing.T) {
	p := healthy()
	p.rates = []float64{1, 0.1, 1}
	r := p.run(rand.New(rand.NewPCG(9, 11)), 5, "all")
	results := Judge(r, declaredOf(p))
	require.Equal(t, check.Pass, verdicts(results)[stepID], "%+v", results)
	require.Equal(t, check.Note, verdicts(results)[rateID], "%+v", results)
	require.Equal(t, check.Pass, verdicts(Judge(r, Undeclared()))[stepID])
}

// Elements to which no batch adds anything show a gradient that nobody set to 0; a batch that is repeated does not look like it.
func TestFresh(t *testing.T) {
	run := func(keep, repeat bool) *Run {
		rnd := rand.New(rand.NewPCG(3, 4))
		r := &Run{}
		held := make([]float64, 400)
		for step := 1; step <= 5; step++ {
			g := make([]float64, 400)
			var sum float64
			for i := range g {
				if i%2 == 0 || step == 1 {
					g[i] = f32(rnd.NormFloat64())
				}
				if repeat && step > 1 {
					g[i] = held[i]
				}
				if keep {
					g[i] = f32(g[i] + held[i])
				}
				sum += g[i] * g[i]
			}
			norm := math.Sqrt(sum)
			r.Add(&Step{Number: step, Norm: norm, Rate: math.NaN(), Tensors: []Tensor{{Name: "embedding", Parts: 1, Grad: &Values{X: append([]float64(nil), g...)}}}})
			for i := range g {
				if held[i] = g[i]; !repeat {
					held[i] = f32(g[i] * f32(2/(norm+1e-6)))
				}
			}
		}
		return r
	}
	d := Undeclared()
	d.Clip = 2
	res := fresh(run(true, false), d)
	require.NotNil(t, res)
	require.Equal(t, "OPTIM-GRAD-KEPT", res.Explanations[0].Fault)
	require.Nil(t, fresh(run(false, false), d))
	require.Nil(t, fresh(run(false, true), d))
	require.Nil(t, fresh(run(true, false), Undeclared()), "what the factor is has to be declared")
}

// Without a decay a wrong bias correction is a factor of the rate alone: it is told from the logged or declared one.
func TestCorrectionWithoutDecay(t *testing.T) {
	for id, plant := range map[string]func(*program){
		"OPTIM-NO-CORRECTION": func(p *program) { p.raw = true },
		"OPTIM-COUNT":         func(p *program) { p.frozen = true },
	} {
		p := healthy()
		p.decay, p.eps = 0, 1e-12
		d := declaredOf(p)
		plant(&p)
		for _, d := range []Declared{d, Undeclared()} {
			var names []string
			for _, r := range Judge(p.run(rand.New(rand.NewPCG(12, 7)), 6, "all"), d) {
				if r.Verdict == check.Fail {
					names = append(names, r.Explanations[0].Fault)
				}
			}
			require.Equal(t, []string{id}, names)
		}
	}
}

// Two steps with one gradient are followed to second order: the decay of the second takes off what the first added.
func TestTwiceWithDecay(t *testing.T) {
	p := healthy()
	p.lr, p.decay, p.twice, p.spare = 1e-2, 0.1, true, true
	results := Judge(p.run(rand.New(rand.NewPCG(12, 8)), 5, "all"), declaredOf(p))
	res := results[slices.IndexFunc(results, func(res check.Result) bool { return res.Check == stepID })]
	require.Equal(t, check.Fail, res.Verdict, "%+v", res)
	require.Equal(t, "OPTIM-TWICE", res.Explanations[0].Fault)
}
