package fault

import (
	"math"
	"slices"
	"strings"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// A weightForm is what a program takes for an importance weight e to the d, d = logp_old − logp_gen of a token or of a row.
type weightForm struct {
	id, title string
	of        func(d float64) float64
}

var weightForms = []weightForm{
	{"RATIO-FORM", "1 + d, the first terms of e to the d", func(d float64) float64 { return 1 + d }},
	{"RATIO-FORM", "e to the d/2", func(d float64) float64 { return math.Exp(d / 2) }},
	{"RATIO-FORM", "e to the 2d", func(d float64) float64 { return math.Exp(2 * d) }},
	{"RATIO-FORM", "e to the |d|", func(d float64) float64 { return math.Exp(math.Abs(d)) }},
	{"RATIO-FORM", "e to the −|d|", func(d float64) float64 { return math.Exp(-math.Abs(d)) }},
	{"RATIO-FORM", "e to the 3d", func(d float64) float64 { return math.Exp(3 * d) }},
	{"IS-BF16", "e to a d that was rounded to bfloat16", func(d float64) float64 { return math.Exp(inHalf(d)) }},
	{"IS-BF16", "e to the d, both in bfloat16", func(d float64) float64 { return inHalf(math.Exp(inHalf(d))) }},
}

// scope is the form of the log-ratios of a level.
func (f weightForm) scope(level string) weightScope {
	return weightScope{log: func(d, _ []float64) []float64 {
		return mapped(d, func(x float64) float64 {
			switch level {
			case "seq_sum":
				x = total(d)
			case "seq_geo":
				x = total(d) / float64(len(d))
			}
			if y := math.Log(f.of(x)); !math.IsNaN(y) && !math.IsInf(y, 0) {
				return y
			}
			return x
		})
	}}
}

// ofTrainer returns the trainer's log-probs that weights are made of: those of the new pass where there are no old ones.
func ofTrainer(c *stage.Case) []float64 {
	if old := c.B.Token("logp_old"); old != nil {
		return old
	}
	return c.B.Token("logp_new")
}

// eachInHalf are log-ratios of which both log-probs, and the difference, are taken in bfloat16.
func eachInHalf(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
	old, gen := ofTrainer(c), c.B.Token("logp_gen")
	if old == nil || gen == nil {
		return nil, nil, false
	}
	y := slices.Clone(gen)
	for i := range c.B.Tokens() {
		y[i] = old[i] - inHalf(inHalf(old[i])-inHalf(gen[i]))
	}
	return c.B.With("logp_gen", y), c.Set, true
}

// inHalf returns a float32 number in bfloat16.
func inHalf(x float64) float64 { return format.Round(float64(float32(x)), format.BF16) }

// weightScope is a set of log-ratios that the weight of a token is made of in place of the declared one. log returns ln w of each token of a
// row from the log-ratios of its tokens and those of all its cells that are attended to.
type weightScope struct {
	title string
	log   func(d, attended []float64) []float64
	cell  func(b *dump.Batch, row int) int // a cell whose log-ratio stands for the row, 0 outside the mask; nil: log says it
	cells func(d []float64) []float64      // ln w of every cell of a row from the log-ratios of all of them, the mask unread; nil: log says it

	attended bool // of the cells that are attended to: nobody's choice where the engine has no log-probs there
}

// ofRow is a scope with one weight for the row.
func ofRow(log func(d []float64) float64) func(d, attended []float64) []float64 {
	return func(d, _ []float64) []float64 { return slices.Repeat([]float64{log(d)}, len(d)) }
}

// strayScopes are those that no program is known to choose.
var strayScopes = []weightScope{
	{title: "that of its first token", log: ofRow(func(d []float64) float64 { return d[0] })},
	{title: "that of its last token", log: ofRow(func(d []float64) float64 { return d[len(d)-1] })},
	{title: "that of the last column, which is 1 in padding", cell: func(b *dump.Batch, row int) int { return row*b.Cols + max(width(b, row), 1) - 1 }},
	{title: "that of the first column, which is 1 outside the mask", cell: func(b *dump.Batch, row int) int { return row * b.Cols }},
	{title: "the largest of its tokens", log: ofRow(slices.Max[[]float64])},
	{title: "the smallest of its tokens", log: ofRow(slices.Min[[]float64])},
	{title: "the sum of those of its tokens", log: ofRow(func(d []float64) float64 { return math.Log(total(mapped(d, math.Exp))) })},
	{title: "e to the sum of its log-ratios over the root of their number", log: ofRow(func(d []float64) float64 { return total(d) / math.Sqrt(float64(len(d))) })},
	{title: "e to the sum of its log-ratios without the last token", log: ofRow(func(d []float64) float64 { return total(d[:len(d)-1]) })},
	{title: "e to the sum of its log-ratios without the first token", log: ofRow(func(d []float64) float64 { return total(d[1:]) })},
	{title: "e to the median of its log-ratios", log: ofRow(func(d []float64) float64 {
		s := slices.Sorted(slices.Values(d))
		return (s[(len(s)-1)/2] + s[len(s)/2]) / 2
	})},
	{title: "e to the sum of the log-ratios from the token on", log: func(d, _ []float64) []float64 {
		y, sum := make([]float64, len(d)), 0.0
		for i := len(d) - 1; i >= 0; i-- {
			sum += d[i]
			y[i] = sum
		}
		return y
	}},
	{title: "e to the sum of the log-ratios of all cells up to the token, those outside the mask among them", cells: sumsUpTo},
	{title: "e to the sum of the log-ratios of all cells before the token, those outside the mask among them", cells: func(d []float64) []float64 {
		return append([]float64{0}, sumsUpTo(d)[:len(d)-1]...)
	}},
	{title: "e to the sum of the log-ratios before the token", log: func(d, _ []float64) []float64 {
		return append([]float64{0}, sumsUpTo(d)[:len(d)-1]...)
	}},
	{title: "the mean of those of its tokens, not e to the mean of the log-ratios", log: ofRow(func(d []float64) float64 {
		return math.Log(total(mapped(d, math.Exp)) / float64(len(d)))
	})},
}

// chosenScopes are those that a program may mean: the product up to a step of per-decision importance sampling (Precup et al. 2000,
// section 3), and what the tokens of tools are taken for.
var chosenScopes = []weightScope{
	{title: "e to the sum of the log-ratios up to the token", log: func(d, _ []float64) []float64 { return sumsUpTo(d) }},
	{title: "e to the mean of the log-ratios of all that is attended to, tokens of tools included", attended: true, log: func(d, attended []float64) []float64 {
		return slices.Repeat([]float64{total(attended) / float64(max(len(attended), 1))}, len(d))
	}},
	{title: "e to the sum of the log-ratios of all that is attended to, tokens of tools included", attended: true, log: func(d, attended []float64) []float64 {
		return slices.Repeat([]float64{total(attended)}, len(d))
	}},
}

// sumsUpTo are the sums of the numbers up to each.
func sumsUpTo(d []float64) []float64 {
	sum := 0.0
	return mapped(d, func(x float64) float64 { sum += x; return sum })
}

var weightScopes = slices.Concat(strayScopes, chosenScopes)

// ofScope returns the input whose weights are of another scope. The log-probs of the engine that give the same numbers stand for it: ln w of a
// token, of each token of a geometric mean, and its share of a sum.
func ofScope(s weightScope) input {
	return func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
		old, gen := ofTrainer(c), c.B.Token("logp_gen")
		level := c.Set.Value("tis.level").String()
		if old == nil || gen == nil || c.B.Cols == 0 || level == "none" {
			return nil, nil, false
		}
		y, seen := slices.Clone(gen), attendedCells(c.B)
		for r := range c.B.Rows {
			var d, attended []float64
			for i := r * c.B.Cols; i < (r+1)*c.B.Cols; i++ {
				if c.B.Mask[i] {
					d = append(d, old[i]-gen[i])
				}
				if seen[i] {
					attended = append(attended, old[i]-gen[i])
				}
			}
			if len(d) == 0 {
				continue
			}
			var l []float64
			switch {
			case s.cells != nil:
				all := eachOf(width(c.B, r), func(t int) float64 { return old[r*c.B.Cols+t] - gen[r*c.B.Cols+t] })
				for t, x := range s.cells(all) {
					if c.B.Mask[r*c.B.Cols+t] {
						l = append(l, x)
					}
				}
			case s.cell == nil:
				l = s.log(d, attended)
			default:
				one := 0.0
				if i := s.cell(c.B, r); c.B.Mask[i] {
					one = old[i] - gen[i]
				}
				l = slices.Repeat([]float64{one}, len(d))
			}
			at := 0
			for i := range c.B.TokensOf(r) {
				share := l[at]
				if at++; level == "seq_sum" {
					share /= float64(len(d))
				}
				if math.IsNaN(share) || math.IsInf(share, 0) {
					return nil, nil, false
				}
				y[i] = old[i] - share
			}
		}
		return c.B.With("logp_gen", y), c.Set, true
	}
}

// attendedCells returns the cells of responses that are attended to: those of the attention mask, else those between the first and the last token
// of a response.
func attendedCells(b *dump.Batch) []bool {
	cells, attention := make([]bool, len(b.Mask)), b.Tensors["attention_mask"]
	known := attention != nil && attention.Layout == dump.PerRow
	for r := range b.Rows {
		first, last := firstLast(b.Mask[r*b.Cols : (r+1)*b.Cols])
		at := b.Files[b.File(r)].PromptCols
		for t := range b.Cols {
			switch {
			case known && at >= 0:
				cells[r*b.Cols+t] = at+t < attention.Width && attention.Data[r*attention.Width+at+t] != 0
			case first >= 0:
				cells[r*b.Cols+t] = first <= t && t <= last
			}
		}
	}
	return cells
}

// engineFilled reports whether the log-probs of the engine are one number wherever a response holds tokens that are not the policy's own, those of tools, and the
// trainer's are not: a fill, which no weight is meant to be made of.
func engineFilled(b *dump.Batch) bool {
	old, gen := ofTrainer(&stage.Case{B: b}), b.Token("logp_gen")
	if old == nil || gen == nil {
		return false
	}
	first := -1
	varied := false
	for i, seen := range attendedCells(b) {
		switch {
		case !seen || b.Mask[i]:
		case first < 0:
			first = i
		case gen[i] != gen[first]:
			return false
		default:
			varied = varied || old[i] != old[first]
		}
	}
	return varied
}

// weightEdits returns edits of importance weights that are another function of their log-ratio, of another set of log-ratios, or under another rule.
func weightEdits(o *stage.Outcome) []edit {
	if o.Check.ID != "ratio/is_weights" {
		return nil
	}
	level := o.Case.Set.Value("tis.level").String()
	if level == "none" {
		return nil
	}
	var list []edit
	for _, f := range slices.Concat(weightForms, weightPowers(o)) {
		list = append(list, edit{id: f.id, title: "the importance weight is " + f.title + ", of d = logp_old − logp_gen", changes: 1,
			predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
				return roughly(under(ofScope(f.scope(level)), c, ch))
			}})
	}
	list = append(list, edit{id: "IS-BF16", title: "the importance weight is e to the d, of d = logp_old − logp_gen in bfloat16", changes: 1,
		predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction { return roughly(under(eachInHalf, c, ch)) }})
	list = append(list, edit{id: "IS-NORMALISED", title: "the importance weights of a file are the right ones times one number, as where they are divided by a mean over other tokens than its own", changes: mostChanges,
		own: true, predict: normalisedWeights})
	filled := engineFilled(o.Case.B)
	for i, s := range weightScopes {
		list = append(list, edit{id: "IS-LEVEL", title: "the importance weight of a response is " + s.title, changes: 1, own: i >= len(strayScopes) && !(s.attended && filled),
			predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction { return roughly(under(ofScope(s), c, ch)) }})
	}
	for _, f := range filterForms {
		list = append(list, edit{id: "IS-BOUND-FORM", title: "importance weights of tokens are " + f.title, changes: 1,
			predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction { return filteredBy(f.of, c, ch) }})
	}
	list = append(list, edit{id: "IS-CLAMP-MISSING", title: "importance weights are not bounded", changes: 1, predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
		return boundedBy(func(x, _, _ float64) float64 { return x }, c, ch)
	}})
	list = append(list, signedWeights(o)...)
	low := o.Case.Set.Value("tis.low").Kind() == convention.Number
	for _, b := range weightBounds {
		if !low && (strings.Contains(b.title, "lower") || strings.Contains(b.title, "below") || strings.Contains(b.title, "tis.low")) {
			continue // of a bound that is not there
		}
		list = append(list, edit{id: "IS-BOUND-FORM", title: "importance weights are " + b.title, changes: 1,
			predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction { return boundedBy(b.of, c, ch) }})
	}
	return list
}
