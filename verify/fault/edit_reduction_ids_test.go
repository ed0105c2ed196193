package fault

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format/dump"
)

// Ids show the end of every response that a mask leaves out, or the responses that it leaves out as a whole, and neither where the two differ otherwise.
func TestCountsOfIDs(t *testing.T) {
	counts := func(rows ...[2]int) (ends, dropped float64) { // tokens of the mask, and written
		const cols, pad, end = 6, 0, 2
		b := &dump.Batch{Rows: len(rows), Cols: cols, Mask: make([]bool, cols*len(rows)), Tensors: map[string]*dump.Tensor{}}
		ids, n := make([]float64, len(b.Mask)), make([]float64, len(rows))
		for r, row := range rows {
			n[r] = float64(row[0])
			for k := range row[1] {
				b.Mask[r*cols+k], ids[r*cols+k] = k < row[0], 7
			}
			if row[1] < cols || row[0] > 0 {
				ids[r*cols+row[1]-1] = end
			}
		}
		b.Tensors["response_ids"] = &dump.Tensor{Name: "response_ids", Layout: dump.PerToken, Width: 1, Shape: []int{len(rows), cols}, Data: ids}
		return idCounts(b, n)
	}
	ends, _ := counts([2]int{2, 3}, [2]int{3, 4}, [2]int{1, 2}, [2]int{0, 1}, [2]int{0, 6})
	require.Equal(t, 10.0, ends, "a response that was cut off has no end")
	ends, dropped := counts([2]int{2, 2}, [2]int{3, 3}, [2]int{1, 1}, [2]int{0, 6}, [2]int{6, 6})
	require.Equal(t, [2]float64{0, 18}, [2]float64{ends, dropped})
	ends, dropped = counts([2]int{2, 2}, [2]int{3, 3}, [2]int{1, 1}, [2]int{0, 4}, [2]int{6, 6})
	require.Equal(t, [2]float64{}, [2]float64{ends, dropped}, "a response is left out that was not cut off")
	ends, dropped = counts([2]int{2, 3}, [2]int{3, 5}, [2]int{1, 2})
	require.Equal(t, [2]float64{}, [2]float64{ends, dropped})
}

// The longest response is one that the mask leaves out, by its ids; without ids a response that is left out has no length.
func TestLongestByIDs(t *testing.T) {
	const cols, pad = 6, 0
	b := &dump.Batch{Rows: 4, Cols: cols, Mask: make([]bool, 4*cols), Tensors: map[string]*dump.Tensor{}}
	ids, n := make([]float64, 4*cols), []float64{2, 3, 1, 0}
	for r, tokens := range []int{2, 3, 1, 6} {
		for k := range tokens {
			b.Mask[r*cols+k], ids[r*cols+k] = float64(k) < n[r], 7
		}
	}
	require.True(t, math.IsNaN(longestByIDs(b, n)))
	b.Tensors["response_ids"] = &dump.Tensor{Name: "response_ids", Layout: dump.PerToken, Width: 1, Shape: []int{4, cols}, Data: ids}
	require.Equal(t, 6.0, longestByIDs(b, n))
	require.Equal(t, 5.0, longestByIDs(b.Without("response_ids"), []float64{2, 5, 1, 3}))
}
