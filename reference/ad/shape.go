package ad

import (
	"fmt"
	"slices"
)

// size returns the number of elements of a shape; 1 for a scalar.
func size(shape []int) int {
	n := 1
	for _, d := range shape {
		if d < 0 {
			panic(fmt.Sprintf("ad: negative axis in shape %v", shape))
		}
		n *= d
	}
	return n
}

// strides returns the row-major strides of a shape.
func strides(shape []int) []int {
	s, n := make([]int, len(shape)), 1
	for i := len(shape) - 1; i >= 0; i-- {
		s[i], n = n, n*shape[i]
	}
	return s
}

// axisOf returns axis as a number in [0,rank).
func axisOf(op string, axis, rank int) int {
	if axis < -rank || axis >= rank {
		panic(fmt.Sprintf("ad: %s: axis %d of a tensor with %d axes", op, axis, rank))
	}
	if axis < 0 {
		axis += rank
	}
	return axis
}

// around returns the number of elements before, on and after an axis, so that
// element (o,i,p) of [outer,n,inner] is at (o·n + i)·inner + p.
func around(shape []int, axis int) (outer, n, inner int) {
	return size(shape[:axis]), shape[axis], size(shape[axis+1:])
}

// broadcastShape returns the shape that a and b have in common under NumPy's
// rule: aligned at the last axis, axes are equal or one of them is 1 or absent.
func broadcastShape(op string, a, b []int) []int {
	if len(a) < len(b) {
		a, b = b, a
	}
	s, lead := slices.Clone(a), len(a)-len(b)
	for i, d := range b {
		switch {
		case s[lead+i] == 1:
			s[lead+i] = d
		case d != 1 && d != s[lead+i]:
			panic(fmt.Sprintf("ad: %s: shapes %v and %v do not broadcast", op, a, b))
		}
	}
	return s
}

// spread returns the strides with which a tensor of shape from is read while
// walking over shape to: 0 along the axes where it is repeated.
func spread(op string, from, to []int) []int {
	lead := len(to) - len(from)
	if lead < 0 || !slices.Equal(broadcastShape(op, from, to), to) {
		panic(fmt.Sprintf("ad: %s: shape %v does not broadcast to %v", op, from, to))
	}
	s := make([]int, len(to))
	for i, st := range strides(from) {
		if from[i] != 1 {
			s[lead+i] = st
		}
	}
	return s
}

// walk visits a row-major tensor row by row, next to a second tensor with the
// given strides. Each call of row gets n neighbours: elements i … i+n−1 of the
// first and j, j+s, … j+(n−1)s of the second. Rows come in row-major order.
func walk(shape, stride []int, row func(i, j, n, s int)) {
	if size(shape) == 0 {
		return
	}
	last := len(shape) - 1
	if last < 0 {
		row(0, 0, 1, 0)
		return
	}
	at, n, s := make([]int, last), shape[last], stride[last]
	for i, j := 0, 0; ; i += n {
		row(i, j, n, s)
		k := last - 1
		for ; k >= 0; k-- {
			at[k]++
			j += stride[k]
			if at[k] < shape[k] {
				break
			}
			j -= at[k] * stride[k]
			at[k] = 0
		}
		if k < 0 {
			return
		}
	}
}
