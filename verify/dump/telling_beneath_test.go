package dump_test

import (
	"context"
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/cases"
	"plumbline/internal/format"
	dumpfile "plumbline/internal/format/dump"
	"plumbline/verify/check"
	"plumbline/verify/dump"
)

// Losses are all that a run says, and nobody declares a number of theirs: bounds, caps and coefficients that have to be solved for show with a bug of the
// weights or of the KL in place, which is then named.
func TestBugsOfTermsOfALoneLoss(t *testing.T) {
	type token struct{ lp, old, ref, gen, adv float64 }
	k3 := func(d float64) float64 { return math.Expm1(-d) + d }
	clipped := func(x token) float64 {
		rho := math.Exp(x.lp - x.old)
		return -min(rho*x.adv, min(max(rho, 0.83), 1.23)*x.adv)
	}
	for i, c := range []struct {
		name string
		of   func(x token) float64
	}{
		{"IS-NEW-FOR-OLD", func(x token) float64 { return min(math.Exp(x.lp-x.gen), 1.07) * clipped(x) }},
		{"KL-OF-OLD", func(x token) float64 { return clipped(x) + 0.03*k3(x.old-x.ref) }},
		{"IS-INVERTED", func(x token) float64 { return min(math.Exp(x.gen-x.old), 1.07) * clipped(x) }},
		{"KL-SIGN", func(x token) float64 { return (clipped(x) - 0.03*k3(x.lp-x.ref)) / 3.5 }},
	} {
		if i > 1 && !cases.All {
			continue
		}
		rng := rand.New(rand.NewPCG(7, 3))
		var steps dump.Batches
		for step := range 8 {
			const rows, cols = 6, 16
			b := &dumpfile.Batch{Rows: rows, Cols: cols, Mask: make([]bool, rows*cols), Tensors: map[string]*dumpfile.Tensor{}, Origin: make([]dumpfile.Origin, rows),
				Files: []dumpfile.FileInfo{{Step: step + 1, Hi: rows, Cols: cols}}}
			b.Meta.Step, b.Meta.WorldSize, b.Meta.MicroBatches = step+1, 1, 1
			put := func(name string) []float64 {
				if name == "logp_gen" && c.name[:2] == "KL" || name == "logp_ref" && c.name[:2] == "IS" {
					return nil
				}
				x := make([]float64, rows*cols)
				b.Tensors[name] = &dumpfile.Tensor{Name: name, Data: x, Width: 1, Layout: dumpfile.PerToken, Shape: []int{rows, cols}, Type: format.F32}
				return x
			}
			lp, old, ref, gen, adv := put("logp_new"), put("logp_old"), put("logp_ref"), put("logp_gen"), put("advantages")
			var sum, n float64
			for r := range rows {
				a := single(rng.NormFloat64())
				for i := r * cols; i < r*cols+7+int(a*3+9)%8; i++ {
					x := token{old: single(-0.2 - 3*rng.Float64()), adv: a}
					x.lp, x.ref, x.gen = single(x.old+0.12*float64(step%4)*rng.NormFloat64()), single(x.old+0.2*rng.NormFloat64()), single(x.old+0.05*rng.NormFloat64())
					b.Mask[i], lp[i], old[i], adv[i] = true, x.lp, x.old, a
					if ref != nil {
						ref[i] = x.ref
					} else {
						gen[i] = x.gen
					}
					sum, n = sum+c.of(x), n+1
				}
			}
			if c.name == "KL-SIGN" { // a sum that the rows and a constant divide
				n = rows * 4
			}
			b.Tensors["loss"] = &dumpfile.Tensor{Name: "loss", Data: []float64{single(sum / n)}, Width: 1, Layout: dumpfile.PerFile, Shape: []int{1}, Type: format.F32}
			steps = append(steps, b)
		}
		r, err := dump.Judge(context.Background(), steps, dump.Options{Profile: dump.NoProfile, Selection: check.Selection{Select: []string{"aggregate/loss"}}})
		require.NoError(t, err)
		res := r.Results[len(r.Results)-1]
		require.Equal(t, check.Fail, res.Verdict, "%s: %s", c.name, res.Reason)
		require.NotEmpty(t, res.Explanations, c.name)
		require.Equal(t, c.name, res.Explanations[0].Fault)
	}
}
