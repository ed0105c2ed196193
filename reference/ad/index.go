package ad

import (
	"fmt"
	"slices"
)

// Gather returns k chosen elements of each row of x [..., V] as y [..., k]:
//
//	y[r,j] = x[r, idx[r·k + j]]
//
// where r counts the rows. With k = 1 and the token ids as idx it picks the
// log-probabilities of the tokens. An index may occur several times.
// It panics if idx does not hold k indices in [0,V) for every row.
//
//	JVP  ẏ[r,j] = ẋ[r, idx[r·k + j]]
//	VJP  x̄[r,v] = Σ_j ȳ[r,j] over the j with idx[r·k + j] = v
func Gather(x *Var, k int, idx []int) *Var {
	last := axisOf("gather", -1, len(x.shape))
	rows, width, _ := around(x.shape, last)
	if k < 0 || len(idx) != rows*k {
		panic(fmt.Sprintf("ad: gather: %d indices for %d of each row of shape %v", len(idx), k, x.shape))
	}
	shape := slices.Clone(x.shape)
	shape[last] = k
	at := make([]int, len(idx)) // places in x
	for i, v := range idx {
		if v < 0 || v >= width {
			panic(fmt.Sprintf("ad: gather: index %d of an axis of %d", v, width))
		}
		at[i] = i/k*width + v
	}
	y := make([]float64, len(at))
	for i, a := range at {
		y[i] = x.data[a]
	}
	return record("gather", shape, y, []*Var{x},
		func(dx [][]float64, dy []float64) {
			for i, a := range at {
				dy[i] = dx[0][a]
			}
		},
		func(dy []float64, dx [][]float64) {
			for i, a := range at {
				dx[0][a] += dy[i]
			}
		})
}

// Embedding returns the rows of w [V,C] that ids name, as y [shape..., C]; ids
// fills shape and a row may be named several times.
// It panics if an id is not in [0,V).
//
//	JVP  ẏ[r] = ẇ[ids[r]]
//	VJP  w̄[v] = Σ_r ȳ[r] over the r with ids[r] = v
func Embedding(w *Var, ids []int, shape ...int) *Var {
	if len(w.shape) != 2 {
		panic(fmt.Sprintf("ad: embedding: a table of shape %v", w.shape))
	}
	if size(shape) != len(ids) {
		panic(fmt.Sprintf("ad: embedding: %d ids for shape %v", len(ids), shape))
	}
	rows, c := w.shape[0], w.shape[1]
	ids = slices.Clone(ids)
	for _, v := range ids {
		if v < 0 || v >= rows {
			panic(fmt.Sprintf("ad: embedding: id %d of %d rows", v, rows))
		}
	}
	y := make([]float64, len(ids)*c)
	for r, v := range ids {
		copy(y[r*c:(r+1)*c], w.data[v*c:])
	}
	return record("embedding", append(slices.Clone(shape), c), y, []*Var{w},
		func(dx [][]float64, dy []float64) {
			for r, v := range ids {
				copy(dy[r*c:(r+1)*c], dx[0][v*c:])
			}
		},
		func(dy []float64, dx [][]float64) {
			for r, v := range ids {
				for i, d := range dy[r*c : (r+1)*c] {
					dx[0][v*c+i] += d
				}
			}
		})
}
