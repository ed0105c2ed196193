package dump

import (
	"context"
)

// miniBatches returns over how many steps the rows of a rollout were shuffled, as sample_id and group_id of the first steps tell where
// nobody says it: steps belong together until a sample comes again, or no group goes on. It is 1 where no group is cut, that is where the
// groups have one size in every step and their samples do not follow each other over the steps, and where the groups of the steps together
// have not one size: then rows are not there.
func miniBatches(ctx context.Context, run Source) (int, error) {
	type cell struct{ group, sample float64 }
	seen, size := map[cell]bool{}, map[float64]int{}
	low, high := map[float64]float64{}, map[float64]float64{} // samples of a group
	cut := false
	span := 0
	steps := run.Steps()
	for _, step := range steps[:min(len(steps), maxSpan)] {
		b, err := run.Batch(ctx, step)
		if err != nil {
			return 1, err
		}
		groups, samples := b.Row("group_id"), b.Row("sample_id")
		if len(groups) != b.Rows || len(samples) != b.Rows || b.Rows == 0 || len(b.Missing) > 0 {
			break
		}
		again, linked := false, span == 0
		here := map[float64]int{}
		for r, g := range groups {
			again = again || seen[cell{g, samples[r]}]
			linked = linked || size[g] > 0
			here[g]++
		}
		if again || !linked {
			break
		}
		for r, g := range groups {
			seen[cell{g, samples[r]}] = true
			if size[g]++; size[g] == 1 {
				low[g], high[g] = samples[r], samples[r]
			}
			low[g], high[g] = min(low[g], samples[r]), max(high[g], samples[r])
		}
		cut = cut || !alike(here)
		span++
	}
	// Parts of one size may be chance. Samples that are numbered group by group over the steps are not: groups that merely have the
	// names of those before get later numbers.
	blocks := len(size) > 1
	for g, n := range size {
		blocks = blocks && high[g]-low[g] == float64(n-1)
	}
	if span < 2 || !cut && !blocks || !alike(size) {
		return 1, nil
	}
	return span, nil
}

// alike reports whether all groups have one size.
func alike(size map[float64]int) bool {
	first := -1
	for _, n := range size {
		if first < 0 {
			first = n
		}
		if n != first {
			return false
		}
	}
	return true
}
