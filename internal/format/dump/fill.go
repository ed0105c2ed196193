package dump

import (
	"context"
	"errors"
	"io/fs"
	"slices"

	"plumbline/internal/format"
)

// fill reads the tensors of p, file i of the batch.
func (b *Batch) fill(ctx context.Context, o *opener, i int, p *part) error {
	if err := p.reopen(o); err != nil {
		return err
	}
	var buf []float64
	for _, name := range b.Names() {
		s, ok := p.sources[name]
		if !ok {
			continue
		}
		a, err := p.again(name, s)
		if err != nil {
			return err
		}
		t := b.Tensors[name]
		dst := b.block(t, i, p, s)
		direct := dst != nil
		if !direct {
			if cap(buf) < a.Len() {
				buf = make([]float64, a.Len())
			}
			dst = buf[:a.Len()]
		}
		if err := read(ctx, a, dst); err != nil {
			return err
		}
		d, _ := define(name)
		if err := d.check(dst, a); err != nil {
			return err
		}
		if !direct {
			b.scatter(t, i, p, s, dst)
		}
	}
	return nil
}

// again returns the array that s was recorded of, from a file that may have been opened anew.
func (p *part) again(name string, s source) (*format.Array, error) {
	a, err := p.tensor(name)
	if errors.Is(err, fs.ErrNotExist) || err == nil && (a.DType != s.dtype || !slices.Equal(a.Shape, s.shape)) {
		err = format.Malformed(p.path()+":"+name, "", "has changed while it was read")
	}
	return a, err
}

// block returns the elements of t that file i fills in the order in which they are stored, or nil if there is no such
// block.
func (b *Batch) block(t *Tensor, i int, p *part, s source) []float64 {
	lo, hi := b.Files[i].Lo, b.Files[i].Hi
	switch t.Layout {
	case PerFile:
		return t.Data[i : i+1]
	case Free:
		return t.Data
	case PerRow:
		if d, _ := define(t.Name); d.extent != idGrid || !p.packed && s.width == t.Width {
			return t.Data[lo*t.Width : hi*t.Width]
		}
	case PerToken:
		if !p.packed && p.cols == b.Cols {
			return t.Data[lo*b.Cols*t.Width : hi*b.Cols*t.Width]
		}
	}
	return nil
}

// scatter copies the elements of file i, in the order in which they are stored, to their rows in t.
func (b *Batch) scatter(t *Tensor, i int, p *part, s source, src []float64) {
	lo := b.Files[i].Lo
	for j, seg := range p.segments {
		switch {
		case t.Layout == PerRow: // input_ids, attention_mask
			from, to := 0, s.width
			if p.packed {
				from, to = seg.lo, seg.hi+s.width-p.cols
			}
			copy(t.Data[(lo+j)*t.Width:], src[seg.row*s.width+from:seg.row*s.width+to])
			continue
		case !isLogits(t.Name):
			copy(t.Data[(lo+j)*b.Cols:], src[seg.row*p.cols+seg.lo:seg.row*p.cols+seg.hi])
			continue
		}
		row, at := p.logitsRow(seg.row), lo+j
		if row < 0 {
			continue
		}
		if t.Layout == Slice {
			at, _ = slices.BinarySearch(t.Rows, at)
		}
		copy(t.Data[at*b.Cols*t.Width:], src[(row*p.cols+seg.lo)*t.Width:(row*p.cols+seg.hi)*t.Width])
	}
}
