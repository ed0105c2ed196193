package nn

import (
	"math"
	"slices"
	"testing"

	"plumbline/reference/ad"

	"github.com/stretchr/testify/require"
	"pgregory.net/rapid"
)

func TestNorms(t *testing.T) {
	rapid.Check(t, func(t *rapid.T) {
		r := drawRand(t)
		n, c := size(t, "rows", 3), 1+size(t, "c", 6)
		eps := rapid.SampledFrom([]float64{1e-12, 1e-5, 0.5}).Draw(t, "eps")
		in, w, b := random(r, n, c), random(r, c), random(r, c)
		x := leaves(in, w, b)
		rms, layer := RMSNorm(x[0], x[1], eps).Data(), LayerNorm(x[0], x[1], x[2], eps).Data()

		ones := x[0].Tape().Const(slices.Repeat([]float64{1}, c), c)
		plain := RMSNorm(x[0], ones, eps).Data()
		centred := LayerNorm(x[0], ones, nil, eps).Data()
		for i := range n {
			row := in.Data[i*c : (i+1)*c]
			var ms, got, mean, v, sum, sq float64
			for j := range row {
				ms += row[j] * row[j] / float64(c)
				mean += row[j] / float64(c)
				got += plain[i*c+j] * plain[i*c+j] / float64(c)
				sum += centred[i*c+j]
				sq += centred[i*c+j] * centred[i*c+j] / float64(c)
			}
			for j := range row {
				v += (row[j] - mean) * (row[j] - mean) / float64(c)
			}
			require.InEpsilon(t, ms/(ms+eps), got, 1e-13, "mean square")
			require.InDelta(t, 0, sum, 1e-12)
			require.InEpsilon(t, v/(v+eps), sq, 1e-12, "variance")
			for j := range row {
				require.InDelta(t, row[j]/math.Sqrt(ms+eps)*w.Data[j], rms[i*c+j], 1e-13)
				require.InDelta(t, (row[j]-mean)/math.Sqrt(v+eps)*w.Data[j]+b.Data[j], layer[i*c+j], 1e-12/math.Sqrt(v+eps))
			}
		}
		negated := RMSNorm(ad.Neg(x[0]), x[1], eps).Data()
		doubled := RMSNorm(x[0], ad.Scale(x[1], 2), eps).Data()
		for i := range rms {
			require.Equal(t, -rms[i], negated[i])
			require.Equal(t, 2*rms[i], doubled[i])
		}
		near(t, centred, LayerNorm(ad.AddScalar(x[0], 0.25), ones, nil, eps).Data(), "shift")
	})
	// A tiny input shows ε: it is not scaled up to order 1.
	x := leaves(ad.Tensor{Shape: []int{1, 2}, Data: []float64{1e-8, -1e-8}}, ad.Tensor{Shape: []int{2}, Data: []float64{1, 1}})
	require.InDelta(t, 1e-8/math.Sqrt(1e-5), RMSNorm(x[0], x[1], 1e-5).Data()[0], 1e-12)
	require.InDelta(t, 1e-8/math.Sqrt(1e-5), LayerNorm(x[0], x[1], nil, 1e-5).Data()[0], 1e-12)
}
