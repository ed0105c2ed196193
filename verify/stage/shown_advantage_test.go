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
