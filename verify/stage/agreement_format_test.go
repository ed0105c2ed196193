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
	require.Equal(t, check.Pass, judged(draw(0, 0, "float32")))
	require.Equal(t, check.Pass, judged(draw(16, 16, "float32")), "both passes in bfloat16")
	require.NotEqual(t, check.Fail, judged(draw(16, 0, "")), "mixed precision may be meant")
	g := draw(16, 0, "float32")
	g.Tensors["logp_old"].Type = format.BF16
	require.NotEqual(t, check.Fail, judged(g), "the dump rounded them")
	g = draw(16, 0, "float32")
	g.Meta.Lossy = []string{"logp_old"}
	require.NotEqual(t, check.Fail, judged(g), "the hook rounded them")
}

// cut drops the lowest bits of a float32.
func cut(x float64, bits uint32) float64 {
	return float64(math.Float32frombits(math.Float32bits(float32(x)) &^ (1<<bits - 1)))
}
