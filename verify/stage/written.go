package stage

import (
	"math"
	"strconv"

	"plumbline/verify/convention"
)

// Unwritten reports whether a fit of a run that declares nothing has a number that was solved for and that nobody writes:
//
//   - an ε of a deviation a hundred times the largest that any framework has, 1e-4 for a group and 1e-5 for whitening
//   - bounds 1 − e^{−x} and e^y − 1 of a ratio, with x and y of two digits: what was bounded is the log-ratio, by x and y
//   - a γ or λ of more than four digits, but for one near 1: a product or a quotient of two numbers that are written
//
// It fits the numbers, and is what a bug makes of other ones.
func (f Fit) Unwritten() bool {
	solved := map[string]float64{}
	for _, c := range f.Changes {
		if !c.From.Known() && c.To.Kind() == convention.Number {
			solved[c.Option] = c.To.Num()
		}
	}
	if solved["adv.eps"] >= 1e-2 || solved["whiten.eps"] >= 1e-3 {
		return true
	}
	for _, name := range []string{"gae.gamma", "gae.lambda"} {
		if x := solved[name]; x > 0 && x < 0.999 && !hasDigits(x, 4, 1e-5) {
			return true
		}
	}
	if g, l := solved["gae.gamma"], solved["gae.lambda"]; g > 0 && l > 0 && ofWritten(g, g*l) {
		return true
	}
	low, high := solved["clip.low"], solved["clip.high"]
	return low > 0 && low < 1 && high > 0 && !hasDigits(low, 3, 1e-4) && !hasDigits(high, 3, 1e-4) && hasDigits(-math.Log1p(-low), 2, 1e-4) && hasDigits(math.Log1p(high), 2, 1e-4)
}

// hasDigits reports whether a number has n digits, up to a share of itself.
func hasDigits(x float64, n int, share float64) bool {
	return math.Abs(short(x, n)-x) <= share*math.Abs(x)
}

// short is a number to n digits.
func short(x float64, n int) float64 {
	y, err := strconv.ParseFloat(strconv.FormatFloat(x, 'e', n-1, 64), 64)
	if err != nil {
		return math.NaN()
	}
	return y
}
