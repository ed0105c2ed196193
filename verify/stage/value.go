package stage

import (
	"math"
	"slices"

	"plumbline/reference/rl"
	"plumbline/verify/tol"
)

// value is a value loss: options, inputs and mask.
type value struct {
	o         rl.ValueOptions // without the aggregation
	v, old, r Input           // values now, at rollout, targets
	mask      []bool
	red       *reduction
	u         float64
}

// values reads the value loss; nil if something is not there. The coefficient is not part of it.
func (c *Case) values() *value {
	w := &value{u: c.Unit + tol.U64}
	w.o.Factor, w.o.Clip = c.Num("value.factor"), c.NumOr("value.clip", 0)
	cells := c.inapplicable("value.mask", "response")
	w.red = c.valueReduction()
	w.v, w.r = c.Token("values_new"), c.Token("returns")
	w.old = w.v
	if w.o.Clip > 0 {
		w.old = c.Token("values")
	}
	if !c.OK() || w.red == nil {
		return nil
	}
	w.mask = c.valueMask(cells)
	w.red = w.red.over(c, w.mask)
	if !c.OK() {
		return nil
	}
	return w
}

// valueMask returns the cells of the value loss: the response, one token more, or all of the file's.
func (c *Case) valueMask(cells string) []bool {
	b := c.B
	switch cells {
	case "p1", "none":
		mask := make([]bool, len(b.Mask))
		if cells == "p1" {
			rl.LengthMask(mask, b.Mask, b.Rows, b.Cols, 1)
		}
		for i := range mask {
			mask[i] = extent(b, i) && (mask[i] || cells == "none")
		}
		return mask
	}
	return b.Mask
}

// valueReduction is the reduction of the value loss: that of the policy loss, or a mean over tokens whatever that is, as OpenRLHF's
// critic takes it.
func (c *Case) valueReduction() *reduction {
	return c.orTokenMean(c.reduction(), "value.agg")
}

// over returns the reduction of the value loss over another mask.
func (red *reduction) over(c *Case, mask []bool) *reduction {
	if slices.Equal(mask, red.mask) {
		return red
	}
	other := &Case{B: c.B.WithMask(mask), Set: c.Set, Unit: c.Unit, Promoted: c.Promoted}
	q := other.valueReduction()
	for _, a := range other.Absent {
		note(&c.Absent, a)
	}
	for _, o := range other.Unknown {
		note(&c.Unknown, o)
	}
	return q
}

// cell returns how far the derivative of the larger of the two squares of cell i may be off, and the square itself:
//
//	e = v − R          e_e = e_v + e_R + u·|e|               e²: 2|e|·e_e + e_e² + u·e²
//	e_c = clip(v) − R  on a bound V ± c: e_V + 2u·(|V| + c) in place of e_v
//	                   within the bounds, as V + clamp(v − V, ±c) of OpenRLHF's ValueLoss and CleanRL: u·(|v − V| + |v|) more
//
// Within the bounds both squares have the derivative 2e, and the larger of the two is taken by their rounding.
// The derivative is 2e, and 0 where the square of e_c is larger and v beyond the bound; where that cannot be told, it is anything
// from one to the other.
func (w *value) cell(i int) (slope, square float64) {
	x, d := w.v.X[i], w.v.X[i]-w.r.X[i]
	ed := w.v.E(i) + w.r.E(i) + w.u*math.Abs(d)
	l, e := float64(d*d), 2*math.Abs(d)*ed+ed*ed+w.u*d*d
	if w.o.Clip <= 0 {
		return 2 * ed, e
	}
	v := w.old.X[i]
	margin := w.v.E(i) + w.old.E(i) + 2*w.u*(math.Abs(v)+w.o.Clip)
	edge := min(math.Abs(x-(v+w.o.Clip)), math.Abs(x-(v-w.o.Clip))) <= margin
	if math.Abs(x-v) < w.o.Clip && !edge {
		ed += w.u * (math.Abs(x-v) + math.Abs(x))
		return 2 * ed, 2*math.Abs(d)*ed + ed*ed + w.u*d*d
	}
	dc := max(min(x, v+w.o.Clip), v-w.o.Clip) - w.r.X[i]
	edc := w.old.E(i) + 2*w.u*(math.Abs(v)+w.o.Clip) + w.r.E(i) + w.u*math.Abs(dc)
	lc, ec := float64(dc*dc), 2*math.Abs(dc)*edc+edc*edc+w.u*dc*dc
	switch {
	case edge || math.Abs(lc-l) <= e+ec:
		return 2 * (math.Abs(d) + ed), max(e, ec) + 2*math.Abs(d)*margin
	case lc > l:
		return 0, ec
	}
	return 2 * ed, e
}

// sums returns the value loss of the files without its coefficient. Two more roundings: the factor and the product.
func (w *value) sums(c *Case) sums {
	var res rl.ValueResult
	if err := rl.ValueLoss(&res, w.v.X, w.old.X, w.r.X, w.mask, c.B.Rows, c.B.Cols, w.o); err != nil {
		panic("stage: " + err.Error()) // no options ask for one
	}
	token := Input{X: res.Token, Err: res.DValue, Half: w.half()}
	for i, l := range token.X {
		token.Err[i] = 0
		if u := token.Half; w.mask[i] && u > 0 { // the factor is a power of two
			_, square := w.squares16(i, 0, u)
			token.X[i] = w.o.Factor * square
		} else if w.mask[i] {
			_, e := w.cell(i)
			token.Err[i] = w.o.Factor*e + w.u*math.Abs(l)
		}
	}
	if s, ok := w.red.promotedMeans(c, token, c.B.PerFile("value_loss")); ok {
		return s
	}
	return w.red.apply(c, token, nil)
}

// valueCoef returns the coefficient of the value loss in the total, or absent where the value loss is a loss of its own: there is no
// such coefficient, or nothing of a value head was dumped.
func (c *Case) valueCoef(absent float64) float64 {
	if !c.Has("value_loss") && !c.Has("values_new") {
		return absent
	}
	return c.NumOr("value.coef", absent)
}

// valueTerm returns the value loss without its coefficient: as dumped, or from the values.
func (c *Case) valueTerm() sums {
	if !c.Has("values_new") {
		return c.scalar("value_loss")
	}
	w := c.values()
	if w == nil {
		return sums{}
	}
	return w.sums(c)
}

func predictValueLoss(c *Case) *Prediction {
	w := c.values()
	if w == nil {
		return nil
	}
	s := w.sums(c)
	if !c.OK() {
		return nil
	}
	p := s.prediction(func(f int) []Term { return w.red.denominatorTerms(s, f) })
	if coef := c.Set.Value("value.coef"); coef.Known() {
		p.Alt = times(p.Want, c.NumOr("value.coef", 0))
	}
	c.orBeforeAccumulation(w.red, p, "value_loss")
	return p
}

// nearer reports whether x is nearer to got than what a prediction wants or its other value.
func nearer(got, x []float64, p *Prediction) bool {
	var by, best float64
	for f, g := range got {
		by += math.Abs(g - x[f])
		least := math.Abs(g - p.Want[f])
		if p.Alt != nil {
			least = min(least, math.Abs(g-p.Alt[f]))
		}
		best += least
	}
	return by < best
}
