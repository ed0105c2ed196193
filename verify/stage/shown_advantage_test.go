package stage

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
)

// Advantages of rows that are those of other, shorter ones are of a group, with zeros where these have no token; a return that ends at a reward is none.
func TestRowsOfOthersAreOfAGroup(t *testing.T) {
	const cols = 6
	of := func(adv, reward []float64) string {
		b := &dump.Batch{Rows: len(adv) / cols, Cols: cols, Mask: slices.Repeat([]bool{true}, len(adv)), Tensors: map[string]*dump.Tensor{}}
		for name, x := range map[string][]float64{"advantages": adv, "token_rewards": reward, "scores": {1, 2}} {
			b.Tensors[name] = &dump.Tensor{Name: name, Data: x, Layout: dump.PerToken, Width: 1, Shape: []int{b.Rows, cols}}
		}
		b.Tensors["scores"].Layout = dump.PerRow
		return NewCase(b, &convention.Set{}, 0).advantageKind()
	}
	ends := []float64{0, 0, 0, 0, 0, 1, 0, 0, 0, 0, 0, 2}
	require.Equal(t, "group", of([]float64{3, 3, 3, 0, 0, 0, 4, 4, 0, 0, 4, 4}, ends))
	require.Equal(t, "rfpp", of([]float64{3, 3, 3, 2, 2, 2, 4, 4, 4, 4, 4, 4}, ends))
	require.Equal(t, "rfpp", of([]float64{3, 3, 3, 0, 0, 0, 4, 4, 4, 4, 4, 4}, []float64{0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 0, 4}))
}

// Advantages that differ within rows may be of values that were not dumped, but for a dump with the sums of squared probabilities of an estimator that has none.
func TestTheEstimatorOfDumpedSquaresIsSeen(t *testing.T) {
	b := &dump.Batch{Rows: 1, Cols: 2, Mask: []bool{true, true}, Tensors: map[string]*dump.Tensor{}}
	put := func(name string, x ...float64) {
		b.Tensors[name] = &dump.Tensor{Name: name, Data: x, Layout: dump.PerToken, Width: 1, Shape: []int{1, 2}}
	}
	put("advantages", 1, 2)
	require.Equal(t, "values", EstimatorUnseen(b, &convention.Set{}))
	put("sum_pi_squared", 0.5, 0.25)
	require.Empty(t, EstimatorUnseen(b, &convention.Set{}))
}
