package stage

import "math"

// ofStrays is the first of the aggregations that no configuration has.
const ofStrays = ofGenerations + 1 + 1<<10

// strayReduction is a reduction that a bug makes of a right one, against which the loss is wrong: the rest of it, its bounds and coefficients, is solved for as that
// of a right one is.
type strayReduction struct {
	right   int    // aggregation
	id      string // of [misdivision], or ""
	weight  func(row *boundRow) float64
	columns bool // means of columns first
	factor  func(n *boundCounts) float64
}

func tokensOf(row *boundRow) float64 { return float64(row.hi - row.lo) }

// strayReductions are tried in this order.
var strayReductions = func() (list []strayReduction) {
	ofFile := func(n *boundCounts) float64 { return 1 / n.rows }
	ofStep := func(n *boundCounts) float64 { return n.world / n.rowsOfStep }
	whole := func(*boundCounts) float64 { return 1 }
	tokens := func(right int, by func(n *boundCounts) float64) {
		list = append(list, strayReduction{right: right, factor: func(n *boundCounts) float64 { return 1 / by(n) }})
	}
	tokens(ofTokens, func(n *boundCounts) float64 { return n.tokens - n.rows }) // labels that were shifted, and not cut
	tokens(ofTokens, func(n *boundCounts) float64 { return n.tokens + n.rows })
	tokens(ofTokensGlobal, func(n *boundCounts) float64 { return (n.ofStep - n.rowsOfStep) / n.world })
	tokens(ofTokensGlobal, func(n *boundCounts) float64 { return (n.ofStep + n.rowsOfStep) / n.world })
	list = append(list, strayReduction{right: ofTokensGlobal, id: "AGG-GA-TWICE", factor: func(n *boundCounts) float64 {
		if n.steps == n.world { // a mean over the tokens of all ranks whose gradients are summed is no bug
			return math.NaN()
		}
		return n.world / n.ofStep / n.steps
	}})
	tokens(ofRowsGlobal, func(n *boundCounts) float64 { return n.longest * n.rowsOfStep / n.world })
	tokens(ofRows, func(n *boundCounts) float64 { return n.longest * n.rows })
	tokens(ofTokensGlobal, func(n *boundCounts) float64 { return n.ofRank / n.world }) // the tokens of the rank for those of all
	for _, by := range []func(row *boundRow) float64{
		func(row *boundRow) float64 { return max(tokensOf(row)-1, 1) },
		func(row *boundRow) float64 { return tokensOf(row) + 1 },
		func(row *boundRow) float64 { return tokensOf(row) + row.prompt },
		func(row *boundRow) float64 { return tokensOf(row) * tokensOf(row) },
	} {
		weight := func(row *boundRow) float64 { return 1 / by(row) }
		list = append(list, strayReduction{right: ofRows, weight: weight, factor: ofFile}, strayReduction{right: ofRowsGlobal, weight: weight, factor: ofStep})
	}
	return append(list, strayReduction{right: ofTokens, columns: true, factor: whole})
}()

// strays are the stray reductions that the files tell of, each of a right one that is another.
func (t *boundTokens) strays() (kinds []int) {
	for k, s := range strayReductions {
		kind, told := ofStrays+k, true
		for _, w := range t.weights(kind) {
			told = told && !math.IsNaN(w)
		}
		for f := range t.files {
			x := t.factor(&t.files[f], kind)
			told = told && x > 0 && !math.IsInf(x, 0)
		}
		if told && (s.weight != nil || s.columns || !t.alike(kind, s.right)) {
			kinds = append(kinds, kind)
		}
	}
	return kinds
}
