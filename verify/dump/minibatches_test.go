package dump

import (
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format/dump"
)

// Rows of a rollout that are shuffled over steps are told by groups that are cut and samples that come again.
func TestMiniBatches(t *testing.T) {
	step := func(n int, groups, samples []float64) *dump.Batch {
		b := &dump.Batch{Rows: len(groups), Cols: 1, Tensors: map[string]*dump.Tensor{}, Meta: dump.Meta{Step: n}}
		for name, x := range map[string][]float64{"group_id": groups, "sample_id": samples} {
			b.Tensors[name] = &dump.Tensor{Name: name, Layout: dump.PerRow, Width: 1, Data: x}
		}
		return b
	}
	type list = []float64
	cut := Batches{step(1, list{0, 0, 1, 0}, list{0, 1, 4, 2}), step(2, list{1, 1, 0, 1}, list{5, 6, 3, 7})}
	for _, c := range []struct {
		what string
		run  Batches
		want int
	}{
		{"one rollout", cut, 2},
		{"its second epoch", append(cut, step(3, list{1, 0, 1, 0}, list{4, 0, 5, 1}), step(4, list{1, 0, 1, 0}, list{6, 2, 7, 3})), 2},
		{"the next rollout", append(cut, step(3, list{2, 2, 2, 3}, list{8, 9, 10, 12})), 2},
		{"a step of its own", Batches{step(1, list{0, 0, 1, 1}, list{0, 1, 2, 3}), step(2, list{0, 0, 1, 1}, list{4, 5, 6, 7})}, 1},
		{"parts of one size by chance", Batches{step(1, list{0, 1, 1, 0}, list{0, 5, 6, 2}), step(2, list{1, 0, 0, 1}, list{4, 3, 1, 7})}, 2},
		{"samples without an order", Batches{step(1, list{0, 0, 1, 1}, list{9, 2, 7, 30}), step(2, list{0, 0, 1, 1}, list{4, 15, 6, 1})}, 1},
		{"one group to a step", Batches{step(1, list{0, 0}, list{0, 1}), step(2, list{0, 0}, list{2, 3})}, 1},
		{"a row that is not there", Batches{step(1, list{0, 0, 1, 0}, list{0, 1, 4, 2}), step(2, list{1, 1, 1}, list{5, 6, 7})}, 1},
		{"no names of samples", Batches{step(1, list{0, 0, 1, 0}, nil)}, 1},
	} {
		n, err := miniBatches(t.Context(), c.run)
		require.NoError(t, err)
		require.Equal(t, c.want, n, c.what)
	}
}
