package golden

import (
	"math"
	"slices"

	"plumbline/reference/optim"
)

// AdamW judges optimiser steps and the global norm.
var AdamW = adamW.check()

var adamW = &section{
	name:  "adamw",
	title: "AdamW and the global norm are those of PyTorch",
	doc: `Runs AdamW over the gradients of every entry, one row a step. Compares parameters and both moments after each step, and
the norms before clipping. The producer may have recorded p0 after torch had updated it in place, so that it equals the
parameters after the last step: such an entry starts from the state after its first step, of which only the moments are
compared. float32 entries are compared step by step, each from the recorded state before it, within the roundings of one
step.`,
	source: "Loshchilov and Hutter 2019, Algorithm 2; torch.optim.AdamW, clip_grad_norm_; reference/optim Adam, ClipGlobalNorm",
	functions: map[string]recompute{
		"torch optim.AdamW":                       adamSteps,
		"torch optim.AdamW after clip_grad_norm_": adamSteps,
	},
	faults: adamWFaults,
}

// adamRun is what an entry recorded, [steps, n], and what the reference makes of it.
type adamRun struct {
	opt          optim.Adam
	n, steps     int
	p0           []float64
	grads        []float64 // after clipping
	params, m, v []float64 // recorded
	gotP         []float64
	gotM, gotV   []float64
	skipFirst    bool // parameters of the first step have no start
}

func adamSteps(c *call) []answer {
	grads, steps, n := c.grid("grads")
	r := &adamRun{n: n, steps: steps, p0: c.shaped("p0", n), grads: slices.Clone(grads)}
	beta1, beta2, on := betas(c)
	if !on {
		return nil
	}
	r.opt = optim.Adam{LR: c.value("lr"), Beta1: beta1, Beta2: beta2, Eps: c.value("eps"), WeightDecay: c.value("weight_decay"), AMSGrad: c.flag("amsgrad")}
	limit, clips := c.num("max_norm")
	dtype := c.text("dtype")
	if dtype != "float64" && dtype != "float32" {
		c.undetermined("dtype %q", short(dtype))
	}
	if dtype == "float32" && clips {
		c.undetermined("clipping in float32")
	}
	if c.e.raised() {
		c.undetermined("an exception there, and the reference has numbers")
	}
	for _, o := range []struct {
		name string
		to   *[]float64
	}{{"params", &r.params}, {"exp_avg", &r.m}, {"exp_avg_sq", &r.v}} {
		if out := c.e.Out[o.name]; out == nil || len(out.Data) != steps*n {
			c.malformed("output %s must have the shape of grads", o.name)
		} else {
			*o.to = out.Data
		}
	}
	if !c.ok() {
		return nil
	}
	var norms []float64
	if clips {
		for i := range steps {
			norms = append(norms, optim.ClipGlobalNorm([][]float64{r.row(r.grads, i)}, limit))
		}
	}
	r.gotP, r.gotM, r.gotV = make([]float64, steps*n), make([]float64, steps*n), make([]float64, steps*n)
	r.skipFirst = dtype == "float64" && slices.Equal(c.given.In["p0"].Data, r.row(r.params, steps-1))
	var out []answer
	if dtype == "float64" {
		r.chain()
		out = []answer{plain("params", r.gotP...), plain("exp_avg", r.gotM...), plain("exp_avg_sq", r.gotV...)}
		if r.skipFirst {
			out[0].only = make([]bool, steps*n)
			for i := range out[0].only {
				out[0].only[i] = i >= n
			}
		}
	} else {
		out = r.each()
	}
	if clips {
		out = append(out, plain("grad_norms", norms...))
	}
	return out
}

func betas(c *call) (beta1, beta2 float64, ok bool) {
	list, isList := c.option("betas").([]any)
	x := numbers(c.e.Options["betas"])
	if !isList || len(list) != 2 || len(x) != 2 {
		c.malformed("option betas is not two numbers")
		return 0, 0, false
	}
	for _, b := range x {
		c.within("betas", b, b >= 0 && b < 1, "at least 0 and less than 1")
	}
	return x[0], x[1], c.ok()
}

func (r *adamRun) row(x []float64, i int) []float64 { return x[i*r.n : (i+1)*r.n] }

// keep stores the state after step i.
func (r *adamRun) keep(i int, p []float64, s *optim.State) {
	copy(r.row(r.gotP, i), p)
	copy(r.row(r.gotM, i), s.M)
	copy(r.row(r.gotV, i), s.V)
}

// chain takes all steps one after another. Without a start, the parameters after the first step are the recorded ones; the
// moments never depend on parameters, since the decay is decoupled.
func (r *adamRun) chain() {
	p, s := slices.Clone(r.p0), optim.NewState(r.n)
	for i := range r.steps {
		r.opt.Step(p, r.row(r.grads, i), s)
		if i == 0 && r.skipFirst {
			copy(p, r.row(r.params, 0))
		}
		r.keep(i, p, s)
	}
}

// each takes every step from the recorded state before it, and bounds the roundings of a float32 step. With u the
// roundoff, w = 1 − β₁ and d = √v/√c₂ + ε,
//
//	|δm| ≤ 4u·(|m| + w|g − m|),   |δv| ≤ 4u·(β₂v + (1−β₂)g²) + 2⁻¹⁴⁹
//	|δp| ≤ 3u|p| + rate·(|δm|/d₋ + |m|·(1/d₋ − 1/d) + 4u|m|/d) + u|p′|
//
// where d₋ is d at √(v − δv), less 3u of itself.
func (r *adamRun) each() []answer {
	boundP, boundM, boundV := make([]float64, r.steps*r.n), make([]float64, r.steps*r.n), make([]float64, r.steps*r.n)
	largest := make([]float64, r.n) // of v so far, for AMSGrad
	p, s := slices.Clone(r.p0), optim.NewState(r.n)
	for i := range r.steps {
		if i > 0 {
			p = slices.Clone(r.row(r.params, i-1))
			s = &optim.State{Step: i, M: slices.Clone(r.row(r.m, i-1)), V: slices.Clone(r.row(r.v, i-1))}
		}
		for k, v := range s.V {
			largest[k] = max(largest[k], v)
		}
		s.VMax = slices.Clone(largest)
		g, before, m, v := r.row(r.grads, i), slices.Clone(p), slices.Clone(s.M), slices.Clone(s.V)
		r.opt.Step(p, g, s)
		r.keep(i, p, s)
		t := float64(i + 1)
		rate, root := r.opt.LR/(1-math.Pow(r.opt.Beta1, t)), math.Sqrt(1-math.Pow(r.opt.Beta2, t))
		for k := range p {
			errM := 4 * u32 * (math.Abs(m[k]) + float64((1-r.opt.Beta1)*math.Abs(g[k]-m[k])))
			errV := float64(4*u32*(float64(r.opt.Beta2*v[k])+float64((1-r.opt.Beta2)*float64(g[k]*g[k])))) + 0x1p-149
			at := s.V[k]
			if r.opt.AMSGrad {
				at = s.VMax[k]
			}
			d := math.Sqrt(at)/root + r.opt.Eps
			low := float64((math.Sqrt(max(at-errV, 0))/root + r.opt.Eps) * (1 - 3*u32))
			update := errM/low + float64(math.Abs(s.M[k])*(1/low-1/d)) + float64(4*u32*math.Abs(s.M[k]))/d
			at0 := i*r.n + k
			boundM[at0], boundV[at0] = errM, errV
			boundP[at0] = float64(3*u32*math.Abs(before[k])) + float64(math.Abs(rate)*update) + float64(u32*math.Abs(p[k]))
		}
	}
	return []answer{bounded("params", r.gotP, boundP, LeakMoments), bounded("exp_avg", r.gotM, boundM, LeakMoments), bounded("exp_avg_sq", r.gotV, boundV, LeakMoments)}
}
