package fault

import (
	"slices"
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// A last token that bootstraps is named where masked columns behind it are steps, too.
func TestRecursionEndOverColumns(t *testing.T) {
	p, _, err := convention.Lookup("openrlhf-ppo@0.11")
	require.NoError(t, err)
	set := convention.FromProfile(p)
	for name, x := range map[string]string{"gae.gamma": "0.97", "gae.lambda": "0.9", "whiten.scope": "none", "gae.hole": "zero_step"} {
		set = set.With(name, parsed(name, x), "test")
	}
	for words, end := range map[string]func(v []float64, last int) float64{
		"with its last value": func(v []float64, last int) float64 { return v[last] },
		"without γ":           func(v []float64, last int) float64 { return v[last] / testGamma },
		"of the first token":  func(v []float64, _ int) float64 { return v[0] },
		"":                    func([]float64, int) float64 { return 0 },
	} {
		b := rolledOut(true, func(r, v, m, _ []float64, _ float64) []float64 {
			a, gae := make([]float64, len(r)), 0.0
			last := slices.IndexFunc(m[6:], func(x float64) bool { return x == 0 }) + 5
			for t := len(r) - 1; t >= 0; t-- {
				next := 0.0
				if t == last {
					next = end(v, last)
				} else if t+1 < len(r) {
					next = v[t+1] * m[t+1]
				}
				gae = r[t] + testGamma*next - v[t]*m[t] + testGamma*testLambda*gae
				a[t] = gae
			}
			return a
		})
		o := stage.Judge(stage.Find("gae/returns"), b, set)
		if words == "" {
			require.Equal(t, check.Pass, o.Verdict)
		} else {
			requireName(t, o, "GAE-TRUNCATED-BOOTSTRAP", words)
		}
	}
}
