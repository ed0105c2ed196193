package fault

import (
	"testing"

	"plumbline/verify/stage"
)

// A recursion that starts anew at the edges of chunks has their length, and says what is not taken over the edge.
func TestRecursionInChunks(t *testing.T) {
	for words, f := range map[string]struct {
		edge func(t, n int) bool
		next float64
	}{
		"every 2 tokens: A_{t+1} is not carried":                          {func(t, _ int) bool { return t%2 == 1 }, 1},
		"every 3 tokens: neither":                                         {func(t, _ int) bool { return t%3 == 2 }, 0},
		"every 5 tokens, counted from the last one: A_{t+1} is not carri": {func(t, n int) bool { return (n-1-t)%5 == 0 }, 1},
	} {
		o := stage.Judge(stage.Find("gae/returns"), rolledOut(true, func(r, v, m, _ []float64, _ float64) []float64 {
			var at []int
			for t := range r {
				if m[t] > 0 {
					at = append(at, t)
				}
			}
			a := make([]float64, len(r))
			for k := len(at) - 1; k >= 0; k-- {
				i := at[k]
				if a[i] = r[i] - v[i]; k == len(at)-1 {
					continue
				}
				carried, next := 1.0, 1.0
				if f.edge(k, len(at)) {
					carried, next = 0, f.next
				}
				a[i] += 0.97*next*v[at[k+1]] + 0.97*0.9*carried*a[at[k+1]]
			}
			return a
		}), recursionOptions(t))
		requireName(t, o, "GAE-RECURSION", words)
	}
}
