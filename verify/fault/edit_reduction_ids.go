package fault

import (
	"slices"

	"plumbline/internal/format/dump"
)

// Counts that a mask which leaves something out differs from, by the ids of the responses.
const (
	withEnds    = "the tokens of the step, the end token that the mask leaves out with them"
	withDropped = "the tokens of the step, those of the responses with them that the mask leaves out"
)

// idCounts are the tokens of the step by response_ids, whose padding is one id in the last column: withEnds where every response is one token longer than its
// mask, the same id in all, a response of that alone counted, too; withDropped where the mask leaves out whole responses of the greatest length and nothing else.
// Each is 0 where the ids do not show it.
func idCounts(b *dump.Batch, n []float64) (ends, dropped float64) {
	const least = 3 // rows that have tokens, of fewer columns than all
	ids := b.Token("response_ids")
	if ids == nil || b.Cols == 0 {
		return 0, 0
	}
	pad, shorter := -1.0, 0
	for r := range b.Rows {
		if x := ids[(r+1)*b.Cols-1]; n[r] > 0 && int(n[r]) < b.Cols-1 && !b.Mask[(r+1)*b.Cols-1] {
			if shorter++; pad >= 0 && x != pad {
				return 0, 0
			}
			pad = x
		}
	}
	if shorter < least {
		return 0, 0
	}
	long := make([]int, b.Rows)
	for r := range long {
		for t := range b.Cols {
			if ids[r*b.Cols+t] != pad {
				long[r] = t + 1
			}
		}
	}
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
