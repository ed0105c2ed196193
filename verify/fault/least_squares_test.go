package fault

import (
	"testing"

	"github.com/stretchr/testify/require"
)

func TestLeastSquares(t *testing.T) {
	w := leastSquares([]float64{1, 2, 3, 1, 0, 5, 2, 2}, []float64{1 + 1, 3 + 0.5, 2.5, 2 + 1}, 2)
	require.InDeltaSlice(t, []float64{1, 0.5}, w, 1e-12)
	require.Nil(t, leastSquares([]float64{1, 2, 2, 4, 3, 6, 5, 10}, []float64{1, 2, 3, 4}, 2), "one is twice the other")
	require.Nil(t, leastSquares([]float64{0, 2, 0, 4}, []float64{1, 2}, 2), "a function that is 0")
}
