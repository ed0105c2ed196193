package fault

import (
	"math"
	"slices"

	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// whitenedSubsets are some of the rows that are whitened together, of which a program may take the statistics for all; of their tokens alone those that token says,
// if it is there, by their place among the n of the row.
var whitenedSubsets = []struct {
	title string
	rows  func(c *stage.Case, lo, hi int) []int
	token func(k, n int) bool
}{
	{"the first rank", func(c *stage.Case, lo, hi int) []int { return rowsOfOneRank(c, lo, hi, slices.Min[[]int]) }, nil},
	{"the last rank", func(c *stage.Case, lo, hi int) []int { return rowsOfOneRank(c, lo, hi, slices.Max[[]int]) }, nil},
	{"the first half of the responses", func(c *stage.Case, lo, hi int) []int { r := rowsByPlace(c, lo, hi); return r[:len(r)/2] }, nil},
	{"the second half of the responses", func(c *stage.Case, lo, hi int) []int { r := rowsByPlace(c, lo, hi); return r[len(r)/2:] }, nil},
	{"the first micro-batch", func(c *stage.Case, lo, hi int) []int { return rowsOfOneFile(c, lo, hi, c.B.File(lo)) }, nil},
	{"the last micro-batch", func(c *stage.Case, lo, hi int) []int { return rowsOfOneFile(c, lo, hi, c.B.File(hi-1)) }, nil},
	{"the first tokens of the responses", rowsByPlace, func(k, _ int) bool { return k == 0 }},
	{"the last tokens of the responses", rowsByPlace, func(k, n int) bool { return k == n-1 }},
}

// rowsByPlace returns the rows from lo to hi in the order of their samples.
func rowsByPlace(c *stage.Case, lo, hi int) []int {
	return slices.DeleteFunc(byPlace(c.B), func(r int) bool { return r < lo || r >= hi })
}

func rowsOfOneFile(c *stage.Case, lo, hi, file int) []int {
	return slices.DeleteFunc(inOrder(c.B.Rows), func(r int) bool { return r < lo || r >= hi || c.B.File(r) != file })
}

func rowsOfOneRank(c *stage.Case, lo, hi int, which func([]int) int) []int {
	rank := func(r int) int { return c.B.Files[c.B.File(r)].Rank }
	ranks := make([]int, 0, hi-lo)
	for r := lo; r < hi; r++ {
		ranks = append(ranks, rank(r))
	}
	one := which(ranks)
	return slices.DeleteFunc(inOrder(c.B.Rows), func(r int) bool { return r < lo || r >= hi || rank(r) != one })
}

// whitenedSubsetEdits returns edits of whitening whose mean, deviation or both are those of a part of the tokens that it is over.
func whitenedSubsetEdits(o *stage.Outcome) (list []edit) {
	c := o.Case.Of(o.Case.B, o.Case.Set)
	scope := c.Set.Value("whiten.scope")
	if o.Check.Output != "advantages" || scope.Kind() != convention.Enum || scope.Text() == "none" || scope.Text() == "row" || o.Half() || c.B.Rows < 2 {
		return nil
	}
	raw := under(notWhitened, c, o.Check)
	for k, set := range whitenedSubsets {
		for _, f := range whitenForms(numberOr(c, "whiten.eps", 0)) {
			of := func(c *stage.Case, raw *stage.Prediction) *stage.Prediction { return whitenedBySubset(c, raw, k, f) }
			if !nearBy(o, of(c, raw)) {
				continue
			}
			what := map[[2]bool]string{{true, true}: "mean and deviation of all are those", {true, false}: "the mean of all is that", {false, true}: "the deviation of all is that"}[[2]bool{f.mean, f.variance}]
			list = append(list, edit{id: "WHITEN-SCOPE", title: "whitening: " + what + " of " + set.title + " alone", changes: 1, foreign: true,
				predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction { return of(c, under(notWhitened, c, ch)) }})
		}
	}
	return list
}

func whitenedBySubset(c *stage.Case, raw *stage.Prediction, set int, f whitenForm) *stage.Prediction {
	if raw == nil || len(raw.Want) != len(c.B.Mask) || c.B.Cols == 0 {
		return nil
	}
	p := altered(raw)
	p.Scale = 1
	for _, run := range whitenedTogether(c) {
		var all, some []float64
		var size, most float64
		rows := whitenedSubsets[set].rows(c, run[0], run[1])
		for r := run[0]; r < run[1]; r++ {
			in, own := slices.Contains(rows, r), slices.Collect(c.B.TokensOf(r))
			for k, i := range own {
				x := raw.Want[i]
				if all = append(all, x); in && (whitenedSubsets[set].token == nil || whitenedSubsets[set].token(k, len(own))) {
					some = append(some, x)
				}
				size, most = max(size, math.Abs(x)), max(most, raw.Bound[i])
			}
		}
		if len(some) == len(all) || len(some) < 2 || !f.put(p, raw, c, run, all, some, most, size) {
			return nil
		}
	}
	return p
}
