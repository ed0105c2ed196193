package stage

import (
	"fmt"
	"math"
	"slices"
)

// positionsAgree compares the policy with the engine column by column. Rounding of a forward pass is alike at all tokens of a response, or grows slowly with the
// tokens before; what rises from one column to the next, in nearly all rows and by far more than before, says that one pass begins anew there: scored in chunks
// without their state, behind the end of a window or of a table of positions. Weights that were exchanged within a response make such a rise as well; it lasts, and is
// judged only where it is beyond what rounding makes ([largestScale]). Two models differ by what their tokens are, little in a template and much behind it, so that
// neither the reference nor an engine that is declared to be older is compared, but at the first step of a run.
func positionsAgree(c *Case) *Assertion {
	const (
		least  = 8   // rows that have a column, and columns before
		rise   = 20  // times the median of the columns before, in the first column
		next   = 8   // and in the one behind it
		most   = 8   // times the largest of them
		nearly = 0.8 // of the rows, which are beyond it
		back   = 3   // times the median of the columns before: what is beyond it, and where it is over
	)
	name := c.policyPass()
	if c.updatesBetween(name) || c.B.Meta.Step > 1 && Asynchronous(c.B, c.Set) {
		return nil
	}
	out := &Assertion{}
	columns := c.noiseOfColumns(name, "logp_gen", least)
	for k := least; k+1 < len(columns); k++ {
		at := columns[k]
		if out.Checked++; at.scale <= OrdinaryScale {
			continue
		}
		before := eachScale(columns[:k])
		largest := slices.Max(before)
		usual := medianSize(before)
		far := 0
		for _, d := range at.d {
			if d > back*usual {
				far++
			}
		}
		if at.scale <= rise*usual || at.scale <= most*largest || columns[k+1].scale <= next*usual || float64(far) < nearly*float64(len(at.d)) {
			continue
		}
		over := slices.ContainsFunc(columns[k+2:], func(x columnNoise) bool { return x.scale <= back*usual })
		if !over && min(at.scale, columns[k+1].scale) <= largestScale {
			continue
		}
		out.Violations = append(out.Violations, Violation{Row: -1, Col: at.col, Got: at.scale,
			Reason: fmt.Sprintf("from column %d of the responses on %s and logp_gen are apart by a logit noise of %.2g, in the %d columns before by %.2g: one of the two passes does not have there what stands before", at.col, name, at.scale, k, usual)})
		break
	}
	if out.Checked == 0 {
		return nil
	}
	return out
}

// columnNoise is by how much two passes are apart in a column, each token in units of what a logit noise of 1 makes.
type columnNoise struct {
	col   int
	scale float64
	d     []float64
}

// noiseOfColumns returns the columns that at least some rows have, without the last tokens of responses, which may be of their own.
func (c *Case) noiseOfColumns(a, b string, least int) (list []columnNoise) {
	x, y := c.B.Token(a), c.B.Token(b)
	if x == nil || y == nil {
		return nil
	}
	columns := make([][]float64, c.B.Cols)
	for r := range c.B.Rows {
		for t := range max(c.last(r), 0) {
			i := r*c.B.Cols + t
			q := -math.Expm1(min(x[i], 0))
			if d := math.Abs(y[i]-x[i]) / (1.22 * q); c.B.Mask[i] && q > 0.01 && isFinite(d) {
				columns[t] = append(columns[t], d)
			}
		}
	}
	for t, d := range columns {
		if len(d) >= least {
			list = append(list, columnNoise{t, medianSize(slices.Clone(d)) / 0.6745, d})
		}
	}
	return list
}

func eachScale(columns []columnNoise) []float64 {
	x := make([]float64, len(columns))
	for i, c := range columns {
		x[i] = c.scale
	}
	return x
}
