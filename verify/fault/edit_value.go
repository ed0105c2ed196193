package fault

import (
	"fmt"
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// valueForm is a loss of a value v against the return r, with the old value and the range c: its size, and its derivative by v, both
// as those of the square (v − r)².
type valueForm struct {
	id, title string
	of        func(v, old, r, c float64) (loss, slope float64)
	beside    string // a tensor that is read for the return on the unclipped side; ""
}

// errorLoss is a loss of the difference of a value from its return, with its slope.
type errorLoss func(d float64) (loss, slope float64)

func square(d float64) (loss, slope float64) { return d * d, 2 * d }

func magnitude(d float64) (loss, slope float64) { return math.Abs(d), math.Copysign(1, d) }

// held returns the loss of v held between lo and hi, which has no slope outside.
func (f errorLoss) held(v, lo, hi, r float64) (loss, slope float64) {
	bounded := min(max(v, lo), hi)
	if loss, slope = f(bounded - r); bounded != v {
		slope = 0
	}
	return loss, slope
}

// clippedWithin returns the larger loss of v, by plain, and of v held between lo and hi, by clipped.
func clippedWithin(v, lo, hi, r float64, plain, clipped errorLoss) (loss, slope float64) {
	loss, slope = plain(v - r)
	if l, s := clipped.held(v, lo, hi, r); l > loss {
		return l, s
	}
	return loss, slope
}

// largerSquare returns the larger of the squares of v and of a bounded value that moves with it; of equal ones that of v.
func largerSquare(v, bounded, moves, r float64) (loss, slope float64) {
	loss, slope = square(v - r)
	if l, s := square(bounded - r); l > loss {
		return l, s * moves
	}
	return loss, slope
}

// heldWithin returns x held within ±c, and its derivative.
func heldWithin(x, c float64) (held, moves float64) {
	if x < -c || x > c {
		return min(max(x, -c), c), 0
	}
	return x, 1
}

// halfDetached returns the larger square of v and of the clipped value, with the gradient of each side multiplied by a number; of equal ones each
// has half. Where the clipped value is V + clip(v − V) in float32, what rounds decides between sides that would be equal.
func halfDetached(v, old, r, c, plain, clipped float64, rounds bool) (loss, slope float64) {
	bounded := min(max(v, old-c), old+c)
	inside := bounded == v
	a, da := square(v - r)
	b, db := square(bounded - r)
	if rounds {
		step := float32(v) - float32(old)
		held := min(max(step, float32(-c)), float32(c))
		d, e := float32(v)-float32(r), float32(old)+held-float32(r)
		a, b, inside = float64(d*d), float64(e*e), held == step
	}
	if da, db = da*plain, db*clipped; !inside {
		db = 0
	}
	switch {
	case a > b:
		return a, da
	case b > a:
		return b, db
	}
	return a, (da + db) / 2
}

func valueForms() []valueForm {
	forms := []valueForm{
		{"VALUE-CLIP-ALWAYS", "the square of the clipped value alone", func(v, old, r, c float64) (float64, float64) {
			return errorLoss(square).held(v, old-c, old+c, r)
		}, ""},
		{"VALUE-CLIP-FORM", "the range is relative: V·(1 ± value.clip)", func(v, old, r, c float64) (float64, float64) {
			return clippedWithin(v, min(old*(1-c), old*(1+c)), max(old*(1-c), old*(1+c)), r, square, square)
		}, ""},
		{"VALUE-CLIP-FORM", "the range is relative to the magnitude of the old value", func(v, old, r, c float64) (float64, float64) {
			return clippedWithin(v, old-c*math.Abs(old), old+c*math.Abs(old), r, square, square)
		}, ""},
		{"VALUE-CLIP-FORM", "the value is clipped around the return, not the old value", func(v, _, r, c float64) (float64, float64) {
			return clippedWithin(v, r-c, r+c, r, square, square)
		}, ""},
		{"VALUE-CLIP-FORM", "the value is clipped around 0, not the old value", func(v, _, r, c float64) (float64, float64) {
			return clippedWithin(v, -c, c, r, square, square)
		}, ""},
		{"VALUE-CLIP-FORM", "only the upper bound holds", func(v, old, r, c float64) (float64, float64) {
			return clippedWithin(v, math.Inf(-1), old+c, r, square, square)
		}, ""},
		{"VALUE-CLIP-FORM", "only the lower bound holds", func(v, old, r, c float64) (float64, float64) {
			return clippedWithin(v, old-c, math.Inf(1), r, square, square)
		}, ""},
		{"VALUE-CLIP-FORM", "the mean of the clipped and the unclipped square", func(v, old, r, c float64) (float64, float64) {
			a, da := square(v - r)
			b, db := errorLoss(square).held(v, old-c, old+c, r)
			return (a + b) / 2, (da + db) / 2
		}, ""},
		{"VALUE-CLIP-FORM", "the sum of the clipped and the unclipped square", func(v, old, r, c float64) (float64, float64) {
			a, da := square(v - r)
			b, db := errorLoss(square).held(v, old-c, old+c, r)
			return a + b, da + db
		}, ""},
		{"VALUE-CLIP-FORM", "the squared error is clipped, not the value", func(v, _, r, c float64) (float64, float64) {
			loss, slope := square(v - r)
			if loss > c*c {
				return c * c, 0
			}
			return loss, slope
		}, ""},
		{"VALUE-CLIP-FORM", "the absolute error in place of its square", func(v, _, r, _ float64) (float64, float64) {
			return magnitude(v - r)
		}, ""},
		{"VALUE-CLIP-FORM", "the unclipped side is the absolute error, the clipped one its square", func(v, old, r, c float64) (float64, float64) {
			return clippedWithin(v, old-c, old+c, r, magnitude, square)
		}, ""},
		{"VALUE-CLIP-FORM", "the clipped side is the absolute error, the unclipped one its square", func(v, old, r, c float64) (float64, float64) {
			return clippedWithin(v, old-c, old+c, r, square, magnitude)
		}, ""},
		{"VALUE-CLIP-FORM", "the larger of the absolute errors, clipped and unclipped, in place of their squares", func(v, old, r, c float64) (float64, float64) {
			return clippedWithin(v, old-c, old+c, r, magnitude, magnitude)
		}, ""},
		{"VALUE-CLIP-FORM", "the old value is clipped around the new one, not the new one around the old", func(v, old, r, c float64) (float64, float64) {
			bounded, moves := min(max(old, v-c), v+c), 1.0
			if bounded == old {
				moves = 0
			}
			return largerSquare(v, bounded, moves, r)
		}, ""},
		{"VALUE-CLIP-FORM", "the clipped change is added to the new value: v + clip(v − V)", func(v, old, r, c float64) (float64, float64) {
			step, moves := heldWithin(v-old, c)
			return largerSquare(v, v+step, 1+moves, r)
		}, ""},
		{"VALUE-CLIP-FORM", "the clipped change has the wrong sign: V − clip(v − V)", func(v, old, r, c float64) (float64, float64) {
			step, moves := heldWithin(v-old, c)
			return largerSquare(v, old-step, -moves, r)
		}, ""},
		{"VALUE-CLIP-FORM", "the clipped change stands alone, without the old value: clip(v − V)", func(v, old, r, c float64) (float64, float64) {
			step, moves := heldWithin(v-old, c)
			return largerSquare(v, step, moves, r)
		}, ""},
		{"VALUE-CLIP-FORM", "the clipped value is detached: where both squares are equal, half of the gradient is lost", func(v, old, r, c float64) (float64, float64) {
			return halfDetached(v, old, r, c, 1, 0, false)
		}, ""},
		{"VALUE-CLIP-FORM", "the unclipped value is detached: where both squares are equal, half of the gradient is lost", func(v, old, r, c float64) (float64, float64) {
			return halfDetached(v, old, r, c, 0, 1, false)
		}, ""},
		{"VALUE-CLIP-FORM", "the clipped change is that from the return: V + clip(v − R)", func(v, old, r, c float64) (float64, float64) {
			step, moves := heldWithin(v-r, c)
			return largerSquare(v, old+step, moves, r)
		}, ""},
		{"VALUE-CLIP-FORM", "the gradient passes the clip", func(v, old, r, c float64) (float64, float64) {
			return largerSquare(v, min(max(v, old-c), old+c), 1, r)
		}, ""},
	}
	for _, delta := range []float64{1, 0.5, 0.1, 10} {
		huber := func(d float64) (float64, float64) {
			if math.Abs(d) <= delta {
				return d * d / 2, d
			}
			return delta * (math.Abs(d) - delta/2), math.Copysign(delta, d)
		}
		for _, scale := range []float64{1, 2} {
			forms = append(forms, valueForm{"VALUE-CLIP-FORM", fmt.Sprintf("%g times the Huber loss with δ = %g in place of both squares", scale, delta), func(v, old, r, c float64) (float64, float64) {
				loss, slope := clippedWithin(v, old-c, old+c, r, huber, huber)
				return scale * loss, scale * slope
			}, ""})
		}
		for _, scale := range []float64{1, 2} {
			forms = append(forms, valueForm{"VALUE-CLIP-FORM", fmt.Sprintf("%g times the Huber loss with δ = %g in place of the square, without a clip", scale, delta), func(v, _, r, _ float64) (float64, float64) {
				loss, slope := huber(v - r)
				return scale * loss, scale * slope
			}, ""})
		}
	}
	forms = append(forms, valueForm{"VALUE-CLIP-FORM", "the clipped value is detached, and where both squares are equal but for rounding, that decides", func(v, old, r, c float64) (float64, float64) {
		return halfDetached(v, old, r, c, 1, 0, true)
	}, ""}, valueForm{"VALUE-CLIP-FORM", "the unclipped value is detached, and where both squares are equal but for rounding, that decides", func(v, old, r, c float64) (float64, float64) {
		return halfDetached(v, old, r, c, 0, 1, true)
	}, ""})
	for _, name := range []string{"advantages", "token_rewards", "values"} {
		forms = append(forms, valueForm{"VALUE-TARGET", "the unclipped side is fitted to " + name + ", the clipped one to the returns", nil, name})
	}
	forms = append(forms, valueForm{"VALUE-TARGET", "the clipped side is fitted to values, the unclipped one to the returns", func(v, old, r, c float64) (float64, float64) {
		loss, slope := square(v - r)
		if l, s := errorLoss(square).held(v, old-c, old+c, old); l > loss {
			return l, s
		}
		return loss, slope
	}, ""})
	return forms
}

// valueEdits returns edits of the value loss of a token.
func valueEdits(o *stage.Outcome) []edit {
	if !slices.Contains([]string{"aggregate/value_loss", "gradient/dvalues", "aggregate/loss"}, o.Check.ID) {
		return nil
	}
	if b := o.Case.B; b.Token("values_new") == nil || b.Token("returns") == nil {
		return nil
	}
	var list []edit
	for _, f := range valueForms() {
		list = append(list, edit{id: f.id, title: "the value loss is another: " + f.title, changes: 1, predict: f.predict})
	}
	for _, over := range []string{"the micro-batch", "the step"} {
		list = append(list, edit{id: "VALUE-BROADCAST", title: "the value loss compares every value with every return of " + over + ": [n, 1] less [n] is an n × n matrix", changes: 1, foreign: true,
			predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction { return valueMatrix(over == "the step", c, ch) }})
	}
	return append(append(list, valueMatrixEdits(o)...), edit{id: "VALUE-AGAINST-ADVANTAGES", title: "the critic is fitted to the advantages as they were before whitening, the returns less the values", changes: 1,
		predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction { return under(withoutValues, c, ch) }})
}

// valueMatrix predicts a value loss that is the mean of (v_i − R_j)² over all pairs of tokens,
//
//	1/n·Σ_i [(v_i − R̄)² + 1/n·Σ_j (R_j − R̄)²],   slope 2·(v_i − R̄)/n
//
// which is that of values at R_i + √(…), or for the slopes at R_i + v_i − R̄.
func valueMatrix(step bool, c *stage.Case, ch *stage.Check) *stage.Prediction {
	b, v, ret := c.B, c.B.Token("values_new"), c.B.Token("returns")
	if v == nil || ret == nil || b.Cols == 0 {
		return nil
	}
	x := slices.Clone(v)
	var size float64
	fill := func(lo, hi int) {
		var cells []int
		for i := lo; i < hi; i++ {
			if b.Mask[i] {
				cells = append(cells, i)
			}
		}
		if len(cells) == 0 {
			return
		}
		mean, s := centreOf("mean", ret, cells, cells[0]), spreadOf("std0", ret, cells)
		for i := lo; i < hi; i++ {
			d := v[i] - mean
			if size = max(size, math.Abs(v[i])+math.Abs(mean)); ch.Output == "dvalues" {
				x[i] = ret[i] + d
			} else {
				x[i] = ret[i] + math.Sqrt(d*d+s*s)
			}
		}
	}
	if step {
		fill(0, len(b.Mask))
	} else {
		for _, f := range b.Files {
			fill(f.Lo*b.Cols, f.Hi*b.Cols)
		}
	}
	return ofPairedValues(x, size, c, ch)
}

// ofValues predicts an output of the value loss of other values, which nothing clips. Its bounds are its own.
func ofValues(x []float64, c *stage.Case, ch *stage.Check) *stage.Prediction {
	p := under(func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
		return c.B.With("values_new", x), c.Set.With("value.clip", parsed("value.clip", "none"), "hypothesis"), true
	}, c, ch)
	if p == nil {
		return nil
	}
	q := *p
	q.Bound = slices.Clone(p.Bound)
	return &q
}

// ofPairedValues is [ofValues] of values that sums over n² squares, or a difference from a mean, are in, of numbers of at most size.
func ofPairedValues(x []float64, size float64, c *stage.Case, ch *stage.Check) *stage.Prediction {
	p, ret := ofValues(x, c, ch), c.B.Token("returns")
	if p == nil {
		return nil
	}
	for i, w := range p.Want {
		if p.Bound[i] += 32 * c.Unit * math.Abs(w); len(p.Want) == len(x) && x[i] != ret[i] {
			p.Bound[i] += 32 * c.Unit * size * math.Abs(w/(x[i]-ret[i]))
		}
	}
	return p
}

// withoutValues is the input whose returns R = A + V lack V.
func withoutValues(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
	v := c.B.Token("values")
	return token("returns", func(_ *stage.Case, ret []float64) []float64 {
		if len(v) != len(ret) {
			return nil
		}
		return eachOf(len(ret), func(i int) float64 { return ret[i] - v[i] })
	})(c)
}

// predict returns an output of a value loss of another form: that of an unclipped one whose values are where their squares, or the
// slopes of these, are those of the form.
func (f valueForm) predict(c *stage.Case, ch *stage.Check) *stage.Prediction {
	v, old, ret := c.B.Token("values_new"), c.B.Token("values"), c.B.Token("returns")
	clip := numberOr(c, "value.clip", math.NaN())
	if v == nil || ret == nil || math.IsNaN(clip) && old != nil {
		clip = 0.2
	}
	if v == nil || ret == nil {
		return nil
	}
	if old == nil {
		old = v
	}
	x := make([]float64, len(v))
	other := ret
	if f.beside != "" {
		if other = c.B.Token(f.beside); len(other) != len(v) {
			return nil
		}
	}
	for i := range v {
		var loss, slope float64
		if f.of != nil {
			loss, slope = f.of(v[i], old[i], ret[i], clip)
		} else {
			loss, slope = square(v[i] - other[i])
			if l, s := errorLoss(square).held(v[i], old[i]-clip, old[i]+clip, ret[i]); l > loss {
				loss, slope = l, s
			}
		}
		if x[i] = ret[i] + math.Sqrt(loss); ch.Output == "dvalues" {
			x[i] = ret[i] + slope/2
		}
	}
	p := ofValues(x, c, ch)
	if p != nil && len(p.Want) == len(v) { // the bounds of the clip are rounded
		for i, w := range p.Want {
			if d := math.Abs(x[i] - ret[i]); d > 0 {
				p.Bound[i] += 8 * c.Unit * (math.Abs(old[i]) + clip + math.Abs(ret[i])) * math.Abs(w) / d
			}
		}
	}
	return p
}
