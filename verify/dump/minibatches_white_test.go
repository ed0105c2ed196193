package dump

import (
	"context"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	dumpfile "plumbline/internal/format/dump"
)

// whitenedTogether returns six steps with a tensor of which each span of steps was whitened together as white says, none for 0.
func whitenedTogether(tensor string, scale float64, span int, white func(x, mean, deviation float64) float64) (list Batches) {
	const rows, cols, steps = 4, 8, 6
	rng := rand.New(rand.NewPCG(7, 1))
	for n := range steps {
		b := &dumpfile.Batch{Rows: rows, Cols: cols, Mask: make([]bool, rows*cols), Tensors: map[string]*dumpfile.Tensor{}}
		b.Meta.Step = n + 1
		x := make([]float64, rows*cols)
		for i := range x {
			b.Mask[i], x[i] = i%3 > 0, 0.3+scale*rng.NormFloat64()
		}
		b.Tensors[tensor] = &dumpfile.Tensor{Data: x, Layout: dumpfile.PerToken}
		list = append(list, b)
	}
	for lo := 0; span > 0 && lo < steps; lo += span {
		each := func(do func(x *float64)) {
			for _, b := range list[lo : lo+span] {
				for i, m := range b.Mask {
					if m {
						do(&b.Token(tensor)[i])
					}
				}
			}
		}
		var sum, square, n float64
		each(func(x *float64) { sum, n = sum+*x, n+1 })
		each(func(x *float64) { square += (*x - sum/n) * (*x - sum/n) })
		each(func(x *float64) { *x = float64(float32(white(*x, sum/n, math.Sqrt(square/(n-1)+1e-8)))) })
	}
	return list
}

// Advantages are centred together in every span of steps, or not at all. Rewards of a span have the variance 1, and their mean, which TRL adds back, is what it was.
func TestRolloutsThatWhitenedNumbersShow(t *testing.T) {
	for span, want := range map[int]int{0: 1, 1: 1, 2: 2, 3: 3} {
		for _, run := range []Batches{
			whitenedTogether("advantages", 1, span, func(x, mean, _ float64) float64 { return x - mean }),
			whitenedTogether("token_rewards", 3, span, func(x, mean, deviation float64) float64 { return (x-mean)/deviation + mean }),
		} {
			got, err := whitenedOver(context.Background(), run)
			require.NoError(t, err)
			require.Equal(t, want, got)
		}
	}
}

// Groups that are cut over two steps are a part of a rollout of six that was whitened together, and not of one of three.
func TestWhitenedRolloutsOfCutGroups(t *testing.T) {
	for span, want := range map[int]int{0: 2, 2: 2, 3: 2, 6: 6} {
		got, err := longerWhitened(context.Background(), whitenedTogether("advantages", 1, span, func(x, mean, _ float64) float64 { return x - mean }), 2)
		require.NoError(t, err)
		require.Equal(t, want, got, "%d", span)
	}
}
