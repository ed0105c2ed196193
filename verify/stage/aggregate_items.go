package stage

import (
	"fmt"
	"maps"
	"math"
	"slices"

	"plumbline/internal/format/dump"
)

// differingItems is what files of one step say that do not agree on num_items_in_batch. Where the denominator is that of all ranks (agg.denominator global) the count
// is of all of them and one number; where every rank divides by its own, counts differ, and where nothing says it, that is a warning. Counts of the ranks
// whose sum is the tokens of the step, or of its generation batch, are each rank's own.
func (c *Case) differingItems() *Assertion {
	kind := c.EnumOr("agg.denominator", "")
	if kind != "global" && kind != "" || c.severalGenerations() != "" {
		return nil
	}
	list := c.B.Meta.Counts
	first, other := list[0], list[0]
	ranks := map[int]float64{}
	same := true // for all files of a rank
	for _, n := range list {
		if n.N != first.N && other.N == first.N {
			other = n
		}
		if before, seen := ranks[n.Rank]; seen && before != n.N {
			same = false
		}
		ranks[n.Rank] = n.N
	}
	v := Violation{Row: -1, Col: -1, Got: other.N, Reason: fmt.Sprintf("num_items_in_batch is one number for all files of a step, and %s in that of rank %d, micro-batch %d, but %s in that of rank %d, micro-batch %d",
		plain(first.N), first.Rank, first.MicroBatch, plain(other.N), other.Rank, other.MicroBatch)}
	sum, tokens := 0.0, c.FactOr(GenerationTokens, math.NaN())
	for _, n := range ranks {
		sum += n
	}
	if math.IsNaN(tokens) {
		tokens = 0
		for _, n := range c.tokensOfRows() {
			tokens += n
		}
	}
	if same && len(ranks) > 1 && sum == tokens {
		v.Fault = "AGG-LOCAL-DENOMINATOR"
		v.Reason += "; their sum is that of all tokens, so that every rank counts its own"
	} else if c.countsOfFiles() {
		v.Fault = "AGG-LOCAL-DENOMINATOR"
		v.Reason += "; they are the tokens of these files, so that every micro-batch counts its own"
	}
	return &Assertion{Checked: 1, Violations: []Violation{v}, Warning: kind == ""}
}

// countsOfFiles reports whether the number that every file has is that of the tokens in its own mask.
func (c *Case) countsOfFiles() bool {
	tokens := c.tokensOfRows()
	for _, n := range c.B.Meta.Counts {
		own := math.NaN()
		for _, f := range c.B.Files {
			if f.Rank == n.Rank && f.MicroBatch == n.MicroBatch {
				own = 0
				for _, x := range tokens[f.Lo:f.Hi] {
					own += x
				}
			}
		}
		if own != n.N {
			return false
		}
	}
	return true
}

// rankCounts are what programs have in place of the sum of the tokens of the ranks.
func rankCounts(ranks []float64) []count {
	if n := float64(len(ranks)); n > 1 {
		sum := 0.0
		for _, x := range ranks {
			sum += x
		}
		const id = "AGG-DENOMINATOR"
		list := []count{{id, "one rank, which has the most of all", slices.Max(ranks)}, {id, "one rank, which has the fewest of all", slices.Min(ranks)}, {id, "one rank in the mean of all", sum / n},
			{id, "the first rank, times the ranks", n * ranks[0]}, {id, "the rank that has the most, times the ranks", n * slices.Max(ranks)}}
		for k, x := range ranks {
			list = append(list, count{id, fmt.Sprintf("rank %d", k), x})
		}
		return slices.DeleteFunc(list, func(c count) bool { return c.n == sum })
	}
	return nil
}

// RankTokens are the tokens in the masks of the ranks, in their order.
func RankTokens(b *dump.Batch) []float64 {
	of := map[int]float64{}
	for i := range b.Tokens() {
		if len(b.Files) == 0 {
			return nil
		}
		of[b.Files[b.File(i/b.Cols)].Rank]++
	}
	list := make([]float64, 0, len(of))
	for _, rank := range slices.Sorted(maps.Keys(of)) {
		list = append(list, of[rank])
	}
	return list
}

// otherCountsOf are those of a generation batch of several steps like this one, of which this has some of its tokens.
func (c *Case) otherCountsOf(steps, some, tokens float64) []count {
	rows := steps * float64(c.B.Rows)
	list := []count{{"AGG-PAD-DENOMINATOR", "all cells, padding included", rows * float64(c.B.Cols)}, {"AGG-LENGTH-OFF-BY-ONE", "one token of every response too few", tokens - rows},
		{"AGG-LENGTH-OFF-BY-ONE", "one token of every response too many", tokens + rows}, {"AGG-LOCAL-DENOMINATOR", "one step of the generation batch", some}}
	if n := c.FactOr(GenerationAttended, 0); n > tokens {
		list = append(list, count{"AGG-COUNTS-MASKED", "the responses before some of their tokens were masked out", n})
	}
	return append(list, rankCounts(c.FactList(GenerationRanks))...)
}

// Attended counts the tokens that the attention mask has in the last columns, behind the prompts, false where there is none as wide.
func Attended(b *dump.Batch) (n float64, ok bool) {
	t := b.Tensors["attention_mask"]
	if t == nil || t.Width < b.Cols || len(t.Data) != b.Rows*t.Width {
		return 0, false
	}
	for i, x := range t.Data {
		if i%max(t.Width, 1) >= t.Width-b.Cols {
			n += x
		}
	}
	return n, true
}
