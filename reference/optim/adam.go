// Package optim says what an optimiser step is, in float64: Adam and AdamW in PyTorch's and TensorFlow 1's form, clipping by
// the global norm, learning-rate schedules.
package optim

import "math"

const badLength = "optim: lengths of parameters, gradients and state differ"

// Form says where the bias corrections c₁ = 1 − β₁ᵗ, c₂ = 1 − β₂ᵗ and eps stand.
type Form int

const (
	// PyTorch: p ← p − lr/c₁ · m / (√v/√c₂ + eps). torch.optim.AdamW@2.15.0.
	PyTorch Form = iota
	// TensorFlow1: p ← p − lr·√c₂/c₁ · m / (√v + eps), an eps that shrinks in effect as √c₂ grows.
	// tf.train.AdamOptimizer; the form of the 2019 lm-human-preferences runs, and of AdamTensorFlowStyle in
	// vwxyzjn/lm-human-preference-details.
	TensorFlow1
)

// Adam is the options of one group of parameters. The zero value of every field but LR, Beta1 and Beta2 is its default
// here; PyTorch's defaults are in [AdamWDefaults].
type Adam struct {
	LR           float64 // learning rate of this step
	Beta1, Beta2 float64 // decay of the first and second moment, in [0, 1)
	Eps          float64 // added to the denominator
	WeightDecay  float64
	Coupled      bool // decay is added to the gradient (Adam with L2), not taken off the weight (AdamW)
	AMSGrad      bool // the denominator uses the largest v so far
	Form         Form
}

// AdamWDefaults returns PyTorch's defaults of torch.optim.AdamW with the given learning rate: β 0.9 and 0.999, eps 1e-8,
// weight decay 0.01.
func AdamWDefaults(lr float64) Adam {
	return Adam{LR: lr, Beta1: 0.9, Beta2: 0.999, Eps: 1e-8, WeightDecay: 0.01}
}

// State is the moments of a run of parameters and the number of steps taken.
type State struct {
	Step int
	M, V []float64
	VMax []float64 // only with AMSGrad
}

// NewState returns the state before the first step of n parameters.
func NewState(n int) *State {
	return &State{M: make([]float64, n), V: make([]float64, n)}
}

// Step applies one step to p for the gradient g:
//
//	t ← t + 1
//	p ← p·(1 − lr·wd)                                decoupled; coupled: g ← g + wd·p
//	m ← m + (1 − β₁)(g − m)
//	v ← β₂v + (1 − β₂)g²                             with AMSGrad the denominator takes max over t of v
//	p ← p − (lr/c₁)·m / (√v/√c₂ + eps)               or TensorFlow 1's form, see Form
//
// It implements Loshchilov and Hutter 2019, Algorithm 2, in the order of operations of torch.optim.AdamW@2.15.0
// (golden rl/adamw). g is not changed. Step panics if the lengths differ.
func (o Adam) Step(p, g []float64, s *State) {
	if len(g) != len(p) || len(s.M) != len(p) || len(s.V) != len(p) {
		panic(badLength)
	}
	if o.AMSGrad && s.VMax == nil {
		s.VMax = make([]float64, len(p))
	}
	s.Step++
	c1 := 1 - math.Pow(o.Beta1, float64(s.Step))
	c2 := 1 - math.Pow(o.Beta2, float64(s.Step))
	rate, root := o.LR/c1, math.Sqrt(c2)
	if o.Form == TensorFlow1 {
		rate, root = o.LR*root/c1, 1
	}
	for i := range p {
		d := g[i]
		if o.Coupled {
			d += float64(o.WeightDecay * p[i])
		} else {
			p[i] *= 1 - float64(o.LR*o.WeightDecay)
		}
		if w := 1 - o.Beta1; w < 0.5 { // torch.lerp goes from the nearer end
			s.M[i] += float64(w * (d - s.M[i]))
		} else {
			s.M[i] = d - float64((d-s.M[i])*(1-w))
		}
		s.V[i] = float64(o.Beta2*s.V[i]) + float64((1-o.Beta2)*float64(d*d))
		v := s.V[i]
		if o.AMSGrad {
			if !(v <= s.VMax[i]) { // a NaN stays
				s.VMax[i] = v
			}
			v = s.VMax[i]
		}
		p[i] -= float64(rate * float64(s.M[i]/(math.Sqrt(v)/root+o.Eps)))
	}
}

// ClipGlobalNorm scales all gradients by min(1, limit/(norm + 1e-6)) and returns the norm before, the root of the sum of all
// squares. It is torch.nn.utils.clip_grad_norm_@2.15.0 with its 1e-6: a gradient of exactly the limit's norm shrinks by
// 1e-6 relative. A norm that is not finite makes every gradient NaN or 0, as there.
func ClipGlobalNorm(grads [][]float64, limit float64) float64 {
	var sum float64
	for _, g := range grads {
		for _, v := range g {
			sum += float64(v * v)
		}
	}
	norm := math.Sqrt(sum)
	scale := limit / (norm + 1e-6)
	if scale > 1 {
		scale = 1
	}
	for _, g := range grads {
		for i := range g {
			g[i] *= scale
		}
	}
	return norm
}

// SGD applies p ← p − lr·g.
func SGD(p, g []float64, lr float64) {
	if len(g) != len(p) {
		panic(badLength)
	}
	for i := range p {
		p[i] -= float64(lr * g[i])
	}
}
