package fault

import (
	"math"

	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// whitenedTokens are the numbers that are whitened together: the tokens of rows, cells counts those outside the mask as well.
type whitenedTokens struct {
	rows     [][]float64
	n        float64 // tokens
	cells    float64
	attended float64                     // cells that attention shows: the tokens of tools, too
	beside   func(name string) []float64 // the numbers of a tensor at the tokens, nil where it was not dumped
}

// varianceBeside is that of a tensor at the tokens, NaN where it was not dumped.
func (w whitenedTokens) varianceBeside(name string, ddof float64) float64 {
	x := w.beside(name)
	if len(x) == 0 {
		return math.NaN()
	}
	return squares(x) / (float64(len(x)) - ddof)
}

// mean is that of all tokens.
func (w whitenedTokens) mean() float64 { return w.sum(func(x float64) float64 { return x }) / w.n }

func (w whitenedTokens) sum(f func(x float64) float64) (sum float64) {
	for _, row := range w.rows {
		for _, x := range row {
			sum += f(x)
		}
	}
	return sum
}

// square is Σ (x − m)² over the tokens.
func (w whitenedTokens) square(m float64) float64 {
	return w.sum(func(x float64) float64 { return (x - m) * (x - m) })
}

// ofRows is the mean over rows of the means of what f makes of their tokens.
func (w whitenedTokens) ofRows(f func(x float64) float64) (mean float64) {
	for _, row := range w.rows {
		var sum float64
		for _, x := range row {
			sum += f(x)
		}
		mean += sum / float64(len(row)) / float64(len(w.rows))
	}
	return mean
}

// momentForms are slips of a mean m and a variance v of tokens of which no program has an option: (x − m)/√v. A count or a sum of one of the two takes in the
// cells outside the mask, which are 0, or takes rows for tokens.
var momentForms = []struct {
	title string
	of    func(w whitenedTokens, ddof float64) (m, v float64)
}{
	{"the mean is the sum over the tokens by the number of all cells, padding included, the variance one of tokens", func(w whitenedTokens, ddof float64) (m, v float64) {
		m = w.mean() * w.n / w.cells
		return m, w.square(m) / (w.n - ddof)
	}},
	{"the mean is one of tokens, the variance by the number of all cells, padding included", func(w whitenedTokens, ddof float64) (m, v float64) {
		return w.mean(), w.square(w.mean()) / (w.cells - ddof)
	}},
	{"sums over the tokens are divided by the number of all that attention shows, tokens of tools included", func(w whitenedTokens, ddof float64) (m, v float64) {
		m = w.mean() * w.n / w.attended
		return m, w.square(m) / (w.attended - ddof)
	}},
	{"the mean is the sum over the tokens by the number of all that attention shows, the variance one of tokens", func(w whitenedTokens, ddof float64) (m, v float64) {
		m = w.mean() * w.n / w.attended
		return m, w.square(m) / (w.n - ddof)
	}},
	{"the variance sums over all cells, padding included, by the number of tokens", func(w whitenedTokens, ddof float64) (m, v float64) {
		m = w.mean()
		return m, (w.square(m) + (w.cells-w.n)*m*m) / (w.n - ddof)
	}},
	{"the variance is one of all cells, padding included, about the mean of tokens", func(w whitenedTokens, ddof float64) (m, v float64) {
		m = w.mean()
		return m, (w.square(m) + (w.cells-w.n)*m*m) / (w.cells - ddof)
	}},
	{"the mean is that of the means of rows", func(w whitenedTokens, ddof float64) (m, v float64) {
		m = w.ofRows(func(x float64) float64 { return x })
		return m, w.square(m) / (w.n - ddof)
	}},
	{"the mean is that of the means of rows, and the variance, too", func(w whitenedTokens, ddof float64) (m, v float64) {
		m = w.ofRows(func(x float64) float64 { return x })
		return m, w.ofRows(func(x float64) float64 { return (x - m) * (x - m) })
	}},
	{"divided by the root of the deviation", func(w whitenedTokens, ddof float64) (m, v float64) {
		return w.mean(), math.Sqrt(w.square(w.mean()) / (w.n - ddof))
	}},
	{"the variance is a sum over tokens by the number of rows", func(w whitenedTokens, ddof float64) (m, v float64) {
		return w.mean(), w.square(w.mean()) / (float64(len(w.rows)) - ddof)
	}},
	{"the variance is corrected by the number of rows, R/(R − 1)", func(w whitenedTokens, _ float64) (m, v float64) {
		r := float64(len(w.rows))
		return w.mean(), w.square(w.mean()) / w.n * r / (r - 1)
	}},
	{"the variance is multiplied by (n − 1)/n, where n/(n − 1) makes it one of n − 1", func(w whitenedTokens, _ float64) (m, v float64) {
		return w.mean(), w.square(w.mean()) / w.n * (w.n - 1) / w.n
	}},
	{"the variance is one of n − 1, and multiplied by n/(n − 1) once more", func(w whitenedTokens, _ float64) (m, v float64) {
		return w.mean(), w.square(w.mean()) / (w.n - 1) * w.n / (w.n - 1)
	}},
	{"divided by the root of the second moment, n/(n − 1) times the mean square, not by the deviation", func(w whitenedTokens, ddof float64) (m, v float64) {
		if ddof == 0 {
			return 0, math.NaN() // another edit
		}
		return w.mean(), w.square(0) / (w.n - ddof)
	}},
	{"divided by the mean absolute deviation, not by the deviation", func(w whitenedTokens, ddof float64) (m, v float64) {
		m = w.mean()
		by := w.sum(func(x float64) float64 { return math.Abs(x - m) }) / w.n
		return m, by * by * w.n / (w.n - ddof)
	}},
	{"the variance is the mean absolute deviation", func(w whitenedTokens, _ float64) (m, v float64) {
		m = w.mean()
		return m, w.sum(func(x float64) float64 { return math.Abs(x - m) }) / w.n
	}},
	{"divided by the deviation of the returns", func(w whitenedTokens, ddof float64) (m, v float64) {
		return w.mean(), w.varianceBeside("returns", ddof)
	}},
	{"divided by the deviation of the values", func(w whitenedTokens, ddof float64) (m, v float64) {
		return w.mean(), w.varianceBeside("values", ddof)
	}},
	{"the mean of the returns is subtracted, and divided by their deviation", func(w whitenedTokens, ddof float64) (m, v float64) {
		return meanOf(w.beside("returns")), w.varianceBeside("returns", ddof)
	}},
	{"the mean is subtracted behind the division", func(w whitenedTokens, ddof float64) (m, v float64) {
		v = w.square(w.mean()) / (w.n - ddof)
		return w.mean() * math.Sqrt(v), v
	}},
}

// momentEdits returns edits of whitening by slips of its moments. They have no number to choose, so that they need no declaration to be wrong.
func momentEdits(o *stage.Outcome) []edit {
	c := o.Case.Of(o.Case.B, o.Case.Set)
	scope := c.Set.Value("whiten.scope")
	if o.Check.Output != "advantages" || scope.Kind() != convention.Enum || scope.Text() == "none" || scope.Text() == "row" || o.Half() {
		return nil
	}
	var list []edit
	for _, form := range momentForms {
		for _, ddof := range []float64{0, 1} {
			for _, at := range epsilonPlaces(epsilonsOf(o)) {
				eps, inside := at.eps, at.inside
				for _, together := range togethers(c) {
					list = append(list, edit{id: "WHITEN-FORM", title: "whitening: " + form.title, changes: 1, foreign: true,
						predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
							return whitenedByMoments(c, ch, together(c), func(w whitenedTokens) (m, s float64) {
								m, v := form.of(w, ddof)
								if inside {
									return m, math.Sqrt(v + eps)
								}
								return m, math.Sqrt(v) + eps
							})
						}})
				}
			}
		}
	}
	return list
}

// epsilonPlace is an ε of whitening, under the root or behind it.
type epsilonPlace struct {
	eps    float64
	inside bool
}

func epsilonPlaces(epsilons []float64) (list []epsilonPlace) {
	for _, eps := range epsilons {
		if list = append(list, epsilonPlace{eps, false}); eps != 0 {
			list = append(list, epsilonPlace{eps, true})
		}
	}
	return list
}

// togethers are the ways in which rows may be whitened together: as declared, and a mini-batch that is whitened before it is cut into micro-batches, which numbers that
// are not white do not show.
func togethers(c *stage.Case) []func(c *stage.Case) [][2]int {
	list := []func(c *stage.Case) [][2]int{whitenedTogether}
	if c.Set.Value("whiten.scope").String() == "minibatch" && len(stage.StepsOfRanks(c.B)) < len(c.B.Files) {
		list = append(list, func(c *stage.Case) [][2]int { return stage.StepsOfRanks(c.B) })
	}
	return list
}

// whitenedByMoments predicts (x − m)/s, with m and s of the tokens that are whitened together.
func whitenedByMoments(c *stage.Case, ch *stage.Check, together [][2]int, of func(whitenedTokens) (m, s float64)) *stage.Prediction {
	raw := under(notWhitened, c, ch)
	if raw == nil || len(raw.Want) != len(c.B.Mask) || c.B.Cols == 0 {
		return nil
	}
	p := altered(raw)
	p.Scale = 1
	seen := attendedCells(c.B)
	for _, run := range together {
		w := whitenedTokens{attended: count(seen[run[0]*c.B.Cols : run[1]*c.B.Cols]), beside: func(name string) (list []float64) {
			x := c.B.Token(name)
			for i := range c.B.TokensIn(run[0], run[1]) {
				if x != nil {
					list = append(list, x[i])
				}
			}
			return list
		}}
		var size, most float64
		for r := run[0]; r < run[1]; r++ {
			var row []float64
			for i := range c.B.TokensOf(r) {
				row = append(row, raw.Want[i])
				size, most = max(size, math.Abs(raw.Want[i])), max(most, raw.Bound[i])
			}
			w.cells += float64(c.B.Files[c.B.File(r)].Cols)
			if w.n += float64(len(row)); len(row) > 0 {
				w.rows = append(w.rows, row)
			}
		}
		if len(w.rows) < 2 {
			return nil
		}
		m, s := of(w)
		if !(s > 0) || math.IsInf(s, 0) || math.IsNaN(m) {
			return nil
		}
		for i := range c.B.TokensIn(run[0], run[1]) {
			standardised(p, i, raw.Want[i], m, s, most, size, c.Unit)
		}
	}
	return p
}
