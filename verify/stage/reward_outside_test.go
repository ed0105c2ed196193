package stage

import (
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/check"
)

// Rewards that stand in the first cell behind a turn, outside the mask, are lost where returns are carried over by actions alone.
func TestRewardsOutsideTheMask(t *testing.T) {
	const rows, cols = 6, 9 // turns of three, two and two tokens, and a cell of a tool between them
	judge := func(at func(row int) int, reads bool) *Outcome {
		g := newGrid(cols, 9, 9, 9, 9, 9, 9)
		r, adv := make([]float64, rows*cols), make([]float64, rows*cols)
		for q := range rows {
			row := r[q*cols : (q+1)*cols]
			g.Mask[q*cols+3], g.Mask[q*cols+6] = false, false
			row[at(q)] = 0.1 * float64(1+q)
			carried := 0.0
			for t := cols - 1; t >= 0; t-- {
				if on := g.Mask[q*cols+t]; on || reads {
					if carried += row[t]; on {
						adv[q*cols+t] = (carried - 0.2) / 0.3
					}
				}
			}
		}
		return rules(t, "reward/outside", g.token("token_rewards", r...).token("advantages", adv...).Batch, set(t, ""))
	}
	behind := func(row int) int { return []int{3, 6, 3, 6, 3, 8}[row] }
	require.Equal(t, check.Pass, judge(behind, true).Verdict)
	require.Equal(t, check.Pass, judge(func(row int) int { return behind(row) - 1 }, false).Verdict)
	require.Equal(t, check.Pass, judge(func(int) int { return 8 }, false).Verdict)
	o := judge(behind, false)
	require.Equal(t, check.Fail, o.Verdict)
	require.Equal(t, "SCORE-LOST", o.Rules.Violations[0].Fault)
}
