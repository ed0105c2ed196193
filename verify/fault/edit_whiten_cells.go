package fault

import (
	"math"
	"slices"

	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// whitenedSets are sets of cells of a row, beside its tokens, that whitening may take in: of w columns, with the first and last column of a token. Gaps are in
// the mask of some releases (whiten.mask length); cells before or behind all tokens are in none that has a mask.
var whitenedSets = []struct {
	title   string
	in      func(t, first, last, w int) bool
	foreign bool
}{
	{"all cells, padding included", func(_, _, _, _ int) bool { return true }, true},
	{"all cells up to the last token, gaps between tokens included", func(t, _, last, _ int) bool { return t <= last }, false},
	{"the cells from the first token to the end of the row", func(t, first, _, _ int) bool { return t >= first }, true},
	{"the tokens and the cell behind the last of them", func(t, _, last, _ int) bool { return t == last+1 }, true},
}

// whitenedFills are what may stand in a cell that is no token before advantages are whitened: NaN where the dump does not show it.
var whitenedFills = []struct {
	title string
	of    func(c *stage.Case, raw []float64, row, col, first, last int) float64
}{
	{"with 0", func(*stage.Case, []float64, int, int, int, int) float64 { return 0 }},
	{"with the dumped returns less the values", func(c *stage.Case, _ []float64, row, col, _, _ int) float64 {
		ret, v := c.B.Token("returns"), c.B.Token("values")
		switch i := row*c.B.Cols + col; {
		case ret == nil:
			return math.NaN()
		case v == nil:
			return ret[i]
		default:
			return ret[i] - v[i]
		}
	}},
	{"with the number of the nearest token", func(c *stage.Case, raw []float64, row, col, first, last int) float64 {
		if first < 0 {
			return math.NaN()
		}
		col = min(max(col, first), last)
		for !c.B.Mask[row*c.B.Cols+col] {
			col--
		}
		return raw[row*c.B.Cols+col]
	}},
}

// whitenedCellEdits returns edits of whitening whose mean, variance or both are those of more cells than the tokens: (x − m)/s with
//
//	m = Σ x/n,   s² = Σ (x − m)²/(n − ddof)
//
// over the tokens and the other cells of a set.
func whitenedCellEdits(o *stage.Outcome) (list []edit) {
	c := o.Case.Of(o.Case.B, o.Case.Set)
	scope := c.Set.Value("whiten.scope")
	if o.Check.Output != "advantages" || scope.Kind() != convention.Enum || scope.Text() == "none" || scope.Text() == "row" || o.Half() || !slices.Contains(c.B.Mask, false) {
		return nil
	}
	raw := under(notWhitened, c, o.Check)
	for k, set := range whitenedSets {
		for j, fill := range whitenedFills {
			for _, f := range whitenForms(numberOr(c, "whiten.eps", 0)) {
				of := func(c *stage.Case, raw *stage.Prediction) *stage.Prediction {
					return whitenedOverCells(c, raw, k, j, f)
				}
				if !nearBy(o, of(c, raw)) {
					continue
				}
				what := map[[2]bool]string{{true, true}: "mean and variance are", {true, false}: "the mean is", {false, true}: "the variance is"}[[2]bool{f.mean, f.variance}]
				list = append(list, edit{id: "WHITEN-PADS", title: "whitening: " + what + " over " + set.title + ", " + fill.title + " outside the mask", changes: 1, foreign: set.foreign,
					predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction { return of(c, under(notWhitened, c, ch)) }})
			}
		}
	}
	return list
}

// whitenForm is a whitening by the mean, the variance or both of other numbers than those that are whitened, with ε inside of the root or behind it.
type whitenForm struct {
	mean, variance bool
	ddof           float64
	inside         bool
}

func whitenForms(eps float64) (list []whitenForm) {
	for _, of := range [][2]bool{{true, true}, {true, false}, {false, true}} {
		for _, ddof := range []float64{0, 1} {
			for _, inside := range []bool{false, true} {
				if !inside || eps != 0 {
					list = append(list, whitenForm{of[0], of[1], ddof, inside})
				}
			}
		}
	}
	return list
}

// put whitens the tokens of a run of rows in p: by the moments of own, and of other where the form has those. Numbers are of at most size and off by most.
func (f whitenForm) put(p, raw *stage.Prediction, c *stage.Case, run [2]int, own, other []float64, most, size float64) bool {
	eps := numberOr(c, "whiten.eps", 0)
	ofMean, ofVariance := own, own
	if f.mean {
		ofMean = other
	}
	if f.variance {
		ofVariance = other
	}
	v := squares(ofVariance) / (float64(len(ofVariance)) - f.ddof)
	s := math.Sqrt(v) + eps
	if f.inside {
		s = math.Sqrt(v + eps)
	}
	if !(s > 0) {
		return false
	}
	m := meanOf(ofMean)
	for i := range c.B.TokensIn(run[0], run[1]) {
		standardised(p, i, raw.Want[i], m, s, most, size, c.Unit)
	}
	return true
}

func whitenedOverCells(c *stage.Case, raw *stage.Prediction, set, fill int, f whitenForm) *stage.Prediction {
	if raw == nil || len(raw.Want) != len(c.B.Mask) || c.B.Cols == 0 {
		return nil
	}
	p := altered(raw)
	p.Scale = 1
	for _, run := range whitenedTogether(c) {
		var tokens, all []float64
		var size, most float64
		for r := run[0]; r < run[1]; r++ {
			w := c.B.Files[c.B.File(r)].Cols
			first, last := firstLast(c.B.Mask[r*c.B.Cols : (r+1)*c.B.Cols])
			for t := range w {
				i := r*c.B.Cols + t
				if c.B.Mask[i] {
					tokens, all = append(tokens, raw.Want[i]), append(all, raw.Want[i])
					size, most = max(size, math.Abs(raw.Want[i])), max(most, raw.Bound[i])
					continue
				}
				if !whitenedSets[set].in(t, first, last, w) {
					continue
				}
				x := whitenedFills[fill].of(c, raw.Want, r, t, first, last)
				if math.IsNaN(x - x) {
					return nil
				}
				all = append(all, x)
				size = max(size, math.Abs(x))
			}
		}
		if len(all) == len(tokens) || len(tokens) < 2 || !f.put(p, raw, c, run, tokens, all, most, size) {
			return nil
		}
	}
	return p
}
