package fault

import (
	"math"
	"slices"

	"plumbline/verify/stage"
)

// valueMatrixForm is a clipped value loss of shapes [n, 1] and [1, n], which broadcast to n × n: the mean over rows i and columns j of
//
//	max((v_a − R_b)², (clip(v_c, V_d ± ε) − R_e)²)
//
// where each of a to e is i, or j where its field is true.
type valueMatrixForm struct {
	title             string
	v, r, cv, old, cr bool
}

var valueMatrixForms = []valueMatrixForm{
	{"the clipped value loss compares every value, clipped and not, with every return", false, true, false, false, true},
	{"the unclipped side of the value loss compares every value with every return, the clipped one, of the same columns, each with its own", false, true, true, true, true},
	{"the unclipped side of the value loss compares every value with every return, the clipped one, of the same rows, each with its own", false, true, false, false, false},
	{"the clipped side of the value loss compares every value with every return, the unclipped one, of the same columns, each with its own", true, true, false, false, true},
	{"the clipped side of the value loss compares every value with every return, the unclipped one, of the same rows, each with its own", false, false, false, false, true},
	{"the value loss clips every value around every old value", false, false, false, true, false},
	{"the value loss clips every value around every old value, and compares it with the return of that", false, true, false, true, true},
}

// mostPaired are the tokens above which no matrix is made.
const mostPaired = 1024

// valueMatrixEdits returns the edits of these forms, over the tokens of every micro-batch.
func valueMatrixEdits(o *stage.Outcome) (list []edit) {
	c := o.Case.Of(o.Case.B, o.Case.Set)
	if math.IsNaN(numberOr(c, "value.clip", math.NaN())) || c.B.Token("values") == nil || c.B.Cols == 0 {
		return nil
	}
	for _, f := range valueMatrixForms {
		list = append(list, edit{id: "VALUE-BROADCAST", title: f.title + ": [n, 1] and [n] make an n × n matrix", changes: 1, foreign: true, predict: f.predict})
	}
	return list
}

// predict returns what a value loss of the form gives: that of an unclipped one whose values are where their squares, or the slopes of these, are those of the
// form. Sums are over n² squares, each of which has the rounding of the clip.
func (f valueMatrixForm) predict(c *stage.Case, ch *stage.Check) *stage.Prediction {
	b, v, old, ret := c.B, c.B.Token("values_new"), c.B.Token("values"), c.B.Token("returns")
	clip := numberOr(c, "value.clip", math.NaN())
	if v == nil || old == nil || ret == nil || math.IsNaN(clip) {
		return nil
	}
	x := slices.Clone(v)
	var size float64
	for _, file := range b.Files {
		var cells []int
		for i := range b.TokensIn(file.Lo, file.Hi) {
			cells = append(cells, i)
			size = max(size, math.Abs(v[i])+math.Abs(ret[i])+math.Abs(old[i])+clip)
		}
		if len(cells) > mostPaired {
			return nil
		}
		n := float64(len(cells))
		loss, slope := make([]float64, len(v)), make([]float64, len(v))
		for _, i := range cells {
			at := func(column bool, j int) int {
				if column {
					return j
				}
				return i
			}
			for _, j := range cells {
				a := at(f.v, j)
				l, s := square(v[a] - ret[at(f.r, j)])
				moved := at(f.cv, j)
				bounded, moves := heldWithin(v[moved]-old[at(f.old, j)], clip)
				if m, t := square(old[at(f.old, j)] + bounded - ret[at(f.cr, j)]); m > l {
					l, s, a = m, t*moves, moved
				}
				loss[i], slope[a] = loss[i]+l/n, slope[a]+s/n
			}
		}
		for _, i := range cells {
			if x[i] = ret[i] + math.Sqrt(loss[i]); ch.Output == "dvalues" {
				x[i] = ret[i] + slope[i]/2
			}
		}
	}
	return ofPairedValues(x, size, c, ch)
}
