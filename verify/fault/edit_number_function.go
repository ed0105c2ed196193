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

// coefficientEdits returns edits in which a multiple of a coefficient stands in its place, where what it multiplies is normalised afterwards, so that it cannot be solved
// for. Of an estimate that is never below 0, as k3, half of the coefficient is half of the estimate.
func coefficientEdits(o *stage.Outcome) []edit {
	const name = "kl.beta"
	if v := o.Case.Set.Value(name); o.Check.ID != "reward/token" || v.Kind() != convention.Number || v.Num() == 0 || !slices.Contains(o.Case.Read, name) {
		return nil
	}
	var list []edit
	for _, m := range []struct {
		words string
		by    float64
	}{{"half of ", 0.5}, {"twice ", 2}, {"a tenth of ", 0.1}, {"ten times ", 10}} {
		list = append(list, edit{id: optionID(name, "OTHER-OPTION"), title: m.words + name + " stands where " + name + " should", changes: 1, number: true,
			predict: guarded(number(name, func(v float64) float64 { return m.by * v }))})
	}
	return list
}

// numberFunctionEdits returns edits in which a function of a number stands where the number itself should.
func numberFunctionEdits(o *stage.Outcome) []edit {
	if !slices.Contains([]convention.Stage{convention.Reward, convention.Advantage, convention.Ratio, convention.TokenLoss, convention.Aggregate, convention.Gradient}, o.Check.Stage) {
		return nil
	}
	list := coefficientEdits(o)
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
