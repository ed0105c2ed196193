package golden

import (
	"math"

	"plumbline/reference/rl"
)

// bessel32 returns by what the variance of n numbers is larger where the Bessel factor n/(n−1) of two integers is rounded
// to float32, as torch divides integers. It is 1 where there is no such factor.
func bessel32(n int) float64 {
	if n < 2 {
		return 1
	}
	x, y := float64(n), float64(n-1)
	return float64(float32(x)/float32(y)) / (x / y)
}

// whitened is masked_whiten of TRL's PPO on masks of booleans, cells outside set to 0: with leak, under the float32 Bessel
// factor.
func (b *ppoBatch) whitened(x []float64, mask []bool, shift, leak bool) ([]float64, error) {
	o, rows, cols := b.variance, b.rows, b.cols
	if o.Remask = true; !shift {
		o.Shift = rl.ShiftFalseAddBack
	}
	if !leak {
		return rl.Whiten(nil, x, mask, rows, cols, o)
	}
	v, err := rl.MaskedVar(x, mask, o.Var)
	if err != nil {
		return nil, err
	}
	mean, err := rl.MaskedMean(x, mask, o.Var.Mean)
	if err != nil {
		return nil, err
	}
	o.Shift = rl.ShiftTrue
	y, err := rl.Whiten(nil, x, mask, rows, cols, o)
	if err != nil {
		return nil, err
	}
	n := 0
	for _, m := range mask {
		if m {
			n++
		}
	}
	scale := math.Sqrt((v + o.Eps) / (float64(v*bessel32(n)) + o.Eps)) // of 1/√(v + ε)
	for i := range y {
		if y[i] = float64(y[i] * scale); !shift && mask[i] {
			y[i] += mean
		}
	}
	return y, nil
}

// groupBessel is rl.GroupAdvantage under TRL's nanstd, whose variances carry the float32 Bessel factor f of their number
// of rewards n:
//
//	a/(σ·√f + ε) = a/(σ + ε/√f) / √f
//
// so that for each n the reference is asked once, with the ε that gives the leak.
func groupBessel(r []float64, group []int, o rl.GroupOptions) ([]float64, error) {
	if o.Scale == rl.ScaleNone {
		return rl.GroupAdvantage(nil, r, group, o)
	}
	of := make([]int, len(r)) // of each reward, the number of rewards in its standard deviation
	if o.Scale == rl.ScaleBatchStd {
		n := scorable(r, group, o)
		for i := range of {
			of[i] = n
		}
	} else {
		size := map[int]int{}
		at := func(i int) int {
			if group == nil {
				return 0
			}
			return group[i]
		}
		for i, v := range r {
			if v == v {
				size[at(i)]++
			}
		}
		for i := range of {
			of[i] = size[at(i)]
		}
	}
	adv := make([]float64, len(r))
	done := map[int]bool{}
	for _, n := range of {
		if done[n] {
			continue
		}
		done[n] = true
		root := math.Sqrt(bessel32(n))
		p := o
		p.Eps = o.Eps / root
		a, err := rl.GroupAdvantage(nil, r, group, p)
		if err != nil {
			return nil, err
		}
		for i, k := range of {
			if k == n {
				adv[i] = a[i] / root
			}
		}
	}
	return adv, nil
}

// scorable counts the numbers in the standard deviation of a batch: the rewards that are not NaN or, for centred ones,
// those with another such reward in their group.
func scorable(r []float64, group []int, o rl.GroupOptions) int {
	size := map[int]int{}
	n := 0
	for i, v := range r {
		if v == v {
			n++
			if group != nil {
				size[group[i]]++
			}
		}
	}
	if o.BatchCentred && group != nil {
		for _, k := range size {
			if k == 1 {
				n--
			}
		}
	}
	return n
}
