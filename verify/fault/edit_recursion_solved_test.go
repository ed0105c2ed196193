package fault

import (
	"testing"

	"github.com/stretchr/testify/require"

	"plumbline/verify/check"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// A recursion whose step is made twice has two other factors, which its returns show.
func TestRecursionMadeTwice(t *testing.T) {
	p, _, err := convention.Lookup("verl-ppo@0.9")
	require.NoError(t, err)
	set := convention.FromProfile(p)
	for name, x := range map[string]string{"gae.gamma": "0.97", "gae.lambda": "0.9", "gae.hole": "carry"} {
		set = set.With(name, parsed(name, x), "test")
	}
	for words, step := range map[string]func(delta, a float64) float64{
		"": func(delta, a float64) float64 { return delta + 0.97*0.9*a },
		"A = (1 + γλ²)·δ + γ²λ³·A_{t+1}": func(delta, a float64) float64 { return delta + 0.97*0.9*0.9*(delta+0.97*0.9*a) },
		"A = (1 + γλ)·δ + γ²λ²·A_{t+1}":  func(delta, a float64) float64 { return delta + 0.97*0.9*(delta+0.97*0.9*a) },
	} {
		o := stage.Judge(stage.Find("gae/returns"), rolledOut(true, func(r, v, m, _ []float64, _ float64) []float64 {
			a, next, behind := make([]float64, len(r)), 0.0, 0.0
			for t := len(r) - 1; t >= 0; t-- {
				if m[t] > 0 {
					a[t] = step(r[t]+0.97*next-v[t], behind)
					next, behind = v[t], a[t]
				}
			}
			return a
		}), set)
		if words == "" {
			require.Equal(t, check.Pass, o.Verdict)
			continue
		}
		requireName(t, o, "GAE-RECURSION", words)
	}
}
