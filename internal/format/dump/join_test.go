package dump

import (
	"context"
	"fmt"
	"os"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"

	"plumbline/internal/format"
)

// every returns the batches of a folder.
func every(t require.TestingT, dir string) (list []*Batch) {
	run, err := Open(context.Background(), []string{dir})
	require.NoError(t, err)
	for b, err := range run.Batches(context.Background()) {
		require.NoError(t, err)
		list = append(list, b)
	}
	return list
}

// TestJoinLaw: batches of several steps joined are what pooling their files as those of one step gives.
func TestJoinLaw(t *testing.T) {
	checked(t, func(t *rapid.T, dir string) {
		one, several := join(dir, "one"), join(dir, "several")
		require.NoError(t, os.Mkdir(one, 0o755))
		require.NoError(t, os.Mkdir(several, 0o755))
		n := rapid.IntRange(1, 3).Draw(t, "steps")
		ranks := rapid.IntRange(1, 2).Draw(t, "ranks")
		for k := range n * ranks {
			i, rank := k/ranks, k%ranks
			meta := Meta{Step: 5, MicroBatch: i, Rank: rank, Options: []Option{{"beta", 0.5}, {"loss_type", "grpo"}, {"weights", []any{1.0, 2.0}}}}
			tensors := append(pad(drawSequences(t)), tensor("loss", format.F32, nil, float64(k)))
			name := fmt.Sprintf("%d_%d.safetensors", i, rank)
			require.NoError(t, WriteFile(join(one, name), meta, tensors...))
			meta.Step, meta.MicroBatch = 5+i, 0
			require.NoError(t, WriteFile(join(several, name), meta, tensors...))
		}
		steps := every(t, several)
		require.Len(t, steps, n)
		want, got := load(t, one), Join(steps...)
		requireSameBatch(t, want, got)
		require.Equal(t, want.PerFile("loss"), got.PerFile("loss"))
		require.Equal(t, want.Tensors["loss"].Shape, got.Tensors["loss"].Shape)
		require.Equal(t, want.Origin, got.Origin)
		for i, f := range got.Files {
			require.Equal(t, []int{want.Files[i].Lo, want.Files[i].Hi, want.Files[i].Cols, want.Files[i].Rank, 5 + want.Files[i].MicroBatch}, []int{f.Lo, f.Hi, f.Cols, f.Rank, f.Step})
		}
	})
}

// A tensor that one step had cast down is one that was cast down, whichever step that is.
func TestJoinKeepsCasts(t *testing.T) {
	for cast := range 3 {
		dir := t.TempDir()
		for step := range 3 {
			logp, kl := f32("logp_new", 1, 2, 2), f32("kl", 1, 2, 2)
			logp.Casts = step == cast
			require.NoError(t, WriteFile(join(dir, fmt.Sprintf("%d.safetensors", step)), Meta{Step: step, MicroBatches: 1}, mask("response_mask", "11", "10"), logp, kl))
		}
		b := Join(every(t, dir)...)
		require.True(t, b.Tensors["logp_new"].Casts, "step %d", cast)
		require.False(t, b.Tensors["kl"].Casts)
	}
}

// What only some steps have or say is not in the joined batch.
func TestJoinWhatDiffers(t *testing.T) {
	dir := t.TempDir()
	ones := mask("response_mask", "11", "10")
	write := func(step int, options []Option, more ...*Tensor) {
		tensors := append([]*Tensor{ones, f32("logp_new", 1, 2, 2)}, more...)
		require.NoError(t, WriteFile(join(dir, fmt.Sprintf("%d.safetensors", step)), Meta{Step: step, MicroBatches: 2, Options: options}, tensors...))
	}
	write(1, []Option{{"beta", 0.5}, {"num_items_in_batch", 3.0}}, f32("scores", 1, 2), f32("grad/w", 0, 3), f32("advantages", 0, 2))
	write(2, []Option{{"beta", 0.5}, {"num_items_in_batch", 4.0}}, f32("grad/w", 0, 3), f32("advantages", 0, 2, 2))
	steps := every(t, dir)
	b := Join(steps...)
	require.Equal(t, []string{"logp_new"}, b.Names())
	require.Equal(t, []Option{{"beta", 0.5}}, b.Meta.Options)
	require.Equal(t, []float64{1, 2, 3, 4, 1, 2, 3, 4}, b.Token("logp_new"))
	require.Equal(t, []bool{true, true, true, false, true, true, true, false}, b.Mask)
	require.Len(t, b.Missing, 2)
	require.Equal(t, 1, steps[0].Tensors["scores"].Width, "the steps stay as they were")
	require.Len(t, steps[0].Meta.Options, 2)
}
