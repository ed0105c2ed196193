package update

import (
	"fmt"
	"math"
	"math/rand/v2"

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
	nesterov, amsgrad, zero                 bool
	dampen                                  float64
	every                                   int       // the moments are 0 again after so many steps
	spare                                   bool      // the bias does not decay
	rates                                   []float64 // of each tensor, times the rate
	count                                   int       // of the bias correction from the second step on
	goesOn                                  bool      // and counts on
	root                                    int       // eps inside the root
	clipScale                               float64   // of the gradient when it is clipped
	shapes                                  []int
	schedule                                func(step int) float64
}

func f32(x float64) float64 { return float64(float32(x)) }

// run lets the program take n steps on gradients that are random, with a part that stays, and returns what it dumps.
func (p program) run(r *rand.Rand, n int, fields string) *Run {
	out := &Run{}
	var w, m, v, largest, drift [][]float64
	for _, size := range p.shapes {
		a, b := make([]float64, size), make([]float64, size)
		for i := range a {
			a[i], b[i] = f32(r.NormFloat64()*0.05), r.NormFloat64()*1e-3
		}
		w, drift = append(w, a), append(drift, b)
		m, v, largest = append(m, make([]float64, size)), append(v, make([]float64, size)), append(largest, make([]float64, size))
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
		if p.every > 0 && taken == p.every {
			taken = 0
			for k := range m {
				clear(m[k])
				clear(v[k])
			}
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
			if p.zero {
				given = make([]float64, len(given))
			}
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
				one.apply(w[k], given, m[k], v[k], largest[k], scale, lr, times*(taken-1)+again+1)
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

func (p program) apply(w, g, m, v, largest []float64, scale, lr float64, t int) {
	c1, c2 := 1-math.Pow(p.beta1, float64(t)), 1-math.Pow(p.beta2, float64(t))
	if p.ahead {
		c1, c2 = 1-math.Pow(p.beta1, float64(t+1)), 1-math.Pow(p.beta2, float64(t+1))
	}
	if at := p.count; at > 0 && t > 1 {
		if p.goesOn {
			at += t - 2
		}
		c1, c2 = 1-math.Pow(p.beta1, float64(at)), 1-math.Pow(p.beta2, float64(at))
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
		case p.kind == "sgd" && t > 1 && p.dampen > 0:
			m[i] = f32(f32(p.beta1*m[i]) + f32((1-p.dampen)*x))
			w[i] = f32(w[i] - f32(lr*m[i]))
			continue
		case p.kind == "sgd" && p.nesterov:
			m[i] = f32(f32(p.beta1*m[i]) + x)
			w[i] = f32(w[i] - f32(lr*f32(x+f32(p.beta1*m[i]))))
			continue
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
		below := v[i]
		if p.amsgrad {
			largest[i] = max(largest[i], v[i])
			below = largest[i]
		}
		d := f32(f32(f32(math.Sqrt(below))/f32(math.Sqrt(c2))) + f32(p.eps))
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
