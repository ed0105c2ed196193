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
	set := recursionOptions(t)
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

// A recursion whose γ or λ stands at other terms than their own is read from its returns; one that is right is no failure.
func TestRecursionOfOtherFactors(t *testing.T) {
	set := recursionOptions(t)
	for words, step := range map[string]func(r, v, next, a float64) float64{
		"": func(r, v, next, a float64) float64 { return r + 0.97*next - v + 0.97*0.9*a },
		"A = γ·r + V_{t+1} − V + γλ·A_{t+1}":  func(r, v, next, a float64) float64 { return 0.97*r + next - v + 0.97*0.9*a },
		"A = r + λ·V_{t+1} − V + γ·A_{t+1}":   func(r, v, next, a float64) float64 { return r + 0.9*next - v + 0.97*a },
		"A = r + γ·V_{t+1} − λ·V + λ·A_{t+1}": func(r, v, next, a float64) float64 { return r + 0.97*next - 0.9*v + 0.9*a },
		"A = r − V + λ·A_{t+1}":               func(r, v, _, a float64) float64 { return r - v + 0.9*a },
	} {
		o := stage.Judge(stage.Find("gae/returns"), rolledOut(true, func(r, v, m, _ []float64, _ float64) []float64 {
			a, next, behind := make([]float64, len(r)), 0.0, 0.0
			for t := len(r) - 1; t >= 0; t-- {
				if m[t] > 0 {
					a[t] = step(r[t], v[t], next, behind)
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

// recursionOptions are options of a recursion that passes masked tokens by, with γ 0.97 and λ 0.9.
func recursionOptions(t *testing.T) *convention.Set {
	p, _, err := convention.Lookup("verl-ppo@0.9")
	require.NoError(t, err)
	set := convention.FromProfile(p)
	for name, x := range map[string]string{"gae.gamma": "0.97", "gae.lambda": "0.9", "gae.hole": "carry"} {
		set = set.With(name, parsed(name, x), "test")
	}
	return set
}
