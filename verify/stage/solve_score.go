package stage

import (
	"math"
	"slices"

	"plumbline/verify/convention"
	"plumbline/verify/tol"
)

// scoreFunctions proposes −A·lp with a weight of its own or none, and dro.
func (s *solver) scoreFunctions(cells []lossCell, base []assign, place string) {
	score := func(c *lossCell) float64 { return -c.adv * c.lp }
	for _, beta := range s.betas(cells, place, score) {
		if s.try(append(withBeta(base, place, beta), word("loss.kind", "reinforce"))) {
			break
		}
	}
	betas := []float64{0}
	if v := s.steps[0].Set.Value("kl.beta"); place != "" && v.Kind() == convention.Number {
		betas[0] = v.Num()
	} else if place != "" {
		betas = s.vespoBetas(base)
	}
	for _, beta := range betas {
		if s.try(append(withBeta(base, place, beta), vespo...)) {
			break
		}
	}
	// dro is linear in two numbers: ℓ/w + A·lp = ½·b·d² + β·k/w
	var m [6]float64
	for i := range cells {
		c := &cells[i]
		if c.w == 0 {
			continue
		}
		q, k := c.d*c.d/2, c.k/c.w
		if place == "inside" {
			k = c.k
		}
		y := c.loss/c.w - score(c)
		m[0], m[1], m[2] = m[0]+q*q, m[1]+q*k, m[2]+q*y
		m[3], m[4], m[5] = m[3]+k*q, m[4]+k*k, m[5]+k*y
	}
	var b []float64
	if place == "" {
		b = []float64{m[2] / m[0], 0}
	} else {
		b = eliminate(m[:], 2)
	}
	if b != nil && b[0] > 0 && !math.IsInf(b[0], 0) {
		for _, tol := range []float64{1e-3, 1e-5} {
			if s.try(append(withBeta(base, place, written(b[1], tol)), word("loss.kind", "dro"), amount("dro.beta", written(b[0], tol)))) {
				break
			}
		}
	}
}

// vespo has no numbers in any configuration of the releases that have it but these.
var vespo = []assign{word("loss.kind", "vespo"), word("vespo.k_pos", "2"), word("vespo.k_neg", "3"), word("vespo.lambda_pos", "3"), word("vespo.lambda_neg", "2")}

// vespoBetas solves for the coefficient of the KL term beside vespo's loss, which is predicted without one.
func (s *solver) vespoBetas(base []assign) []float64 {
	var x, w []float64
	for _, step := range s.steps {
		set := step.Set
		for _, a := range slices.Concat(base, vespo, []assign{word("kl.beta", "0")}) {
			set = set.With(a.option, a.value, "search")
		}
		o := JudgeAs(s.ch, step.B, set, arithmeticOf(s.ch, step.B))
		kl := step.B.Token("kl")
		if o.Tally == nil || kl == nil || len(o.Got) != len(kl) {
			return nil
		}
		for i, want := range o.Pred.Want {
			if step.B.Mask[i] && kl[i] != 0 {
				x, w = append(x, (o.Got[i]-want)/kl[i]), append(w, math.Abs(kl[i])/(math.Abs(o.Got[i])+1e-9))
			}
		}
	}
	return coefficients(x, w)
}

// cispo proposes −clip(ρ)·A·lp with detached weights, whose upper bound some count from 0 and others from 1.
func (s *solver) cispo(cells []lossCell, base []assign, place string) {
	for _, beta := range s.betas(cells, place, func(c *lossCell) float64 { return -c.adv * c.lp * c.rho }) {
		if s.detached(cells, base, place, beta); len(s.fits) > 0 {
			return
		}
	}
}

// detached is cispo with one coefficient of the KL term.
func (s *solver) detached(cells []lossCell, base []assign, place string, beta float64) {
	v := bounds(cells, false, func(c *lossCell) (x, e float64) {
		x, e = c.rest(beta, place)
		by := math.Abs(c.adv * c.lp)
		return -x / (c.adv * c.lp), (e + c.u*math.Abs(x)) / by
	})
	if v.n == 0 || v.odd > v.n/4 || v.low.n+v.high.n == v.n {
		return
	}
	list := append(withBeta(base, place, beta), word("loss.kind", "cispo"))
	for _, more := range leftOut(cells, beta, place, v.dropped) {
		hit := false
		for _, absolute := range []string{"true", "false"} {
			from := -1.0
			if absolute == "true" {
				from = 0
			}
			for _, low := range numbers("clip.low", v.low.of(1, -1)) {
				for _, high := range numbers("clip.high", v.high.of(from, 1)) {
					hit = s.try(slices.Concat(list, more, []assign{word("clip.high_is_absolute", absolute), low, high})) || hit
				}
			}
		}
		if hit {
			return
		}
	}
}

// sapo proposes the soft gate −A·(4/τ)·σ(τ(ρ − 1)) with temperatures of their own for A > 0 and the others, each solved cell by cell by
// bisection: 4·σ(τ(ρ − 1))/τ falls with τ.
func (s *solver) sapo(cells []lossCell, base []assign, place string) {
	betas := []float64{0}
	if v := s.steps[0].Set.Value("kl.beta"); place != "" && v.Kind() == convention.Number {
		betas[0] = v.Num()
	} else if place != "" {
		beta := sapoBeta(cells, place)
		if math.IsNaN(beta) {
			return
		}
		betas = []float64{written(beta, 5e-4), written(beta, 4e-3), beta}
	}
	for _, beta := range betas {
		if s.gated(cells, base, place, beta); len(s.fits) > 0 {
			return
		}
	}
}

// gated is sapo with one coefficient of the KL term.
func (s *solver) gated(cells []lossCell, base []assign, place string, beta float64) {
	gate := func(tau, rho float64) float64 { return 4 / tau / (1 + math.Exp(-tau*(rho-1))) }
	var tau [2]interval
	dropped := 0
	for sign := range 2 {
		var x, e []float64
		for i := range cells {
			c := &cells[i]
			if c.w == 0 || c.adv == 0 || (c.adv > 0) != (sign == 0) {
				continue
			}
			rest, re := c.rest(beta, place)
			y, ye := -rest/c.adv, re/math.Abs(c.adv)+(c.rhoE+c.u)*2
			if !c.kept(beta, place) {
				dropped++
				continue
			}
			if !(y > 0) || !(ye < 0.2) {
				continue
			}
			solve := func(y float64) float64 {
				lo, hi := 1e-2, 1e2
				for range 60 {
					if m := math.Sqrt(lo * hi); gate(m, c.rho) > y {
						lo = m
					} else {
						hi = m
					}
				}
				return math.Sqrt(lo * hi)
			}
			x, e = append(x, solve(y)), append(e, solve(y-ye)-solve(y))
		}
		tau[sign] = meet(x, e)
	}
	value := func(option string, v interval) []assign {
		if v.n == 0 {
			return []assign{word(option, "1")}
		}
		list := []assign{amount(option, written(v.mid, 1e-3))}
		return append(list, numbers(option, v)...)
	}
	for _, more := range leftOut(cells, beta, place, dropped) {
		for _, pos := range value("sapo.tau_pos", tau[0]) {
			for _, neg := range value("sapo.tau_neg", tau[1]) {
				if s.try(slices.Concat(withBeta(base, place, beta), more, []assign{word("loss.kind", "sapo"), pos, neg})) {
					return
				}
			}
		}
	}
}

// sapoBeta solves for the coefficient of the KL term where ρ is 1, so that the loss is linear in 1/τ of both signs and β.
func sapoBeta(cells []lossCell, place string) float64 {
	var m [12]float64
	for i := range cells {
		c := &cells[i]
		if math.Abs(c.rho-1) > 1e-6 {
			continue
		}
		var row [3]float64
		if c.adv > 0 {
			row[0] = -2 * c.adv * c.w
		} else {
			row[1] = -2 * c.adv * c.w
		}
		if row[2] = c.k; place == "inside" {
			row[2] *= c.w
		}
		for a := range 3 {
			for b := range 3 {
				m[a*4+b] += row[a] * row[b]
			}
			m[a*4+3] += row[a] * c.loss
		}
	}
	x := eliminate(m[:], 3)
	if x == nil {
		return math.NaN()
	}
	return x[2]
}

// geometric proposes gmpo, of which a row's loss gives Σc, that is monotone in the bound of the sign of its advantage.
func (s *solver) geometric(place string) {
	if place != "" {
		return
	}
	var low, lowE, high, highE []float64
	for _, step := range s.steps {
		b := step.B
		a := arithmeticOf(s.ch, b)
		c := NewCase(b, step.Set, a.Unit)
		c.Promoted = a.Promoted
		lp, old, adv, loss := c.Optional("logp_new").X, c.Optional("logp_old").X, c.Optional("advantages").X, c.Optional("token_loss").X
		if lp == nil || old == nil || adv == nil || loss == nil {
			return
		}
		u, _ := b.Tensors["token_loss"].Type.Unit()
		mask := c.lossMask()
		for r := range b.Rows {
			var ds []float64
			var at int
			for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
				if mask[i] {
					ds, at = append(ds, lp[i]-old[i]), i
				}
			}
			if len(ds) == 0 || adv[at] == 0 || !(-loss[at]/adv[at] > 0) {
				continue
			}
			want := math.Log(-loss[at]/adv[at]) * float64(len(ds))
			e := 8 * (u + tol.U32) * float64(len(ds))
			sum := func(bound float64) (x float64) {
				for _, d := range ds {
					if adv[at] > 0 {
						x += min(d, bound)
					} else {
						x += max(d, -bound)
					}
				}
				return x
			}
			free := sum(math.Inf(1))
			if math.Abs(want-free) <= e {
				continue
			}
			solve := func(want float64) float64 {
				lo, hi := 0.0, 20.0
				for range 60 {
					m := (lo + hi) / 2
					if (sum(m) < want) == (adv[at] > 0) {
						lo = m
					} else {
						hi = m
					}
				}
				return (lo + hi) / 2
			}
			x := solve(want)
			d := max(math.Abs(solve(want+e)-x), math.Abs(solve(want-e)-x))
			if adv[at] > 0 {
				high, highE = append(high, x), append(highE, d)
			} else {
				low, lowE = append(low, x), append(lowE, d)
			}
		}
	}
	for _, l := range numbers("clip.low", meet(low, lowE)) {
		for _, h := range numbers("clip.high", meet(high, highE)) {
			if s.try([]assign{word("loss.kind", "gmpo"), l, h}) {
				return
			}
		}
	}
}
