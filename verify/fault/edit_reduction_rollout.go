package fault

import (
	"cmp"
	"fmt"
	"math"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// rolloutCountEdits returns edits of a loss that is divided by num_items_in_batch, the tokens that all ranks have in several steps, and in which every rank
// counts its own: a count that is not gathered. The steps are those of one generation batch.
func rolloutCountEdits(o *stage.Outcome, beside func(step int) []*dump.Batch) (list []edit) {
	const most = 8 // steps
	if b := o.Case.B; b.Meta.WorldSize < 2 || itemsOf(o.Case) <= 0 || o.Check.Stage != convention.Aggregate && o.Check.Stage != convention.Gradient ||
		o.Check.Output == "value_loss" || o.Check.Output == "dvalues" {
		return nil
	}
	for n := 2; n <= most; n++ {
		for first := range n {
			if _, all := rankTokens(o.Case.B, beside(o.Case.B.Meta.Step), n, first); all != itemsOf(o.Case) {
				continue
			}
			for _, share := range []bool{true, false} {
				title := fmt.Sprintf("num_items_in_batch counts the tokens that the own rank has in the %d steps of a generation batch: the counts of the ranks are not gathered", n)
				if share {
					title += ", and the count is divided by their number"
				}
				list = append(list, edit{id: "AGG-LOCAL-DENOMINATOR", title: title, changes: 1, predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
					own, all := rankTokens(c.B, beside(c.B.Meta.Step), n, first)
					if all != itemsOf(c) {
						return nil
					}
					by := spreadFiles(c.B, func(f int) float64 {
						k := all / own[c.B.Files[f].Rank]
						if !share {
							k /= float64(c.B.Meta.WorldSize)
						}
						return k
					})
					return weighted(c.B, c, ch, by)
				}})
			}
		}
	}
	return list
}

// leftOutCountEdits returns edits of a loss that is divided by the tokens of one or several steps, those of responses with them that the mask leaves out: counted
// before the mask is final.
func leftOutCountEdits(o *stage.Outcome, beside func(step int) []*dump.Batch) (list []edit) {
	const most = 8 // steps
	if o.Check.Stage != convention.Aggregate && o.Check.Stage != convention.Gradient || o.Check.Output == "value_loss" || o.Check.Output == "dvalues" {
		return nil
	}
	if overTokensOfAll(o.Case) == nil {
		return nil
	}
	for n := 1; n <= most; n++ {
		for first := range n {
			by := func(c *stage.Case) float64 { return leftOutCount(c, beside(c.B.Meta.Step), n, first) }
			if x := by(o.Case); !(x > 0) || x == 1 {
				continue
			}
			title := "the tokens are counted with those of the responses that the mask leaves out"
			if n > 1 {
				title += fmt.Sprintf(", over the %d steps of a generation batch", n)
			}
			list = append(list, edit{id: "AGG-COUNTS-MASKED", title: title, changes: 1, predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
				x, over := by(c), overTokensOfAll(c)
				if !(x > 0) || over == nil {
					return nil
				}
				return weighted(c.B, over, ch, spreadFiles(c.B, func(int) float64 { return x }))
			}})
		}
	}
	return list
}

// overTokensOfAll is a case whose loss is divided by the tokens of all ranks, nil where something else is declared.
func overTokensOfAll(c *stage.Case) *stage.Case {
	set := c.Set
	for _, o := range [][2]string{{"agg.kind", "token"}, {"agg.denominator", "global"}} {
		v, err := convention.Parse(o[0], o[1])
		if err != nil {
			panic("fault: " + err.Error())
		}
		if set.Value(o[0]) == v {
			continue
		}
		if set.Declares(o[0]) {
			return nil
		}
		set = set.With(o[0], v, "search")
	}
	return c.Of(c.B, set)
}

// leftOutCount is what a loss is multiplied by if the tokens of n steps, from first, first + n and so on, are counted by the ids of the responses; 0 where these do not
// show them, or not all steps are there.
func leftOutCount(c *stage.Case, beside []*dump.Batch, n, first int) float64 {
	of := func(step int) int { return (step - first + n) / n }
	steps := map[int]bool{}
	var masked, byIDs float64
	for _, b := range append([]*dump.Batch{c.B}, beside...) {
		if of(b.Meta.Step) != of(c.B.Meta.Step) || steps[b.Meta.Step] {
			continue
		}
		tokens := make([]float64, b.Rows)
		for i := range b.Tokens() {
			tokens[i/b.Cols]++
		}
		long := idLengths(b, tokens)
		if long == nil {
			return 0
		}
		steps[b.Meta.Step] = true
		for r, k := range tokens {
			masked += k
			if k == 0 {
				k = float64(long[r])
			}
			byIDs += k
		}
	}
	right := count(c.B.Mask) * float64(n)
	if items := itemsOf(c); items > 0 {
		if right = masked; items != masked {
			return 0
		}
	}
	if len(steps) != n {
		return 0
	}
	return right / byIDs
}

// itemsOf is num_items_in_batch, the declared one or that which the losses of a run show, 0 where neither is known.
func itemsOf(c *stage.Case) float64 {
	return c.FactOr("num_items_in_batch", math.Round(c.FactOr(stage.StepTokens, 0)*c.FactOr(stage.GenerationSteps, 0)))
}

// rankTokens returns the tokens of every rank in those n steps that have the step of the batch among them and begin at first, first + n and so on, and of all
// ranks, −1 where a step of them is not there.
func rankTokens(b *dump.Batch, beside []*dump.Batch, n, first int) (own map[int]float64, all float64) {
	of := func(step int) int { return (step - first + n) / n }
	own = map[int]float64{}
	steps := map[int]bool{}
	for _, p := range placesOf(append([]*dump.Batch{b}, beside...)...) {
		if of(p.step) != of(b.Meta.Step) {
			continue
		}
		tokens := count(p.b.Mask[p.row*p.b.Cols : (p.row+1)*p.b.Cols])
		steps[p.step], own[p.rank], all = true, own[p.rank]+tokens, all+tokens
	}
	if len(steps) != n {
		return own, -1
	}
	return own, cmp.Or(all, -1)
}
