package fault

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// numberFunctions are what programs make of a number of their configuration that stands for itself. A number that changes over the run, as an adapted
// coefficient does, is told by them and by no one number.
var numberFunctions = []struct {
	title string
	of    func(v float64) float64
}{
	{"the square of %s", func(v float64) float64 { return v * v }},
	{"the root of %s", math.Sqrt},
	{"1/%s", func(v float64) float64 { return 1 / v }},
	{"1 − %s", func(v float64) float64 { return 1 - v }},
	{"1 + %s", func(v float64) float64 { return 1 + v }},
	{"%s − 1", func(v float64) float64 { return v - 1 }},
	{"e to the %s", math.Exp},
	{"ln %s", math.Log},
}

// numberFunctionEdits returns edits in which a function of a number stands where the number itself should.
func numberFunctionEdits(o *stage.Outcome) []edit {
	switch o.Check.Stage {
	case convention.Reward, convention.Advantage, convention.Ratio, convention.TokenLoss, convention.Aggregate, convention.Gradient:
	default:
		return nil
	}
	var list []edit
	for _, name := range o.Case.Read {
		v := o.Case.Set.Value(name)
		if v.Kind() != convention.Number || v.Num() == 0 || strings.HasSuffix(name, "eps") || strings.HasSuffix(name, "ddof") {
			continue
		}
		var others []float64
		for _, f := range numberFunctions {
			x := f.of(v.Num())
			if math.IsNaN(x) || math.IsInf(x, 0) || x == v.Num() || slices.Contains(others, x) {
				continue
			}
			others = append(others, x)
			list = append(list, edit{id: optionID(name, "OTHER-OPTION"), title: fmt.Sprintf(f.title, name) + " stands where " + name + " should",
				changes: mostChanges, predict: guarded(number(name, f.of))}) // a form says more
		}
	}
	return list
}
