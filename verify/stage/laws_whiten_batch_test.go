package stage

import (
	"math"

	"plumbline/internal/format/dump"
	"plumbline/reference/rl"
	"plumbline/verify/convention"
	"plumbline/verify/tol"
)

// raw names the advantages before whitening in the batches of these laws.
const raw = "raw"

// white whitens the raw advantages of a batch as the advantage checks do.
func (s *subject) white(g grid) *Prediction {
	return s.predicted("whiten", g.Batch, func(c *Case) *Prediction {
		y, _ := c.whitenAdvantages(Input{X: c.B.Token(raw)}, false)
		return &Prediction{Want: y.X, Bound: y.Err}
	})
}

// framework whitens as the framework itself does, which may multiply by the mask and clear masked cells; the check need not,
// since it compares the cells of the mask only and cannot tell what a hook filled in.
func (s *subject) framework(g grid) *Prediction {
	return s.predicted("framework", g.Batch, func(c *Case) *Prediction {
		o, kind := c.whitenOptions()
		o.Var.Mean.Outside, _ = rl.ParseOutsideRule(c.inapplicable("mean.nan_outside", "propagate"))
		o.Remask = c.Bool("whiten.remask")
		if !c.OK() {
			return nil
		}
		y, err := rl.Whiten(nil, c.B.Token(raw), kind.Of(c.B.Mask, c.B.Rows, c.B.Cols), c.B.Rows, c.B.Cols, o)
		if err != nil {
			panic(refusal(err.Error()))
		}
		return &Prediction{Want: y, Bound: make([]float64, len(y))}
	})
}

// unwhitened draws a batch of one or two files whose rows have at least two tokens.
func (s *subject) unwhitened(holes bool) grid {
	s.cols = max(s.cols, 2)
	g := s.grid(holes)
	for r := range g.Rows {
		g.Mask[r*g.Cols], g.Mask[r*g.Cols+1] = true, true
	}
	if g.Rows > 1 && s.r.IntN(2) == 0 {
		g = split(g, 1+s.r.IntN(g.Rows-1), 1+s.r.IntN(2))
	}
	offset := float64(s.r.IntN(3) * 8)
	x := s.draw(len(g.Mask), func() float64 { return offset + s.dyadic() })
	for i := range x {
		x[i] += 16 * float64(i%2) // no set is nearly constant
	}
	return g.token(raw, x...)
}

// set of cells that are whitened together, with what whitening knows of them.
type together struct {
	cells          []int // that the moments are taken of
	rows           [2]int
	n, mean, mu, v float64
	rate           float64
}

// sets returns what is whitened together, with the moments as the options define them.
func (s *subject) sets(g grid) (all []together) {
	runs := [][2]int{{0, g.Rows}}
	if len(g.Files) > 1 {
		switch scope := s.text("whiten.scope", ""); {
		case scope == "minibatch", scope == "local_batch" && g.Files[1].Rank != g.Files[0].Rank:
			runs = [][2]int{{0, g.Files[0].Hi}, {g.Files[0].Hi, g.Rows}}
		}
	}
	x, eps, ddof := g.Token(raw), s.num("mean.eps", 0), s.num("whiten.ddof", 0)
	for _, run := range runs {
		k := together{rows: run}
		for i := run[0] * g.Cols; i < run[1]*g.Cols; i++ {
			kind := s.text("whiten.mask", "response")
			if kind == "none" || g.Mask[i] || kind == "length" && i%g.Cols <= lastToken(g.Batch, i/g.Cols) {
				k.cells = append(k.cells, i)
				k.mean += x[i]
			}
		}
		k.n = float64(len(k.cells))
		k.mean, k.mu = k.mean/k.n, k.mean/(k.n+eps)
		for _, i := range k.cells {
			k.v += (x[i] - k.mu) * (x[i] - k.mu)
		}
		k.v *= k.n / (k.n - ddof) / (k.n + eps)
		e := s.num("whiten.eps", 1e-8)
		switch s.text("whiten.eps_place", "") {
		case "inside_sqrt":
			k.rate = 1 / math.Sqrt(k.v+e)
		case "floor_var":
			k.rate = 1 / math.Sqrt(max(k.v, e))
		case "add_std":
			k.rate = 1 / (math.Sqrt(k.v) + e)
		}
		all = append(all, k)
	}
	return all
}

// average returns the mean of x over the cells.
func (k *together) average(x []float64) (sum float64) {
	for _, i := range k.cells {
		sum += x[i]
	}
	return sum / k.n
}

// off bounds the error of average: that of the terms, and n roundings of Σ|x|/n.
func (k *together) off(p *Prediction) (e float64) {
	for _, i := range k.cells {
		e += p.Bound[i] + k.n*tol.U64*math.Abs(p.Want[i])
	}
	return e / k.n
}

// slack is what mean.eps leaves of the mean: x̄ − μ = x̄·ε/(n + ε).
func (k *together) slack(s *subject) float64 {
	return math.Abs(k.mean) * s.num("mean.eps", 0) / k.n
}

func whitens(set *convention.Set) bool {
	v := set.Value("whiten.scope")
	return v.Kind() == convention.Enum && v.Text() != "none"
}

// openWhitening is what profiles that whiten do not say: shielded@1 whitens numbers per response.
const openWhitening = "whiten.mask=response whiten.single=zero "

var wrongWhitening = map[string]fault{
	"ddof 0": {options: "whiten.ddof=0"}, "ddof 1": {options: "whiten.ddof=1"},
	"the mean stays": {options: "whiten.shift_mean=false_plain"}, "statistics of all cells": {options: "whiten.mask=none"},
	"ε of 10⁻³": {options: "whiten.eps=1e-3"}, "per row": {options: "whiten.scope=row"},
}

// only picks faults by name.
func only(all map[string]fault, names ...string) map[string]fault {
	some := map[string]fault{}
	for _, n := range names {
		f, ok := all[n]
		if !ok {
			panic("no fault " + n)
		}
		some[n] = f
	}
	return some
}

// and adds a fault to some.
func and(some map[string]fault, name string, f fault) map[string]fault {
	some[name] = f
	return some
}

// addsConstant moves everything by 10⁻⁶.
var addsConstant = fault{after: func(_ *subject, _ *dump.Batch, p *Prediction) {
	for i := range p.Want {
		p.Want[i] += 1e-6
	}
}}
