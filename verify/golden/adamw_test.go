package golden_test

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/reference/optim"
)

// TestAdamW runs the optimiser over the gradients of every entry, one row of grads a step, and compares parameters and
// moments after each step, and the norms before clipping.
//
// The producer recorded p0 of the float64 entries after torch had updated it in place: it equals the parameters after the
// last step. Those entries start from the recorded state after the first step; the float32 entries cover the first.
// float32 entries were computed in float32; the producer's own float64 form differs from them by up to 4.1e-8 (numpy_check).
func TestAdamW(t *testing.T) {
	compared, steps := 0, 0
	for _, e := range load(t, "adamw") {
		lr, _ := e.num(t, "lr")
		eps, _ := e.num(t, "eps")
		decay, _ := e.num(t, "weight_decay")
		limit, clips := e.num(t, "max_norm")
		betas := e.nums(t, "betas")
		o := optim.Adam{LR: lr, Beta1: betas[0], Beta2: betas[1], Eps: eps, WeightDecay: decay, AMSGrad: e.flag(t, "amsgrad")}
		tolerance := exact
		if e.str(t, "dtype") == "float32" {
			tolerance = 1e-6
		}
		params, m, v := e.output(t, "params"), e.output(t, "exp_avg"), e.output(t, "exp_avg_sq")
		rows, n := params.dims(t)
		row := func(x *value, i int) []float64 { return slices.Clone(x.Data[i*n : (i+1)*n]) }

		run := func(o optim.Adam) error {
			p, s, first := slices.Clone(e.input(t, "p0").Data), optim.NewState(n), 0
			if tolerance == exact {
				require.Equal(t, row(params, rows-1), p, "%s: p0 is no longer the last row of params: start from it", e.name())
				p, s.M, s.V, s.Step, first = row(params, 0), row(m, 0), row(v, 0), 1, 1
				s.VMax = row(v, 0)
			}
			for i := first; i < rows; i++ {
				g := row(e.input(t, "grads"), i)
				if clips {
					requireNear(t, e, "grad_norms", []float64{optim.ClipGlobalNorm([][]float64{g}, limit)}, e.output(t, "grad_norms").Data[i:i+1], exact)
				}
				o.Step(p, g, s)
				steps++
				for _, c := range []struct{ got, want []float64 }{{p, row(params, i)}, {s.M, row(m, i)}, {s.V, row(v, i)}} {
					if err := near(c.got, c.want, tolerance); err != nil {
						return err
					}
				}
			}
			return nil
		}
		require.NoError(t, run(o), e.name())
		compared++
		if tolerance == exact {
			o.Form = optim.TensorFlow1
			require.Error(t, run(o), "%s: the other place of eps must not pass", e.name())
		}
	}
	require.Equal(t, 9, compared)
	require.GreaterOrEqual(t, steps, 6*2+3*3)
}
