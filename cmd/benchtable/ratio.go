package main

import (
	"math"
	"math/rand/v2"
	"slices"
)

// better reports whether larger values of a unit are better: rates and shares are, times and sizes are not.
func better(unit string) bool {
	switch unit {
	case "%probe":
		return true
	}
	return len(unit) > 2 && unit[len(unit)-2:] == "/s"
}

// best is the best of the values of a unit.
func best(unit string, x []float64) float64 {
	if better(unit) {
		return slices.Max(x)
	}
	return slices.Min(x)
}

func median(x []float64) float64 {
	s := slices.Sorted(slices.Values(x))
	if n := len(s); n%2 == 0 {
		return (s[n/2-1] + s[n/2]) / 2
	}
	return s[len(s)/2]
}

// fewest is how many values on both sides an interval needs before it is a claim.
const fewest = 10

// ratio is after over before of the medians, with the 95 % interval that resampling gives.
type ratio struct {
	value, low, high float64
	n                int // values on the side with fewer
}

// compare resamples both sides 2000 times, with replacement, from a fixed seed (Efron 1979, the percentile interval).
func compare(before, after []float64) ratio {
	r := ratio{value: median(after) / median(before), n: min(len(before), len(after))}
	random := rand.New(rand.NewPCG(1, 1))
	draw := func(x []float64) []float64 {
		y := make([]float64, len(x))
		for i := range y {
			y[i] = x[random.IntN(len(x))]
		}
		return y
	}
	all := make([]float64, 2000)
	for i := range all {
		all[i] = median(draw(after)) / median(draw(before))
	}
	slices.Sort(all)
	r.low, r.high = all[len(all)*25/1000], all[len(all)*975/1000-1]
	return r
}

// verdict says in a word what a ratio shows.
func (r ratio) verdict(unit string) string {
	switch {
	case math.IsNaN(r.value):
		return "?"
	case r.n < fewest:
		return "too few runs"
	case r.low <= 1 && 1 <= r.high:
		return "same"
	case (r.value > 1) == better(unit):
		return "better"
	}
	return "WORSE"
}
