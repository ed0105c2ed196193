package stage

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
)

// TestRatiosOfRowsByAnotherLength divides the sums of log-ratios by the padded width, by the tokens of each row, and takes each token's own, within 0.97 and 1.04.
func TestRatiosOfRowsByAnotherLength(t *testing.T) {
	const rows, cols = 12, 8
	shown := func(of func(d, sum, n float64) float64) (texts []string) {
		b := lossFile(cols, nil, nil, nil)
		b.Rows, b.Mask = rows, make([]bool, rows*cols)
		x := map[string][]float64{}
		for _, name := range []string{"logp_new", "logp_old", "advantages", "token_loss"} {
			x[name] = make([]float64, rows*cols)
			b.Tensors[name] = &dump.Tensor{Data: x[name], Layout: dump.PerToken, Type: format.F32}
		}
		for r := range rows {
			n, sum := 2+(5*r)%(cols-1), 0.0
			for i := r * cols; i < r*cols+n; i++ {
				b.Mask[i] = true
				x["logp_old"][i] = float64(float32(-1 - math.Abs(math.Sin(float64(3*i)))))
				x["logp_new"][i] = float64(float32(x["logp_old"][i] + 0.02*math.Cos(float64(i)) + 0.08*math.Sin(float64(2*r))))
				x["advantages"][i] = float64(float32(math.Sin(float64(7*r + 1))))
				sum += x["logp_new"][i] - x["logp_old"][i]
			}
			for i := r * cols; i < r*cols+n; i++ {
				c, a := math.Exp(of(x["logp_new"][i]-x["logp_old"][i], sum, float64(n))), x["advantages"][i]
				x["token_loss"][i] = float64(float32(max(-a*c, -a*min(max(c, 0.97), 1.04))))
			}
		}
		for _, list := range RowRatioShown([]Step{{B: b}}, &convention.Set{}) {
			for _, c := range list {
				texts = append(texts, fmt.Sprintf("%s=%v", c.Option, c.To))
			}
		}
		return texts
	}
	require.Equal(t, []string{"ratio.level=seq_mean", "clip.low=0.03", "clip.high=0.04"}, shown(func(_, sum, _ float64) float64 { return sum / cols }))
	require.Empty(t, shown(func(_, sum, n float64) float64 { return sum / n }))
	require.Empty(t, shown(func(d, _, _ float64) float64 { return d }))
}
