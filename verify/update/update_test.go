package update

import (
	"fmt"
	"math"
	"math/rand/v2"
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
		s := &Step{Number: step, Norm: norm, Rate: lr}
		use := g
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
			}
			for again := range times {
				p.apply(w[k], use[k], m[k], v[k], scale, lr, times*(taken-1)+again+1)
			}
		}
		last, lastNorm = g, norm
		for k := range w {
			u := make([]float64, len(w[k]))
			for i := range u {
				u[i] = f32(w[k][i] - before[k][i])
			}
			t := Tensor{Name: fmt.Sprintf("layer.%d", k), Parts: 1, Grad: &Values{X: g[k], Unit: 0}}
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
	if p.reset {
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
		w[i] = f32(w[i] - f32(f32(lr/c1)*f32(m[i]/d)))
	}
}

func healthy() program {
	return program{kind: "adamw", lr: 1e-3, beta1: 0.9, beta2: 0.999, eps: 1e-8, decay: 0.01, clip: 0.2, shapes: []int{300, 64, 900}}
}

func declaredOf(p program) Declared {
	d := Declared{Kind: p.kind, Rate: p.lr, Constant: p.schedule == nil, Beta1: p.beta1, Beta2: p.beta2, Eps: p.eps, Decay: p.decay, Clip: math.Inf(1)}
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
		"decay": {func(d *Declared) { d.Decay = 0.1 }, "OPTIM-DECLARED", "decay 0.01"},
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
