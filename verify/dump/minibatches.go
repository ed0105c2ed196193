package dump

import (
	"context"
	"math"
	"slices"

	"plumbline/internal/format/dump"
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
	var shares []share
	steps := run.Steps()
	if b, err := run.Batch(ctx, steps[0]); err != nil {
		return 1, err
	} else if b.Row("sample_id") == nil {
		if span, err := cutGroups(ctx, run); err != nil || span > 1 {
			return span, err
		}
		return sizedGroups(ctx, run)
	}
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
		shares = append(shares, share{groups, samples})
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
	return rollouts(shares[:span]), nil
}

// share is what a step has of its rollout.
type share struct{ groups, samples []float64 }

// rollouts returns the steps of one rollout where groups of the next may have the names of those before: the fewest steps, one after the other,
// whose samples are all of an interval of numbers and whose groups have one size, in every such part; the number of all steps where there are none.
// Of 2m rows that are shuffled the first m are an interval by chance with (m + 1)/C(2m, m).
func rollouts(shares []share) int {
	for span := 2; span < len(shares); span++ {
		if len(shares)%span == 0 && !slices.ContainsFunc(slices.Collect(slices.Chunk(shares, span)), func(part []share) bool { return !fills(part) }) {
			return span
		}
	}
	return len(shares)
}

// fills reports whether the samples of some steps are all whole numbers of an interval, and their groups of one size.
func fills(part []share) bool {
	low, high, n := math.Inf(1), math.Inf(-1), 0
	size := map[float64]int{}
	for _, s := range part {
		for r, x := range s.samples {
			low, high, n = min(low, x), max(high, x), n+1
			size[s.groups[r]]++
		}
	}
	return high-low == float64(n-1) && alike(size)
}

// cutGroups is miniBatches where no sample has a name: the fewest steps, one after the other, over which all groups have one size, and their
// advantages, where these were dumped, the sum 0, though some step has groups that have not. Each such span of the run must be so: ids that merely
// come again would have to make equal groups in every one.
func cutGroups(ctx context.Context, run Source) (int, error) {
	steps := run.Steps()
	span, want, since, spans := 0, 0, 0, 0
	whole := map[float64]*part{}
	cut := false
	for i, step := range steps[:min(len(steps), maxSpan)] {
		b, err := run.Batch(ctx, step)
		if err != nil {
			return 1, err
		}
		if len(b.Row("group_id")) != b.Rows || b.Rows == 0 || len(b.Missing) > 0 || i > 0 && step != steps[i-1]+1 {
			break
		}
		linked := since == 0
		here := partsOf(b)
		for g, p := range here {
			if whole[g] == nil {
				whole[g] = &part{}
			} else {
				linked = true
			}
			whole[g].n += p.n
			whole[g].sum += p.sum
			whole[g].size += p.size
		}
		if !linked {
			return 1, nil
		}
		cut = cut || !complete(here)
		if since++; span == 0 && len(whole) > 1 && complete(whole) {
			if since == 1 {
				return 1, nil
			}
			span, want = since, whole[b.Row("group_id")[0]].n
		}
		if span == 0 || since < span {
			continue
		}
		if !complete(whole) || whole[b.Row("group_id")[0]].n != want {
			return 1, nil
		}
		spans++
		since = 0
		clear(whole)
	}
	if span < 2 || spans == 0 || !cut {
		return 1, nil
	}
	return span, nil
}

// part is the rows of a group in some steps: their number, the sum of their advantages and that of the magnitudes.
type part struct {
	n         int
	sum, size float64
}

// partsOf returns the rows of every group of a batch. Advantages per token count where all of a row are one number.
func partsOf(b *dump.Batch) map[float64]*part {
	parts := map[float64]*part{}
	adv, row := b.Token("advantages"), b.Row("advantages")
	for r, g := range b.Row("group_id") {
		p := parts[g]
		if p == nil {
			p = &part{}
			parts[g] = p
		}
		p.n++
		a := math.NaN()
		if len(row) == b.Rows {
			a = row[r]
		}
		for c := 0; adv != nil && c < b.Cols; c++ {
			if i := r*b.Cols + c; b.Mask[i] {
				if !math.IsNaN(a) && adv[i] != a {
					return withoutSums(parts, b.Row("group_id"))
				}
				a = adv[i]
			}
		}
		if !math.IsNaN(a) {
			p.sum, p.size = p.sum+a, p.size+math.Abs(a)
		}
	}
	return parts
}

func withoutSums(parts map[float64]*part, groups []float64) map[float64]*part {
	clear(parts)
	for _, g := range groups {
		if parts[g] == nil {
			parts[g] = &part{}
		}
		parts[g].n++
	}
	return parts
}

// complete reports whether all groups have one size, and advantages whose sum is 0 to a hundredth of their magnitudes, as rounding to
// bfloat16 leaves it.
func complete(groups map[float64]*part) bool {
	size := map[float64]int{}
	for g, p := range groups {
		if size[g] = p.n; math.Abs(p.sum) > p.size/100 {
			return false
		}
	}
	return alike(size)
}

// passOf returns after how many steps the rows of the first step come again, where that divides the n steps over which a rollout is
// declared to be shuffled: a program that counts the steps of all its epochs means n, and its rows are n/pass times in them. It is n where no
// row comes again before, or rows cannot be told apart.
func (s *session) passOf(n int) int {
	if pass, known := s.passes[n]; known {
		return pass
	}
	if s.passes == nil {
		s.passes = map[int]int{}
	}
	s.passes[n] = n
	again, err := rowsComeAgain(s.ctx, s.run, n)
	if err != nil {
		s.fail(err)
	}
	if again > 0 && n%again == 0 {
		s.passes[n] = again
	}
	return s.passes[n]
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
