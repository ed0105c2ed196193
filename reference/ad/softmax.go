package ad

import (
	"math"
	"slices"
)

// The three functions below shift every row by its maximum, so that the
// largest exponent is 0. The shift is a constant: it cancels in the value and
// therefore has no derivative. A row that holds nothing but −Inf, or nothing at
// all, is dead: it assigns no probability. Its softmax is 0 everywhere, its
// logarithms are −Inf, and all derivatives there are exactly 0. (torch has NaN
// in such a row.) −Inf inside another row is an impossible outcome with
// probability 0 and derivative 0. A NaN makes its row NaN.

// shift returns along an axis, which stays as 1: the maximum of x as a
// constant, 0 where it is infinite; e^{x − max}; the sum of that, 1 where the row
// is dead; and which rows are dead.
func shift(x *Var, axis int) (max, e, sum *Var, dead Mask) {
	max = MaxReduce(Detach(x), true, axis)
	infinite := Mask{Shape: max.shape, On: make([]bool, len(max.data))}
	dead = Mask{Shape: max.shape, On: make([]bool, len(max.data))}
	for i, m := range max.data {
		infinite.On[i], dead.On[i] = math.IsInf(m, 0), math.IsInf(m, -1)
	}
	max = Where(infinite, x.tape.Scalar(0), max)
	e = Exp(Sub(x, max))
	sum = Where(dead, x.tape.Scalar(1), Sum(e, true, axis))
	return max, e, sum, dead
}

// LogSumExp returns ln Σ eˣ along one axis, which stays as 1 with keepdims and
// goes otherwise:
//
//	y = max x + ln Σ e^{x − max x}
//
// so that ẏ = Σ softmax(x)·ẋ. A row of nothing but −Inf, or an empty one,
// gives −Inf and the derivative 0, a row with +Inf gives +Inf.
func LogSumExp(x *Var, keepdims bool, axis int) *Var {
	max, _, sum, dead := shift(x, axis)
	y := Where(dead, x.tape.Scalar(math.Inf(-1)), Add(max, Log(sum)))
	if keepdims {
		return y
	}
	kept, gone := reduced("logsumexp", x.shape, []int{axis})
	return Reshape(y, squeezed(kept, gone, false)...)
}

// LogSoftmax returns the logarithms of [Softmax] along one axis:
//
//	y = (x − max x) − ln Σ e^{x − max x}
//
// so that ẏ = ẋ − Σ softmax(x)·ẋ. A row of nothing but −Inf gives −Inf and the
// derivative 0.
func LogSoftmax(x *Var, axis int) *Var {
	max, _, sum, dead := shift(x, axis)
	y := Sub(Sub(x, max), Log(sum))
	if slices.Contains(dead.On, true) {
		y = Where(dead, x.tape.Scalar(math.Inf(-1)), y)
	}
	return y
}

// Softmax returns the probabilities with logits x along one axis:
//
//	y = e^{x − max x} / Σ e^{x − max x}
//
// so that ẏ = y·(ẋ − Σ y·ẋ). A row of nothing but −Inf, as a fully masked row
// of attention, gives 0 everywhere and the derivative 0.
func Softmax(x *Var, axis int) *Var {
	_, e, sum, _ := shift(x, axis)
	return Div(e, sum)
}
