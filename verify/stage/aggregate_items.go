package stage

import (
	"fmt"
	"math"
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
