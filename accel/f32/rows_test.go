package f32

import (
	"math"
	"math/rand/v2"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/accel"
)

// edge draws a number of a row: most are plain, some are where a branch of an exponential or of a mask is decided.
func edge(r *rand.Rand) float32 {
	special := []float32{0, float32(math.Copysign(0, -1)), 100, -100, math.Nextafter32(-100, 0), -99.99, 104, -700, -701, 0x1p-149, 3e38, -3e38, float32(math.Inf(1)), float32(math.Inf(-1)), float32(math.NaN())}
	switch k := r.IntN(40); {
	case k < len(special) && r.IntN(4) == 0:
		return special[k]
	case k < 30:
		return float32(r.NormFloat64())
	}
	return float32(r.NormFloat64() * 50)
}

// Every variant of an op of rows returns the bits of portable Go, on rows of every length with NaN, infinities and the edges of its branches,
// and leaves alone what lies behind them.
func TestRowsAgree(t *testing.T) {
	r := rand.New(rand.NewPCG(5, 6))
	draw := func(n int) []float32 {
		x := make([]float32, n)
		for i := range x {
			x[i] = edge(r)
		}
		return x
	}
	const behind = 16
	for range 1500 {
		n := r.IntN(40)
		if r.IntN(20) == 0 {
			n = 200 + r.IntN(200)
		}
		in := [][]float32{draw(n + behind), draw(n + behind), draw(n + behind), draw(n + behind)}
		top, by := float64(topOf(in[0][:n])), edge(r)
		s := slopes{top: top, inv: 0.3, dlp: r.NormFloat64(), dh: float64(r.IntN(2)) * r.NormFloat64(), log: 0.4, entropy: 1.5}
		for _, o := range []struct {
			name string
			run  func(x [][]float32) []float64
		}{
			{"f32.Max", func(x [][]float32) []float64 { return []float64{float64(topRow.Func()(x[0]))} }},
			{"f32.Scale", func(x [][]float32) []float64 { scaleBy.Func()(x[0], by); return nil }},
			{"f32.Softmax", func(x [][]float32) []float64 { Softmax(x[0]); return nil }},
			{"f32.SoftmaxBackward", func(x [][]float32) []float64 { softmaxBackward(x[0], x[1], x[2], by); return nil }},
			{"f32.Head", func(x [][]float32) []float64 {
				var a, b lanes
				headAdd.Func()(x[0], top, &a, &b)
				return append(a[:], b[:]...)
			}},
			{"f32.HeadBackward", func(x [][]float32) []float64 { headBack.Func()(x[0], s); return nil }},
			{"f32.SwiGLU", func(x [][]float32) []float64 { swiGLU.Func()(x[0], x[1], x[2]); return nil }},
			{"f32.SwiGLUBackward", func(x [][]float32) []float64 { swiGLUBack.Func()(x[0], x[1], x[2], x[0], x[1]); return nil }},
			{"f32.RMSNorm", func(x [][]float32) []float64 { return []float64{float64(rmsNorm.Func()(x[0], x[1], x[2], 1e-5))} }},
			{"f32.RMSNormBackward", func(x [][]float32) []float64 { rmsNormBack.Func()(x[0], x[1], x[2], x[3], by); return nil }},
			{"f32.Add", func(x [][]float32) []float64 { Add(x[0], x[1], x[2]); return nil }},
		} {
			var want [][]float32
			var also []float64
			accel.Each(o.name, func(v accel.Variant) {
				if v.Missing != "" {
					require.False(t, v.Broken, v.Missing)
					return
				}
				got := make([][]float32, len(in))
				cut := make([][]float32, len(in))
				for i := range in {
					got[i] = append([]float32(nil), in[i]...)
					cut[i] = got[i][:n:n]
				}
				sums := o.run(cut)
				if want == nil {
					want, also = got, sums
					return
				}
				for i := range got {
					for j := range got[i] {
						require.True(t, sameNumber(float64(got[i][j]), float64(want[i][j])), "%s %s: argument %d, element %d of %d: %v, not %v", o.name, v.Name, i, j, n, got[i][j], want[i][j])
					}
				}
				for i := range sums {
					require.True(t, sameNumber(sums[i], also[i]), "%s %s: sum %d of %d elements: %v, not %v", o.name, v.Name, i, n, sums[i], also[i])
				}
			})
		}
	}
}

// sameNumber compares bits; one NaN is as good as another.
func sameNumber(a, b float64) bool {
	return math.Float64bits(a) == math.Float64bits(b) || a != a && b != b
}
