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

// lossTerm is a term of a loss beside the policy's, which a program may reduce in its own way.
type lossTerm struct {
	id, word, coefficient, tensor string
	sign                          float64 // with which it is in the loss
}

var lossTerms = []lossTerm{
	{"KL-AGGREGATION", "KL", "kl.beta", "kl", 1},
	{"ENTROPY-AGGREGATION", "entropy", "entropy.coef", "entropy", -1},
}

// sizes are what a reduction counts for a row of n tokens.
type sizes struct {
	n                              float64 // tokens of the row
	tokens, rows, cells            float64 // of its micro-batch
	stepTokens, stepRows, stepCell float64
}

// reductions are the weights of a token in the reductions that people write. The last one takes in what lies outside the mask.
var reductions = []struct {
	title  string
	weight func(s sizes) float64
	pads   bool
}{
	{"the mean over the tokens of the micro-batch", func(s sizes) float64 { return 1 / s.tokens }, false},
	{"the mean over the tokens of the step", func(s sizes) float64 { return 1 / s.stepTokens }, false},
	{"the mean of the means of the responses of the micro-batch", func(s sizes) float64 { return 1 / (s.n * s.rows) }, false},
	{"the mean of the means of the responses of the step", func(s sizes) float64 { return 1 / (s.n * s.stepRows) }, false},
	{"the mean of the sums of the responses of the micro-batch", func(s sizes) float64 { return 1 / s.rows }, false},
	{"the mean of the sums of the responses of the step", func(s sizes) float64 { return 1 / s.stepRows }, false},
	{"the sum over all tokens", func(sizes) float64 { return 1 }, false},
	{"the sum of the means of the responses", func(s sizes) float64 { return 1 / s.n }, false},
	{"the mean over all cells of the micro-batch, masked ones as 0", func(s sizes) float64 { return 1 / s.cells }, false},
	{"the mean over all cells of the step, masked ones as 0", func(s sizes) float64 { return 1 / s.stepCell }, false},
	{"the plain mean over all cells, padding included", func(s sizes) float64 { return 1 / s.cells }, true},
}

// termEdits returns edits in which a term of the loss is reduced in another way than declared, and the rest of the loss is right.
func termEdits(o *stage.Outcome) []edit {
	alone := o.Check.ID == "aggregate/kl_loss" || o.Check.ID == "aggregate/entropy_loss"
	if o.Check.ID != "aggregate/loss" && o.Check.ID != "gradient/dlogp" && !alone {
		return nil
	}
	c := splitKL(o.Case.Of(o.Case.B, o.Case.Set), o.Check)
	ga, world := c.FactOr("gradient_accumulation_steps", float64(max(c.B.Meta.MicroBatches, 1))), max(float64(c.B.Meta.WorldSize), 1)
	factors := []struct {
		title string
		k     float64
	}{{"", 1}, {", divided by the accumulation steps", 1 / ga}, {", times the number of ranks", world}, {", divided by the number of ranks", 1 / world}}
	var list []edit
	for _, t := range lossTerms {
		if alone && o.Check.Output != t.tensor+"_loss" || !alone && !t.apart(c, o.Check) {
			continue
		}
		for i := range reductions {
			for k, f := range factors {
				if k > 0 && f.k == 1 {
					continue
				}
				id := t.id
				if reductions[i].pads && t.tensor == "kl" {
					id = "KL-OUTSIDE-MASK"
				}
				list = append(list, edit{id: id, title: fmt.Sprintf("the %s term is reduced in its own way: %s%s", t.word, reductions[i].title, f.title), changes: 1,
					foreign: reductions[i].pads && holdsOutside(c.B, t.tensor), // what padding holds is in the loss of no program that has a mask
					predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction { return t.reduced(i, f.k, splitKL(c, ch), ch) }})
			}
		}
	}
	return list
}

// holdsOutside reports whether a tensor of tokens has other numbers than 0 outside the mask.
func holdsOutside(b *dump.Batch, tensor string) bool {
	x := b.Token(tensor)
	for i, m := range b.Mask {
		if !m && i < len(x) && x[i] != 0 {
			return true
		}
	}
	return false
}

// apart reports whether the term can be told from the rest of the loss.
func (t lossTerm) apart(c *stage.Case, ch *stage.Check) bool {
	if numberOr(c, t.coefficient, 0) == 0 {
		return false
	}
	if t.tensor != "kl" {
		return ch.ID == "aggregate/loss"
	}
	place, includes := c.Set.Value("kl.place"), c.B.Meta.TokenLossIncludesKL
	if place.Kind() != convention.Enum || place.Text() != "loss" || c.EnumOr("kl.under_is_weight", "outside") == "inside" && c.Has("is_weights") {
		return false
	}
	return ch.Stage == convention.Gradient || !c.Has("token_loss") || includes != nil && !*includes
}

// splitKL returns a case of a loss whose token losses have no KL in them, where they have and that of the tokens was dumped: then a term can be told from the
// rest of the loss.
func splitKL(c *stage.Case, ch *stage.Check) *stage.Case {
	b, beta := c.B, numberOr(c, "kl.beta", 0)
	includes, place := b.Meta.TokenLossIncludesKL, c.Set.Value("kl.place")
	tl, kl := b.Token("token_loss"), b.Token("kl")
	if ch.ID != "aggregate/loss" || beta == 0 || includes == nil || !*includes || len(tl) != len(b.Mask) || len(kl) != len(b.Mask) || place.Kind() != convention.Enum || place.Text() != "loss" {
		return c
	}
	policy, no := make([]float64, len(tl)), false
	for i := range policy {
		policy[i] = tl[i] - beta*kl[i]
	}
	apart := *b.With("token_loss", policy)
	apart.Meta.TokenLossIncludesKL = &no
	return c.Of(&apart, c.Set)
}

// sizesOf returns what reductions count for every row.
func sizesOf(b *dump.Batch) []sizes {
	n := tokensOf(b, b.Mask)
	list := make([]sizes, b.Rows)
	var all sizes
	for f, file := range b.Files {
		s := sizes{rows: float64(file.Hi - file.Lo)}
		for r := file.Lo; r < file.Hi; r++ {
			s.tokens += n[r]
		}
		width := b.Files[f].Cols
		if width <= 0 {
			width = b.Cols
		}
		s.cells = s.rows * float64(width)
		all.stepTokens, all.stepRows, all.stepCell = all.stepTokens+s.tokens, all.stepRows+s.rows, all.stepCell+s.cells
		for r := file.Lo; r < file.Hi; r++ {
			list[r] = s
			list[r].n = n[r]
		}
	}
	for r := range list {
		list[r].stepTokens, list[r].stepRows, list[r].stepCell = all.stepTokens, all.stepRows, all.stepCell
	}
	return list
}

// reduced predicts the loss, or its gradient, with the term reduced by other weights. A sum of n products is off by (n + 4)·u of their sizes.
func (t lossTerm) reduced(at int, factor float64, c *stage.Case, ch *stage.Check) *stage.Prediction {
	b, form := c.B, reductions[at]
	coef := t.sign * numberOr(c, t.coefficient, 0)
	rest := under(number(t.coefficient, func(float64) float64 { return 0 }), c, ch)
	if ch.Output == t.tensor+"_loss" { // the term alone, without its coefficient
		coef, rest = 1, &stage.Prediction{Want: make([]float64, len(b.Files)), Bound: make([]float64, len(b.Files)), Scale: 1}
	}
	if rest == nil || b.Cols == 0 {
		return nil
	}
	size := sizesOf(b)
	weight := func(r int) float64 {
		if w := factor * form.weight(size[r]); size[r].n > 0 && !math.IsInf(w, 0) && !math.IsNaN(w) {
			return w
		}
		return 0
	}
	if ch.Stage == convention.Gradient {
		all, was := under(sameInput, c, ch), rowWeights(c)
		term := combined(1, all, -1, rest)
		if was == nil || term == nil || len(term.Want) != len(b.Mask) {
			return nil
		}
		p := combined(1, rest, 1, timesCells(term, 4*c.Unit, func(i int) float64 {
			if w := was[i/b.Cols]; w != 0 {
				return weight(i/b.Cols) / w
			}
			return 0
		}))
		if form.pads {
			p.Judge = slices.Clone(b.Mask) // nobody knows the slope of padding
		}
		return p
	}
	of := b
	if form.pads && b.Token(t.tensor) == nil { // what the same formula gives in the padding
		of = b.WithMask(slices.Repeat([]bool{true}, len(b.Mask)))
	}
	in := c.Of(of, c.Set).Token(t.tensor)
	if len(in.X) != len(b.Mask) || len(rest.Want) != len(b.Files) {
		return nil
	}
	p := altered(rest)
	for f, file := range b.Files {
		var sum, all, e, n float64
		for i := file.Lo * b.Cols; i < file.Hi*b.Cols; i++ {
			if inside := i%b.Cols < file.Cols || file.Cols <= 0; b.Mask[i] || form.pads && inside {
				w := weight(i / b.Cols)
				if form.pads {
					w = factor * form.weight(size[i/b.Cols])
				}
				sum, all, e, n = sum+float64(w*in.X[i]), all+math.Abs(w*in.X[i]), e+math.Abs(w)*in.E(i), n+1
			}
		}
		p.Want[f] += coef * sum
		p.Bound[f] += math.Abs(coef)*((n+4)*c.Unit*all+e) + 2*c.Unit*math.Abs(p.Want[f])
	}
	if beta := numberOr(c, t.coefficient, 0); ch.Output == "kl_loss" && beta != 0 { // it may be in it
		p.Alt = mapped(p.Want, func(x float64) float64 { return beta * x })
	}
	return p
}

// termForms are what programs make of a term of the loss beside its coefficient.
var termForms = []struct {
	title string
	of    func(term, coef float64) float64
}{
	{"squared", func(term, coef float64) float64 { return coef * term * term }},
	{"by its magnitude", func(term, coef float64) float64 { return coef * math.Abs(term) }},
	{"by its root", func(term, coef float64) float64 { return coef * math.Sqrt(term) }},
	{"through the exponential", func(term, coef float64) float64 { return coef * math.Exp(term) }},
	{"with the square of its coefficient", func(term, coef float64) float64 { return coef * coef * term }},
}

// holdsCoefficient reports whether the term that was dumped beside a loss has its coefficient in it, c·Agg in place of Agg, in all files: what the loss adds is
// then not multiplied by it.
func (t lossTerm) holdsCoefficient(c *stage.Case, ch *stage.Check) bool {
	coef, dumped := numberOr(c, t.coefficient, 0), c.B.PerFile(t.tensor+"_loss")
	all, rest := under(sameInput, c, ch), under(number(t.coefficient, func(float64) float64 { return 0 }), c, ch)
	term := combined(1, all, -1, rest) // sign·c·Agg
	if term == nil || len(dumped) != len(term.Want) || len(dumped) == 0 || coef == 1 {
		return false
	}
	for i, x := range term.Want {
		if !(math.Abs(dumped[i]-t.sign*x) <= 2*term.Bound[i]) || math.Abs(x-x/coef) <= apart*term.Bound[i] {
			return false
		}
	}
	return true
}

// termFormEdits returns edits of a loss one term of which went through a function behind its mean.
func termFormEdits(o *stage.Outcome) []edit {
	if o.Check.ID != "aggregate/loss" {
		return nil
	}
	c := o.Case.Of(o.Case.B, o.Case.Set)
	var list []edit
	for _, t := range append(slices.Clone(lossTerms), lossTerm{word: "value", coefficient: "value.coef", tensor: "values_new", sign: 1}) {
		if numberOr(c, t.coefficient, 0) == 0 || t.tensor == "kl" && !t.apart(c, o.Check) {
			continue
		}
		for _, f := range termForms {
			squared := strings.HasSuffix(f.title, "coefficient")
			id, title, shown := "OTHER-FORM", fmt.Sprintf("the %s term enters the loss %s", t.word, f.title), squared && t.holdsCoefficient(c, o.Check)
			if shown {
				id, title = "COEFFICIENT-TWICE", fmt.Sprintf("the %s_loss that the files have is multiplied by %s, and the loss multiplies it once more", t.tensor, t.coefficient)
			}
			list = append(list, edit{id: id, title: title, changes: 1, own: squared && !shown, foreign: shown,
				predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
					coef := t.sign * numberOr(c, t.coefficient, 0)
					all, rest := under(sameInput, c, ch), under(number(t.coefficient, func(float64) float64 { return 0 }), c, ch)
					term := combined(1, all, -1, rest)
					if term == nil || coef == 0 {
						return nil
					}
					p := altered(rest)
					for i, x := range term.Want {
						y := f.of(x/coef, coef)
						if math.IsNaN(y) || x == 0 {
							return nil
						}
						p.Want[i] += y
						p.Bound[i] += 4*term.Bound[i]*math.Abs(y/x) + 8*c.Unit*(math.Abs(y)+math.Abs(p.Want[i]))
					}
					return p
				}})
		}
	}
	return list
}

// entropyEdits returns edits of the entropy term whose entropies are something else.
func entropyEdits(o *stage.Outcome) []edit {
	c := o.Case.Of(o.Case.B, o.Case.Set)
	if o.Check.ID != "aggregate/entropy_loss" && (o.Check.ID != "aggregate/loss" || numberOr(c, "entropy.coef", 0) == 0) {
		return nil
	}
	var list []edit
	for _, f := range []struct {
		title string
		of    func(lp float64) float64
	}{
		{"−logp_new of the sampled tokens", func(lp float64) float64 { return -lp }},
		{"logp_new of the sampled tokens", func(lp float64) float64 { return lp }},
		{"−p·logp_new of the sampled tokens", func(lp float64) float64 { return -math.Exp(lp) * lp }},
	} {
		list = append(list, edit{id: "ENTROPY-FORM", title: "the entropy term is made of " + f.title + ", not of entropies", changes: 1,
			predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
				lp := c.B.Token("logp_new")
				if lp == nil {
					return nil
				}
				return widened(under(perToken("entropy", mapped(lp, f.of)), c, ch), 16*c.Unit)
			}})
	}
	return list
}
