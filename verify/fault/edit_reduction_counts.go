package fault

import (
	"maps"
	"slices"

	"plumbline/verify/stage"
)

// addUneven adds counts that one micro-batch of a rank has for itself, as where a last batch that is smaller is treated apart: its own tokens, where those of the
// others are of the step.
func (p *reductionParts) addUneven(c *stage.Case, n []float64, add func(list *[]part, what string, x []float64)) {
	b := c.B
	first, last, several := endFiles(b)
	if !several {
		return
	}
	of := func(f int) float64 { return total(n[b.Files[f].Lo:b.Files[f].Hi]) }
	for word, at := range [][]int{first, last} {
		add(&p.count, "the tokens of the step, of the "+[]string{"first", "last"}[word]+" micro-batch of a rank by its own", spreadFiles(b, func(f int) float64 {
			if at[f] == f {
				return of(f)
			}
			return total(n)
		}))
	}
}

// addRanks adds counts of all ranks that are made of those of one.
func (p *reductionParts) addRanks(c *stage.Case, n []float64, add func(list *[]part, what string, x []float64)) {
	b := c.B
	of := map[int]float64{}
	for r, k := range n {
		of[b.Files[b.File(r)].Rank] += k
	}
	if len(of) < 2 {
		return
	}
	ranks := slices.Sorted(maps.Keys(of))
	world := float64(len(ranks))
	for _, one := range []struct {
		what   string
		tokens float64
	}{{"the first rank", of[ranks[0]]}, {"the last rank", of[ranks[len(ranks)-1]]}, {"the rank that has the most", slices.Max(slices.Collect(maps.Values(of)))}, {"the rank that has the fewest", slices.Min(slices.Collect(maps.Values(of)))}} {
		add(&p.count, "the tokens of "+one.what+", times the ranks", everyRow(b, world*one.tokens))
		add(&p.count, "the tokens of "+one.what, everyRow(b, one.tokens))
	}
}

// weightsKeep ends the names of counts that leave out what importance weights leave out, which a program may mean.
const weightsKeep = " that importance weights keep"

// addWeighted adds counts of the tokens that importance weights keep, those whose weight is not 0.
func (p *reductionParts) addWeighted(c *stage.Case, n []float64, add func(list *[]part, what string, x []float64)) {
	b, w := c.B, c.Optional("is_weights").X
	if len(w) != len(b.Mask) {
		return
	}
	keeps := slices.Clone(b.Mask)
	for i := range keeps {
		keeps[i] = keeps[i] && w[i] != 0
	}
	kept := tokensOf(b, keeps)
	if total(kept) == total(n) || total(kept) == 0 {
		return
	}
	of := func(x []float64, f int) float64 { return total(x[b.Files[f].Lo:b.Files[f].Hi]) }
	add(&p.count, "the tokens of the step"+weightsKeep, everyRow(b, total(kept)))
	add(&p.count, "the tokens of the micro-batch"+weightsKeep, spreadFiles(b, func(f int) float64 { return of(kept, f) }))
	add(&p.count, "the tokens of the step, times the share of the micro-batch"+weightsKeep, spreadFiles(b, func(f int) float64 {
		return total(n) * of(kept, f) / max(of(n, f), 1)
	}))
}
