package dump

import "context"

// sizedGroups is miniBatches by the sizes of groups alone, as it is told where advantages of a group have no sum of 0, for want of a baseline that is the
// mean or since the rows are another's: the fewest steps over which all groups have one size, in two such spans of the run and in every one, though
// in some step they have not. It is 1 where there is no such number.
func sizedGroups(ctx context.Context, run Source) (int, error) {
	var sizes []map[float64]int
	cut := false
	steps := run.Steps()
	for i, step := range steps[:min(len(steps), maxSpan)] {
		b, err := run.Batch(ctx, step)
		if err != nil {
			return 1, err
		}
		groups := b.Row("group_id")
		if len(groups) != b.Rows || b.Rows == 0 || len(b.Missing) > 0 || i > 0 && step != steps[i-1]+1 {
			break
		}
		here := map[float64]int{}
		for _, g := range groups {
			here[g]++
		}
		cut = cut || !alike(here)
		sizes = append(sizes, here)
	}
	const least = 2 // spans
	for span := 2; cut && least*span <= len(sizes); span++ {
		all := true
		want := 0 // rows of a group
		for lo := 0; lo+span <= len(sizes) && all; lo += span {
			whole := map[float64]int{}
			for _, here := range sizes[lo : lo+span] {
				for g, n := range here {
					whole[g] += n
				}
			}
			all = len(whole) > 1 && alike(whole)
			for _, n := range whole {
				if want == 0 {
					want = n
				}
				all = all && n == want
			}
		}
		if all {
			return span, nil
		}
	}
	return 1, nil
}
