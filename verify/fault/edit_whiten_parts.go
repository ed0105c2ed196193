package fault

import (
	"math"
	"slices"

	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// whitenedParts are the sets of tokens that a program may whiten over, beside those that an option has.
var whitenedParts = []struct {
	name, id, title string
	of              func(c *stage.Case, row, col int) int
}{
	{"row", "WHITEN-SCOPE", "every response by itself", func(_ *stage.Case, row, _ int) int { return row }},
	{"group", "WHITEN-SCOPE", "every group by itself", func(c *stage.Case, row, _ int) int { return int(c.B.Row("group_id")[row]) }},
	{"file", "WHITEN-SCOPE", "every micro-batch by itself", func(c *stage.Case, row, _ int) int { return c.B.File(row) }},
	{"column", "WHITEN-WRONG-AXIS", "every column by itself", func(c *stage.Case, _, col int) int { return col }},
	{"column of a file", "WHITEN-WRONG-AXIS", "every column of each micro-batch by itself", func(c *stage.Case, row, col int) int { return c.B.File(row)*c.B.Cols + col }},
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
		if scope.Text() == part.name || part.name == "file" && scope.Text() == "minibatch" || part.name == "group" && c.B.Row("group_id") == nil || part.name == "column of a file" && len(c.B.Files) == 1 {
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
				list = append(list, edit{id: part.id, title: title, changes: changes,
					predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
						return whitenedIn(c, ch, part.of, part.of, spread.name, eps, inside)
					}})
				for _, half := range []struct {
					title      string
					mean, rest bool
				}{{", for the mean alone", true, false}, {", for the deviation alone", false, true}} {
					list = append(list, edit{id: part.id, title: title + half.title, changes: changes,
						predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
							together := runsOf(c)
							mean, deviation := together, together
							if half.mean {
								mean = part.of
							} else {
								deviation = part.of
							}
							return whitenedIn(c, ch, mean, deviation, spread.name, eps, inside)
						}})
				}
			}
		}
	}
	return list
}

// runsOf returns the part that a row is whitened with as declared.
func runsOf(c *stage.Case) func(c *stage.Case, row, col int) int {
	runs := whitenedTogether(c)
	return func(_ *stage.Case, row, _ int) int {
		return slices.IndexFunc(runs, func(run [2]int) bool { return run[0] <= row && row < run[1] })
	}
}

// whitenedIn predicts advantages that are whitened with the mean of one part and the deviation of another. A part of fewer than two tokens has no
// deviation that programs agree on, and is not judged.
func whitenedIn(c *stage.Case, ch *stage.Check, mean, deviation func(c *stage.Case, row, col int) int, spread string, eps float64, inside bool) *stage.Prediction {
	raw := under(notWhitened, c, ch)
	if raw == nil || len(raw.Want) != len(c.B.Mask) || c.B.Cols == 0 {
		return nil
	}
	partsOf := func(of func(c *stage.Case, row, col int) int) map[int][]int {
		cells := map[int][]int{}
		for i := range c.B.Tokens() {
			k := of(c, i/c.B.Cols, i%c.B.Cols)
			cells[k] = append(cells[k], i)
		}
		return cells
	}
	type number struct{ x, e float64 } // with the largest error of what it is of
	largest := func(own []int) (size, most float64) {
		for _, i := range own {
			size, most = max(size, math.Abs(raw.Want[i])), max(most, raw.Bound[i])
		}
		return size, most
	}
	means, deviations := make([]number, len(raw.Want)), make([]number, len(raw.Want))
	for _, own := range partsOf(mean) {
		size, most := largest(own)
		m := number{centreOf("mean", raw.Want, own, own[0]), most + 8*c.Unit*size}
		for _, i := range own {
			means[i] = m
		}
	}
	for _, own := range partsOf(deviation) {
		s := spreadOf(spread, raw.Want, own)
		if inside {
			s = math.Sqrt(float64(s*s) + eps)
		} else {
			s += eps
		}
		if len(own) < 2 || !(s > 0) {
			continue
		}
		size, most := largest(own)
		for _, i := range own {
			deviations[i] = number{s, most + 8*c.Unit*size}
		}
	}
	p := altered(raw)
	p.Scale = 1
	p.Judge = make([]bool, len(raw.Want))
	for i, s := range deviations {
		if s.x == 0 || !c.B.Mask[i] {
			continue
		}
		a := (raw.Want[i] - means[i].x) / s.x
		p.Want[i], p.Judge[i] = a, raw.Judge == nil || raw.Judge[i]
		p.Bound[i] = 2*(means[i].e+s.e*math.Abs(a))/s.x + 8*c.Unit*math.Abs(a)
	}
	return p
}
