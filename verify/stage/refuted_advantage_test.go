package stage

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
)

// recursed is a rollout with a recursion of γ 0.97 and λ 0.9 for the returns and λ' for the advantages, which are a·x + b of it.
func recursed(policy, a, b float64) *dump.Batch {
	const rows, cols, gamma, lambda = 8, 16, 0.97, 0.9
	rng := rand.New(rand.NewPCG(3, 11))
	x := map[string][]float64{}
	for _, name := range []string{"token_rewards", "values", "returns", "advantages"} {
		x[name] = make([]float64, rows*cols)
	}
	batch := &dump.Batch{Rows: rows, Cols: cols, Mask: slices.Repeat([]bool{true}, rows*cols), Files: []dump.FileInfo{{Hi: rows, Cols: cols}}, Tensors: map[string]*dump.Tensor{}}
	for r := range rows {
		var next, critic, actor float64
		for i := (r+1)*cols - 1; i >= r*cols; i-- {
			x["token_rewards"][i], x["values"][i] = rng.NormFloat64(), rng.NormFloat64()
			delta := x["token_rewards"][i] + gamma*next - x["values"][i]
			critic, actor, next = delta+gamma*lambda*critic, delta+gamma*policy*actor, x["values"][i]
			x["returns"][i], x["advantages"][i] = float64(float32(critic+x["values"][i])), float64(float32(a*actor+b))
		}
	}
	for name, data := range x {
		batch.Tensors[name] = &dump.Tensor{Name: name, Data: data, Layout: dump.PerToken, Width: 1, Type: format.F32, Shape: []int{rows, cols}}
	}
	return batch
}

// Whitened advantages and those of another λ than the returns are of a recursion; those of other rows, and returns of a broken one, are of none.
func TestAdvantagesOfNoRecursion(t *testing.T) {
	for _, policy := range []float64{0.9, 0.5, 1} {
		for _, line := range [][2]float64{{1, 0}, {1.7, -0.4}} {
			b := recursed(policy, line[0], line[1])
			require.False(t, NotARecursion(b, 0.97, 0.9), "λ' %g, line %v", policy, line)
			require.False(t, NotReturns(b))
			adv := b.Token("advantages")
			swapped := slices.Concat(adv[b.Cols:], adv[:b.Cols])
			require.True(t, NotARecursion(b.With("advantages", swapped), 0.97, 0.9))
		}
	}
	b := recursed(0.9, 1, 0)
	ret := slices.Clone(b.Token("returns"))
	for i := range ret {
		if i%2 == 1 {
			ret[i] = b.Token("values")[i] + b.Token("token_rewards")[i]
		}
	}
	require.True(t, NotReturns(b.With("returns", ret)))
	require.False(t, NotReturns(&dump.Batch{Tensors: map[string]*dump.Tensor{}}))
}

// Advantages of a group rise with its scores, whatever is subtracted and divided by; those of other groups do not.
func TestAdvantagesRiseWithScores(t *testing.T) {
	const groups, each, cols = 4, 4, 8
	rng := rand.New(rand.NewPCG(3, 12))
	b := &dump.Batch{Rows: groups * each, Cols: cols, Mask: make([]bool, groups*each*cols), Files: []dump.FileInfo{{Hi: groups * each, Cols: cols}}, Tensors: map[string]*dump.Tensor{}}
	score, id, mean := make([]float64, b.Rows), make([]float64, b.Rows), make([]float64, groups)
	for r := range b.Rows {
		score[r], id[r] = math.Round(rng.Float64()*3), float64(r/each)
		mean[r/each] += score[r] / each
		for t := range 3 + r%2 {
			b.Mask[r*cols+t] = true
		}
	}
	b.Mask[cols-1] = true // a long one, which was cut off
	of := func(f func(r int) float64) *dump.Batch {
		adv := make([]float64, b.Rows)
		for r := range adv {
			adv[r] = f(r)
		}
		c := *b
		c.Tensors = map[string]*dump.Tensor{}
		for name, x := range map[string][]float64{"scores": score, "group_id": id, "advantages": adv} {
			c.Tensors[name] = &dump.Tensor{Name: name, Data: x, Layout: dump.PerRow, Width: 1, Type: format.F32, Shape: []int{b.Rows}}
		}
		return &c
	}
	own := func(r int) float64 { return score[r] - mean[r/each] }
	require.False(t, NotOfScores(of(own)))
	require.False(t, NotOfScores(of(func(r int) float64 { return own(r)*float64(1+r/each) - 0.3 })), "another number for every group")
	require.False(t, NotOfScores(of(func(r int) float64 { return math.Max(own(r), 0) })), "held from below")
	require.False(t, NotOfScores(of(func(r int) float64 { return own(r) - map[bool]float64{true: 5}[r == 0] })), "a response that was cut off")
	require.True(t, NotOfScores(of(func(r int) float64 { return score[r] - mean[r%groups] })))
	require.True(t, NotOfScores(of(func(r int) float64 { return own((r + 1) % b.Rows) })))
}
