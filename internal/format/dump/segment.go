package dump

import (
	"context"
	"fmt"
	"slices"

	"plumbline/internal/format"
)

// split takes packed rows apart by segment_ids or cu_seqlens, where the file has one of them. A row that holds one
// sequence loses its padding all the same.
func (p *part) split(ctx context.Context, n *notes) error {
	var lists [][]segment
	var names []string
	for _, by := range []struct {
		name string
		read func(context.Context, *format.Array) ([]segment, error)
	}{{segmentIDs, p.byIDs}, {cuSeqlens, p.byLengths}} {
		if !p.has(by.name) {
			continue
		}
		a, err := p.array(by.name, n)
		if err != nil {
			return err
		}
		if err := integer.checkType(a); err != nil {
			return err
		}
		segments, err := by.read(ctx, a)
		if err != nil {
			return err
		}
		lists, names = append(lists, segments), append(names, by.name)
	}
	if len(lists) == 0 {
		return nil
	}
	if len(lists) == 2 && !slices.Equal(lists[0], lists[1]) {
		return format.Malformed(p.path(), "", "segment_ids give %d sequences, cu_seqlens %d, or others of that number: want the same of both", len(lists[0]), len(lists[1]))
	}
	if len(lists[0]) == 0 {
		return format.Malformed(p.path()+":"+names[0], "", "no rows: every cell is padding")
	}
	p.packed, p.segments = true, lists[0]
	return nil
}

// byIDs reads segment_ids [B, T]: a change of the number along a row begins another sequence. A run of cells with one
// number of at most 0 is padding if the mask is 0 in all of them.
func (p *part) byIDs(ctx context.Context, a *format.Array) ([]segment, error) {
	if !slices.Equal(a.Shape, p.maskShape) {
		return nil, p.disagree(a, "[B, T]")
	}
	ids := make([]float64, a.Len())
	if err := read(ctx, a, ids); err != nil {
		return nil, err
	}
	if err := integer.check(ids, a); err != nil {
		return nil, err
	}
	var list []segment
	for row := range p.rows {
		cells, mask := ids[row*p.cols:(row+1)*p.cols], p.mask[row*p.cols:(row+1)*p.cols]
		for lo := 0; lo < p.cols; {
			hi, any := lo, false
			for ; hi < p.cols && cells[hi] == cells[lo]; hi++ {
				any = any || mask[hi]
			}
			if any || cells[lo] > 0 {
				list = append(list, segment{row, lo, hi})
			}
			lo = hi
		}
	}
	return list, nil
}

// byLengths reads cu_seqlens [B, n], or [n] for a single row: the columns at which the sequences of a row end, after a
// first 0. Rows with fewer sequences are filled up with −1 or with their last value. Cells behind the last one are
// padding.
func (p *part) byLengths(ctx context.Context, a *format.Array) ([]segment, error) {
	shape := a.Shape
	if len(shape) == 1 && p.rows == 1 {
		shape = []int{1, shape[0]}
	}
	if len(shape) != 2 || shape[0] != p.rows || shape[1] < 2 {
		return nil, p.disagree(a, "[B, n] with the ends of the sequences of each row after a 0")
	}
	ends := make([]float64, a.Len())
	if err := read(ctx, a, ends); err != nil {
		return nil, err
	}
	if err := integer.check(ends, a); err != nil {
		return nil, err
	}
	var list []segment
	for row := range p.rows {
		cells := ends[row*shape[1] : (row+1)*shape[1]]
		bad := func(col int, msg string, args ...any) error {
			return format.Malformed(a.Name, format.Place(row*shape[1]+col, a.Shape), "is %.0f, want %s", cells[col], fmt.Sprintf(msg, args...))
		}
		if cells[0] != 0 {
			return nil, bad(0, "0, the begin of the first sequence")
		}
		last, done := 0, false
		for col := 1; col < len(cells); col++ {
			switch end := cells[col]; {
			case end == -1, end == float64(last):
				done = true
			case done:
				return nil, bad(col, "no further sequence behind an empty one or a −1")
			case !(end > float64(last) && end <= float64(p.cols)):
				return nil, bad(col, "more than %d, the end before it, and at most %d columns", last, p.cols)
			default:
				list = append(list, segment{row, last, int(end)})
				last = int(end)
			}
		}
		if at := slices.Index(p.mask[row*p.cols+last:(row+1)*p.cols], true); at >= 0 {
			return nil, format.Malformed(p.path()+":"+p.maskName, fmt.Sprintf("[%d, %d]", row, last+at), "is 1, but cu_seqlens end the last sequence of the row at column %d", last)
		}
	}
	return list, nil
}
