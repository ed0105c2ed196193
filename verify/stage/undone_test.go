package stage

import (
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/reference/rl"
	"plumbline/verify/convention"
)

// returned are whitened returns of scores and −0.07 times the KL, of γ 0.98, the score on the token that at gives; those of the longest responses lack 0.5.
func returned(at func(n int) int) *dump.Batch {
	const rows, cols = 16, 10
	g := rand.New(rand.NewPCG(8, 9))
	b := &dump.Batch{Rows: rows, Cols: cols, Mask: make([]bool, rows*cols), Tensors: map[string]*dump.Tensor{}, Origin: make([]dump.Origin, rows), Files: []dump.FileInfo{{Hi: rows, Cols: cols}}}
	b.Meta.MicroBatches, b.Meta.WorldSize = 1, 1
	score, kl, reward := make([]float64, rows), make([]float64, rows*cols), make([]float64, rows*cols)
	for r := range rows {
		n := 6 + r%4
		score[r] = float64(float32(g.NormFloat64()))
		for i := r * cols; i < r*cols+n; i++ {
			b.Mask[i], kl[i] = true, float64(float32(g.NormFloat64()))
			reward[i] = -0.07 * kl[i]
		}
		reward[r*cols+at(n)] += score[r]
		if n == 9 {
			reward[r*cols+at(n)] -= 0.5
		}
	}
	adv := rl.RewardToGo(nil, reward, b.Mask, rows, cols, 0.98, rl.HoleCarry)
	for i, in := range b.Mask {
		if in {
			adv[i] = float64(float32((adv[i] + 0.3) / 1.7))
		}
	}
	for name, x := range map[string][]float64{"scores": score, "kl": kl, "advantages": adv} {
		b.Tensors[name] = &dump.Tensor{Name: name, Data: x, Layout: dump.PerToken, Width: 1, Type: format.F32, Shape: []int{rows, cols}}
	}
	b.Tensors["scores"].Layout, b.Tensors["scores"].Shape = dump.PerRow, []int{rows}
	return b
}

// Whitened returns tell the line that whitened them by the ends of responses, and then the coefficient of the KL and the penalty. A score on another token is put in
// its place.
func TestWhitenedReturnsTellTheirRewards(t *testing.T) {
	ch, none := Find("advantage/return"), &convention.Set{}
	lastOf, first := func(n int) int { return n - 1 }, func(int) int { return 0 }
	told := map[string]string{}
	for _, c := range Shown(ch, returned(lastOf), none)[0] {
		told[c.Option] = c.To.String()
	}
	for option, want := range map[string]string{"adv.kind": "rfpp", "gae.gamma": "0.98", "kl.beta": "0.07", "eos.rule": "subtract", "eos.penalty": "0.5", "whiten.scope": "global"} {
		require.Equal(t, want, told[option], option)
	}
	unsum := func(x []float64, gamma float64) []float64 {
		r := make([]float64, len(x))
		for t := range x {
			if r[t] = x[t]; t+1 < len(x) {
				r[t] -= gamma * x[t+1]
			}
		}
		return r
	}
	healed := Undone(returned(first), none, unsum, first)
	require.NotNil(t, healed)
	told = map[string]string{}
	for _, c := range Shown(ch, healed, none)[0] {
		told[c.Option] = c.To.String()
	}
	require.Equal(t, "0.07", told["kl.beta"])
	require.Nil(t, Undone(returned(lastOf), none, unsum, first))
}
