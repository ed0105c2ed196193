package fault

import (
	"fmt"
	"math"

	"plumbline/verify/stage"
)

// rowNumbers are the numbers of a row's advantages that programs give all of its tokens, beside means and sums.
var rowNumbers = []struct {
	title string
	of    func(x []float64) float64
}{
	{"the first", func(x []float64) float64 { return x[0] }},
	{"the last", func(x []float64) float64 { return x[len(x)-1] }},
}

// rowNumberEdits returns edits of advantages of tokens that are all one number of their row: before they are whitened, or after it.
func rowNumberEdits(o *stage.Outcome) (list []edit) {
	c := o.Case.Of(o.Case.B, o.Case.Set)
	if o.Check.ID != "gae/advantage" || len(o.Got) != len(c.B.Mask) || !oneNumberARow(c, o.Got) {
		return nil
	}
	white := c.EnumOr("whiten.scope", "none") != "none"
	for _, f := range rowNumbers {
		list = append(list, edit{id: "ADV-BROADCAST", title: fmt.Sprintf("the advantage of every token is %s of those of its row", f.title), changes: 1,
			predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
				return numberARow(f.of, under(sameInput, c, ch), c)
			}})
		if white {
			list = append(list, edit{id: "ADV-BROADCAST", title: fmt.Sprintf("the advantage of every token is %s of those of its row, before they are whitened", f.title), changes: 1,
				predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
					p := numberARow(f.of, under(notWhitened, c, ch), c)
					if p == nil {
						return nil
					}
					return whitenedFrom(p, nil, c, ch)
				}})
		}
	}
	return list
}

// oneNumberARow reports whether all tokens of a row have one number, and some rows have several tokens.
func oneNumberARow(c *stage.Case, x []float64) (several bool) {
	for r := range c.B.Rows {
		first := firstOf(c.B, r)
		for i := range c.B.TokensOf(r) {
			if math.Abs(x[i]-x[first]) > 1e-6*math.Abs(x[first]) {
				return false
			}
			several = several || i > first
		}
	}
	return several
}

// numberARow predicts advantages each of which is one of those of its row.
func numberARow(of func(x []float64) float64, p *stage.Prediction, c *stage.Case) *stage.Prediction {
	if p == nil || len(p.Want) != len(c.B.Mask) {
		return nil
	}
	q := altered(p)
	for r := range c.B.Rows {
		var x, bounds []float64
		for i := range c.B.TokensOf(r) {
			x, bounds = append(x, p.Want[i]), append(bounds, p.Bound[i])
		}
		for i := range c.B.TokensOf(r) {
			q.Want[i], q.Bound[i] = of(x), of(bounds)
		}
	}
	return q
}
