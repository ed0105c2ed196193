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
