package stage

import (
	"fmt"
	"math"
)

// What the same value head can differ by in two passes. Rounding moves values by the part of their size by which it moves logits: at most
// 0.04 for 96 layers in bfloat16, see [largestScale]. Four times that is allowed. Values that have nothing in common are √2 of their
// spread apart, and values that are not there, or all alike, once.
const (
	valueNoise = 0.16
	valueApart = 0.8
	sameNoise  = 0.02 // of logits, in two passes of one kernel over other micro-batches
)

// ValuesAreNew demands that the new values are those of the rollout at its first update: both are of the value head that has not moved yet.
// At an update that may be a later one nothing is said: a value head may have moved by any amount. A step that is the first one of its dump
// only, since a hook sees the last update, is told by its log-probs: they must be those of the rollout but for [sameNoise].
func ValuesAreNew(c *Case) *Assertion {
	now, old := c.B.Token("values_new"), c.B.Token("values")
	if when, _ := c.Set.Fact("first_update"); now == nil || old == nil || when != FirstUpdate {
		return nil
	}
	lp := c.B.Token("logp_old")
	if d, ok := c.Discrepant("logp_old", "logp_new"); !ok || !d.Same && !(d.Scale <= sameNoise) || medianSize(gaps(c, make([]float64, len(lp)), lp, 0)) == 0 {
		return nil
	}
	var n, apart, size float64
	var sums, squares [2]float64
	for i, m := range c.B.Mask {
		if d := now[i] - old[i]; m && !math.IsNaN(d) && !math.IsInf(d, 0) {
			n++
			apart += float64(d * d)
			for k, v := range []float64{now[i], old[i]} {
				sums[k] += v
				squares[k] += float64(v * v)
			}
		}
	}
	if v := c.movedValues(now, old); v != nil {
		return &Assertion{Checked: int(n), Violations: []Violation{*v}}
	}
	if v := c.cutValues(now, old); v != nil {
		return &Assertion{Checked: int(n), Violations: []Violation{*v}}
	}
	if n < tellingTokens {
		return nil
	}
	var spread float64
	for k := range sums {
		size = max(size, squares[k]/n)
		spread = max(spread, squares[k]/n-sums[k]/n*sums[k]/n)
	}
	apart, size, spread = math.Sqrt(apart/n), math.Sqrt(size), math.Sqrt(spread)
	a := &Assertion{Checked: int(n), Note: fmt.Sprintf("new against old at the first update: root mean square %.3g apart, spread %.3g", apart, spread)}
	if !(apart > valueApart*spread) || !(apart > valueNoise*size) {
		return a
	}
	v := Violation{Row: -1, Col: -1, Fault: "VALUES-OTHER-PASS", Got: apart,
		Reason: fmt.Sprintf("this is the first update of its rollout, where the value head has not moved and values_new are values but for rounding; here they are %.3g apart (root mean square), and their spread is %.3g", apart, spread)}
	if other := agree(c, "values_new", "values"); len(other.Violations) > 0 {
		if o := other.Violations[0]; o.Fault == "ROWS-SWAPPED" {
			v.Fault, v.Row = "VALUES-OF-OTHER-ROWS", o.Row
		}
		v.Reason += ": " + other.Violations[0].Reason
	}
	a.Violations = []Violation{v}
	return a
}

// movedValues finds values that are those of the neighbouring token: at the first update values_new stand one column beside them, to more digits
// than two values have in common by chance, in all of at least six pairs, and not in their own column.
func (c *Case) movedValues(now, old []float64) *Violation {
	const least, digits = 6, 1e-5
	w := c.B.Cols
	for _, by := range []int{1, -1} {
		pairs, own, fits := 0, 0, true
		for i, m := range c.B.Mask {
			if j := i + by; m && i%max(w, 1)+by >= 0 && i%max(w, 1)+by < w && c.B.Mask[j] {
				near := func(x, y float64) bool { return math.Abs(x-y) <= digits*max(math.Abs(x), math.Abs(y)) }
				pairs++
				fits = fits && near(now[j], old[i])
				if near(now[i], old[i]) {
					own++
				}
			}
		}
		if pairs >= least && fits && 4*own < pairs {
			fault := map[int]string{1: "GAE-VALUES-LATE", -1: "GAE-VALUES-EARLY"}[by]
			where := map[int]string{1: "behind", -1: "before"}[by]
			return &Violation{Row: -1, Col: -1, Fault: fault,
				Reason: fmt.Sprintf("this is the first update of its rollout, where the value head has not moved: values are values_new of the token %s, in all %d pairs", where, pairs)}
		}
	}
	return nil
}

// cutValues finds values that end one token early: where those of the token behind the response are kept, as gae.value_mask=p1 says, values_new has them
// and values has 0 in every row that has room for one.
func (c *Case) cutValues(now, old []float64) *Violation {
	const least = 3
	if c.EnumOr("gae.value_mask", "response") != "p1" {
		return nil
	}
	rows, row := 0, -1
	for r := range c.B.Rows {
		last := c.last(r)
		if i := r*c.B.Cols + last + 1; last >= 0 && last+1 < c.width(r) {
			if old[i] != 0 || now[i] == 0 || math.IsNaN(now[i]) {
				return nil
			}
			row = r
			rows++
		}
	}
	if rows < least {
		return nil
	}
	last := c.last(row)
	return &Violation{Row: row, Col: last + 1, Fault: "VALUE-MASK",
		Reason: fmt.Sprintf("values are 0 behind the last token of all %d responses that end early, where values_new are not at the first update of the rollout: the value that the last token bootstraps from was masked", rows)}
}
