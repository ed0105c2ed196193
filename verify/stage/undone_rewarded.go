package stage

import (
	"math"
	"slices"

	"plumbline/internal/format/dump"
)

// RecursionsRewarded returns b with the returns and advantages of the right recursion of its rewards and values,
//
//	A_t = r_t + γ·V_{t+1} − V_t + γλ·A_{t+1}
//
// in place of those of a wrong one, for the γ and λ that programs write and that the numbers have. Whatever a recursion makes of the rewards and values near a token,
// A_t is a line of these and of A_{t+1}, away from the ends of responses and episodes, and that of A_{t+1} is γλ; so it is of whitened advantages. There is none where
// such a line leaves more than roundings. Right advantages get the mean and the deviation of the dumped ones where these are not A = R − V.
func RecursionsRewarded(b *dump.Batch) (list []*dump.Batch) {
	const most = 3
	v, r, adv := b.Token("values"), b.Token("token_rewards"), b.Token("advantages")
	if v == nil || r == nil || adv == nil && b.Token("returns") == nil {
		return nil
	}
	if ret := b.Token("returns"); ret != nil {
		adv = make([]float64, len(v))
		for i := range adv {
			adv[i] = ret[i] - v[i]
		}
	}
	carried, gamma := carriedOver(b, adv, v, r)
	if math.IsNaN(carried) {
		return nil
	}
	for _, g := range append([]float64{gamma}, writtenDiscounts...) {
		lambda := written(carried/g, 1e-5)
		if n := len(list); n < most && g > 0 && lambda > 0 && lambda <= 1 && math.Abs(lambda*1000-math.Round(lambda*1000)) < 1e-9 {
			in := recursedOver(b, v, r, g, lambda)
			if !slices.ContainsFunc(list, func(o *dump.Batch) bool { return slices.Equal(o.Token("returns"), in.Token("returns")) }) {
				list = append(list, in)
			}
		}
	}
	return list
}

// carriedOver returns the share of A_{t+1} in A_t, NaN where A_t is no line of what stands near the token, and γ as the values of the line add up to γ − 1 rewards of
// it to 1.
func carriedOver(b *dump.Batch, adv, v, r []float64) (carried, gamma float64) {
	const before, behind, exact = 1, 2, 2e-6
	dones := b.Token("dones")
	var rows [][]float64 // of the line, with A_t last
	for row := range b.Rows {
		var cells []int
		for i := row * b.Cols; i < (row+1)*b.Cols; i++ {
			if b.Mask[i] {
				cells = append(cells, i)
			}
		}
		for t := before; t+behind < len(cells); t++ {
			near := cells[t-before : t+behind+1]
			if dones != nil && slices.ContainsFunc(near, func(i int) bool { return dones[i] != 0 }) {
				continue
			}
			x := []float64{1}
			for _, i := range near {
				x = append(x, v[i])
			}
			for _, i := range near {
				x = append(x, r[i])
			}
			rows = append(rows, append(x, adv[near[before+1]], adv[near[before]]))
		}
	}
	const values, rewards = 1, 1 + before + 1 + behind
	const n = 2*rewards + 1
	if len(rows) < 4*n {
		return math.NaN(), math.NaN()
	}
	column := func(k int) []float64 {
		x := make([]float64, len(rows))
		for i := range rows {
			x[i] = rows[i][k]
		}
		return x
	}
	dot := func(x, y []float64) (sum float64) {
		for i := range x {
			sum += float64(x[i] * y[i])
		}
		return sum
	}
	var basis [][]float64 // orthogonal, of the columns that are no line of those before
	var of []int
	line := func(y []float64) (on []float64) { // twice, for the roundings of the first
		on = make([]float64, len(basis))
		for range 2 {
			for k, e := range basis {
				c := dot(e, y) / dot(e, e)
				on[k] += c
				for i := range y {
					y[i] -= float64(c * e[i])
				}
			}
		}
		return on
	}
	var upper [][]float64
	for k := range n - 1 {
		y := column(k)
		size := dot(y, y)
		on := line(y)
		if dot(y, y) > 1e-12*size {
			basis, of, upper = append(basis, y), append(of, k), append(upper, on)
		}
	}
	y := column(n - 1)
	size := dot(y, y)
	on := line(y)
	last := len(of) - 1
	if last < 0 || of[last] != n-2 || !(dot(y, y) <= exact*exact*size) {
		return math.NaN(), math.NaN()
	}
	carried = on[last]
	for k := last; k >= 0; k-- { // from the orthogonal columns back to those of the line
		for j := range k {
			on[j] -= on[k] * upper[k][j]
		}
	}
	var ofValues, ofRewards float64
	for k, c := range of {
		switch {
		case c >= values && c < rewards:
			ofValues += on[k]
		case c >= rewards && c < n-2:
			ofRewards += on[k]
		}
	}
	return carried, written(1+ofValues/ofRewards, 1e-4)
}

// recursedOver is b with the returns and advantages of the right recursion over its rewards and values, and over the ends of its episodes.
func recursedOver(b *dump.Batch, v, r []float64, gamma, lambda float64) *dump.Batch {
	dones, behind := b.Token("dones"), b.Row("next_values")
	ret, adv := make([]float64, len(r)), make([]float64, len(r))
	for row := range b.Rows {
		var next, carried float64
		if len(behind) == b.Rows {
			next = behind[row]
		}
		for i := (row+1)*b.Cols - 1; i >= row*b.Cols; i-- {
			if !b.Mask[i] {
				continue
			}
			if dones != nil && dones[i] != 0 {
				next, carried = 0, 0
			}
			carried = r[i] + float64(gamma*next) - v[i] + float64(gamma*lambda*carried)
			next, adv[i], ret[i] = v[i], carried, float64(float32(carried+v[i]))
		}
	}
	return withRecursed(b, ret, adv)
}
