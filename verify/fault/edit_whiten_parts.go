package fault

import (
	"math"
	"slices"

	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// whitenedParts are the sets of tokens that a program may whiten over, beside those that an option has.
var whitenedParts = []struct {
	name, title string
	of          func(c *stage.Case, row int) int
}{
	{"row", "every response by itself", func(_ *stage.Case, row int) int { return row }},
	{"group", "every group by itself", func(c *stage.Case, row int) int { return int(c.B.Row("group_id")[row]) }},
	{"file", "every micro-batch by itself", func(c *stage.Case, row int) int { return c.B.File(row) }},
}

// partEdits returns edits in which the tokens of a part of the step are whitened by themselves.
func partEdits(o *stage.Outcome) []edit {
	c := o.Case.Of(o.Case.B, o.Case.Set)
	scope := c.Set.Value("whiten.scope")
	if o.Check.Output != "advantages" || scope.Kind() != convention.Enum || scope.Text() == "none" || o.Half() {
		return nil
	}
	eps, ddof := numberOr(c, "whiten.eps", 0), numberOr(c, "whiten.ddof", 0)
	var list []edit
	for _, part := range whitenedParts {
		if scope.Text() == part.name || part.name == "file" && scope.Text() == "minibatch" || part.name == "group" && c.B.Row("group_id") == nil {
			continue // it is what is declared
		}
		for _, spread := range []struct {
			name, title string
			ddof        float64
		}{{"std0", "with the deviation of n", 0}, {"std1", "with the deviation of n − 1", 1}} {
			for _, inside := range []bool{false, true} {
				title, changes := "whitening: "+part.title, 1
				if spread.ddof != ddof {
					title, changes = title+", "+spread.title, 2
				}
				list = append(list, edit{id: "WHITEN-SCOPE", title: title, changes: changes,
					predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
						return whitenedIn(c, ch, part.of, spread.name, eps, inside)
					}})
			}
		}
	}
	return list
}

// whitenedIn predicts advantages whose parts are whitened each by itself. A part of fewer than two tokens has no deviation that programs agree
// on, and is not judged.
func whitenedIn(c *stage.Case, ch *stage.Check, part func(*stage.Case, int) int, spread string, eps float64, inside bool) *stage.Prediction {
	raw := under(notWhitened, c, ch)
	if raw == nil || len(raw.Want) != len(c.B.Mask) || c.B.Cols == 0 {
		return nil
	}
	cells := map[int][]int{}
	for i, in := range c.B.Mask {
		if in {
			k := part(c, i/c.B.Cols)
			cells[k] = append(cells[k], i)
		}
	}
	p := *raw
	p.Want, p.Bound, p.Alt, p.Scale = slices.Clone(raw.Want), slices.Clone(raw.Bound), nil, 1
	p.Judge = make([]bool, len(raw.Want))
	for _, own := range cells {
		var size, most float64
		for _, i := range own {
			size, most = max(size, math.Abs(raw.Want[i])), max(most, raw.Bound[i])
		}
		s := spreadOf(spread, raw.Want, own)
		if inside {
			s = math.Sqrt(float64(s*s) + eps)
		} else {
			s += eps
		}
		if len(own) < 2 || !(s > 0) {
			continue
		}
		m := centreOf("mean", raw.Want, own, own[0])
		for _, i := range own {
			a := (raw.Want[i] - m) / s
			p.Want[i], p.Judge[i] = a, raw.Judge == nil || raw.Judge[i]
			p.Bound[i] = (2*most+16*c.Unit*size)/s*(1+math.Abs(a)) + 8*c.Unit*math.Abs(a)
		}
	}
	return &p
}
