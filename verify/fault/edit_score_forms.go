package fault

import (
	"fmt"
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// shapedScore is what a program makes of the scores s of a step before they stand in rewards; nil where it makes nothing of these.
type shapedScore struct {
	id, title string
	of        func(c *stage.Case, s []float64) []float64
}

// byParts applies f to the scores of every part by itself: to those of each file, or to all.
func byParts(files bool, f func(s []float64) []float64) func(c *stage.Case, s []float64) []float64 {
	return func(c *stage.Case, s []float64) []float64 {
		if !files {
			return f(s)
		}
		if len(c.B.Files) < 2 {
			return nil
		}
		y := make([]float64, len(s))
		for _, file := range c.B.Files {
			copy(y[file.Lo:file.Hi], f(s[file.Lo:file.Hi]))
		}
		return y
	}
}

func ofEach(f func(x float64) float64) func(*stage.Case, []float64) []float64 {
	return func(_ *stage.Case, s []float64) []float64 { return mapped(s, f) }
}

// centred returns (s − mean)/by, by the deviation of n − ddof.
func centred(mean, deviation bool, ddof float64) func(s []float64) []float64 {
	return func(s []float64) []float64 {
		m, square := meanOf(s), 0.0
		for _, x := range s {
			square += float64((x - m) * (x - m))
		}
		by := 1.0
		if deviation {
			by = math.Sqrt(square / (float64(len(s)) - ddof))
		}
		if !mean {
			m = 0
		}
		return mapped(s, func(x float64) float64 { return (x - m) / by })
	}
}

// turnedBy returns the scores of the rows k further on, round the end.
func turnedBy(k int) func(s []float64) []float64 {
	return func(s []float64) []float64 {
		return eachOf(len(s), func(i int) float64 { return s[((i+k)%len(s)+len(s))%len(s)] })
	}
}

func shapedScores() []shapedScore {
	var list []shapedScore
	for _, files := range []bool{false, true} {
		where := [2]string{"step", "micro-batch"}[boolToInt(files)]
		for _, f := range []struct {
			id, title string
			of        func(s []float64) []float64
		}{
			{"SCORE-NORMALISED", "the mean of the scores of the %s is subtracted from each", centred(true, false, 0)},
			{"SCORE-NORMALISED", "the scores of the %s are normalised, (s − m)/d with the deviation of n − 1", centred(true, true, 1)},
			{"SCORE-NORMALISED", "the scores of the %s are normalised, (s − m)/d with the deviation of n", centred(true, true, 0)},
			{"SCORE-NORMALISED", "the scores of the %s are divided by their deviation of n − 1", centred(false, true, 1)},
			{"SCORE-NORMALISED", "the scores of the %s are divided by their deviation of n", centred(false, true, 0)},
			{"REWARD-OF-OTHER-ROW", "a response has the score of the row before it in the %s", turnedBy(-1)},
			{"REWARD-OF-OTHER-ROW", "a response has the score of the row behind it in the %s", turnedBy(1)},
			{"REWARD-OF-OTHER-ROW", "the scores of the %s stand in the reverse order", func(s []float64) []float64 {
				y := slices.Clone(s)
				slices.Reverse(y)
				return y
			}},
		} {
			list = append(list, shapedScore{f.id, fmt.Sprintf(f.title, where), byParts(files, f.of)})
		}
	}
	perToken := func(times bool) func(c *stage.Case, s []float64) []float64 {
		return func(c *stage.Case, s []float64) []float64 {
			n, y := tokensOf(c.B, c.B.Mask), make([]float64, len(s))
			for r, x := range s {
				if y[r] = x / max(n[r], 1); times {
					y[r] = x * n[r]
				}
			}
			return y
		}
	}
	byLength := func(of func(c *stage.Case, n []float64, r int) float64) func(c *stage.Case, s []float64) []float64 {
		return func(c *stage.Case, s []float64) []float64 {
			n := tokensOf(c.B, c.B.Mask)
			return eachOf(len(s), func(r int) float64 { return s[r] * of(c, n, r) })
		}
	}
	list = append(list, endingScores()...)
	return append(list,
		shapedScore{"OTHER-FORM", "the score of a response is multiplied by the share of the columns that its tokens fill", byLength(func(c *stage.Case, n []float64, r int) float64 {
			return n[r] / max(float64(width(c.B, r)), 1)
		})},
		shapedScore{"OTHER-FORM", "the score of a response is multiplied by its length over that of the longest", byLength(func(_ *stage.Case, n []float64, r int) float64 { return n[r] / max(slices.Max(n), 1) })},
		shapedScore{"OTHER-FORM", "the score of a response is multiplied by its length over the mean length", byLength(func(_ *stage.Case, n []float64, r int) float64 { return n[r] / max(meanOf(n), 1) })},
		shapedScore{"OTHER-FORM", "the score of a response is divided by its length over the mean length", byLength(func(_ *stage.Case, n []float64, r int) float64 { return meanOf(n) / max(n[r], 1) })},
		shapedScore{"OTHER-FORM", "the score of a response is divided by the root of the number of its tokens", byLength(func(_ *stage.Case, n []float64, r int) float64 { return 1 / math.Sqrt(max(n[r], 1)) })},
		shapedScore{"OTHER-FORM", "the score of a response is divided by the number of its tokens", perToken(false)},
		shapedScore{"OTHER-FORM", "the score of a response is multiplied by the number of its tokens", perToken(true)},
		shapedScore{"OTHER-FORM", "the hyperbolic tangent of the score stands for it", ofEach(math.Tanh)},
		shapedScore{"OTHER-FORM", "the logistic function of the score stands for it", ofEach(func(x float64) float64 { return 1 / (1 + math.Exp(-x)) })},
		shapedScore{"OTHER-FORM", "the sign of the score stands for it", ofEach(func(x float64) float64 { return float64(boolToInt(x > 0) - boolToInt(x < 0)) })},
		shapedScore{"OTHER-FORM", "1 stands for a score above 0, and 0 for the others", ofEach(func(x float64) float64 { return float64(boolToInt(x > 0)) })},
		shapedScore{"OTHER-FORM", "the score goes through the signed logarithm of 1 + |s|", ofEach(func(x float64) float64 { return math.Copysign(math.Log1p(math.Abs(x)), x) })},
		shapedScore{"OTHER-FORM", "the score is read without its fraction", ofEach(math.Trunc)},
		shapedScore{"OTHER-FORM", "the score is rounded to a whole number", ofEach(math.RoundToEven)},
		shapedScore{"OTHER-FORM", "the magnitude of the score stands for it", ofEach(math.Abs)},
		shapedScore{"OTHER-FORM", "the square of the score stands for it", ofEach(func(x float64) float64 { return x * x })})
}

// input is the form as a change of what a check reads.
func (f shapedScore) input() input {
	return func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
		s := c.B.Row("scores")
		if len(s) != c.B.Rows || len(s) < 2 {
			return nil, nil, false
		}
		y := f.of(c, s)
		if y == nil || slices.ContainsFunc(y, func(x float64) bool { return math.IsNaN(x) || math.IsInf(x, 0) }) {
			return nil, nil, false
		}
		return c.B.With("scores", y), c.Set, true
	}
}

// scoreFormEdits returns edits of token rewards, and of what is summed of them, whose scores went through another form first.
func scoreFormEdits(o *stage.Outcome) []edit {
	if o.Check.ID != "reward/token" && o.Check.ID != "advantage/return" || o.Case.B.Row("scores") == nil {
		return nil
	}
	var list []edit
	for _, f := range append(shapedScores(), heldScores(o)...) {
		list = append(list, edit{id: f.id, title: f.title, changes: 1,
			predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
				return widened(under(f.input(), c, ch), 16*c.Unit) // of the function, and of sums over a few rows
			}})
	}
	return list
}

// heldScores are forms that hold scores between bounds that the rewards show: several scores of the step are one number there, the largest or the least, and
// are beyond it.
func heldScores(o *stage.Outcome) (list []shapedScore) {
	c := o.Case.Of(o.Case.B, o.Case.Set)
	with, without := under(sameInput, c, o.Check), under(constant("scores", 0), c, o.Check)
	if o.Check.ID != "reward/token" || with == nil || without == nil || len(o.Got) != len(with.Want) || len(without.Want) != len(with.Want) {
		return nil
	}
	var shown []float64
	for i, w := range with.Want {
		if d := o.Got[i] - without.Want[i]; w != without.Want[i] && !math.IsNaN(d) && !math.IsInf(d, 0) {
			shown = append(shown, d)
		}
	}
	const enough, several = 6, 2
	if len(shown) < enough {
		return nil
	}
	bound := func(x float64) (float64, bool) {
		n := 0
		for _, s := range shown {
			n += boolToInt(math.Abs(s-x) <= 1e-5*max(math.Abs(x), 1e-2))
		}
		short := rounded(x, 3)
		return short, n >= several && math.Abs(short-x) <= 1e-5*max(math.Abs(x), 1e-2)
	}
	high, isHigh := bound(slices.Max(shown))
	low, isLow := bound(slices.Min(shown))
	add := func(lo, hi float64, title string) {
		list = append(list, shapedScore{"REWARD-CLIP-MISSING", title, ofEach(func(x float64) float64 { return min(max(x, lo), hi) })})
	}
	if isHigh {
		add(math.Inf(-1), high, fmt.Sprintf("scores are held at most %g, which is not declared", high))
		add(-high, high, fmt.Sprintf("scores are held within ±%g, which is not declared", high))
	}
	if isLow {
		add(low, math.Inf(1), fmt.Sprintf("scores are held at least %g, which is not declared", low))
		if !isHigh || high != -low {
			add(low, -low, fmt.Sprintf("scores are held within ±%g, which is not declared", -low))
		}
	}
	if isHigh && isLow && high != -low {
		add(low, high, fmt.Sprintf("scores are held in %g to %g, which is not declared", low, high))
	}
	return list
}
