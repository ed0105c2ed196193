package fault

import (
	"fmt"
	"math"
	"slices"

	"plumbline/verify/stage"
)

// gridStep returns the number that all judged ones of an output are whole multiples of, 0 where there is none: where it is less than a 512th of the largest, as that
// of a number format, or the numbers are fewer than three. Of integers of 8 bits it is a 127th of the largest.
func gridStep(o *stage.Outcome) float64 {
	const most, several, near = 512, 3, 1e-3
	var sizes []float64
	for i, x := range o.Got {
		if x != 0 && !math.IsNaN(x-x) && (o.Pred.Judge == nil || o.Pred.Judge[i]) && (o.Pred.Judge != nil || len(o.Got) != len(o.Case.B.Mask) || o.Case.B.Mask[i]) {
			sizes = append(sizes, math.Abs(x))
		}
	}
	slices.Sort(sizes)
	distinct := slices.CompactFunc(slices.Clone(sizes), func(a, b float64) bool { return math.Abs(b-a) <= 1e-6*math.Abs(b) })
	if len(distinct) < several {
		return 0
	}
	step := distinct[0]
	for k := 1; k < len(distinct); k++ {
		step = min(step, distinct[k]-distinct[k-1])
	}
	largest := distinct[len(distinct)-1]
	if !(largest <= most*step) {
		return 0
	}
	step = largest / math.Round(largest/step) // the largest tells it to the most digits
	for _, x := range distinct {
		if n := math.Round(x / step); math.Abs(x-n*step) > near*step {
			return 0
		}
	}
	return step
}

// steppedBy are the functions that leave whole multiples of a step.
func steppedBy(step float64) []function {
	if step == 0 || step == 1 { // whole numbers are among the functions
		return nil
	}
	by := func(round func(float64) float64) func(x float64) float64 {
		return func(x float64) float64 { return step * round(x/step) }
	}
	return []function{
		{fmt.Sprintf("x rounded to multiples of %.6g", step), by(math.RoundToEven), 1, false},
		{fmt.Sprintf("x rounded down to multiples of %.6g", step), by(math.Floor), 1, false},
		{fmt.Sprintf("x cut off to multiples of %.6g", step), by(math.Trunc), 1, false},
	}
}
