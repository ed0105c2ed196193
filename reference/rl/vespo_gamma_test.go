package rl

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// The engine's weights are part of vespo's weight: ln W gains their logarithms, clamped at ln 1e-8, over the tokens of the row.
func TestVESPOWeightOfEngine(t *testing.T) {
	lp, old, adv := []float64{-1, -2, 9}, []float64{-1.25, -1.75, 3}, []float64{1, -1, 1}
	mask := []bool{true, true, false}
	got := VESPOWeight(nil, lp, old, adv, []float64{1.5, 0.8, 1}, mask, 1, 3, VESPODefaults)
	w := 1.5 * 0.8 // the log-ratios cancel
	require.InDelta(t, w*w*math.Exp(3*(1-w)), got[0], 1e-15)
	require.InDelta(t, w*w*w*math.Exp(2*(1-w)), got[1], 1e-15)

	got = VESPOWeight(nil, lp, old, adv, []float64{0, 0.8, 1}, mask, 1, 3, VESPODefaults) // masked by the engine: the floor of W
	require.InEpsilon(t, 1e-16*math.Exp(3), got[0], 1e-6)

	plain := VESPOWeight(nil, lp, old, adv, nil, mask, 1, 3, VESPODefaults)
	require.Equal(t, plain, VESPOWeight(nil, lp, old, adv, []float64{1, 1, 1}, mask, 1, 3, VESPODefaults))
	require.Panics(t, func() { VESPOWeight(nil, lp, old, adv, []float64{1}, mask, 1, 3, VESPODefaults) })

	// Policy hands them on, and does not multiply by them.
	b := PolicyBatch{Rows: 1, Cols: 3, LogProbs: lp, Old: old, Adv: adv, Mask: mask, Gamma: []float64{1.5, 0.8, 1}}
	var res PolicyResult
	require.NoError(t, Policy(&res, b, PolicyOptions{Kind: LossVESPO, VESPO: VESPODefaults}))
	require.InDelta(t, w*w*math.Exp(3*(1-w)), res.Token[0], 1e-15) // −φ·A·lp
}
