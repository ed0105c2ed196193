package stage

import (
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/tol"
)

// Eight token losses with the sign of their advantage break the law, where their quotients by it are not one number; seven are too few.
func TestTokenLossesAgainstSign(t *testing.T) {
	of := func(n int, loss func(a, lp float64) float64) (string, bool) {
		g := newGrid(n, n)
		lp, adv, x := make([]float64, n), make([]float64, n), make([]float64, n)
		for i := range lp {
			lp[i], adv[i] = -0.1*float64(i+1), 0.7
			x[i] = loss(adv[i], lp[i])
		}
		return AgainstSign(NewCase(g.token("logp_new", lp...).token("logp_old", lp...).token("advantages", adv...).token("token_loss", x...).Batch, set(t, "kl.place=none"), tol.U32))
	}
	for n, want := range map[int]bool{7: false, 8: true, 12: true} {
		fault, broken := of(n, func(a, _ float64) float64 { return a })
		require.Equal(t, want, broken, "%d tokens", n)
		require.Equal(t, want, fault == "ADV-SIGN")
		_, broken = of(n, func(a, lp float64) float64 { return a * (1 - lp) })
		require.Equal(t, want, broken, "%d tokens", n)
	}
	_, broken := of(12, func(a, _ float64) float64 { return -a })
	require.False(t, broken, "the right sign")
	_, broken = of(12, func(a, lp float64) float64 { return -a * lp })
	require.False(t, broken, "a loss of log-probs")
}

// The sign of a gradient is told by rows of ratio 1 of advantages of both signs, and by no row that something else has a part in.
func TestGradientAgainstSign(t *testing.T) {
	of := func(change func(b *dump.Batch)) bool {
		b := &dump.Batch{Rows: 4, Cols: 6, Mask: make([]bool, 24), Files: []dump.FileInfo{{Hi: 4}}, Origin: make([]dump.Origin, 4), Tensors: map[string]*dump.Tensor{}}
		add := func(name string, of func(row, i int) float64) {
			x := &dump.Tensor{Name: name, Width: 1, Layout: dump.PerToken, Type: format.F32, Shape: []int{4, 6}, Data: make([]float64, 24)}
			for i := range x.Data {
				x.Data[i] = of(i/6, i)
			}
			b.Tensors[name] = x
		}
		for i := range b.Mask {
			b.Mask[i] = true
		}
		adv := []float64{0.7, -1.1, 0.4, -0.2}
		add("logp_new", func(_, i int) float64 { return -0.1 * float64(i+1) })
		add("logp_old", func(_, i int) float64 { return -0.1 * float64(i+1) })
		add("advantages", func(row, _ int) float64 { return adv[row] })
		add("dlogp", func(row, _ int) float64 { return float64(float32(adv[row] / 24)) })
		change(b)
		return GradientAgainstSign(NewCase(b, &convention.Set{}, tol.U32))
	}
	g := func(b *dump.Batch) []float64 { return b.Tensors["dlogp"].Data }
	require.True(t, of(func(*dump.Batch) {}))
	require.False(t, of(func(b *dump.Batch) { g(b)[0] *= 1.1; g(b)[7] *= 1.1; g(b)[13] *= 1.1 }), "three rows with something else in them")
	require.False(t, of(func(b *dump.Batch) {
		for i := range 6 {
			g(b)[i] = -g(b)[i]
		}
	}), "a row of the right sign")
	require.False(t, of(func(b *dump.Batch) {
		for i := range b.Mask {
			b.Tensors["logp_old"].Data[i] += 0.3
		}
	}), "no ratio is 1")
	varied := func(b *dump.Batch) {
		for i := range b.Mask {
			a := 0.3 + 0.1*float64(i)
			b.Tensors["advantages"].Data[i], g(b)[i] = a, float64(float32(a/24))
		}
	}
	require.True(t, of(varied), "advantages of one sign that vary within a row")
	require.False(t, of(func(b *dump.Batch) {
		varied(b)
		for i := range b.Mask {
			g(b)[i] = 0.01
		}
	}), "one number for all tokens")
	require.False(t, of(func(b *dump.Batch) {
		for _, name := range []string{"advantages", "dlogp"} {
			for i := range b.Mask {
				b.Tensors[name].Data[i] *= b.Tensors["advantages"].Data[i] / b.Tensors["advantages"].Data[i/6*6]
			}
		}
		for i := range b.Mask {
			if b.Tensors["advantages"].Data[i] < 0 {
				b.Mask[i] = false
			}
		}
	}), "advantages of one sign")
}
