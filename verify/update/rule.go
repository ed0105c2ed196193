package update

import (
	"math"

	"plumbline/verify/tol"
)

// rule is an optimiser, right or wrong.
type rule struct {
	kind                   string // adamw, adam, adam_tf1, sgd
	beta1, beta2, eps      float64
	decay                  float64 // NaN: solved for, with the rate
	clip                   float64 // bound of the norm of the dumped gradients, +Inf: none
	spare                  spare   // which tensors do not decay
	perTensor, uncorrected bool    // the bound is held by each tensor; no bias correction
	byValue                bool    // the bound is held by each element
	root                   int     // eps inside the root: 1 beside the corrected moment, 2 beside the uncorrected one
	ahead                  int     // the bias correction counts so many steps more
	frozen                 bool    // the bias correction is that of the first step
	count                  float64 // from the second step on the bias correction is that of this step, 0: it counts them
	goesOn                 bool    // and counts on from there
	summed                 bool    // gradients are added to those of the steps before, which nobody set to 0
	anew                   int     // the moments are 0 before every so many steps, 0: before the first alone
	form                   form    // of the direction that the moments give
	dampen                 float64 // what momentum takes off a gradient
	blank                  bool    // the gradient is 0
	late                   int     // the gradient of so many steps before is used
	twice                  bool    // the step is taken twice
	flat                   bool    // decay is not multiplied by the rate
}

// form is what an optimiser makes of its moments where it is not the plain one (torch.optim@2.15.0).
type form int

const (
	formPlain    form = iota
	formNesterov      // SGD(nesterov): the direction is g + β·m
	formAMSGrad       // Adam(amsgrad): the root is of the largest v so far
	formNAdam         // NAdam: β₁ grows with the steps, and the direction looks one step ahead
)

// momentumDecay is that of torch.optim.NAdam: μ(t) = β₁·(1 − ½·0.96^(0.004·t)).
const momentumDecay = 0.004

// ofNAdam returns what NAdam multiplies g and m with in step t, with the product of μ(1) to μ(t): (1−μ(t))/(1−Πμ) and μ(t+1)/(1−Πμ·μ(t+1)).
func (r rule) ofNAdam(t int) (ofG, ofM float64) {
	mu := func(t int) float64 { return r.beta1 * (1 - 0.5*math.Pow(0.96, float64(t)*momentumDecay)) }
	product := 1.0
	for k := 1; k <= t; k++ {
		product *= mu(k)
	}
	return (1 - mu(t)) / (1 - product), mu(t+1) / (1 - product*mu(t+1))
}

// spare says which tensors a decay leaves out.
type spare int

const (
	spareNone    spare = iota
	spareNames         // biases and norms, by name, as transformers.Trainer and OpenRLHF do
	spareVectors       // every tensor of one dimension
)

// fit is how a rule fares on a run.
type fit struct {
	rule
	rates  []float64 // of each step, solved by least squares
	apart  []float64 // uncertainty of the rates
	decays []float64 // rate·decay of each step, where it was solved
	worst  float64   // |Δ|/bound
	at     int       // the pair of the worst element, and the element
	elem   int
	want   float64
	seen   int // elements whose bound is less than a quarter of their update
	of     int // elements
	solved []string
	rest   []float64 // u − want of every element, where the solver asks for it
	keep   bool
	masked [2][]float64 // weights that decay, of the step; and which elements decay
	half   []float64    // the direction of the first of two steps with one gradient
}

// fits judges a rule, up to the first step that it does not give: update u of every element of every step against −a·(D + λ·w), where D is the direction of the rule and the rate a of
// the step, the one number that a schedule may change, is solved by least squares, with a·λ beside it where the decay is unknown.
//
// Roundings of a step in float32, u its roundoff, are carried along with the moments, to twice the count of torch's operations, whose
// order differs between its loops and its fused kernels:
//
//	e_m ← β₁e_m + (1−β₁)e_g + 4u(|m| + (1−β₁)|g−m|),   e_v ← β₂e_v + 2(1−β₂)|g|e_g + 6u(β₂v + (1−β₂)g²) + 2⁻¹⁴⁹
//	e_D = (e_m + |m|·(e_d + 4u·d)/d₋)/d₋ + 4u|D|,      d = √v/√c₂ + ε, e_d = √((v + e_v)/c₂) − √(v/c₂), d₋ = d − e_d
//
// and e_g = unit of the stored gradient times |g|, with that of the norm where it was clipped. The bound of an element is |a|·e_D with
// that of a and the roundings of the weights.
func (r rule) fits(s *sample) *fit { return r.follow(s, 1, false) }

// follow is fits up to the first step whose worst element is beyond most; keep asks for the differences of all elements.
func (r rule) follow(s *sample, most float64, keep bool) *fit {
	run := s.list
	f := &fit{rule: r, keep: keep}
	n := len(run[0].g)
	m, v, em, ev := make([]float64, n), make([]float64, n), make([]float64, n), make([]float64, n)
	dir, ed, largest := make([]float64, n), make([]float64, n), make([]float64, n)
	f.masked[1] = r.decaying(s)
	sum := make([]float64, n) // of gradients that nobody sets to 0
	const u = 2 * tol.U32
	t := 0
	for i, p := range run {
		g := p.g
		if r.late > 0 {
			if i < r.late { // a first step on gradients that are not there yet
				f.skip()
				continue
			}
			g = run[i-r.late].g
		}
		var factors []float64
		if r.summed {
			if factors = r.total(s, i, sum); factors == nil {
				f.worst = math.Inf(1) // the norm of the sum is not known
				return f
			}
			g = sum
		} else {
			factors = r.factors(s, i)
		}
		if r.anew > 0 && i%r.anew == 0 {
			clear(m)
			clear(v)
			clear(em)
			clear(ev)
			clear(largest)
			t = 0
		}
		steps := 1
		if r.twice {
			steps = 2
		}
		clear(dir)
		clear(ed)
		for again := range steps {
			if again > 0 {
				f.half = append(f.half[:0], dir...)
			}
			t++
			c1, c2 := r.corrections(t)
			ofG, ofM := 0.0, 0.0
			if r.form == formNAdam {
				ofG, ofM = r.ofNAdam(t)
			}
			for j := range g {
				x := g[j] * factors[j]
				if r.blank {
					x = 0
				}
				eg := (p.unitG + 16*u) * math.Abs(x)
				if factors[j] == 1 {
					eg = p.unitG * math.Abs(x)
				}
				if (r.kind == "adam" || r.kind == "sgd") && r.decay != 0 {
					if p.w == nil {
						f.worst = math.Inf(1) // the weights are in the moments
						return f
					}
					l := r.decay * f.masked[1][j]
					x += l * p.w[j]
					eg += 2 * u * (math.Abs(x) + math.Abs(l*p.w[j]))
				}
				if r.kind == "sgd" {
					in := x
					if t > 1 { // the first gradient is the momentum, undampened
						in = (1 - r.dampen) * x
					}
					m[j] = r.beta1*m[j] + in
					em[j] = r.beta1*em[j] + eg + 2*u*(math.Abs(m[j])+math.Abs(x))
					if r.form == formNesterov {
						dir[j] += x + r.beta1*m[j]
						ed[j] += eg + r.beta1*em[j] + 2*u*(math.Abs(x)+math.Abs(m[j]))
						continue
					}
					dir[j] += m[j]
					ed[j] += em[j]
					continue
				}
				em[j] = r.beta1*em[j] + (1-r.beta1)*eg + 2*u*(math.Abs(m[j])+(1-r.beta1)*math.Abs(x-m[j]))
				m[j] = r.beta1*m[j] + (1-r.beta1)*x
				ev[j] = r.beta2*ev[j] + 2*(1-r.beta2)*math.Abs(x)*eg + 3*u*(r.beta2*v[j]+(1-r.beta2)*x*x) + tol.Eta32
				v[j] = r.beta2*v[j] + (1-r.beta2)*x*x
				mj, below, eps := m[j]/c1, v[j]/c2, r.eps
				switch r.form {
				case formAMSGrad:
					largest[j] = max(largest[j], v[j])
					below = largest[j] / c2
				case formNAdam:
					mj = ofG*x + ofM*m[j]
				}
				switch {
				case r.root == 1:
					below, eps = below+r.eps, 0
				case r.root == 2:
					below, eps = (v[j]+r.eps)/c2, 0
				case r.kind == "adam_tf1":
					eps = r.eps / math.Sqrt(c2)
				}
				root := math.Sqrt(below)
				d := root + eps
				eRoot := math.Sqrt(below+ev[j]/c2) - root
				low := max(root-eRoot, 0) + eps
				if d == 0 || low == 0 {
					if mj != 0 {
						ed[j] = math.Inf(1)
					}
					continue
				}
				one := mj / d
				dir[j] += one
				em1 := em[j] / c1
				if r.form == formNAdam {
					em1 = ofG*eg + ofM*em[j] + 2*u*(math.Abs(ofG*x)+math.Abs(ofM*m[j]))
				}
				ed[j] += (em1+math.Abs(mj)*(eRoot+2*u*d)/low)/low + 2*u*math.Abs(one)
			}
		}
		if f.step(run, i, dir, ed); f.worst > most {
			return f
		}
	}
	return f
}

// corrections are what m and v are divided by in step t.
func (r rule) corrections(t int) (c1, c2 float64) {
	switch {
	case r.uncorrected:
		return 1, 1
	case r.frozen:
		t = 1
	}
	t += r.ahead
	if r.count > 0 && t > 1 {
		at := r.count
		if r.goesOn {
			at += float64(t - 2)
		}
		return 1 - math.Pow(r.beta1, at), 1 - math.Pow(r.beta2, at)
	}
	return 1 - math.Pow(r.beta1, float64(t)), 1 - math.Pow(r.beta2, float64(t))
}

// decaying is 1 for every element whose tensor decays, 0 for the others.
func (r rule) decaying(s *sample) []float64 {
	out := make([]float64, len(s.of))
	for j, k := range s.of {
		if !s.groups[k].spared(r.spare) {
			out[j] = 1
		}
	}
	return out
}

// factors are what clipping multiplies each element of a gradient with.
func (r rule) factors(s *sample, i int) []float64 {
	p := s.list[max(0, i-r.late)]
	out := make([]float64, len(p.g))
	for j := range out {
		out[j] = 1
	}
	switch {
	case math.IsInf(r.clip, 1):
	case r.byValue:
		for j, x := range p.g {
			if math.Abs(x) > r.clip {
				out[j] = r.clip / math.Abs(x)
			}
		}
	case r.perTensor:
		for j, k := range s.of {
			if c := r.clip / (p.norms[k] + 1e-6); c < 1 {
				out[j] = c
			}
		}
	default:
		norm := p.norm
		if p.logged > norm { // of parameters that are not in the dump, too
			norm = p.logged
		}
		if c := r.clip / (norm + 1e-6); c < 1-2e-6 { // what was clipped already is at the bound
			for j := range out {
				out[j] = c
			}
		}
	}
	return out
}

// total adds the gradient of step i to sum, which clipping had scaled in place, and returns the factors of clipping it: nil where its
// norm cannot be told, since only a part of the elements is kept and none is logged.
func (r rule) total(s *sample, i int, sum []float64) []float64 {
	p := s.list[i]
	var squares float64
	for j, x := range p.g {
		sum[j] += x
		squares += sum[j] * sum[j]
	}
	out := make([]float64, len(sum))
	for j := range out {
		out[j] = 1
	}
	if math.IsInf(r.clip, 1) {
		return out
	}
	norm := math.Sqrt(squares)
	switch {
	case !math.IsNaN(p.logged):
		norm = p.logged
	case !s.complete:
		return nil
	}
	if c := r.clip / (norm + 1e-6); c < 1-2e-6 {
		for j := range sum {
			sum[j] *= c
		}
	}
	return out
}

// skip is a step of which nothing is compared.
func (f *fit) skip() {
	f.rates, f.apart, f.decays = append(f.rates, math.NaN()), append(f.apart, math.NaN()), append(f.decays, math.NaN())
}

// twiceOver is what the decay of the second of two steps takes of the first: with w₁ = w − aλw − aD₁, w₂ = w₁ − aλw₁ − aD₂ both together add
// −a(D₁ + D₂) − 2aλw and a²λ(D₁ + λw), which this returns for aλ.
func (f *fit) twiceOver(j int, a, decayed float64, w []float64) float64 {
	if f.half == nil || f.kind != "adamw" {
		return 0
	}
	return decayed * f.masked[1][j] * (a*f.half[j] + decayed*w[j])
}

// step solves the rate of a step and compares its elements.
func (f *fit) step(run []*pair, i int, dir, ed []float64) {
	p := run[i]
	times := 1.0
	if f.twice {
		times = 2
	}
	if p.u == nil {
		f.skip()
		return
	}
	decay := f.decay
	if f.kind == "adam" || f.kind == "sgd" { // their decay is in the direction
		decay = 0
	}
	if f.masked[0] == nil {
		f.masked[0] = make([]float64, len(dir))
	}
	w := f.masked[0]
	for j, x := range p.w {
		w[j] = x * f.masked[1][j]
	}
	a, b := 0.0, 0.0
	var dd, noise float64
	rounds := 1
	if f.twice {
		rounds = 4 // the rate stands in a term of second order, too
	}
	for range rounds {
		decayed := b / times
		if !math.IsNaN(decay) {
			decayed = a * decay
		}
		a, b, dd, noise = f.least(p, dir, ed, w, decay, times, a, decayed)
	}
	again := b / times
	if !math.IsNaN(decay) {
		again = a * decay
	}
	apart := 0.0
	if dd > 0 {
		var spread float64
		for j, d := range dir {
			if !math.IsInf(ed[j], 1) {
				spread += math.Abs(d) * ed[j]
			}
		}
		apart = (noise + math.Abs(a)*spread) / dd
	}
	f.rates, f.apart, f.decays = append(f.rates, a), append(f.apart, apart), append(f.decays, b)
	for j, d := range dir {
		if math.IsInf(ed[j], 1) {
			if f.keep {
				f.rest = append(f.rest, 0)
			}
			continue
		}
		want := -a * d
		size := math.Abs(d)
		if !math.IsNaN(decay) {
			k := times * decay
			if !f.flat {
				k *= a
			}
			want -= k * w[j]
			size += math.Abs(decay * w[j])
		} else {
			want -= b * w[j]
		}
		want += f.twiceOver(j, a, again, w)
		bound := math.Abs(a)*ed[j] + apart*size + p.noise[j] + 4*tol.U32*math.Abs(want)
		f.of++
		if bound < 0.25*math.Abs(p.u[j]) {
			f.seen++
		}
		if f.keep {
			f.rest = append(f.rest, p.u[j]-want)
		}
		if e := math.Abs(p.u[j] - want); e > 0 {
			if ratio := e / bound; !(ratio <= f.worst) {
				f.worst, f.at, f.elem, f.want = ratio, i, j, want
			}
		}
	}
}

// least solves for the rate of a step and, where it is not known, for rate·decay, by least squares.
func (f *fit) least(p *pair, dir, ed, w []float64, decay, times, rate, decayed float64) (a, b, dd, noise float64) {
	var dw, ww, ud, uw float64
	for j, d := range dir {
		if math.IsInf(ed[j], 1) {
			continue
		}
		x := d
		if !math.IsNaN(decay) && !f.flat {
			x += times * decay * w[j]
		}
		y := p.u[j] - f.twiceOver(j, rate, decayed, w)
		if f.flat && !math.IsNaN(decay) {
			y += decay * w[j]
		}
		dd, dw, ww = dd+x*x, dw+x*w[j], ww+w[j]*w[j]
		ud, uw = ud+y*x, uw+y*w[j]
		noise += math.Abs(x) * p.noise[j]
	}
	switch det := dd*ww - dw*dw; {
	case dd == 0:
	case math.IsNaN(decay) && det > 1e-9*dd*ww:
		a, b = -(ud*ww-uw*dw)/det, -(uw*dd-ud*dw)/det
	default:
		a = -ud / dd
	}
	return a, b, dd, noise
}

// holds reports whether the rule gives all numbers of the run, and whether these could have told it from another one.
func (f *fit) holds() bool { return f.worst <= 1 }

// tells reports whether at least a tenth of the elements are known well enough.
func (f *fit) tells() bool { return f.of > 0 && f.seen >= max(8, f.of/10) }
