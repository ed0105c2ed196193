package fault

import (
	"slices"

	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// termParts are tokens that a term of the loss may be taken of alone.
var termParts = []struct {
	title string
	in    func(c *stage.Case, i int) bool
}{
	{"of tokens whose advantage is above 0", func(c *stage.Case, i int) bool { return advantageAt(c, i) > 0 }},
	{"of tokens whose advantage is below 0", func(c *stage.Case, i int) bool { return advantageAt(c, i) < 0 }},
	{"of tokens whose advantage is not 0", func(c *stage.Case, i int) bool { return advantageAt(c, i) != 0 }},
	{"of responses that ended with EOS", func(c *stage.Case, i int) bool { return ended(c, i/c.B.Cols) }},
	{"of responses that were cut off", func(c *stage.Case, i int) bool { return !ended(c, i/c.B.Cols) }},
	{"of tokens without the last one of their response", func(c *stage.Case, i int) bool { return i != lastOf(c.B, i/c.B.Cols) }},
}

func advantageAt(c *stage.Case, i int) float64 {
	t := c.B.Tensors["advantages"]
	switch {
	case t == nil:
		return 0
	case len(t.Data) == len(c.B.Mask):
		return t.Data[i]
	case len(t.Data) == c.B.Rows:
		return t.Data[i/c.B.Cols]
	}
	return 0
}

// termPartEdits returns edits of a loss, or of its gradient, whose KL is that of some of the tokens, and the rest of which is right.
func termPartEdits(o *stage.Outcome) []edit {
	c := splitKL(o.Case.Of(o.Case.B, o.Case.Set), o.Check)
	if o.Check.ID != "aggregate/loss" && o.Check.ID != "gradient/dlogp" || c.B.Cols == 0 || !lossTerms[0].apart(c, o.Check) {
		return nil
	}
	var list []edit
	for _, part := range termParts {
		list = append(list, edit{id: "KL-PART", title: "the KL term is that " + part.title + " alone", changes: 1, foreign: true,
			predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
				c = splitKL(c, ch)
				if ch.Stage == convention.Gradient {
					all, rest := under(sameInput, c, ch), under(noKL, c, ch)
					term := combined(1, all, -1, rest)
					if term == nil || len(term.Want) != len(c.B.Mask) {
						return nil
					}
					for i, m := range c.B.Mask {
						if m && !part.in(c, i) {
							term.Want[i], term.Bound[i] = 0, 0
						}
					}
					return combined(1, rest, 1, term)
				}
				kl := c.Of(c.B, c.Set).Token("kl")
				if len(kl.X) != len(c.B.Mask) {
					return nil
				}
				y := slices.Clone(kl.X)
				for i, m := range c.B.Mask {
					if m && !part.in(c, i) {
						y[i] = 0
					}
				}
				return under(perToken("kl", y), c, ch)
			}})
	}
	return list
}
