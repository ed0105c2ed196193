package fault

import (
	"fmt"
	"math"
	"slices"

	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// rewardSumEdits returns edits of token rewards r_t = −β·kl_t, + s at the score's token, that are held in the range of the scores as a whole, have the KL of the
// whole row in the score, or the score in the columns where other rows have theirs.
func rewardSumEdits(o *stage.Outcome) []edit {
	if o.Check.ID != "reward/token" {
		return nil
	}
	var list []edit
	if v := o.Case.Set.Value("reward.clip_range"); v.Kind() == convention.Tuple && o.Case.Set.Value("reward.clip").String() != "none" {
		list = append(rangeEdits(o), edit{id: "REWARD-CLIP-MISSING", title: "the rewards of the tokens are held in " + v.String() + ", their KL with them, not the scores before", changes: 1,
			predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
				p := under(option("reward.clip", "none"), c, ch)
				if p == nil {
					return nil
				}
				q := altered(p)
				for i, x := range q.Want {
					q.Want[i] = min(max(x, v.Nums()[0]), v.Nums()[1])
				}
				return q
			}})
	}
	for _, f := range spreadRewards {
		list = append(list, edit{id: "REWARD-PLACE", title: f.title, changes: 1, foreign: true,
			predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction { return ofRowRewards(f.of, c, ch) }})
	}
	return append(list, edit{id: "KL-TWICE", title: "the KL of the whole row is subtracted from its score, and that of every token from its reward", changes: 1, foreign: true, predict: chargedTwice},
		edit{id: "REWARD-PLACE", title: "every row has its score in the columns where any row has one: an index for each row is used for all", changes: 1, foreign: true, predict: placedForAll})
}

// chargedTwice predicts the rewards of scores less β·Σ kl.
func chargedTwice(c *stage.Case, ch *stage.Check) *stage.Prediction {
	with, without := under(sameInput, c, ch), under(constant("scores", 0), c, ch)
	kl, beta := c.Optional("kl").X, numberOr(c, "kl.beta", 0)
	if with == nil || without == nil || beta == 0 || len(kl) != len(c.B.Mask) || len(with.Want) != len(kl) || len(without.Want) != len(kl) {
		return nil
	}
	q := altered(with)
	for r := range c.B.Rows {
		sum, size, at := 0.0, 0.0, -1
		for i := r * c.B.Cols; i < (r+1)*c.B.Cols; i++ {
			if c.B.Mask[i] {
				sum, size = sum+kl[i], size+math.Abs(kl[i])
			}
			if with.Want[i] != without.Want[i] {
				at = i
			}
		}
		if at >= 0 {
			q.Want[at] -= beta * sum
			q.Bound[at] += 16 * c.Unit * math.Abs(beta) * size
		}
	}
	return q
}

// placedForAll predicts rewards that have the score of every row in the columns in which all rows are found to have theirs: an index of each row that is used for
// all puts it at the ends of the rows of the rollout, of which the batch may be a part.
func placedForAll(c *stage.Case, ch *stage.Check) *stage.Prediction {
	b, got := c.B, c.B.Token(ch.Output)
	with, without := under(sameInput, c, ch), under(constant("scores", 0), c, ch)
	score := combined(1, with, -1, without)
	if score == nil || len(score.Want) != len(b.Mask) || len(got) != len(b.Mask) {
		return nil
	}
	own := make([]int, b.Rows) // the cell of the score
	for r := range own {
		own[r] = -1
		for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
			if b.Mask[i] && score.Want[i] != 0 {
				own[r] = i
			}
		}
	}
	q := altered(without)
	q.Judge = slices.Clone(b.Mask)
	elsewhere := 0
	for t := range b.Cols {
		all := true
		for r, from := range own {
			i := r*b.Cols + t
			all = all && (from < 0 || !b.Mask[i] || math.Abs(got[i]-without.Want[i]-score.Want[from]) <= 4*(score.Bound[from]+without.Bound[i]))
		}
		if !all {
			continue
		}
		for r, from := range own {
			if i := r*b.Cols + t; from >= 0 && b.Mask[i] {
				q.Want[i], q.Bound[i] = without.Want[i]+score.Want[from], without.Bound[i]+2*score.Bound[from]
				elsewhere += boolToInt(i != from)
			}
		}
	}
	if elsewhere < b.Rows {
		return nil
	}
	return q
}

// mixedEdits returns the edit of scores that are a sum of the rewards of functions with other weights than those of the run: the weights that all rows show
// together, by least squares, written with few digits.
func mixedEdits(o *stage.Outcome) []edit {
	if o.Check.ID != "reward/scores" || o.Case.B.Row("rewards_per_func") == nil {
		return nil
	}
	t := o.Case.B.Tensors["rewards_per_func"]
	n := t.Width
	if n < 2 || n > 8 || len(t.Data) != len(o.Got)*n || len(o.Got) < 2*n {
		return nil
	}
	if slices.ContainsFunc(t.Data, func(x float64) bool { return math.IsNaN(x) || math.IsInf(x, 0) }) || slices.ContainsFunc(o.Got, func(x float64) bool { return math.IsNaN(x) || math.IsInf(x, 0) }) {
		return nil
	}
	w, list := leastSquares(t.Data, o.Got, n), make([]any, n)
	if w == nil {
		return nil // functions that are multiples of each other have no weights of their own
	}
	for i := range w {
		short := rounded(w[i], 3)
		if math.Abs(w[i]) < 1e-6 {
			short = 0
		}
		if math.Abs(short-w[i]) > 1e-4*(1+math.Abs(short)) {
			return nil
		}
		w[i], list[i] = short, short
	}
	return []edit{{id: "REWARD-WEIGHTS", title: fmt.Sprintf("the weights of the reward functions are %s", fewNumbers(w)), changes: mostChanges, // a form says more
		predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			return ch.Predict(c.Of(c.B, c.Set.WithFact("reward_weights", list)))
		}}}
}

func fewNumbers(x []float64) (text string) {
	for i, v := range x {
		text += []string{"", ", "}[min(i, 1)] + fmt.Sprintf("%g", v)
	}
	return text
}

// leastSquares returns the w of n numbers that Σ(y − x·w)² of the rows x is least for, by elimination in the normal equations; nil where they do not decide it.
func leastSquares(x, y []float64, n int) []float64 {
	a, own := make([][]float64, n), make([]float64, n) // XᵀX and Xᵀy beside it, and its diagonal
	for i := range a {
		a[i] = make([]float64, n+1)
		for r := range y {
			for j := range n {
				a[i][j] += x[r*n+i] * x[r*n+j]
			}
			a[i][n] += x[r*n+i] * y[r]
		}
		own[i] = a[i][i]
	}
	for i := range n {
		best := i
		for r := i; r < n; r++ {
			if math.Abs(a[r][i]) > math.Abs(a[best][i]) {
				best = r
			}
		}
		a[i], a[best] = a[best], a[i]
		if !(math.Abs(a[i][i]) > 1e-9*own[i]) { // what the columns before leave of this one
			return nil
		}
		for r := range n {
			if by := a[r][i] / a[i][i]; r != i {
				for j := i; j <= n; j++ {
					a[r][j] -= by * a[i][j]
				}
			}
		}
	}
	return eachOf(n, func(i int) float64 { return a[i][n] / a[i][i] })
}

// spreadRewards are what programs make of the rewards of the tokens of a response, the score among them.
var spreadRewards = []struct {
	title string
	of    func(r []float64, sum float64, t int) float64
}{
	{"the rewards of a response, its score among them, are summed and spread evenly over its tokens", func(r []float64, sum float64, _ int) float64 { return sum / float64(len(r)) }},
	{"every token has the sum of the rewards of its response, its score among them", func(_ []float64, sum float64, _ int) float64 { return sum }},
	{"the last token has the sum of the rewards of its response, and the others 0", func(r []float64, sum float64, t int) float64 {
		return sum * float64(boolToInt(t == len(r)-1))
	}},
	{"the first token has the sum of the rewards of its response, and the others 0", func(_ []float64, sum float64, t int) float64 { return sum * float64(boolToInt(t == 0)) }},
	{"the rewards of a response are summed up from its last token back: returns, of which the returns are made", func(r []float64, _ float64, t int) float64 { return total(r[t:]) }},
	{"the rewards of a response stand in the reverse order", func(r []float64, _ float64, t int) float64 { return r[len(r)-1-t] }},
}

// ofRowRewards predicts the rewards of tokens that are functions of those of their response: of n rewards, (n + 4)·u of the sum of their sizes more.
func ofRowRewards(of func(r []float64, sum float64, t int) float64, c *stage.Case, ch *stage.Check) *stage.Prediction {
	b, p := c.B, under(sameInput, c, ch)
	if !c.Has("scores") && !c.Has("rewards_per_func") { // the score is not known
		return nil
	}
	if p == nil || len(p.Want) != len(b.Mask) || c.EnumOr("rewards.whiten", "no") != "no" {
		return nil
	}
	q := altered(p)
	for r := range b.Rows {
		var cells []int
		var own []float64
		var size, e float64
		for i := range b.TokensOf(r) {
			cells, own, size, e = append(cells, i), append(own, p.Want[i]), size+math.Abs(p.Want[i]), e+p.Bound[i]
		}
		sum := total(own)
		for t, i := range cells {
			q.Want[i], q.Bound[i] = of(own, sum, t), e+float64(len(own)+4)*c.Unit*size
		}
	}
	return q
}
