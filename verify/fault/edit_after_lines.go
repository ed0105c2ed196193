package fault

import (
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/stage"
)

// lineSpans are the rows that one trainer's call sees of a rollout, from the most to the fewest.
var lineSpans = []struct {
	title string
	of    func(f dump.FileInfo) [3]int
}{
	{"rank", func(f dump.FileInfo) [3]int { return [3]int{f.Rank} }},
	{"mini-batch", func(f dump.FileInfo) [3]int { return [3]int{f.Step} }},
	{"mini-batch of a rank", func(f dump.FileInfo) [3]int { return [3]int{f.Step, f.Rank} }},
	{"micro-batch", func(f dump.FileInfo) [3]int { return [3]int{f.Step, f.Rank, f.MicroBatch} }},
}

// lineEdits returns the edit of advantages per token that are a line in the right ones, y = (A − c)/s, in every part of the rollout by numbers of its own: that
// of the most rows that does. Whatever normalises finished advantages once more is such a line; which statistic it takes these numbers do not say.
func lineEdits(o *stage.Outcome) []edit {
	if o.Check.ID != "gae/advantage" && o.Check.ID != "advantage/return" || len(o.Got) != len(o.Case.B.Mask) {
		return nil
	}
	if nearBy(o, whitenedByOthers(o.Case.Of(o.Case.B, o.Case.Set), o.Check)) {
		return nil // one line in what is whitened: the parts are those of the declared whitening
	}
	for _, span := range lineSpans {
		if !nearBy(o, lined(o.Case, o.Pred, o.Got, span.of)) {
			continue
		}
		how := "normalised"
		if centredIn(o, span.of) {
			how = "centred"
		}
		title := "the advantages of every " + span.title + " are (A − c)/s of the right A, with c and s of its own: finished advantages are " + how + " once more there"
		return []edit{{id: "ADV-NORMALISED-TWICE", title: title, changes: mostChanges, predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			if t := c.B.Tensors[ch.Output]; t != nil {
				return lined(c, under(sameInput, c, ch), t.Data, span.of)
			}
			return nil
		}}}
	}
	return nil
}

// cellsBy returns the cells of the mask by the part of the rollout that their file belongs to.
func cellsBy(b *dump.Batch, of func(f dump.FileInfo) [3]int) map[[3]int][]int {
	parts := map[[3]int][]int{}
	for _, f := range b.Files {
		for i := range b.TokensIn(f.Lo, f.Hi) {
			parts[of(f)] = append(parts[of(f)], i)
		}
	}
	return parts
}

// lined predicts advantages that are a line in those of p in every part, which the two cells tell whose right ones are furthest from each other: nothing is
// judged there. Nil where a part has few different numbers, or where one line fits all.
func lined(c *stage.Case, p *stage.Prediction, got []float64, of func(f dump.FileInfo) [3]int) *stage.Prediction {
	const enough = 8 // numbers, of which two are fitted
	b := c.B
	if p == nil || len(p.Want) != len(b.Mask) || len(got) != len(b.Mask) || b.Cols == 0 {
		return nil
	}
	parts := cellsBy(b, of)
	if len(parts) < 2 {
		return nil
	}
	q := &stage.Prediction{Want: make([]float64, len(p.Want)), Bound: make([]float64, len(p.Want)), Judge: slices.Clone(b.Mask), Scale: 1}
	for _, cells := range parts {
		low, high, size, distinct := cells[0], cells[0], 0.0, map[float64]bool{}
		for _, i := range cells {
			if math.IsNaN(p.Want[i]-got[i]) || math.IsInf(p.Want[i]-got[i], 0) {
				return nil
			}
			if distinct[p.Want[i]] = true; p.Want[i] < p.Want[low] {
				low = i
			} else if p.Want[i] > p.Want[high] {
				high = i
			}
			size = max(size, math.Abs(got[i]))
		}
		slope := (got[high] - got[low]) / (p.Want[high] - p.Want[low])
		if len(distinct) < enough || !(slope > 0) || math.IsInf(slope, 0) {
			return nil
		}
		e := slope*(p.Bound[low]+p.Bound[high]) + 8*c.Unit*size
		for _, i := range cells {
			q.Want[i] = got[low] + slope*(p.Want[i]-p.Want[low])
			q.Bound[i] = slope*p.Bound[i] + e
		}
		q.Judge[low], q.Judge[high] = false, false
	}
	return q
}

// centredIn reports whether the mean of the dumped numbers over the tokens of every part is 0.
func centredIn(o *stage.Outcome, of func(f dump.FileInfo) [3]int) bool {
	for _, cells := range cellsBy(o.Case.B, of) {
		sum, size := 0.0, 0.0
		for _, i := range cells {
			sum, size = sum+o.Got[i], size+math.Abs(o.Got[i])
		}
		if !(math.Abs(sum) <= 1e-5*size) {
			return false
		}
	}
	return true
}
