package stage

import (
	"fmt"
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
)

// at names a cell.
func at(b *dump.Batch, i int) string {
	if b.Cols == 0 || i >= b.Rows*b.Cols {
		return fmt.Sprint("element ", i)
	}
	return fmt.Sprintf("row %d, column %d", i/b.Cols, i%b.Cols)
}

// identical reports where got and want differ in bits, but for the sign of 0, where on (nil: everywhere).
func identical(on []bool, got, want []float64) string {
	if len(got) != len(want) {
		return fmt.Sprintf("%d and %d numbers", len(got), len(want))
	}
	for i, g := range got {
		if w := want[i]; (on == nil || on[i]) && g != w && !(math.IsNaN(g) && math.IsNaN(w)) {
			return fmt.Sprintf("element %d: %v and %v", i, g, w)
		}
	}
	return ""
}

// near reports where got and want differ by more than the bound, where on.
func near(on []bool, got, want []float64, bound func(i int) float64) string {
	if len(got) != len(want) {
		return fmt.Sprintf("%d and %d numbers", len(got), len(want))
	}
	for i, g := range got {
		if b := bound(i); (on == nil || on[i]) && !(math.Abs(g-want[i]) <= b) {
			return fmt.Sprintf("element %d: %v and %v, %.3g apart where %.3g is possible", i, g, want[i], math.Abs(g-want[i]), b)
		}
	}
	return ""
}

// rowsOf returns the batch of some rows of g, in any order, as one file.
func rowsOf(g grid, rows ...int) grid {
	c := ofOneFile(newGrid(g.Cols, make([]int, len(rows))...))
	c.Meta = g.Meta
	for k, r := range rows {
		copy(c.Mask[k*g.Cols:(k+1)*g.Cols], g.Mask[r*g.Cols:])
	}
	for name, x := range g.Tensors {
		width := x.Width
		if x.Layout == dump.PerToken {
			width *= g.Cols
		}
		y := *x
		y.Data = nil
		for _, r := range rows {
			y.Data = append(y.Data, x.Data[r*width:(r+1)*width]...)
		}
		c.Tensors[name] = &y
	}
	return c
}

// replaced returns g with another tensor in place of one.
func replaced(g grid, name string, x []float64) grid { return grid{g.With(name, x)} }

// changedAt returns a copy of x with other numbers where on.
func changedAt(x []float64, on func(i int) bool, y func(i int) float64) []float64 {
	z := slices.Clone(x)
	for i := range z {
		if on(i) {
			z[i] = y(i)
		}
	}
	return z
}

// junk is what a masked cell may hold.
func (s *subject) junk(int) float64 {
	return []float64{1e6, -1e6, math.NaN(), 12345.678}[s.r.IntN(4)]
}

// draw returns n numbers.
func (s *subject) draw(n int, f func() float64) []float64 {
	x := make([]float64, n)
	for i := range x {
		x[i] = f()
	}
	return x
}

// grid returns a batch of one file, the only one of its step, whose rows all have tokens.
func (s *subject) grid(holes bool) grid {
	g := randomGrid(s.r, s.rows, s.cols, holes)
	for r := range g.Rows {
		if lo := r * g.Cols; !slices.Contains(g.Mask[lo:lo+g.Cols], true) {
			g.Mask[lo+s.r.IntN(g.Cols)] = true
		}
	}
	return ofOneFile(g)
}

// ofOneFile makes g the only file of its step.
func ofOneFile(g grid) grid {
	yes := true
	g.Meta = dump.Meta{WorldSize: 1, MicroBatches: 1, DLogpScale: 1, TokenLossIncludesKL: &yes}
	for r := range g.Origin {
		g.Origin[r].Cols = g.Cols
	}
	return g
}

// split makes files of g: rows [0, at) and [at, Rows), of one rank or of two.
func split(g grid, at, ranks int) grid {
	b := *g.Batch
	b.Files = []dump.FileInfo{{Hi: at, Cols: b.Cols, PromptCols: -1}, {Lo: at, Hi: b.Rows, Cols: b.Cols, PromptCols: -1, Rank: ranks - 1, MicroBatch: 2 - ranks}}
	b.Origin = slices.Clone(g.Origin)
	for r := at; r < b.Rows; r++ {
		b.Origin[r] = dump.Origin{File: 1, Row: r - at, Cols: g.Cols}
	}
	b.Meta.WorldSize, b.Meta.MicroBatches = ranks, 3-ranks
	return grid{&b}
}

// lastToken returns the last column of a row's mask.
func lastToken(b *dump.Batch, r int) int {
	for t := b.Cols - 1; t >= 0; t-- {
		if b.Mask[r*b.Cols+t] {
			return t
		}
	}
	return -1
}

// always lets a law say something under every profile.
func always(*convention.Set) bool { return true }

// has returns whether an option has one of the values.
func has(option string, values ...string) func(*convention.Set) bool {
	return func(s *convention.Set) bool {
		v := s.Value(option)
		return v.Known() && (len(values) == 0 || slices.Contains(values, v.String()))
	}
}
