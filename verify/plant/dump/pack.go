package dump

import (
	"slices"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
)

// Packing says which cells of the rows of a padded batch go where.
type Packing struct {
	Of    [][]int // rows of the batch in a packed row
	cells []int   // of a row: its response and one more, if there is one
	cols  int
}

// Pack returns how the rows of b fit into rows of at least the given number of cells. Where padding counts, it is kept.
func Pack(b *dump.Batch, atLeast int, padding bool) Packing {
	p := Packing{Of: [][]int{nil}}
	used := 0
	for r := range b.Rows {
		last := 0
		for t := range b.Cols {
			if padding || b.Mask[r*b.Cols+t] {
				last = t
			}
		}
		n := min(last+2, b.Cols)
		p.cells = append(p.cells, n)
		p.Of[len(p.Of)-1] = append(p.Of[len(p.Of)-1], r)
		used += n
		p.cols = max(p.cols, used)
		if used >= atLeast && r+1 < b.Rows {
			p.Of, used = append(p.Of, nil), 0
		}
	}
	return p
}

// rows gives a per-token tensor its place in the packed rows.
func (p Packing) rows(x []float64, cols, width int) []float64 {
	y := make([]float64, len(p.Of)*p.cols*width)
	for row, list := range p.Of {
		at := row * p.cols * width
		for _, r := range list {
			at += copy(y[at:], x[r*cols*width:(r*cols+p.cells[r])*width])
		}
	}
	return y
}

// Write writes b with its rows packed, their sequences told apart by segment_ids or by cu_seqlens.
func (p Packing) Write(path string, b *dump.Batch, by string) error {
	m := b.Meta
	m.Scalars = b.Files[0].Scalars
	mask := make([]float64, len(b.Mask))
	for i, v := range b.Mask {
		if v {
			mask[i] = 1
		}
	}
	shape := []int{len(p.Of), p.cols}
	tensors := []*dump.Tensor{{Name: "response_mask", Shape: shape, Type: format.Bool, Data: p.rows(mask, b.Cols, 1)}}
	for _, name := range b.Names() {
		x := *b.Tensors[name]
		if x.Layout == dump.PerToken {
			x.Data = p.rows(x.Data, b.Cols, max(x.Width, 1))
			x.Shape = slices.Concat(shape, x.Shape[2:])
		} else if x.Layout == dump.PerFile {
			x.Shape = nil
		}
		tensors = append(tensors, &x)
	}
	most := 0
	for _, list := range p.Of {
		most = max(most, len(list))
	}
	ids, ends := make([]float64, len(p.Of)*p.cols), make([]float64, len(p.Of)*(most+1))
	for row, list := range p.Of {
		at := 0
		for i, r := range list {
			for range p.cells[r] {
				ids[row*p.cols+at] = float64(i + 1)
				at++
			}
			ends[row*(most+1)+i+1] = float64(at)
		}
		for i := len(list) + 1; i <= most; i++ {
			ends[row*(most+1)+i] = -1
		}
	}
	switch by {
	case "segment_ids":
		tensors = append(tensors, &dump.Tensor{Name: by, Shape: shape, Type: format.I32, Data: ids})
	case "cu_seqlens":
		tensors = append(tensors, &dump.Tensor{Name: by, Shape: []int{len(p.Of), most + 1}, Type: format.I32, Data: ends})
	}
	return dump.WriteFile(path, m, tensors...)
}
