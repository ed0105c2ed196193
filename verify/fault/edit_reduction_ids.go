package fault

import (
	"math"
	"slices"

	"plumbline/internal/format/dump"
)

// Counts that a mask which leaves something out differs from, by the ids of the responses.
const (
	withEnds    = "the tokens of the step, the end token that the mask leaves out with them"
	withDropped = "the tokens of the step, those of the responses with them that the mask leaves out"
	longDropped = "the longest response of the step, those that the mask leaves out included"
)

// idCounts are the tokens of the step by response_ids, whose padding is one id in the last column: withEnds where every response is one token longer than its
// mask, the same id in all, a response of that alone counted, too; withDropped where the mask leaves out whole responses of the greatest length and nothing else.
// Each is 0 where the ids do not show it.
func idCounts(b *dump.Batch, n []float64) (ends, dropped float64) {
	long := idLengths(b, n)
	if long == nil {
		return 0, 0
	}
	ids := b.Token("response_ids")
	end, oneMore, whole, longest := -1.0, true, true, slices.Max(long)
	for r, tokens := range n {
		if tokens == 0 {
			whole = whole && (long[r] == longest || long[r] == 0)
			dropped += float64(long[r])
			continue
		}
		dropped += tokens
		whole = whole && long[r] == int(tokens)
		if oneMore = oneMore && long[r] == int(tokens)+1; oneMore {
			x := ids[r*b.Cols+long[r]-1]
			oneMore = end < 0 || x == end
			end = x
		}
	}
	if !whole {
		dropped = 0
	}
	for r := range n {
		if oneMore && long[r] > 0 && ids[r*b.Cols+long[r]-1] == end {
			ends += float64(long[r])
		}
	}
	return ends, dropped
}

// idLengths returns the tokens of every row by response_ids, whose padding is one id in the last column, nil where they do not show it.
func idLengths(b *dump.Batch, n []float64) []int {
	const least = 3 // rows that have tokens, of fewer columns than all
	ids := b.Token("response_ids")
	if ids == nil || b.Cols == 0 {
		return nil
	}
	pad, shorter := -1.0, 0
	for r := range b.Rows {
		if x := ids[(r+1)*b.Cols-1]; n[r] > 0 && int(n[r]) < b.Cols-1 && !b.Mask[(r+1)*b.Cols-1] {
			if shorter++; pad >= 0 && x != pad {
				return nil
			}
			pad = x
		}
	}
	if shorter < least {
		return nil
	}
	long := make([]int, b.Rows)
	for r := range long {
		for t := range b.Cols {
			if ids[r*b.Cols+t] != pad {
				long[r] = t + 1
			}
		}
	}
	return long
}

// longestByIDs returns the length of the longest response, by the ids of those that the mask leaves out; NaN where it leaves some out that no ids show.
func longestByIDs(b *dump.Batch, n []float64) float64 {
	if len(n) == 0 {
		return math.NaN()
	}
	long := idLengths(b, n)
	if long == nil && slices.Min(n) == 0 {
		return math.NaN()
	}
	most := slices.Max(n)
	for r, l := range long {
		if n[r] == 0 {
			most = max(most, float64(l))
		}
	}
	return most
}
