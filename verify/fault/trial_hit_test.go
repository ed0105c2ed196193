package fault

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/stage"
)

// A loss of a thousand tokens has a wide bound and a small error: a bug that moves it by some bounds is named where its numbers are the loss to the last
// digits, and one that misses it by less than the bound is not.
func TestLossThatIsHit(t *testing.T) {
	const rows, cols, low, high = 16, 64, 0.2, 0.28
	set := clippedLoss(t, "entropy.coef", "0")
	of := func(miss float64, token func(x, a float64) float64) *stage.Outcome {
		r := rand.New(rand.NewPCG(8, 1))
		b := &dump.Batch{Rows: rows, Cols: cols, Mask: make([]bool, rows*cols), Tensors: map[string]*dump.Tensor{}, Origin: make([]dump.Origin, rows), Files: []dump.FileInfo{{Hi: rows, Cols: cols}}}
		b.Meta.MicroBatches, b.Meta.WorldSize = 1, 1
		lp, old, adv, sum := make([]float64, rows*cols), make([]float64, rows*cols), make([]float64, rows), 0.0
		for i := range lp {
			if i%cols == 0 {
				adv[i/cols] = float64(float32(r.NormFloat64()))
			}
			b.Mask[i], lp[i] = true, float64(float32(-r.ExpFloat64()))
			switch old[i] = float64(float32(lp[i] + 0.02*r.NormFloat64())); i % 100 {
			case 7:
				old[i] = lp[i] + math.Copysign(0.3, adv[i/cols]) // beyond the bounds, where the unclipped side is taken
			case 57:
				old[i] = lp[i] - math.Copysign(0.3, adv[i/cols]) // where the clipped one is
			}
			sum += token(math.Exp(lp[i]-old[i]), adv[i/cols])
		}
		for name, x := range map[string][]float64{"logp_new": lp, "logp_old": old} {
			b.Tensors[name] = &dump.Tensor{Name: name, Layout: dump.PerToken, Width: 1, Shape: []int{rows, cols}, Data: x, Type: format.F32}
		}
		b.Tensors["advantages"] = &dump.Tensor{Name: "advantages", Layout: dump.PerRow, Width: 1, Shape: []int{rows}, Data: adv, Type: format.F32}
		b.Tensors["loss"] = &dump.Tensor{Name: "loss", Layout: dump.PerFile, Width: 1, Data: []float64{float64(float32(sum/(rows*cols) + miss))}, Type: format.F32}
		return stage.Judge(stage.Find("aggregate/loss"), b, set)
	}
	clip := func(x float64) float64 { return max(1-low, min(x, 1+high)) }
	right := func(x, a float64) float64 { return max(-a*x, -a*clip(x)) }
	require.Equal(t, check.Pass, of(0, right).Verdict)
	wrong := of(0, func(x, a float64) float64 { return -a * clip(x) })
	require.Less(t, wrong.Tally.Worst.Ratio, 100.0)
	requireName(t, wrong, "CLIP-WITHOUT-MIN", "")
	require.Equal(t, check.Pass, of(1e-6, right).Verdict)
	requireNoName(t, of(1e-6, func(x, a float64) float64 { return -a * clip(x) }))
}
