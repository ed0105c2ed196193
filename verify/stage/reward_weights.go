package stage

import (
	"math"
	"slices"

	"plumbline/internal/format/dump"
)

// RewardWeights returns the weights w of the reward functions with which scores = Σ_f w_f·reward_f, for a run that declares none: by least
// squares over the rows that all functions scored, rounded to what people write. Where there are fewer than two such rows for a
// weight, the rows that some functions did not score count, with 0 for these (TRL 1.16, GRPOTrainer, nansum). It is nil where those are too few, where they do not determine the weights, or where some row is off by more than 1e-5 of the largest score, which float32 sums
// of a dozen terms are far below.
func RewardWeights(b *dump.Batch) []float64 {
	t, score := b.Tensors["rewards_per_func"], b.Row("scores")
	if t == nil || len(score) != b.Rows || t.Width < 1 || len(t.Data) != b.Rows*t.Width {
		return nil
	}
	if w := rewardWeights(t.Data, score, t.Width); w != nil {
		return w
	}
	without := slices.Clone(t.Data)
	for i, x := range without {
		if math.IsNaN(x) {
			without[i] = 0
		}
	}
	return rewardWeights(without, score, t.Width)
}

func rewardWeights(rewards, score []float64, n int) []float64 {
	var rows []int
	largest := 0.0
	for r := range score {
		sum := score[r]
		for _, x := range rewards[r*n : (r+1)*n] {
			sum += x
		}
		if !math.IsNaN(sum) && !math.IsInf(sum, 0) {
			rows = append(rows, r)
			largest = max(largest, math.Abs(score[r]))
		}
	}
	if len(rows) < 2*n {
		return nil
	}
	a := make([]float64, n*(n+1)) // normal equations, the right side last
	for _, r := range rows {
		x := rewards[r*n : (r+1)*n]
		for i := range n {
			for j := range n {
				a[i*(n+1)+j] += float64(x[i] * x[j])
			}
			a[i*(n+1)+n] += float64(x[i] * score[r])
		}
	}
	w := eliminate(a, n)
	if w == nil {
		return nil
	}
	for i, x := range w {
		if w[i] = written(x, 1e-4); math.Abs(x) < 1e-6 {
			w[i] = 0
		}
	}
	for _, r := range rows {
		off := score[r]
		for i, x := range rewards[r*n : (r+1)*n] {
			off -= float64(w[i] * x)
		}
		if !(math.Abs(off) <= 1e-5*largest) {
			return nil
		}
	}
	return w
}

// eliminate solves n symmetric equations, which it overwrites, by Gaussian elimination; nil if they do not determine the unknowns. A
// pivot below 1e-10 of its diagonal element is rounding: the squares of numbers that differ by 1e-5 of themselves.
func eliminate(a []float64, n int) []float64 {
	m := n + 1
	diagonal := eachOf(n, func(i int) float64 { return a[i*m+i] })
	for k := range n {
		p := a[k*m+k]
		if !(p > 1e-10*diagonal[k]) {
			return nil
		}
		for i := range n {
			if i == k {
				continue
			}
			f := a[i*m+k] / p
			for j := k; j < m; j++ {
				a[i*m+j] -= float64(f * a[k*m+j])
			}
		}
	}
	return eachOf(n, func(i int) float64 { return a[i*m+n] / a[i*m+i] })
}
