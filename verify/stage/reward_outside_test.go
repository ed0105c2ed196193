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

// With a critic the returns show whether the rewards between two turns are part of them.
func TestRewardsBetweenTurnsOfACritic(t *testing.T) {
	const rows, cols, gamma, lambda = 6, 9, 0.97, 0.9
	for name, c := range map[string]struct {
		at    int
		reads bool
		dense float64
		want  check.Verdict
	}{"in the mask": {2, false, 0, check.Pass}, "read": {3, true, 0, check.Pass}, "lost": {3, false, 0, check.Fail}, "behind the last turn": {8, false, 0, check.Pass}, "a KL of every cell": {3, false, 0.01, check.Pass}} {
		g := newGrid(cols, 9, 9, 9, 9, 9, 9)
		r, v, ret := make([]float64, rows*cols), make([]float64, rows*cols), make([]float64, rows*cols)
		for i := range r {
			q, k := i/cols, i%cols
			g.Mask[i] = k != 3 && k != 4 && k != 8
			if v[i] = float64(float32(0.3 + 0.1*float64((7*i)%5))); k == c.at {
				r[i] = 0.1 * float64(1+q)
			}
			r[i] += c.dense * float64(1+i%3)
		}
		for q := range rows {
			next, nextV, carried := 0.0, 0.0, 0.0
			for k := cols - 1; k >= 0; k-- {
				i := q*cols + k
				if !g.Mask[i] {
					carried += r[i]
					continue
				}
				delta := r[i] + gamma*nextV - v[i]
				if c.reads {
					delta += carried
				}
				next, nextV, carried = delta+gamma*lambda*next, v[i], 0
				ret[i] = float64(float32(next + v[i]))
			}
		}
		o := rules(t, "reward/outside", g.token("token_rewards", r...).token("values", v...).token("returns", ret...).Batch, set(t, "gae.gamma=0.97 gae.lambda=0.9"))
		require.Equal(t, c.want, o.Verdict, name)
	}
}
