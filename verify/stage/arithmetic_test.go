package stage

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/verify/check"
)

// compute_dtype is that of ratios, losses and sums: advantages of a float64 loss may have been made in float32, as their numbers show.
func TestFloat32AdvantagesOfAFloat64Loss(t *testing.T) {
	scores := []float64{0.1, 0.7, 0.35, 0.2}
	options := set(t, "adv.kind=group adv.center=mean adv.scale=group_std adv.ddof=1 adv.eps=1e-4 adv.group_by=uid kl.place=none adv.zero_std=divide_eps whiten.scope=none")
	var mean, square float64
	for _, x := range scores {
		mean += x / 4
	}
	for _, x := range scores {
		square += (x - mean) * (x - mean) / 3
	}
	for _, c := range []struct {
		round func(x float64) float64
		want  check.Verdict
	}{
		{func(x float64) float64 { return x }, check.Pass},
		{func(x float64) float64 { return float64(float32(x)) }, check.Pass},
		{func(x float64) float64 { return x * (1 + 1e-8) }, check.Fail},
	} {
		adv := make([]float64, 4)
		for i, x := range scores {
			adv[i] = c.round((x - mean) / (math.Sqrt(square) + 1e-4))
		}
		g := newGrid(1, 1, 1, 1, 1).row("group_id", 0, 0, 0, 0).row("scores", scores...).row("advantages", adv...)
		g.Tensors["advantages"].Type, g.Tensors["scores"].Type, g.Meta.ComputeDType = format.F64, format.F64, "float64"
		o := Judge(Find("advantage/group"), g.Batch, options)
		require.Equal(t, c.want, o.Verdict, o.Lacking())
	}
}
