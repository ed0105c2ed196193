package dump_test

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	dumpfile "plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/dump"
)

// Spinning Up's advantages, whitened over all with n, stand beside rewards to go: γ, λ and the whitening show in them. Rewards to go of another γ are none, nor are returns
// of the whitened advantages, which no framework has.
func TestAdvantagesBesideRewardsToGo(t *testing.T) {
	const gamma, lambda, rows, cols = 0.99, 0.97, 8, 14
	for of, want := range map[float64]string{gamma: "", 1: "GAE-NO-GAMMA", 0: "GAE-RETURNS-AFTER-WHITENING"} {
		var steps dump.Batches
		for step := range 3 {
			b := &dumpfile.Batch{Rows: rows, Cols: cols, Mask: make([]bool, rows*cols), Tensors: map[string]*dumpfile.Tensor{}, Origin: make([]dumpfile.Origin, rows),
				Files: []dumpfile.FileInfo{{Step: step + 1, Hi: rows, Cols: cols}}}
			b.Meta.Step, b.Meta.WorldSize, b.Meta.MicroBatches = step+1, 1, 1
			put := func(name string) []float64 {
				x := make([]float64, rows*cols)
				b.Tensors[name] = &dumpfile.Tensor{Name: name, Data: x, Width: 1, Layout: dumpfile.PerToken, Shape: []int{rows, cols}, Type: format.F32}
				return x
			}
			reward, value, adv, ret := put("token_rewards"), put("values"), put("advantages"), put("returns")
			var mean, square, n float64
			for r := range rows {
				var a, g, next float64
				for c := cols - 1 - (3*r+step)%5; c >= 0; c-- {
					i := r*cols + c
					b.Mask[i], reward[i], value[i] = true, single(math.Sin(float64(7*i+step))), single(2*math.Cos(float64(5*i+3*step)))
					a = reward[i] + gamma*next - value[i] + gamma*lambda*a
					g = reward[i] + of*g
					next, adv[i], ret[i] = value[i], a, single(g)
					mean, square, n = mean+a, square+a*a, n+1
				}
			}
			mean /= n
			for i := range adv {
				if b.Mask[i] {
					if adv[i] = single((adv[i] - mean) / math.Sqrt(square/n-mean*mean)); of == 0 {
						ret[i] = single(adv[i] + value[i])
					}
				}
			}
			steps = append(steps, b)
		}
		r, err := dump.Judge(t.Context(), steps, dump.Options{Profile: dump.NoProfile, Selection: check.Selection{Select: []string{"gae"}}})
		require.NoError(t, err)
		for _, res := range r.Results {
			if want != "" && res.Check == "gae/returns" {
				require.Equal(t, check.Fail, res.Verdict, res.Reason)
				require.Equal(t, want, res.Explanations[0].Fault)
			} else {
				require.Equal(t, check.Pass, res.Verdict, "%s: %s", res.Check, res.Reason)
			}
		}
	}
}
