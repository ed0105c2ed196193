package fault_test

import (
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// A recursion over columns that reads another row's number, or one of all rows, is named by what it reads.
func TestRecursionAcrossRows(t *testing.T) {
	const rows, cols, gamma, lambda = 6, 9, 0.97, 0.9
	p, _, err := convention.Lookup("verl-ppo@0.9")
	require.NoError(t, err)
	set := convention.FromProfile(p)
	for option, value := range map[string]string{"gae.gamma": "0.97", "gae.lambda": "0.9", "whiten.scope": "none"} {
		v, err := convention.Parse(option, value)
		require.NoError(t, err)
		set = set.With(option, v, "test")
	}
	type reads func(x []float64, k int) float64
	own := func(x []float64, k int) float64 { return x[k] }
	before := func(x []float64, k int) float64 { return x[(k+rows-1)%rows] }
	mean := func(x []float64, _ int) (y float64) {
		for _, v := range x {
			y += v / rows
		}
		return y
	}
	judge := func(next, carried reads) *stage.Outcome {
		mask, r, v, adv, ret := make([]bool, rows*cols), make([]float64, rows*cols), make([]float64, rows*cols), make([]float64, rows*cols), make([]float64, rows*cols)
		for i := range mask {
			mask[i] = i%cols < 4+i/cols
			v[i] = float64(float32(noise(i)))
			if mask[i] {
				r[i] = float64(float32(noise(i + 500)))
			}
		}
		last, behind := make([]float64, rows), make([]float64, rows)
		for c := cols - 1; c >= 0; c-- {
			was := append([]float64(nil), last...)
			for k := range rows {
				i := k*cols + c
				if last[k] = 0; !mask[i] {
					continue
				}
				following := 0.0
				if c+1 < cols && mask[i+1] {
					following = next(behind, k)
				}
				last[k] = r[i] + gamma*following - v[i] + gamma*lambda*carried(was, k)
				adv[i], ret[i] = last[k], last[k]+v[i]
			}
			for k := range rows {
				behind[k] = v[k*cols+c]
			}
		}
		return stage.Judge(stage.Find("gae/advantage"), written("ppo", rows, cols, mask, map[string][]float64{"token_rewards": r, "values": v, "advantages": adv, "returns": ret}), set)
	}
	o := judge(own, own)
	require.Equal(t, check.Pass, o.Verdict, o.Lacking())
	requireFirst(t, judge(before, own), "GAE-RECURSION", "the next value is that of the row before")
	requireFirst(t, judge(own, mean), "GAE-RECURSION", "A_{t+1} is the mean over all rows")
	requireFirst(t, judge(own, before), "GAE-RECURSION", "A_{t+1} is that of the row before")
	requireFirst(t, judge(mean, own), "GAE-RECURSION", "the next value is the mean over all rows")
}
