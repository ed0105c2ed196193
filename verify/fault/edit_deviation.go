package fault

import (
	"fmt"
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/stage"
)

// deviationEdits returns the edit of group advantages (r − m)/(k·s + ε), s the right deviation, of one number k that is none of 1: a wrong
// count in the variance, or a factor on it. With A₀ = (r − m)/s,
//
//	1/A = 1/A_right + (k − 1)/A₀
//
// so that every advantage gives k. Without an ε, 1/k is a common factor, and no matter of this edit.
func deviationEdits(o *stage.Outcome) []edit {
	c := o.Case.Of(o.Case.B, o.Case.Set)
	if scale := c.Set.Value("adv.scale").String(); scale != "group_std" && scale != "batch_std" || numberOr(c, "adv.eps", 0) == 0 || o.Half() {
		return nil
	}
	bare := under(number("adv.eps", func(float64) float64 { return 0 }), c, o.Check)
	if bare == nil || len(bare.Want) != len(o.Got) {
		return nil
	}
	const enough = 6 // advantages that one fitted number explains
	var list []float64
	for i, a := range bare.Want {
		right, got := o.Pred.Want[i], o.Got[i]
		if (o.Pred.Judge == nil || o.Pred.Judge[i]) && math.Abs(right) > 1e-2 && got != 0 && !math.IsNaN(a+got) && !math.IsInf(a, 0) && a != 0 {
			list = append(list, 1+a*(1/got-1/right))
		}
	}
	if len(list) < enough {
		return nil
	}
	slices.Sort(list)
	k := list[len(list)/2]
	if !(k > 0) || math.Abs(k-1) < 1e-4 || math.IsInf(k, 0) || otherFreedom(c, k) {
		return nil
	}
	return []edit{{id: "ADV-SPREAD", title: fmt.Sprintf("the deviation that advantages are divided by is %.6g times the right one", k), changes: 1,
		predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction { return deviated(k, c, ch) }}}
}

// otherFreedom reports whether k is what n for n − 1 in the variance makes, or n − 1 for n: adv.ddof says that.
func otherFreedom(c *stage.Case, k float64) bool {
	n, _ := groupSize(c.B.Row("group_id"))
	for _, n := range []float64{float64(n), float64(c.B.Rows)} {
		if by := math.Sqrt((n - 1) / n); math.Abs(k-by) < 1e-3 || math.Abs(k-1/by) < 1e-3 {
			return true
		}
	}
	return false
}

// deviated predicts advantages whose deviation is k times the right one.
func deviated(k float64, c *stage.Case, ch *stage.Check) *stage.Prediction {
	p, bare := under(sameInput, c, ch), under(number("adv.eps", func(float64) float64 { return 0 }), c, ch)
	if p == nil || bare == nil || len(p.Want) != len(bare.Want) {
		return nil
	}
	q := altered(p)
	for i, w := range p.Want {
		if a := bare.Want[i]; w != 0 && a != 0 && !math.IsNaN(a) && !math.IsInf(a, 0) {
			y := 1 / (1/w + (k-1)/a)
			q.Bound[i] = 4*p.Bound[i]*math.Abs(y/w) + 1e-5*math.Abs(y) // k is known to about as much
			q.Want[i] = y
		}
	}
	return q
}

// titled is a number of every row with its name.
type titled struct {
	title string
	x     []float64
}

// besideRewards are the numbers of rows that a deviation may be taken of in place of their rewards: those of one reward function, their sum without weights, and
// the lengths.
func besideRewards(b *dump.Batch) (list []titled) {
	if t := b.Tensors["rewards_per_func"]; t != nil && t.Width >= 2 && len(t.Data) == b.Rows*t.Width && !slices.ContainsFunc(t.Data, math.IsNaN) {
		sum := make([]float64, b.Rows)
		for k := range t.Width {
			x := make([]float64, b.Rows)
			for r := range x {
				x[r] = t.Data[r*t.Width+k]
				sum[r] += x[r]
			}
			list = append(list, titled{fmt.Sprintf("the rewards of function %d alone", k+1), x})
		}
		list = append(list, titled{"the sum of the rewards of all functions without their weights", sum})
	}
	lengths := make([]float64, b.Rows)
	for i := range b.Tokens() {
		lengths[i/b.Cols]++
	}
	return append(list, titled{"the lengths of the responses", lengths})
}
