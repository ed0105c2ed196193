package fault

import (
	"slices"
	"strings"

	"plumbline/internal/format/dump"
	"plumbline/verify/stage"
)

// addPowers adds the factors of programs that divide by a count twice, or multiply by one where they should divide.
func (p *reductionParts) addPowers(b *dump.Batch, add func(list *[]part, what string, x []float64)) {
	const rows, tokens = "the rows of the step", "the tokens of the micro-batch"
	const rowsOfFile = "the rows of the micro-batch"
	for _, k := range p.count[1:] {
		once, squared := make([]float64, b.Rows), make([]float64, b.Rows)
		for r, x := range k.x {
			once[r], squared[r] = 1/x, float64(x*x)
		}
		if strings.HasPrefix(k.what, "the cells of") || slices.Contains([]string{rowsOfFile, tokens, rows}, k.what) {
			add(&p.factor, "1/("+k.what+")", once)
		}
		if slices.Contains([]string{tokens, "the tokens of the step", "num_items_in_batch", rows, rowsOfFile}, k.what) {
			add(&p.factor, "the square of "+k.what+", as if the product stood for the quotient", squared)
		}
	}
}

// ofItsGroup begins the words of counts that make a mean over groups of the means over each.
const ofItsGroup = "the number of groups times "

// addGroups adds the counts of programs that take the mean of every group and then the mean of these, so that a token of a small group counts
// more: n tokens of each row, the groups id.
func (p *reductionParts) addGroups(b *dump.Batch, id, n []float64, add func(list *[]part, what string, x []float64)) {
	type place struct {
		file  int
		group float64
	}
	rows, tokens, groups := map[place]float64{}, map[place]float64{}, map[int]float64{}
	const step = -1
	for r, g := range id {
		for _, f := range []int{step, b.File(r)} {
			at := place{f, g}
			if rows[at] == 0 {
				groups[f]++
			}
			rows[at]++
			tokens[at] += n[r]
		}
	}
	for _, where := range []string{"step", "micro-batch"} {
		byRows, byTokens := make([]float64, b.Rows), make([]float64, b.Rows)
		for r, g := range id {
			f := step
			if where != "step" {
				f = b.File(r)
			}
			byRows[r], byTokens[r] = groups[f]*rows[place{f, g}], groups[f]*max(tokens[place{f, g}], 1)
		}
		add(&p.count, ofItsGroup+"the tokens of its own, of the "+where, byTokens)
		add(&p.count, ofItsGroup+"the rows of its own, of the "+where, byRows)
	}
}

// inverseSquares returns 1/w² of the weight w that a token of every row has in the right reduction: what makes w its inverse.
func inverseSquares(c *stage.Case) []float64 {
	w := rowWeights(c)
	for r, x := range w {
		if w[r] = 1; x != 0 {
			w[r] = 1 / float64(x*x)
		}
	}
	return w
}

// productForQuotient is the edit of a sum that is multiplied by what it should be divided by.
func productForQuotient() edit {
	return edit{id: "AGG-DENOMINATOR", title: "the sum is multiplied by what it should be divided by", changes: 1,
		predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			by := inverseSquares(c)
			if by == nil {
				return nil
			}
			return weighted(c.B, c, ch, by)
		}}
}

// odd counts the parts of a choice that are not declared and that hardly anybody writes: counts that are off by one, squares, and inverses of counts.
func (p *reductionParts) odd(from, at choice) (n int) {
	for _, x := range []struct {
		list    []part
		was, is int
	}{{p.keep, from.keep, at.keep}, {p.length, from.length, at.length}, {p.count, from.count, at.count}, {p.factor, from.factor, at.factor}} {
		if what := x.list[x.is].what; x.was != x.is && slices.ContainsFunc([]string{" + ", " − ", "one more", "one fewer", "square", "without its last", "1/(", "at least", "at most", "groups times"},
			func(odd string) bool { return strings.Contains(what, odd) }) {
			n++
		}
	}
	return n
}
