package stage

import (
	"math"
	"math/rand/v2"
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/check"
)

func TestOldLogProbsOfAnotherFormat(t *testing.T) {
	r := rand.New(rand.NewPCG(69, 5))
	draw := func(oldBits, newBits uint32, declared string) grid {
		g := newGrid(8, 8, 8, 8, 8)
		lp := g.fill("logp_new", dump.PerToken, func() float64 { return -3 * r.ExpFloat64() })
		old := slices.Clone(lp)
		each(lp, func(x float64) float64 { return cut(x, newBits) })
		each(old, func(x float64) float64 { return cut(x, oldBits) })
		g = g.token("logp_old", old...).token("logp_new", lp...)
		g.Meta.ComputeDType = declared
		return g
	}
	judged := func(g grid) check.Verdict { return Judge(Find("agreement/format"), g.Batch, set(t, "")).Verdict }
	require.Equal(t, check.Fail, judged(draw(16, 0, "float32")))
	old := Judge(Find("agreement/format"), draw(16, 0, "float32").Batch, set(t, "")).Rules.Violations[0]
	require.Equal(t, [2]int{-1, -1}, [2]int{old.Row, old.Col}, "of the tensor, not of a row")
	require.Equal(t, check.Pass, judged(draw(0, 0, "float32")))
	both := Judge(Find("agreement/format"), draw(16, 16, "float32").Batch, set(t, ""))
	require.Len(t, both.Rules.Violations, 1, "both passes in bfloat16: the old ones are as good as the new")
	require.Equal(t, "LOGP-BF16", both.Rules.Violations[0].Fault)
	require.NotEqual(t, check.Fail, judged(draw(16, 0, "")), "mixed precision may be meant")
	g := draw(16, 0, "float32")
	g.Tensors["logp_old"].Type = format.BF16
	require.NotEqual(t, check.Fail, judged(g), "the dump rounded them")
	g = draw(16, 0, "float32")
	g.Meta.Lossy = []string{"logp_old"}
	require.NotEqual(t, check.Fail, judged(g), "the hook rounded them")
}

func TestLogProbsRoundedBesideTheirEntropies(t *testing.T) {
	r := rand.New(rand.NewPCG(70, 5))
	draw := func(bits, entropyBits uint32, declared string) grid {
		g := newGrid(8, 8, 8, 8, 8)
		lp := g.fill("logp_new", dump.PerToken, func() float64 { return -3 * r.ExpFloat64() })
		each(lp, func(x float64) float64 { return cut(x, bits) })
		h := g.fill("entropy", dump.PerToken, func() float64 { return 3 * r.Float64() })
		each(h, func(x float64) float64 { return cut(x, entropyBits) })
		g = g.token("logp_new", lp...).token("entropy", h...)
		g.Meta.ComputeDType = declared
		return g
	}
	judged := func(g grid) *Outcome { return Judge(Find("agreement/format"), g.Batch, set(t, "")) }
	for _, bits := range []uint32{13, 16} {
		o := judged(draw(bits, 0, ""))
		require.Equal(t, check.Fail, o.Verdict)
		require.Equal(t, "LOGP-BF16", o.Rules.Violations[0].Fault)
	}
	require.Equal(t, check.Fail, judged(draw(16, 16, "fp32")).Verdict, "declared")
	for what, g := range map[string]grid{
		"all of the pass, as of a model in bfloat16 that a hook wrote in float32": draw(16, 16, ""),
		"float32":                draw(0, 0, ""),
		"coarser entropies":      draw(0, 16, ""),
		"bfloat16 is declared":   draw(16, 0, "bfloat16"),
		"entropies of few cells": draw(16, 0, "").token("entropy", make([]float64, 32)...),
	} {
		require.NotEqual(t, check.Fail, judged(g).Verdict, what)
	}
	g := draw(16, 0, "")
	g.Tensors["logp_new"].Type = format.BF16
	require.NotEqual(t, check.Fail, judged(g).Verdict, "the dump rounded them, or the trainer has them so")
	g = draw(16, 0, "")
	g.Meta.Lossy = []string{"logp_new"}
	require.NotEqual(t, check.Fail, judged(g).Verdict, "the hook rounded them")
}

// cut drops the lowest bits of a float32.
func cut(x float64, bits uint32) float64 {
	return float64(math.Float32frombits(math.Float32bits(float32(x)) &^ (1<<bits - 1)))
}
