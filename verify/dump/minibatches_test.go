package dump

import (
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format/dump"
)

// Where rows come again before the declared number of steps has passed, the number counted epochs, too: each row is taken once.
func TestPassOf(t *testing.T) {
	step := func(n int, samples ...float64) *dump.Batch {
		b := &dump.Batch{Rows: len(samples), Cols: 1, Tensors: map[string]*dump.Tensor{}, Meta: dump.Meta{Step: n}}
		b.Tensors["sample_id"] = &dump.Tensor{Name: "sample_id", Layout: dump.PerRow, Width: 1, Data: samples}
		return b
	}
	for _, c := range []struct {
		what    string
		run     Batches
		n, want int
	}{
		{"two mini-batches of two epochs", Batches{step(1, 0, 3), step(2, 1, 2), step(3, 1, 0), step(4, 2, 3), step(5, 4, 5)}, 4, 2},
		{"every step has all rows", Batches{step(1, 0, 1), step(2, 1, 0), step(3, 0, 1)}, 3, 1},
		{"as declared", Batches{step(1, 0, 3), step(2, 1, 2), step(3, 1, 0), step(4, 2, 3)}, 2, 2},
		{"the dump begins inside an epoch", Batches{step(2, 0, 3), step(3, 1, 0), step(4, 2, 3)}, 2, 2},
		{"no divisor", Batches{step(1, 0), step(2, 1), step(3, 0)}, 3, 3},
		{"another rollout", Batches{step(1, 0, 1), step(2, 2, 3)}, 2, 2},
	} {
		s := &session{ctx: t.Context(), run: c.run}
		require.Equal(t, c.want, s.passOf(c.n), c.what)
	}
	anonymous := step(1)
	anonymous.Rows, anonymous.Tensors = 2, map[string]*dump.Tensor{}
	require.Equal(t, 2, (&session{ctx: t.Context(), run: Batches{anonymous, anonymous}}).passOf(2))
}

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
	unnamed := func(n int, groups ...float64) *dump.Batch {
		b := step(n, groups, nil)
		delete(b.Tensors, "sample_id")
		return b
	}
	centred := func(b *dump.Batch, adv ...float64) *dump.Batch {
		b.Tensors["advantages"] = &dump.Tensor{Name: "advantages", Layout: dump.PerRow, Width: 1, Data: adv}
		return b
	}
	cut := Batches{step(1, list{0, 0, 1, 0}, list{0, 1, 4, 2}), step(2, list{1, 1, 0, 1}, list{5, 6, 3, 7})}
	for _, c := range []struct {
		what string
		run  Batches
		want int
	}{
		{"one rollout", cut, 2},
		{"its second epoch", append(cut, step(3, list{1, 0, 1, 0}, list{4, 0, 5, 1}), step(4, list{1, 0, 1, 0}, list{6, 2, 7, 3})), 2},
		{"the next rollout", append(cut, step(3, list{2, 2, 2, 3}, list{8, 9, 10, 12})), 2},
		{"the next rollout has the names of the groups", append(cut, step(3, list{1, 0, 1, 1}, list{12, 8, 13, 14}), step(4, list{0, 1, 0, 0}, list{9, 15, 10, 11})), 2},
		{"a step of its own", Batches{step(1, list{0, 0, 1, 1}, list{0, 1, 2, 3}), step(2, list{0, 0, 1, 1}, list{4, 5, 6, 7})}, 1},
		{"parts of one size by chance", Batches{step(1, list{0, 1, 1, 0}, list{0, 5, 6, 2}), step(2, list{1, 0, 0, 1}, list{4, 3, 1, 7})}, 2},
		{"samples without an order", Batches{step(1, list{0, 0, 1, 1}, list{9, 2, 7, 30}), step(2, list{0, 0, 1, 1}, list{4, 15, 6, 1})}, 1},
		{"one group to a step", Batches{step(1, list{0, 0}, list{0, 1}), step(2, list{0, 0}, list{2, 3})}, 1},
		{"a row that is not there", Batches{step(1, list{0, 0, 1, 0}, list{0, 1, 4, 2}), step(2, list{1, 1, 1}, list{5, 6, 7})}, 1},
		{"no names of samples", Batches{unnamed(1, 0, 0, 1, 0)}, 1},
		{"no names, one rollout", Batches{unnamed(1, 0, 0, 1, 0), unnamed(2, 1, 1, 0, 1)}, 2},
		{"no names, two epochs", Batches{unnamed(1, 0, 0, 1, 0), unnamed(2, 1, 1, 0, 1), unnamed(3, 0, 0, 1, 0), unnamed(4, 1, 1, 0, 1)}, 2},
		{"no names, groups of their own", Batches{unnamed(1, 0, 0, 1, 0), unnamed(2, 2, 3, 3, 3)}, 1},
		{"no names, whole groups", Batches{unnamed(1, 0, 0, 1, 1), unnamed(2, 1, 1, 0, 0)}, 1},
		{"no names, parts of one size whose advantages have a sum", Batches{centred(unnamed(1, 0, 0, 1, 1), 1, 2, -1, 3), centred(unnamed(2, 1, 0, 0, 1), -1, -2, -1, -1)}, 2},
		{"no names, parts of one size whose advantages have none", Batches{centred(unnamed(1, 0, 0, 1, 1), 1, -1, -3, 3), centred(unnamed(2, 1, 0, 0, 1), -1, -2, 2, 1)}, 1},
		{"no names, advantages of no group", Batches{centred(unnamed(1, 0, 0, 1, 1), 1, 2, -1, 3), centred(unnamed(2, 1, 0, 0, 1), -1, -2, 4, -1)}, 1},
		{"no names, two epochs whose advantages have sums", Batches{centred(unnamed(1, 0, 0, 1, 0), 1, 2, 0, 3), centred(unnamed(2, 1, 1, 0, 1), 4, 1, 2, 1),
			centred(unnamed(3, 1, 0, 1, 0), 4, 2, 1, 3), centred(unnamed(4, 0, 0, 1, 1), 1, 2, 1, 0)}, 2},
		{"no names, one rollout whose advantages have sums", Batches{centred(unnamed(1, 0, 0, 1, 0), 1, 2, 0, 3), centred(unnamed(2, 1, 1, 0, 1), 4, 1, 2, 1)}, 1},
		{"no names, another size", Batches{unnamed(1, 0, 0, 1, 0), unnamed(2, 1, 1, 0, 1), unnamed(3, 0, 0, 1, 0), unnamed(4, 1, 0, 0, 1)}, 1},
	} {
		n, err := miniBatches(t.Context(), c.run)
		require.NoError(t, err)
		require.Equal(t, c.want, n, c.what)
	}
}
