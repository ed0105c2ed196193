package fault

import (
	"fmt"
	"math"
	"slices"

	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// mostSolved is the most tokens of which bounds are tried against a loss.
const mostSolved = 1 << 16

// lowerBounds and upperBounds are bounds of the ratio that people write of clip.low and clip.high, of which a program may have any with any.
var lowerBounds = []struct {
	title string
	of    func(low, high float64) float64
}{
	{"1 − clip.low", func(low, _ float64) float64 { return 1 - low }}, {"e to the −clip.low", func(low, _ float64) float64 { return math.Exp(-low) }},
	{"e to the −clip.low/2", func(low, _ float64) float64 { return math.Exp(-low / 2) }}, {"e to the −2·clip.low", func(low, _ float64) float64 { return math.Exp(-2 * low) }},
	{"1 − clip.low/2", func(low, _ float64) float64 { return 1 - low/2 }}, {"1 − 2·clip.low", func(low, _ float64) float64 { return 1 - 2*low }},
	{"1/(1 + clip.low)", func(low, _ float64) float64 { return 1 / (1 + low) }}, {"1/(1 + clip.high)", func(_, high float64) float64 { return 1 / (1 + high) }},
	{"1 − clip.high", func(_, high float64) float64 { return 1 - high }},
}

var upperBounds = []struct {
	title string
	of    func(low, high float64) float64
}{
	{"1 + clip.high", func(_, high float64) float64 { return 1 + high }}, {"e to the clip.high", func(_, high float64) float64 { return math.Exp(high) }},
	{"e to the clip.high/2", func(_, high float64) float64 { return math.Exp(high / 2) }}, {"e to the 2·clip.high", func(_, high float64) float64 { return math.Exp(2 * high) }},
	{"1 + clip.high/2", func(_, high float64) float64 { return 1 + high/2 }}, {"1 + 2·clip.high", func(_, high float64) float64 { return 1 + 2*high }},
	{"1/(1 − clip.high)", func(_, high float64) float64 { return 1 / (1 - high) }}, {"1/(1 − clip.low)", func(low, _ float64) float64 { return 1 / (1 - low) }},
	{"1 + clip.low", func(low, _ float64) float64 { return 1 + low }},
}

// boundPairs returns edits of a clipped objective with two bounds that are each made in its own way, of losses that do not show the bounds of their tokens.
func boundPairs(o *stage.Outcome) (list []edit) {
	if o.Check.Stage != convention.Aggregate || len(o.Case.B.Mask) > mostSolved {
		return nil
	}
	declared := boundsOf(o.Case)
	for i, lo := range lowerBounds {
		for j, hi := range upperBounds {
			x, y := lo.of(declared.low, declared.high), hi.of(declared.low, declared.high)
			if !(x < y) || !(x > 0) || math.IsInf(y, 0) || i == 0 || j == 0 { // one that is right has an edit of its own
				continue
			}
			f := surrogateForm{surrogate: rightSurrogate()}
			f.lo, f.hi = lo.of, hi.of
			if nearBy(o, f.predict(o.Case.Of(o.Case.B, o.Case.Set), o.Check)) {
				list = append(list, edit{id: "CLIP-BOUND", title: "the ratio is held by other bounds: they are " + lo.title + " and " + hi.title, changes: 1, predict: f.predict})
			}
		}
	}
	return list
}

// solvedSides are the sides of a clipped objective that one number may hold.
var solvedSides = []struct {
	title, id string
	set       func(f *surrogateForm, x float64)
}{
	{"the ratio of positive advantages is at most %g", "CLIP-BOUND", func(f *surrogateForm, x float64) { f.hi = func(_, _ float64) float64 { return x } }},
	{"the ratio of negative advantages is at least %g", "CLIP-BOUND", func(f *surrogateForm, x float64) { f.lo = func(_, _ float64) float64 { return x } }},
}

// boundSolved returns the edits of a clipped objective of which one bound is a number that people write, with the dual clip or without, of losses of at least two
// micro-batches: the first of them gives the number, since a loss falls with each bound, and the others have to agree.
func boundSolved(o *stage.Outcome) (list []edit) {
	const least, steps = 2, 60 // losses, and halvings
	c := o.Case.Of(o.Case.B, o.Case.Set)
	if o.Check.Stage != convention.Aggregate || len(c.B.Mask) > mostSolved || len(o.Got) < least || o.Half() {
		return nil
	}
	declared := boundsOf(o.Case)
	for k, side := range solvedSides {
		for _, dual := range []bool{true, false} {
			if !dual && declared.dual == 0 {
				continue
			}
			with := func(x float64) surrogateForm {
				f := surrogateForm{surrogate: rightSurrogate()}
				side.set(&f, x)
				if !dual {
					f.dual = func(float64) bool { return false }
				}
				return f
			}
			worst := 0 // the loss that the declared bounds miss by most
			for i := range o.Got {
				if math.Abs(o.Got[i]-o.Pred.Want[i]) > math.Abs(o.Got[worst]-o.Pred.Want[worst]) {
					worst = i
				}
			}
			off := func(x float64) float64 {
				p := with(x).predict(c, o.Check)
				if p == nil || len(p.Want) != len(o.Got) {
					return math.NaN()
				}
				return p.Want[worst] - o.Got[worst]
			}
			lo, hi := 0.05, 4.0
			a, b := off(lo), off(hi)
			if math.IsNaN(a) || math.IsNaN(b) || (a > 0) == (b > 0) {
				continue
			}
			for range steps {
				mid := (lo + hi) / 2
				if (off(mid) > 0) == (a > 0) {
					lo = mid
				} else {
					hi = mid
				}
			}
			x := rounded((lo+hi)/2, 3)
			if f := with(x); math.Abs(x-(lo+hi)/2) > 2e-4 || x == 1+declared.high && k == 0 && dual || x == 1-declared.low && k == 1 && dual || !nearBy(o, f.predict(c, o.Check)) {
				continue
			}
			title := "the ratio is held by another bound: " + fmt.Sprintf(side.title, x)
			if !dual {
				title += ", and the dual clip is left out"
			}
			list = append(list, edit{id: side.id, title: title, changes: 1, own: true, predict: with(x).predict})
		}
	}
	return slices.Clip(list)
}
