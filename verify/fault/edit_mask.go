package fault

import (
	"slices"
	"strings"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// maskForm is another mask that a program may have in the place of the right one.
type maskForm struct {
	id, title string
	of        func(c *stage.Case) []bool
}

// moveRight moves a row by some cells, to the left if negative; what comes in is false.
func moveRight(by int) func(row []bool) {
	return func(row []bool) {
		was := slices.Clone(row)
		for t := range row {
			row[t] = t-by >= 0 && t-by < len(row) && was[t-by]
		}
	}
}

// rollRow moves a row by some cells; what leaves it at one end comes in at the other.
func rollRow(by int) func(row []bool) {
	return func(row []bool) {
		was, n := slices.Clone(row), len(row)
		for t := range row {
			row[t] = was[((t-by)%n+n)%n]
		}
	}
}

// moveHoles moves what is masked between the first and the last token of a row, as the tokens of tools, by some columns.
func moveHoles(by int) func(row []bool) {
	return func(row []bool) {
		was := slices.Clone(row)
		first, last := firstLast(row)
		for t := max(first, 0); t <= last; t++ {
			row[t] = t-by < first || t-by > last || was[t-by]
		}
	}
}

var maskForms = []maskForm{
	{"LOSS-MASK-PADS", "the mask is inverted: padding counts, and the response does not", rowByRow(func(row []bool) {
		for t := range row {
			row[t] = !row[t]
		}
	})},
	{"LOSS-MASK-PADS", "padding counts", rowByRow(everyCell)},
	{"LOSS-MASK-TOOL", "what lies between two tokens of the policy counts", rowByRow(withHoles)},
	{"LOSS-MASK-TOOL", "every token that attention shows counts", func(c *stage.Case) []bool { return attendedCells(c.B) }},
	{"LOSS-MASK-TOOL", byIDs, beforePadding},
	{"LOSS-MASK-SHIFT", "the holes of the mask are one token late", rowByRow(moveHoles(1))},
	{"LOSS-MASK-EARLY", "the holes of the mask are one token early", rowByRow(moveHoles(-1))},
	{"LOSS-MASK-SHIFT", "the mask is one token late", rowByRow(moveRight(1))},
	{"LOSS-MASK-SHIFT", "the mask is two tokens late", rowByRow(moveRight(2))},
	{"LOSS-MASK-EARLY", "the mask is one token early", rowByRow(moveRight(-1))},
	{"LOSS-MASK-EARLY", "the mask is two tokens early", rowByRow(moveRight(-2))},
	{"LOSS-MASK-NO-EOS", "the last token of every response does not count", rowByRow(withoutLast)},
	{"LOSS-MASK-NO-EOS", "EOS does not count", withoutEOS},
	{"LOSS-MASK-FIRST", "the first token of every response does not count", rowByRow(withoutFirst)},
	{"LOSS-MASK-P1", "one token behind every response counts", rowByRow(oneMore)},
	{"LOSS-MASK-SHIFT", "the mask is rolled by one token to the right", rowByRow(rollRow(1))},
	{"LOSS-MASK-EARLY", "the mask is rolled by one token to the left", rowByRow(rollRow(-1))},
	{"LOSS-MASK-SHIFT", "the mask and the mask one token late must both hold", rowByRow(func(row []bool) {
		for t := len(row) - 1; t >= 0; t-- {
			row[t] = row[t] && t > 0 && row[t-1]
		}
	})},
	{"LOSS-MASK-EARLY", "the mask and the mask one token early must both hold", rowByRow(func(row []bool) {
		for t := range row {
			row[t] = row[t] && t+1 < len(row) && row[t+1]
		}
	})},
	{"LOSS-FIRST-COLUMN", "only the first token of every response counts", rowByRow(func(row []bool) {
		first, _ := firstLast(row)
		clear(row)
		if first >= 0 {
			row[first] = true
		}
	})},
	{"LOSS-MASK-NO-EOS", "only the last token of every response counts", rowByRow(func(row []bool) {
		_, last := firstLast(row)
		clear(row)
		if last >= 0 {
			row[last] = true
		}
	})},
}

// countedIDs are the bugs that another mask is in the count alone: of a divisor.
var countedIDs = map[string]string{"LOSS-MASK-PADS": "AGG-PAD-DENOMINATOR", "LOSS-MASK-TOOL": "AGG-COUNTS-MASKED"}

// maskEdits returns edits of the mask of a reduction: in sum and count, in the sum alone, in the count alone; of all terms of a loss, of its
// policy term, or of the others.
func maskEdits(o *stage.Outcome) []edit {
	if s := o.Check.Stage; s != convention.Aggregate && s != convention.Gradient {
		return nil
	}
	c := o.Case.Of(o.Case.B, o.Case.Set)
	terms, split := []string{""}, splitKL(c, o.Check)
	var single []string // the coefficients of terms that are one of several
	if in, any := otherTermsOff(split); any && (o.Check.ID == "aggregate/loss" || o.Check.ID == "gradient/dlogp") && under(in, split, o.Check) != nil {
		terms = []string{"", "of the policy term alone ", "of the terms beside the policy's "}
		for _, name := range coefficients {
			if numberOr(split, name, 0) != 0 {
				single = append(single, name)
			}
		}
		if len(single) < 2 {
			single = nil
		}
		for _, name := range single {
			terms = append(terms, "of the "+termOf[name]+" term alone ")
		}
	}
	onlyKL := numberOr(c, "kl.beta", 0) != 0 && numberOr(c, "entropy.coef", 0) == 0 && numberOr(c, "value.coef", 0) == 0
	forms := slices.Clone(maskForms)
	if o.Check.ID == "aggregate/value_loss" || o.Check.ID == "gradient/dvalues" {
		forms = append(forms, fewTokens()...)
	}
	read, filters := maskOfGradient(o, c)
	if read != nil {
		forms = append(forms, *read)
	}
	var list []edit
	for k, m := range forms {
		for _, part := range []struct {
			title   string
			predict func(*stage.Case, *stage.Check) *stage.Prediction
		}{
			{"in sum and count ", func(c *stage.Case, ch *stage.Check) *stage.Prediction { return under(maskOf(m.of), c, ch) }},
			{"in the sum alone ", numerator(maskOf(m.of))},
			{"in sum and count of each response, and not in which responses have any, ", rowsKept(maskOf(m.of))},
			{"in the count alone ", func(c *stage.Case, ch *stage.Check) *stage.Prediction {
				other := m.of(c)
				if other == nil {
					return nil
				}
				return counted(func(c *stage.Case, row int, _ float64) float64 { return count(other[row*c.B.Cols : (row+1)*c.B.Cols]) })(c, ch)
			}},
		} {
			if part.title == "in the count alone " && strings.Contains(m.title, "only the ") {
				continue // a count of one token of every response is that of the responses
			}
			for i, term := range terms {
				id := m.id
				if of, ok := countedIDs[id]; ok && part.title == "in the count alone " && i < 2 {
					id = of
				}
				if i == 2 && id == "LOSS-MASK-PADS" && onlyKL {
					id = "KL-OUTSIDE-MASK"
				}
				changes := 1
				if m.title == byIDs { // what padding is was inferred
					changes = mostChanges
				}
				var configured []string
				if read != nil && k == len(forms)-1 && part.title == "in the sum alone " {
					configured = filters
				}
				list = append(list, edit{id: id, title: term + part.title + "another mask: " + m.title, changes: changes, configured: configured,
					predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
						if i == 0 {
							return part.predict(c, ch)
						}
						c = splitKL(c, ch)
						off := coefficients
						if i > 2 {
							off = single[i-3 : i-2]
						}
						in, _ := termsOff(c, off)
						b, set, ok := in(c)
						if !ok {
							return nil
						}
						alone := c.Of(b, set)
						all, policy := under(sameInput, c, ch), under(sameInput, alone, ch)
						if i == 1 {
							return combined(1, part.predict(alone, ch), 1, combined(1, all, -1, policy))
						}
						return combined(1, combined(1, part.predict(c, ch), -1, part.predict(alone, ch)), 1, policy)
					}})
			}
		}
	}
	return list
}

// termOf are the terms of a loss by their coefficients.
var termOf = map[string]string{"kl.beta": "KL", "entropy.coef": "entropy", "value.coef": "value", "dpo.nll_weight": "likelihood"}

// otherTermsOff returns the input without the terms of a loss beside the policy's, and whether there is such a term.
func otherTermsOff(c *stage.Case) (input, bool) { return termsOff(c, coefficients) }

// termsOff is [otherTermsOff] for the terms of some coefficients.
func termsOff(c *stage.Case, off []string) (input, bool) {
	any := false
	for _, name := range off {
		any = any || numberOr(c, name, 0) != 0
	}
	return func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
		set := c.Set
		for _, name := range off {
			if numberOr(c, name, 0) != 0 {
				set = set.With(name, convention.NumberValue(0), "hypothesis")
			}
		}
		return c.B, set, true
	}, any
}
