package update

import (
	"math"
	"slices"
)

// Numbers that are solved for.
type unknown int

const (
	ofBeta1 unknown = iota
	ofBeta2
	ofEps
	ofClip
	ofCount
)

var unknownNames = []string{optionBeta1, optionBeta2, optionEps, optionClip, "the count of the bias correction"}

// get and set see a number by its logarithm, 1 − β for β: all of them are positive, and spread over orders of magnitude.
func (u unknown) get(r *rule) float64 {
	switch u {
	case ofBeta1:
		return math.Log(1 - r.beta1)
	case ofBeta2:
		return math.Log(1 - r.beta2)
	case ofEps:
		return math.Log(r.eps)
	case ofCount:
		return math.Log(r.count)
	}
	return math.Log(r.clip)
}

func (u unknown) set(r *rule, x float64) {
	switch x = math.Exp(x); u {
	case ofBeta1:
		r.beta1 = 1 - x
	case ofBeta2:
		r.beta2 = 1 - x
	case ofEps:
		r.eps = x
	case ofCount:
		r.count = x
	default:
		r.clip = x
	}
}

// within reports whether a number is one that somebody may choose: betas near 0 are no moments but signs of gradients.
func (u unknown) within(r *rule) bool {
	switch u {
	case ofBeta1:
		return r.beta1 >= 0.3 && r.beta1 < 1
	case ofBeta2:
		return r.beta2 >= 0.3 && r.beta2 < 1
	case ofEps:
		return r.eps > 1e-20 && r.eps < 1
	case ofCount:
		return r.count > 0.5 && r.count < 1e7
	}
	return r.clip > 0 && !math.IsInf(r.clip, 1)
}

func (u unknown) declared(d Declared) float64 {
	return []float64{d.Beta1, d.Beta2, d.Eps, d.Clip, math.NaN()}[u]
}

// freedoms are the sets of numbers that are solved for together, the smallest first.
var freedoms = [][]unknown{{ofBeta1}, {ofBeta2}, {ofEps}, {ofClip}, {ofBeta1, ofBeta2}, {ofBeta1, ofBeta2, ofEps}, {ofBeta1, ofBeta2, ofClip}, {ofEps, ofClip}}

// solve finds betas, eps and the bound of the norm that give the run, where those of the lists do not. The moments begin at 0, so that
// a second step is −a·(β₁g₁ + g₂)/(1 + β₁) over the root of (β₂g₁² + g₂²)/(1 + β₂), whose betas two gradients in many elements tell; the first
// step has none in it. With legal, only numbers that nobody declares are solved for. Declared numbers that turn out to be others are in the
// fit's rule; nil where nothing gives the run, or where the decay is none that is declared.
func solve(d Declared, s *search, legal bool) *fit {
	if f, known := s.found[legal]; known {
		return f
	}
	f := solveAnew(d, s, legal)
	s.found[legal] = f
	return f
}

func solveAnew(d Declared, s *search, legal bool) *fit {
	var list, bounded []rule // bounded have a usual bound of the norm that clips some step
	for _, v := range variants(d, s.sample) {
		switch {
		case len(v.off) > 0 || v.kind != "adamw" && (v.kind != d.Kind || v.kind == "sgd"):
		case !v.known(list):
			list = append(list, v.rule)
		case s.clips(v.rule) && !slices.ContainsFunc(bounded, func(r rule) bool { return r.clip == v.clip && v.known([]rule{r}) }):
			bounded = append(bounded, v.rule)
		}
	}
	var best *fit
	for _, free := range freedoms {
		stated := 0
		for _, u := range free {
			if x := u.declared(d); !math.IsNaN(x) {
				stated++
			}
		}
		if legal && stated > 0 || best != nil && stated > 0 {
			continue
		}
		tried := list
		if len(free) == 1 && free[0] != ofClip {
			tried = slices.Concat(list, bounded)
		}
		for _, r := range tried {
			if f := s.descend(r, free); f != nil && f.tells() {
				if best = f; stated == 0 {
					return best
				}
				break
			}
		}
	}
	return best
}

// clips reports whether the bound of a rule holds the gradient of some step.
func (s *search) clips(r rule) bool {
	return slices.ContainsFunc(s.list, func(p *pair) bool { return max(p.norm, p.logged) > r.clip*(1+1e-5) || p.norm > r.clip*(1+1e-5) })
}

// bent finds a bug of some form under numbers that are in no list: the bound of each element, which is none of a norm, and betas and eps that
// nobody declares.
func (s *search) bent(d Declared, w wrong, legal []rule) *fit {
	if w.solved == nil || !d.has(w.needs) {
		return nil
	}
	var list []rule
	for _, r := range legal {
		for _, c := range w.of(r) {
			if v := (variant{rule: c}); !v.known(list) {
				list = append(list, c)
			}
		}
	}
	for _, free := range w.solved {
		if slices.ContainsFunc(free, func(u unknown) bool { return u != ofClip && !math.IsNaN(u.declared(d)) }) {
			continue
		}
		for _, r := range list {
			if f := s.descend(r, free); f != nil && f.tells() {
				return f
			}
		}
	}
	return nil
}

// known reports whether the list has a rule that is the same but for numbers that are solved for.
func (v variant) known(list []rule) bool {
	return slices.ContainsFunc(list, func(r rule) bool {
		return r.kind == v.kind && r.spare == v.spare && (r.decay == v.decay || math.IsNaN(r.decay) && math.IsNaN(v.decay))
	})
}

// starts are the values at which a search begins.
func (s *search) starts(r rule, free []unknown) []rule {
	list := []rule{r}
	for _, u := range free {
		var more []rule
		for _, one := range list {
			for _, x := range map[unknown][]float64{ofBeta1: {0.9, 0.5}, ofBeta2: {0.99, 0.7}, ofEps: {1e-6, 1e-3}, ofClip: s.bounds(r.byValue), ofCount: {8, 200, 2000}}[u] {
				switch c := one; u {
				case ofBeta1:
					c.beta1 = x
					more = append(more, c)
				case ofBeta2:
					c.beta2 = x
					more = append(more, c)
				case ofEps:
					c.eps = x
					more = append(more, c)
				case ofCount:
					c.count = x
					more = append(more, c)
				default:
					c.clip = x
					more = append(more, c)
				}
			}
		}
		list = more
	}
	return list
}

// bounds are norms between those of the steps, at most four of them: a bound between the same two clips the same steps. Of a bound of each
// element they are magnitudes that a half to a hundredth of the elements are beyond.
func (s *search) bounds(ofElements bool) []float64 {
	var norms, out []float64
	if ofElements {
		for _, p := range s.some.list {
			for _, x := range p.g {
				norms = append(norms, math.Abs(x))
			}
		}
		slices.Sort(norms)
		for _, share := range []int{2, 10, 100} {
			if x := norms[len(norms)-1-len(norms)/share]; x > 0 {
				out = append(out, x)
			}
		}
		return out
	}
	for _, p := range s.list {
		norms = append(norms, p.norm)
	}
	slices.Sort(norms)
	norms = slices.Compact(norms)
	for i := 1; i < len(norms); i++ {
		out = append(out, math.Sqrt(norms[i-1]*norms[i]))
	}
	for len(out) > 4 {
		for i := range len(out) / 2 {
			out[i] = out[2*i]
		}
		out = out[:len(out)/2]
	}
	if len(norms) > 0 && norms[0] > 0 {
		out = append(out, norms[0]/2)
	}
	return out
}

// descend solves for the free numbers of a rule by damped least squares of u − want over its uncertainty, and gives them as few digits as
// they may have.
func (s *search) descend(r rule, free []unknown) *fit {
	for _, start := range s.starts(r, free) {
		found, ok := s.levenberg(start, free)
		if !ok {
			continue
		}
		f := found.fits(s.some)
		if !f.holds() {
			continue
		}
		if f = s.shorten(found, free); f == nil {
			continue
		}
		for _, u := range free {
			f.solved = append(f.solved, unknownNames[u])
		}
		return f
	}
	return nil
}

// shorten gives each free number the fewest digits with which the rule holds, all other numbers being as they were found.
func (s *search) shorten(r rule, free []unknown) *fit {
	best := s.fit(r)
	if best == nil {
		return nil
	}
	for _, u := range free {
		for _, x := range rounded(math.Exp(u.get(&best.rule))) {
			c := best.rule
			u.set(&c, math.Log(x))
			if u.within(&c) {
				if f := s.fit(c); f != nil {
					best = f
					break
				}
			}
		}
	}
	return best
}

// levenberg returns the rule whose free numbers make the weighted differences smallest near where it begins.
func (s *search) levenberg(r rule, free []unknown) (rule, bool) {
	weights := s.weights()
	rest := func(r rule) ([]float64, float64) {
		f := r.follow(s.some, math.Inf(1), true)
		var sum float64
		for j := range f.rest {
			if j < len(weights) {
				f.rest[j] *= weights[j]
			}
			sum += f.rest[j] * f.rest[j]
		}
		return f.rest, sum
	}
	y, sum := rest(r)
	damp := 1e-3
	for range 30 {
		if len(y) == 0 || math.IsNaN(sum) || math.IsInf(sum, 0) {
			return r, false
		}
		columns := make([][]float64, len(free))
		for k, u := range free {
			const h = 1e-5
			c := r
			u.set(&c, u.get(&r)+h)
			if !u.within(&c) {
				return r, false
			}
			z, _ := rest(c)
			if len(z) != len(y) {
				return r, false
			}
			for j := range z {
				z[j] = (z[j] - y[j]) / h
			}
			columns[k] = z
		}
		step, ok := normal(columns, y, damp)
		if !ok {
			return r, false
		}
		c := r
		var size float64
		for k, u := range free {
			d := max(-1, min(1, step[k])) // an e-fold at most
			size = max(size, math.Abs(d))
			u.set(&c, u.get(&r)-d)
			if !u.within(&c) {
				return r, false
			}
		}
		switch z, less := rest(c); {
		case less < sum:
			gain := (sum - less) / sum
			r, y, sum = c, z, less
			far := sum > 1e4*float64(len(y))
			if damp = max(damp/10, 1e-12); gain < 1e-6 && size < 1e-6 || far && gain < 0.01 {
				return r, !far
			}
		case size < 1e-9:
			return r, true
		default:
			if damp *= 10; damp > 1e5 {
				return r, true
			}
		}
	}
	return r, true
}

// weights are one over the uncertainty of what is compared: the roundings of the weights, and those of some ten operations in float32.
func (s *search) weights() (out []float64) {
	for _, p := range s.some.list {
		for j, u := range p.u {
			out = append(out, 1/(p.noise[j]+1e-6*math.Abs(u)+1e-30))
		}
	}
	return out
}

// normal solves the damped normal equations of least squares by elimination; ok is false where they are singular.
func normal(columns [][]float64, y []float64, damp float64) (x []float64, ok bool) {
	n := len(columns)
	a := make([][]float64, n)
	for i := range a {
		a[i] = make([]float64, n+1)
		for k := range columns {
			for j := range y {
				a[i][k] += columns[i][j] * columns[k][j]
			}
		}
		for j := range y {
			a[i][n] += columns[i][j] * y[j]
		}
		a[i][i] *= 1 + damp
	}
	for i := range n {
		if !(math.Abs(a[i][i]) > 1e-300) {
			return nil, false
		}
		for k := i + 1; k < n; k++ {
			c := a[k][i] / a[i][i]
			for j := i; j <= n; j++ {
				a[k][j] -= c * a[i][j]
			}
		}
	}
	x = make([]float64, n)
	for i := n - 1; i >= 0; i-- {
		x[i] = a[i][n]
		for k := i + 1; k < n; k++ {
			x[i] -= a[i][k] * x[k]
		}
		x[i] /= a[i][i]
	}
	return x, true
}
