package fault

import (
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// Returns that lack the rewards of responses that fill their columns, or of the others, are named by that beside advantages that are right.
func TestReturnsWithoutRewards(t *testing.T) {
	p, _, err := convention.Lookup("verl-ppo@0.9")
	require.NoError(t, err)
	set := convention.FromProfile(p)
	for name, x := range map[string]string{"gae.gamma": "0.97", "gae.lambda": "0.9", "whiten.scope": "none"} {
		set = set.With(name, parsed(name, x), "test")
	}
	passedBy := func(own, behind, m float64) float64 { return own*m + (1-m)*behind }
	judge := func(lacks func(row int) bool) *stage.Outcome {
		b := rolledOut(true, overHoles(passedBy, passedBy))
		for r := range b.Rows { // rows of four and of twelve tokens
			for k := range b.Cols {
				b.Mask[r*b.Cols+k] = k < 4 || r >= 4
			}
		}
		reward, v, adv, ret := b.Token("token_rewards"), b.Token("values"), b.Token("advantages"), b.Token("returns")
		for r := range b.Rows {
			m := make([]float64, b.Cols)
			for k := range m {
				if m[k] = float64(boolToInt(b.Mask[r*b.Cols+k])); m[k] == 0 {
					reward[r*b.Cols+k] = 0
				}
			}
			lo, hi := r*b.Cols, (r+1)*b.Cols
			for k, a := range overHoles(passedBy, passedBy)(reward[lo:hi], v[lo:hi], m, nil, 0) {
				if adv[lo+k], ret[lo+k] = float64(float32(a)), float64(float32(a+v[lo+k])); lacks(r) {
					ret[lo+k] = float64(float32(a + v[lo+k] - reward[lo+k]))
				}
			}
		}
		return stage.Judge(stage.Find("gae/returns"), b, set)
	}
	o := judge(func(int) bool { return false })
	require.Equal(t, check.Pass, o.Verdict, o.Lacking())
	requireName(t, judge(func(r int) bool { return r >= 4 }), "OTHER-FORM", "of responses that fill their columns")
	requireName(t, judge(func(r int) bool { return r < 4 }), "OTHER-FORM", "of responses that end before their columns")
}
