package trainer

import (
	"math"
	"slices"
)

// whiten shifts and scales x over the scope, the cells that the mask of whitening names entering mean and variance.
func (r *run[F]) whiten(x []F, shift string) []F {
	enter := make([]bool, len(x))
	for row := range r.rows {
		_, last := ends(r.mask[row*r.cols : (row+1)*r.cols])
		for t := range r.cols {
			i := row*r.cols + t
			switch {
			case r.o.whitenMask == "none" || r.o.whitenMask == "" || r.plant == "WHITEN-PADS":
				enter[i] = true
			case r.o.whitenMask == "length":
				enter[i] = t <= last
			default:
				enter[i] = r.mask[i]
			}
		}
	}
	y := make([]F, len(x))
	for _, cells := range r.scopes() {
		r.whitenSet(y, x, enter, cells, shift)
	}
	if r.o.remask {
		for i := range y {
			if !r.counts(i) {
				y[i] = 0
			}
		}
	}
	return y
}

// scopes returns the cells over which whitening takes its statistics.
func (r *run[F]) scopes() [][]int {
	key := func(i int) int { return 0 }
	file := func(i int) int {
		return slices.IndexFunc(r.spans, func(s span) bool { return i/r.cols < s.hi })
	}
	scope := r.o.whitenScope
	if r.plant == "WHITEN-SCOPE" {
		scope = "minibatch"
	}
	switch scope {
	case "row":
		key = func(i int) int { return i / r.cols }
	case "minibatch":
		key = file
	case "local_batch":
		key = func(i int) int { return r.spans[file(i)].rank }
	}
	if r.plant == "WHITEN-WRONG-AXIS" {
		key = func(i int) int { return i % r.cols }
	}
	var sets [][]int
	at := map[int]int{}
	for i := range r.cells() {
		k := key(i)
		if _, seen := at[k]; !seen {
			at[k] = len(sets)
			sets = append(sets, nil)
		}
		sets[at[k]] = append(sets[at[k]], i)
	}
	return sets
}

func (r *run[F]) whitenSet(y, x []F, enter []bool, cells []int, shift string) {
	var of []F
	for _, i := range cells {
		if enter[i] {
			of = append(of, x[i])
		}
	}
	mean, scale, zero := r.standard(of)
	for _, i := range cells {
		centred := r.sub(x[i], mean)
		switch {
		case zero:
			y[i] = 0
		case shift == "false_plain":
			y[i] = r.mul(x[i], scale)
		case shift == "false_add_back":
			y[i] = r.add(r.mul(centred, scale), mean)
		default:
			y[i] = r.mul(centred, scale)
		}
	}
}

// standard returns the mean of x and the reciprocal of its standard deviation; zero says that the result is 0 whatever they
// are.
func (r *run[F]) standard(x []F) (mean, scale F, zero bool) {
	ddof := r.o.whitenDDof
	if r.plant == "WHITEN-DDOF" {
		ddof = 1 - ddof
	}
	if len(x) == 0 || len(x) == 1 && ddof == 1 {
		return 0, F(math.NaN()), r.plant != "" || r.Set.Value("whiten.single").String() == "zero"
	}
	if r.o.constantZero && slices.Max(x) == slices.Min(x) {
		return 0, 0, true
	}
	eps := r.num(r.o.meanEps)
	mean, squares := r.moments(x, eps)
	n := F(len(x))
	v := r.div(squares, r.add(n, eps))
	if ddof == 1 {
		v = r.mul(v, r.div(n, n-1))
	}
	e := r.num(r.o.whitenEps)
	switch r.o.whitenPlace {
	case "floor_var":
		return mean, r.div(1, r.sqrt(max(v, e))), false
	case "add_std":
		return mean, r.div(1, r.add(r.sqrt(v), e)), false
	}
	return mean, r.div(1, r.sqrt(r.add(v, e))), false
}

// whitenRows whitens one number per row.
func (r *run[F]) whitenRows(x []F) []F {
	key := func(row int) int { return 0 }
	switch r.o.whitenScope {
	case "row":
		key = func(row int) int { return row }
	case "minibatch":
		key = func(row int) int { return slices.IndexFunc(r.spans, func(s span) bool { return row < s.hi }) }
	case "local_batch":
		key = func(row int) int {
			return r.spans[slices.IndexFunc(r.spans, func(s span) bool { return row < s.hi })].rank
		}
	}
	sets := map[int][]int{}
	for i := range x {
		sets[key(i)] = append(sets[key(i)], i)
	}
	y := make([]F, len(x))
	for _, rows := range sets {
		of := make([]F, len(rows))
		for k, i := range rows {
			of[k] = x[i]
		}
		mean, scale, zero := r.standard(of)
		for k, i := range rows {
			if !zero {
				y[i] = r.mul(r.sub(of[k], mean), scale)
			}
		}
	}
	return y
}
