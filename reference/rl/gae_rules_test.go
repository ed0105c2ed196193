package rl

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

// TestGAERules has what the laws leave open: the bootstrap of a truncated row, packed segments, λ of VAPO, values beyond the
// response.
func TestGAERules(t *testing.T) {
	r, v := []float64{0, 1, 0, 2}, []float64{.5, .25, 1, -1}
	mask := []bool{true, true, false, false}
	for hole := HoleNone; hole <= HoleCutNext; hole++ {
		o := GAEOptions{Gamma: .5, Lambda: .5, Hole: hole, Bootstrap: BootstrapValue}
		b := Rollout{Rows: 1, Cols: 4, Reward: r, Value: v, Mask: mask, Next: []float64{8}, Truncated: []bool{true}}
		adv := gaeOf(b, o)
		require.Equal(t, 1+.5*8-.25, adv[1], hole) // the cell that a length limit cut
		require.Equal(t, .5*.25-.5+.25*adv[1], adv[0], hole)
		b.Truncated[0] = false
		ended := gaeOf(b, o)
		o.Bootstrap, b.Next = BootstrapNone, nil
		require.Equal(t, gaeOf(b, o), ended, hole)
		b.Done = []bool{false, true, false, false}
		o.Bootstrap, b.Next, b.Truncated = BootstrapValue, []float64{8}, nil
		require.Equal(t, 1-.25, gaeOf(b, o)[1], "%v: an end is no truncation", hole)
	}
	// two segments packed into a row are two rows
	packed := Rollout{Rows: 1, Cols: 4, Reward: r, Value: v, Done: []bool{false, true, false, false}}
	parts := Rollout{Rows: 2, Cols: 2, Reward: r, Value: v}
	for hole := HoleNone; hole <= HoleCutNext; hole++ {
		o := GAEOptions{Gamma: .9, Lambda: .8, Hole: hole}
		require.Equal(t, gaeOf(parts, o), gaeOf(packed, o), hole)
	}

	vapo := GAEOptions{Gamma: .9, Lambda: .1, LambdaPolicy: LambdaVAPO, Alpha: .5}
	b := Rollout{Rows: 1, Cols: 4, Reward: r, Value: v}
	require.NoError(t, off(gaeOf(b, vapo), gaeOf(b, GAEOptions{Gamma: .9, Lambda: .5}), 1e-15)) // 1 − 1/(.5·4)
	b.Mask = []bool{true, true, true, false}
	require.NoError(t, off(gaeOf(b, vapo), gaeOf(b, GAEOptions{Gamma: .9, Lambda: 1 - 1/1.5}), 1e-15))
	b.Mask = []bool{false, true, false, false} // len 1, λ = −1
	vapo.Hole = HoleZeroStep
	require.NoError(t, off(gaeOf(b, vapo), []float64{.9*.25 - .9*.75, .75, 0, 0}, 1e-15)) // the hole has δ = γV and then γλA
	b.Mask = make([]bool, 4)
	for _, a := range gaeOf(b, vapo) {
		require.False(t, math.IsNaN(a) || math.IsInf(a, 0), "a row without tokens")
	}

	// none: V counts up to the last response token, or one further
	b = Rollout{Rows: 1, Cols: 4, Reward: make([]float64, 4), Value: []float64{1, 2, 4, 8}, Mask: mask}
	o := GAEOptions{Gamma: 1, Lambda: 0, Returns: ReturnsMaskedV}
	adv, ret := GAE(nil, nil, b, o)
	require.Equal(t, []float64{1, -2, 0, 0}, adv)
	require.Equal(t, []float64{2, 0, 0, 0}, ret)
	o.Value = ValueP1
	adv, ret = GAE(nil, nil, b, o)
	require.Equal(t, []float64{1, 2, -4, 0}, adv)
	require.Equal(t, []float64{2, 4, 0, 0}, ret)

	// returns of whitened advantages are others
	white, err := Whiten(nil, adv, mask, 1, 4, own)
	require.NoError(t, err)
	require.NotEqual(t, ret, Returns(nil, white, b, o))

	for _, wrong := range []GAEOptions{{Hole: 5}, {Hole: -1}, {Value: 2}, {LambdaPolicy: 2}, {Bootstrap: 2}, {Returns: 3}, {Returns: -1}} {
		require.Panics(t, func() { GAE(nil, nil, Rollout{Rows: 1, Cols: 1, Reward: []float64{1}, Next: []float64{1}}, wrong) }, "%+v", wrong)
	}
	require.Panics(t, func() { GAE(nil, nil, Rollout{Rows: 1, Cols: 2, Reward: []float64{1}}, o) })
	require.Panics(t, func() {
		GAE(nil, nil, Rollout{Rows: 1, Cols: 1, Reward: []float64{1}}, GAEOptions{Bootstrap: BootstrapValue})
	})
	require.Panics(t, func() { RewardToGo(nil, r, nil, 1, 4, 1, HoleCut) })
}

// TestRewardToGo compares with GAE without values at λ = 1, which says the same for all three rules.
func TestRewardToGo(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		b, o := drawRollout(t)
		b.Value = nil
		o.Lambda, o.Returns, o.Value = 1, ReturnsRaw, ValueResponse
		for _, hole := range []Hole{HoleCarry, HoleZeroStep, HoleCutNext} {
			o.Hole = hole
			r := poison(b.Reward, b.Mask)
			got, want := RewardToGo(nil, r, b.Mask, b.Rows, b.Cols, o.Gamma, hole), gaeOf(b, o)
			for i, m := range b.Mask {
				if !m && hole == HoleCutNext { // GAE writes there what no true cell takes
					got[i], want[i] = 0, 0
				}
			}
			if err := off(got, want, 1e-12); err != nil {
				t.Fatalf("%v: %v", hole, err)
			}
		}
	})
	mask := []bool{true, false, true}
	require.Equal(t, []float64{2, 2, 2}, RewardToGo(nil, []float64{1, 7, 2}, mask, 1, 3, .5, HoleCarry))
	require.Equal(t, []float64{1.5, 1, 2}, RewardToGo(nil, []float64{1, 7, 2}, mask, 1, 3, .5, HoleZeroStep))
	require.Equal(t, []float64{1, 0, 2}, RewardToGo(nil, []float64{1, 7, 2}, mask, 1, 3, .5, HoleCutNext))
}
