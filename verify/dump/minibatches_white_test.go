package dump

import (
	"context"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	dumpfile "plumbline/internal/format/dump"
)

// Rollouts of two steps each whose advantages are centred together, each step, or not at all.
func TestRolloutsThatAdvantagesShow(t *testing.T) {
	const rows, cols, steps = 4, 8, 6
	run := func(span int) int {
		rng := rand.New(rand.NewPCG(7, 1))
		var list Batches
		for n := range steps {
			b := &dumpfile.Batch{Rows: rows, Cols: cols, Mask: make([]bool, rows*cols), Tensors: map[string]*dumpfile.Tensor{}}
			b.Meta.Step = n + 1
			x := make([]float64, rows*cols)
			for i := range x {
				b.Mask[i], x[i] = i%3 > 0, 0.3+rng.NormFloat64()
			}
			b.Tensors["advantages"] = &dumpfile.Tensor{Data: x, Layout: dumpfile.PerToken}
			list = append(list, b)
		}
		for lo := 0; span > 0 && lo < steps; lo += span {
			var sum, n float64
			for _, b := range list[lo : lo+span] {
				for i, m := range b.Mask {
					if m {
						sum, n = sum+b.Token("advantages")[i], n+1
					}
				}
			}
			for _, b := range list[lo : lo+span] {
				for i := range b.Mask {
					b.Token("advantages")[i] = float64(float32(b.Token("advantages")[i] - sum/n))
				}
			}
		}
		got, err := whitenedOver(context.Background(), list)
		require.NoError(t, err)
		return got
	}
	for span, want := range map[int]int{0: 1, 1: 1, 2: 2, 3: 3} {
		require.Equal(t, want, run(span))
	}
}

// Rewards that were whitened over two steps have the variance 1 in both together, and their mean, which TRL adds back, is what it was.
func TestRolloutsThatRewardsShow(t *testing.T) {
	const rows, cols, steps = 4, 8, 6
	run := func(span int) int {
		rng := rand.New(rand.NewPCG(7, 2))
		var list Batches
		for n := range steps {
			b := &dumpfile.Batch{Rows: rows, Cols: cols, Mask: make([]bool, rows*cols), Tensors: map[string]*dumpfile.Tensor{}}
			b.Meta.Step = n + 1
			x := make([]float64, rows*cols)
			for i := range x {
				b.Mask[i], x[i] = i%3 > 0, 0.3+3*rng.NormFloat64()
			}
			b.Tensors["token_rewards"] = &dumpfile.Tensor{Data: x, Layout: dumpfile.PerToken}
			list = append(list, b)
		}
		for lo := 0; span > 0 && lo < steps; lo += span {
			var sum, square, n float64
			each := func(do func(x *float64)) {
				for _, b := range list[lo : lo+span] {
					for i, m := range b.Mask {
						if m {
							do(&b.Token("token_rewards")[i])
						}
					}
				}
			}
			each(func(x *float64) { sum, n = sum+*x, n+1 })
			each(func(x *float64) { square += (*x - sum/n) * (*x - sum/n) })
			each(func(x *float64) { *x = float64(float32((*x-sum/n)/math.Sqrt(square/(n-1)+1e-8) + sum/n)) })
		}
		got, err := whitenedOver(context.Background(), list)
		require.NoError(t, err)
		return got
	}
	for span, want := range map[int]int{0: 1, 1: 1, 2: 2, 3: 3} {
		require.Equal(t, want, run(span))
	}
}
