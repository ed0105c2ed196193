package fault

import (
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// baselineClasses returns the groups that unscaled advantages were taken over, as an id of every row. Each row shows the mean of its group by itself: m = R − A,
// or R − A·(n − 1)/n of a mean over the others, n the size of a group. As many rows as a group has must show one mean, and it must be theirs. Nil where
// that does not hold, or the groups are those of the dump.
func baselineClasses(c *stage.Case, ch *stage.Check) []float64 {
	const near, most = 1e-6, 2048
	b := c.B
	id, adv := b.Row("group_id"), firstAdvantages(b, ch.Output)
	n, same := groupSize(id)
	center := c.Set.Value("adv.center").String()
	if !same || n < 3 || len(adv) != b.Rows || b.Rows > most || b.Rows < 2*n || c.EnumOr("adv.scale", "none") != "none" || center != "mean" && center != "loo" {
		return nil
	}
	raw := under(option("adv.center", "none"), c, ch)
	if raw == nil || len(raw.Want) != b.Rows {
		return nil
	}
	rows, mean, size := make([]int, b.Rows), make([]float64, b.Rows), 0.0
	for r, x := range raw.Want {
		k := 1.0
		if center == "loo" {
			k = float64(n-1) / float64(n)
		}
		if rows[r], mean[r], size = r, x-adv[r]*k, max(size, math.Abs(x)); math.IsNaN(mean[r] - mean[r]) {
			return nil
		}
	}
	slices.SortStableFunc(rows, func(i, j int) int { return compare(mean[i], mean[j]) })
	classes, other := make([]float64, b.Rows), false
	for lo := 0; lo < len(rows); lo += n {
		hi := lo + n
		if hi > len(rows) || mean[rows[hi-1]]-mean[rows[lo]] > near*size || hi < len(rows) && mean[rows[hi]]-mean[rows[hi-1]] < 4*near*size {
			return nil
		}
		sum := 0.0
		for _, r := range rows[lo:hi] {
			classes[r], sum = float64(lo), sum+raw.Want[r]
			other = other || id[r] != id[rows[lo]]
		}
		if math.Abs(sum/float64(n)-mean[rows[lo]]) > near*size {
			return nil
		}
	}
	if !other {
		return nil
	}
	return classes
}

// shuffledGroupEdits returns the edit of unscaled advantages whose groups are others of the same size, in no order that a dump shows.
func shuffledGroupEdits(o *stage.Outcome) []edit {
	if baselineClasses(o.Case.Of(o.Case.B, o.Case.Set), o.Check) == nil {
		return nil
	}
	return []edit{{id: "ADV-WRONG-GROUPS", title: "the baselines are those of rows that are no group: rows were shuffled before they were cut into groups", changes: mostChanges, foreign: true,
		predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
			classes := baselineClasses(c, ch)
			if classes == nil {
				return nil
			}
			return under(func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
				return c.B.With("group_id", classes), c.Set, true
			}, c, ch)
		}}}
}
