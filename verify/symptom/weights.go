package symptom

import (
	"math"
	"slices"
	"strings"
)

// weighted is the sum as it was taken: "a + 0.5·b".
func (s *sum) weighted(weight []float64) string {
	var list []string
	for i, name := range s.terms {
		if weight != nil && weight[i] != 1 && !math.IsNaN(weight[i]) {
			name = number(weight[i]) + "·" + name
		}
		list = append(list, name)
	}
	return strings.Join(list, " + ")
}

// reordered returns the sum with the weights in another order that explains every line, "" where none does. W&B and CSV sort the names of
// reward functions, and reward_weights are in the order of the functions.
func (s *sum) reordered() string {
	const most = 6 // 720 orders
	if s.weight == nil || len(s.terms) > most || len(s.fits) == 0 {
		return ""
	}
	k := len(s.terms)
	fits := func(weight []float64) bool {
		for _, f := range s.fits {
			want := 0.
			for i, w := range weight {
				want += w * f[i]
			}
			if !(math.Abs(f[k]-want) <= f[k+1]) {
				return false
			}
		}
		return true
	}
	weight := slices.Clone(s.weight)
	var try func(i int) bool
	try = func(i int) bool {
		if i == k {
			return fits(weight)
		}
		for j := i; j < k; j++ {
			weight[i], weight[j] = weight[j], weight[i]
			if try(i + 1) {
				return true
			}
			weight[i], weight[j] = weight[j], weight[i]
		}
		return false
	}
	if !try(0) {
		return ""
	}
	return s.weighted(weight)
}
