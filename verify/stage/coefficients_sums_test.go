package stage

import (
	"math"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/convention"
)

// The sums over sorted tokens are those over each token, of every shape, aggregation and set of parameters.
func TestSortedSums(t *testing.T) {
	var tokens boundTokens
	for _, b := range boundBatches(3, false, false, func(boundToken) float64 { return 0 }) {
		c := NewCase(b, &convention.Set{}, 0)
		tokens.add(c, LossInputs{Batch: b}, b.PerFile("loss"), c.advantagesOfLoss(), 1e-9, true)
	}
	require.True(t, tokens.solvable())
	forms := []boundForm{{kindOf: ""}, {kindOf: "cispo"}}
	for k, s := range boundSlips {
		forms = append(forms, boundForm{kindOf: s.kind, slip: k + 1})
	}
	for _, f := range forms {
		for _, f.level = range levelsOfRatios {
			for _, f.kind = range []int{ofTokens, ofTokensGlobal, ofRows, ofSums, ofPlain} {
				for _, f.uses = range [][]int{{}, {paramBoth}, {paramLow, paramHigh, paramDual}, {paramHigh}} {
					for _, x := range []float64{1e-3, 0.05, 0.3} {
						f.at[paramBoth], f.at[paramLow], f.at[paramHigh], f.at[paramDual] = x, x, 2*x, 1+x
						shape, ok := f.shape()
						require.True(t, ok)
						got, by := tokens.heldSums(&f, shape, tokens.sorted(&f, shape.ratio))
						size := f.size
						loss, slopes := tokens.policy(&f)
						require.InDeltaSlice(t, tokens.of(loss, f.kind), got, 1e-12*(1+size))
						require.Less(t, maxAbs(tokens.of(loss, f.kind)), size*(1+1e-12))
						for _, k := range f.uses {
							require.InDeltaSlice(t, tokens.of(slopes[k], f.kind), by[k], 1e-12*(1+size), "%+v %d", f, k)
						}
						require.False(t, math.IsNaN(size))
					}
				}
			}
		}
	}
}
