package fault

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// function is what programs do to a number that nobody asked for.
type function struct {
	name  string // of x
	f     func(x float64) float64
	slope float64 // a bound of |f'| on numbers of size 1, times which the error of a number goes on
	cuts  bool    // a range of x is held at its bound
}

// of returns the name with the name of the number in it, which is not the last letter of max.
func (f function) of(x string) string {
	const whole = "ma\x00"
	return strings.ReplaceAll(strings.ReplaceAll(strings.ReplaceAll(f.name, "max", whole), "x", x), whole, "max")
}

var functions = []function{
	{"tanh x", math.Tanh, 1, false},
	{"x²", func(x float64) float64 { return x * x }, 2, false},
	{"x·|x|", func(x float64) float64 { return x * math.Abs(x) }, 2, false},
	{"√|x| with its sign", func(x float64) float64 { return math.Copysign(math.Sqrt(math.Abs(x)), x) }, 1, false},
	{"|x|", math.Abs, 1, false},
	{"the sign of x", func(x float64) float64 { return float64(compare(x, 0)) }, 1, false},
	{"max(x, 0)", func(x float64) float64 { return max(x, 0) }, 1, true},
	{"min(x, 0)", func(x float64) float64 { return min(x, 0) }, 1, true},
	{"x held within ±1", func(x float64) float64 { return min(max(x, -1), 1) }, 1, true},
	{"σ of x", func(x float64) float64 { return 1 / (1 + math.Exp(-x)) }, 1, false},
	{"e to the x", math.Exp, 1, false},
	{"x without its fraction", math.Trunc, 1, false},
	{"x rounded to whole numbers", math.RoundToEven, 1, false},
	{"x rounded to one decimal", func(x float64) float64 { return math.RoundToEven(10*x) / 10 }, 1, false},
	{"x rounded to two decimals", func(x float64) float64 { return math.RoundToEven(100*x) / 100 }, 1, false},
	{"x, halved below 0,", func(x float64) float64 { return max(x, 0) + min(x, 0)/2 }, 1, false},
	{"x, doubled below 0,", func(x float64) float64 { return max(x, 0) + 2*min(x, 0) }, 2, false},
	{"x, halved above 0,", func(x float64) float64 { return max(x, 0)/2 + min(x, 0) }, 1, false},
	{"x, doubled above 0,", func(x float64) float64 { return 2*max(x, 0) + min(x, 0) }, 2, false},
	{"1 − x", func(x float64) float64 { return 1 - x }, 1, false},
	{"1/x", func(x float64) float64 { return 1 / x }, 1, false},
}

// functionEdits returns edits of a number per token or row that went through a function.
func functionEdits(o *stage.Outcome) []edit {
	if !slices.Contains([]convention.Stage{convention.Advantage, convention.KL, convention.Reward, convention.Ratio, convention.TokenLoss}, o.Check.Stage) {
		return nil
	}
	id := "OTHER-FORM"
	switch {
	case o.Check.Output == "advantages":
		id = "ADV-FORM"
	case o.Check.Stage == convention.KL:
		id = "KL-FORMULA"
	}
	var list []edit
	for _, f := range append(slices.Clone(functions), steppedBy(gridStep(o))...) {
		list = append(list, edit{id: id, title: fmt.Sprintf("%s are %s of the right x", o.Check.Output, f.of("x")), changes: 1,
			predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
				p := under(sameInput, c, ch)
				if p == nil {
					return nil
				}
				q := altered(p)
				for i, w := range p.Want {
					q.Want[i] = f.f(w)
					lo, hi := f.f(w-p.Bound[i]), f.f(w+p.Bound[i])
					q.Bound[i] = max(math.Abs(lo-q.Want[i]), math.Abs(hi-q.Want[i])) + 4*c.Unit*math.Abs(q.Want[i])
				}
				return q
			}})
	}
	if o.Check.ID == "reward/token" && o.Case.B.Token("kl") != nil { // else its formula stands for it, and is edited
		for _, f := range functions {
			if multiplies(f.f, o.Case.B.Token("kl"), o.Case.B.Mask) {
				continue // it is the coefficient that is another
			}
			id := "KL-FORMULA"
			if f.cuts {
				id = "KL-CUT-OFF"
			}
			list = append(list, edit{id: id, title: fmt.Sprintf("the reward has %s of the estimate x of KL", f.of("x")), changes: 1,
				predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
					return under(token("kl", func(_ *stage.Case, x []float64) []float64 { return mapped(x, f.f) }), c, ch)
				}})
		}
	}
	if o.Check.ID == "reward/token" {
		for _, back := range []bool{false, true} {
			what := map[bool]string{false: "up to it", true: "from it on"}[back]
			list = append(list, edit{id: "OTHER-FORM", title: "the KL of a token is the sum over those " + what + " in its row", changes: 1,
				predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
					without, kl := klOfReward(c, ch)
					return combined(1, without, 1, runningSums(kl, c, back))
				}})
		}
		for _, mean := range []bool{true, false} {
			what := map[bool]string{true: "mean", false: "sum"}[mean]
			list = append(list, edit{id: "OTHER-FORM", title: fmt.Sprintf("the KL of a token is the %s of its row", what), changes: 1,
				predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
					without, kl := klOfReward(c, ch)
					return combined(1, without, 1, spreadOver(kl, c, mean))
				}})
		}
	}
	if p := o.Case.B.Tensors[o.Check.Output]; p != nil && p.Layout == dump.PerToken && o.Check.Output != "token_loss" {
		for _, s := range spans {
			list = append(list, edit{id: id, title: fmt.Sprintf("%s of every token are the mean of %s", o.Check.Output, s.title), changes: 1,
				predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
					return meanOverSpan(under(sameInput, c, ch), c, s.key)
				}})
		}
	}
	if p := o.Case.B.Tensors[o.Check.Output]; p != nil && p.Layout == dump.PerToken { // the row's mean or sum at every token
		for _, mean := range []bool{true, false} {
			what := map[bool]string{true: "mean", false: "sum"}[mean]
			list = append(list, edit{id: id, title: fmt.Sprintf("every token has the %s of its row", what), changes: 1,
				predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction { return spreadRows(c, ch, mean) }})
		}
	}
	return list
}

// klOfReward returns the rewards of tokens without their KL, and the KL; without scores, which nobody dumped, it is all that is known.
func klOfReward(c *stage.Case, ch *stage.Check) (without, kl *stage.Prediction) {
	all := under(sameInput, c, ch)
	if without = under(noKL, c, ch); without == nil && all != nil && !c.Has("scores") && !c.Has("rewards_per_func") {
		without = combined(1, all, -1, all)
		clear(without.Bound)
	}
	return without, combined(1, all, -1, without)
}

// multiplies reports whether f multiplies all masked numbers of x by the same number.
func multiplies(f func(float64) float64, x []float64, mask []bool) bool {
	by := math.NaN()
	for i, in := range mask {
		if !in || x[i] == 0 {
			continue
		}
		if y := f(x[i]) / x[i]; math.IsNaN(by) {
			by = y
		} else if math.Abs(y-by) > 1e-12*math.Abs(by) {
			return false
		}
	}
	return true
}

// spans are the tokens that one mean is taken over where each should have its own number.
var spans = []struct {
	title string
	key   func(b *dump.Batch, row, col int) [2]int
}{
	{"its micro-batch", func(b *dump.Batch, row, _ int) [2]int { return [2]int{b.File(row)} }},
	{"the step", func(*dump.Batch, int, int) [2]int { return [2]int{} }},
	{"its column in the micro-batch", func(b *dump.Batch, row, col int) [2]int { return [2]int{b.File(row), col} }},
	{"its column in the step", func(_ *dump.Batch, _, col int) [2]int { return [2]int{0, col} }},
}

// meanOverSpan puts the mean over the tokens of a span in the place of each of them.
func meanOverSpan(p *stage.Prediction, c *stage.Case, key func(b *dump.Batch, row, col int) [2]int) *stage.Prediction {
	if p == nil || len(p.Want) != len(c.B.Mask) || c.B.Cols == 0 {
		return nil
	}
	type sum struct{ x, size, e, n float64 }
	sums := map[[2]int]sum{}
	for i := range c.B.Tokens() {
		k := key(c.B, i/c.B.Cols, i%c.B.Cols)
		s := sums[k]
		sums[k] = sum{s.x + p.Want[i], s.size + math.Abs(p.Want[i]), s.e + p.Bound[i], s.n + 1}
	}
	q := altered(p)
	for i := range c.B.Tokens() {
		s := sums[key(c.B, i/c.B.Cols, i%c.B.Cols)]
		q.Want[i] = s.x / s.n
		q.Bound[i] = (s.e+(s.n+2)*c.Unit*s.size)/s.n + 2*c.Unit*math.Abs(q.Want[i])
	}
	return q
}

// runningSums puts the sum over the tokens of a row up to each, or from each on, in its place.
func runningSums(p *stage.Prediction, c *stage.Case, back bool) *stage.Prediction {
	if p == nil || len(p.Want) != len(c.B.Mask) || c.B.Cols == 0 {
		return nil
	}
	q := altered(p)
	for r := range c.B.Rows {
		var sum, e, n float64
		for t := range c.B.Cols {
			i := r*c.B.Cols + t
			if back {
				i = r*c.B.Cols + c.B.Cols - 1 - t
			}
			if c.B.Mask[i] {
				sum, e, n = sum+p.Want[i], e+p.Bound[i]+c.Unit*math.Abs(sum+p.Want[i]), n+1
				q.Want[i], q.Bound[i] = sum, e+(n+2)*c.Unit*math.Abs(sum)
			}
		}
	}
	return q
}

// spreadRows predicts the mean or the sum of a row at each of its tokens.
func spreadRows(c *stage.Case, ch *stage.Check, mean bool) *stage.Prediction {
	return spreadOver(under(sameInput, c, ch), c, mean)
}

func spreadOver(p *stage.Prediction, c *stage.Case, mean bool) *stage.Prediction {
	if p == nil || len(p.Want) != len(c.B.Mask) || c.B.Cols == 0 {
		return nil
	}
	q := altered(p)
	for r := range c.B.Rows {
		var sum, size, e, n float64
		for i := range c.B.TokensOf(r) {
			sum, size, e, n = sum+p.Want[i], size+math.Abs(p.Want[i]), e+p.Bound[i], n+1
		}
		e += (n + 2) * c.Unit * size
		if mean {
			sum, e = sum/max(n, 1), e/max(n, 1)
		}
		for i := r * c.B.Cols; i < (r+1)*c.B.Cols; i++ {
			q.Want[i], q.Bound[i] = sum, e+2*c.Unit*math.Abs(sum)
		}
	}
	return q
}

// foreignSpread are what no release divides by when it whitens, whatever it is configured with: none leaves out the mean alone.
var foreignSpread = map[string]bool{"var1": true, "var0": true, "rms": true, "mad": true, "norm": true}

// whiteningEdits returns edits of the whitening of advantages over all tokens: y = (x − c)/s, with another c, another s or another ε.
func whiteningEdits(o *stage.Outcome) []edit {
	c := o.Case.Of(o.Case.B, o.Case.Set)
	scope := c.Set.Value("whiten.scope")
	if o.Check.Output != "advantages" || scope.Kind() != convention.Enum || scope.Text() == "none" || scope.Text() == "row" {
		return nil
	}
	var list []edit
	for _, centre := range []struct{ name, title string }{{"mean", ""}, {"none", "the mean is not subtracted"}, {"median", "the median is subtracted, not the mean"}, {"lower median", "the lower median is subtracted, not the mean"}} {
		for _, spread := range []struct{ name, title string }{{"std1", ""}, {"std0", ""}, {"var1", "divided by the variance"}, {"var0", "divided by the variance, of n"}, {"rms", "divided by the root of the second moment, not by the deviation"},
			{"mad", "divided by the mean absolute deviation"}, {"norm", "divided by the root of the sum of squares"}, {"none", "not divided by the deviation"}, {"max", "divided by the largest magnitude"}} {
			for _, eps := range []float64{0, 1e-8, 1e-6, 1e-5, 1e-4, 1e-3, 1e-2, 0.1, 1} {
				for _, inside := range []bool{false, true} {
					changes, id := 0, "WHITEN-FORM"
					var text []string
					for _, t := range []string{centre.title, spread.title} {
						if t != "" {
							changes++
							text = append(text, t)
						}
					}
					if plain := eps == numberOr(c, "whiten.eps", 0); !plain && changes == 0 {
						changes, id = 1, "WHITEN-EPS"
						text = append(text, fmt.Sprintf("whiten.eps is %g, not %g", eps, numberOr(c, "whiten.eps", 0)))
					} else if !plain && eps != 0 {
						continue // one number more is too many
					}
					if changes == 0 || changes > mostChanges || inside && eps == 0 || o.Half() && centre.title == "" && spread.title != "" {
						// of numbers in 16 bits a spread beside the right mean is a common factor, near which others lie
						continue
					}
					list = append(list, edit{id: id, title: "whitening: " + strings.Join(text, "; "), changes: changes, foreign: foreignSpread[spread.name] || centre.name != "mean" && spread.name != "none",
						predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
							return whitenedAs(c, ch, centre.name, spread.name, eps, inside)
						}})
				}
			}
		}
	}
	list = append(list, edit{id: "WHITEN-FORM", title: "whitening: another mean is subtracted, and divided by another deviation, than those of the tokens that it is over", changes: mostChanges,
		predict: whitenedByOthers})
	list = append(list, edit{id: "WHITEN-FORM", title: "whitening: all advantages are divided by the root of the sum of their squares, as a vector is normalised, and keep their mean", changes: 1, foreign: true,
		predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			return whitenedOver(c, ch, 0, normOfAll(c, ch))
		}})
	for _, eps := range epsilonsOf(o) {
		list = append(list, edit{id: "WHITEN-FORM", title: "whitening: sums over the tokens are divided by the number of all cells, those outside the mask included", changes: 1, foreign: true,
			predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
				return whitenedOver(c.Of(c.B, c.Set.With("whiten.eps", convention.NumberValue(eps), "hypothesis")), ch, 0, 0)
			}})
	}
	return list
}

// epsilonsOf are the ε of whitening on which a slip of its moments may stand: that of the options, and where these are a search's or a profile's, and the output is a line
// in what is whitened, those that people write.
func epsilonsOf(o *stage.Outcome) []float64 {
	list := []float64{numberOr(o.Case, "whiten.eps", 0)}
	if origin := o.Case.Set.Origin("whiten.eps"); origin != "" && origin != "search" && !strings.Contains(origin, "@") || !nearBy(o, whitenedByOthers(o.Case.Of(o.Case.B, o.Case.Set), o.Check)) {
		return list
	}
	for _, eps := range []float64{0, 1e-8, 1e-6, 1e-5, 1e-4} {
		if eps != list[0] {
			list = append(list, eps)
		}
	}
	return list
}

// whitenedByOthers predicts advantages that are a line in those before whitening, (x − c)/s with s > 0, one line for the whole step. Its
// two numbers are read off the advantages themselves, and all others must agree with them.
func whitenedByOthers(c *stage.Case, ch *stage.Check) *stage.Prediction {
	raw, t := under(notWhitened, c, ch), c.B.Tensors[ch.Output]
	if raw == nil || t == nil || len(t.Data) != len(raw.Want) {
		return nil
	}
	var at []int
	distinct := map[float64]bool{}
	for i, x := range raw.Want {
		if (len(raw.Want) != len(c.B.Mask) || c.B.Mask[i]) && (raw.Judge == nil || raw.Judge[i]) {
			at, distinct[x] = append(at, i), true
		}
	}
	const enough = 12 // numbers, of which two are fitted
	if len(distinct) < enough {
		return nil
	}
	low, high := extremes(at, func(i int) float64 { return raw.Want[i] })
	slope := (t.Data[high] - t.Data[low]) / (raw.Want[high] - raw.Want[low])
	if !(slope > 0) || math.IsInf(slope, 0) {
		return nil
	}
	return whitenedOver(c, ch, raw.Want[low]-t.Data[low]/slope, 1/slope)
}

// notWhitened is the input whose advantages are not whitened, and whose rewards still are over what they were.
func notWhitened(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
	in := option("whiten.scope", "none")
	if scope := c.Set.Value("whiten.scope"); c.EnumOr("rewards.whiten", "no") != "no" && c.EnumOr("rewards.whiten_scope", "same") == "same" && scope.Kind() == convention.Enum && scope.Text() != "none" {
		in = both(option("rewards.whiten_scope", scope.Text()), in)
	}
	return in(c)
}

// whitenedOver predicts (x − m)/s; s = 0 asks for sums over the tokens, divided by the number of all cells of the step.
func whitenedOver(c *stage.Case, ch *stage.Check, m, s float64) *stage.Prediction {
	raw := under(notWhitened, c, ch)
	if raw == nil || len(raw.Want) != len(c.B.Mask) {
		return nil
	}
	var size, most float64
	var cells []int
	for i := range c.B.Tokens() {
		cells = append(cells, i)
		size, most = max(size, math.Abs(raw.Want[i])), max(most, raw.Bound[i])
	}
	if s == 0 {
		var n, sum, square float64
		for _, f := range c.B.Files {
			n += float64((f.Hi - f.Lo) * f.Cols)
		}
		for _, i := range cells {
			sum += raw.Want[i]
		}
		m = sum / n
		for _, i := range cells {
			square += float64((raw.Want[i] - m) * (raw.Want[i] - m))
		}
		s = math.Sqrt(square/n) + numberOr(c, "whiten.eps", 0)
	}
	if !(s > 0) || math.IsInf(s, 0) {
		return nil
	}
	p := altered(raw)
	p.Scale = 1
	for _, i := range cells {
		standardised(p, i, raw.Want[i], m, s, most, size, c.Unit)
	}
	return p
}

// normOfAll returns √Σx² of the advantages before whitening over all tokens, NaN where these are not known.
func normOfAll(c *stage.Case, ch *stage.Check) float64 {
	raw := under(notWhitened, c, ch)
	if raw == nil || len(raw.Want) != len(c.B.Mask) {
		return math.NaN()
	}
	var square float64
	for i, in := range c.B.Mask {
		if in {
			square += float64(raw.Want[i] * raw.Want[i])
		}
	}
	return math.Sqrt(square)
}

// standardised puts (x − m)/s in place of element i, of numbers of at most size that are off by most: the mean and the difference are by as much each, and by
// 16 roundings of the size, the quotient by that over s, once more for its own size, and 8 roundings.
func standardised(p *stage.Prediction, i int, x, m, s, most, size, unit float64) {
	a := (x - m) / s
	p.Want[i], p.Bound[i] = a, (2*most+16*unit*size)/s*(1+math.Abs(a))+8*unit*math.Abs(a)
}

// whitenedAs predicts advantages whitened in another way over the tokens that are whitened together.
func whitenedAs(c *stage.Case, ch *stage.Check, centre, spread string, eps float64, inside bool) *stage.Prediction {
	raw := under(notWhitened, c, ch)
	if raw == nil {
		return nil
	}
	p := altered(raw)
	p.Scale = 1
	for _, run := range whitenedTogether(c) {
		var cells []int
		var size, most float64
		w := len(raw.Want) / max(c.B.Rows, 1)
		for i := run[0] * w; i < run[1]*w; i++ {
			if len(raw.Want) != len(c.B.Mask) || c.B.Mask[i] {
				cells = append(cells, i)
				size, most = max(size, math.Abs(raw.Want[i])), max(most, raw.Bound[i])
			}
		}
		if len(cells) < 2 {
			return nil
		}
		s := spreadOf(spread, raw.Want, cells)
		if inside {
			s = math.Sqrt(s*s + eps)
		} else {
			s += eps
		}
		m := centreOf(centre, raw.Want, cells, cells[0])
		for _, i := range cells {
			standardised(p, i, raw.Want[i], m, s, most, size, c.Unit)
		}
	}
	return p
}

// whitenedTogether returns the runs of rows that the declared scope whitens together: those of a file, or all.
func whitenedTogether(c *stage.Case) [][2]int {
	if v := c.Set.Value("whiten.scope"); v.Kind() != convention.Enum || v.Text() != "minibatch" {
		return [][2]int{{0, c.B.Rows}}
	}
	runs := make([][2]int, len(c.B.Files))
	for i, f := range c.B.Files {
		runs[i] = [2]int{f.Lo, f.Hi}
	}
	return runs
}
