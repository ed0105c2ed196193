package stage

import (
	"fmt"
	"math"
	"testing"

	"github.com/stretchr/testify/require"
)

// Losses whose reduction no configuration has show their bounds and the reduction that it is a slip of.
func TestStrayReductionsAreSolved(t *testing.T) {
	for name, c := range map[string]struct {
		of    func(rows [][]float64) float64
		right string
	}{
		"a token fewer of each row": {func(rows [][]float64) (x float64) {
			for _, row := range rows {
				x += sumOf(row) / float64(len(row)-1) / float64(len(rows))
			}
			return x
		}, "agg.kind=seq_mean_token_mean"},
		"the length twice": {func(rows [][]float64) (x float64) {
			for _, row := range rows {
				x += sumOf(row) / float64(len(row)*len(row)) / float64(len(rows))
			}
			return x
		}, "agg.kind=seq_mean_token_mean"},
		"tokens less rows": {func(rows [][]float64) (x float64) {
			n := -len(rows)
			for _, row := range rows {
				x, n = x+sumOf(row), n+len(row)
			}
			return x / float64(n)
		}, "agg.kind=token"},
		"columns first": {func(rows [][]float64) (x float64) {
			sum, n := [16]float64{}, [16]float64{}
			for _, row := range rows {
				for col, v := range row {
					sum[col], n[col] = sum[col]+v, n[col]+1
				}
			}
			columns := 0.0
			for col := range sum {
				if n[col] > 0 {
					x, columns = x+sum[col]/n[col], columns+1
				}
			}
			return x / columns
		}, "agg.kind=token"},
	} {
		l := &Losses{}
		for _, b := range boundBatches(2, false, false, func(boundToken) float64 { return 0 }) {
			lp, old, adv := b.Token("logp_new"), b.Token("logp_old"), b.Token("advantages")
			var rows [][]float64
			for r := range b.Rows {
				var row []float64
				for i := r * b.Cols; i < (r+1)*b.Cols; i++ {
					if b.Mask[i] {
						row = append(row, held(boundToken{adv: adv[i], rho: math.Exp(lp[i] - old[i])}, 0.17, 0.23, math.Inf(1)))
					}
				}
				rows = append(rows, row)
			}
			b.Tensors["loss"].Data[0] = float64(float32(c.of(rows)))
			l.Add(b)
		}
		var has []string
		for _, change := range l.Form() {
			has = append(has, fmt.Sprintf("%s=%v", change.Option, change.To))
		}
		require.Subset(t, has, []string{"clip.low=0.17", "clip.high=0.23", c.right}, name)
	}
}
