package dump

import (
	"fmt"
	"slices"
	"strings"

	"plumbline/internal/format"
)

// source is a tensor of a file.
type source struct {
	shape     []int
	dtype     format.DType
	layout    Layout
	width     int  // values of a cell or row
	ambiguous bool // [B, 1] in a grid of one column: a token or a row
}

// addSource checks type and shape of the tensor called name and records it.
func (p *part) addSource(name string, d definition, n *notes) error {
	a, err := p.array(name, n)
	if err != nil {
		return err
	}
	if err := d.checkType(a); err != nil {
		if d.extent == anyShape && a.DType != format.Unknown {
			n.add(p.path(), fmt.Sprintf("%.64q has element type %s, want floating-point: ignored", name, a.Type))
			return nil
		}
		return err
	}
	s := source{shape: a.Shape, dtype: a.DType, width: 1}
	rows := len(p.segments)
	like := func(shape ...int) bool { return slices.Equal(a.Shape, shape) }
	want := ""
	switch d.extent {
	case perToken:
		s.layout = PerToken
		if !like(p.rows, p.cols) {
			want = "[B, T]"
		}
	case perRow:
		s.layout = PerRow
		if !like(rows) && !like(rows, 1) {
			want = "[B]"
		}
	case tokenOrRow:
		switch {
		case like(p.rows, p.cols):
			s.layout, s.ambiguous = PerToken, p.cols == 1 && rows == p.rows
		case like(rows), like(rows, 1):
			s.layout = PerRow
		default:
			want = "[B] or [B, T]"
		}
	case rowVector:
		s.layout = PerRow
		if len(a.Shape) != 2 || a.Shape[0] != rows || a.Shape[1] == 0 {
			want = "[B, F]"
		} else {
			s.width = a.Shape[1]
		}
	case idGrid:
		s.layout = PerRow
		if len(a.Shape) != 2 || a.Shape[0] != p.rows || a.Shape[1] == 0 {
			want = "[B, S]"
		} else {
			s.width = a.Shape[1]
		}
	case tokenVector:
		s.layout = PerToken
		if len(a.Shape) != 3 || a.Shape[0] != p.logitsRows() || a.Shape[1] != p.cols || a.Shape[2] == 0 {
			want = "[B, T, V]"
			if p.meta.logitsRows != nil {
				want = fmt.Sprintf("[%d, T, V], the first for as many logits_rows", len(p.meta.logitsRows))
			}
		} else {
			s.width = a.Shape[2]
		}
		if r := p.meta.logitsRows; len(r) > 0 && r[len(r)-1] >= p.rows {
			return format.Malformed(p.meta.source, "key logits_rows", "has row %d, but the grid has %d rows", r[len(r)-1], p.rows)
		}
	case scalar:
		s.layout = PerFile
		if !like() && !like(1) {
			return format.Malformed(a.Name, "", "has shape %s, want a scalar, [] or [1]", a.ShapeString())
		}
	case anyShape:
		s.layout = Free
	}
	if want != "" {
		return p.disagree(a, want)
	}
	p.sources[name] = s
	return nil
}

// logitsRows returns the rows that the tensor logits has to have.
func (p *part) logitsRows() int {
	if p.meta.logitsRows != nil {
		return len(p.meta.logitsRows)
	}
	return p.rows
}

// disagree is the error of a tensor whose shape does not fit the grid.
func (p *part) disagree(a *format.Array, want string) error {
	grid := &format.Array{Shape: p.maskShape}
	name := p.maskName
	if name == "" {
		name = gridOf(p.meta.Algorithm).first()[0]
	}
	msg := fmt.Sprintf("has shape %s, which does not fit %s of shape %s: want %s", a.ShapeString(), name, grid.ShapeString(), want)
	if p.packed && strings.HasPrefix(want, "[B]") {
		msg += fmt.Sprintf(" with a value for each of the %d sequences that the rows hold", len(p.segments))
	}
	return format.Malformed(a.Name, "", "%s", msg)
}

// checkIDs holds input_ids and attention_mask against each other and against align, and finds where a response begins.
func (p *part) checkIDs(n *notes) error {
	p.prompt = -1
	ids, mask := p.sources[inputIDs], p.sources["attention_mask"]
	if ids.shape != nil && mask.shape != nil && !slices.Equal(ids.shape, mask.shape) {
		a, b := &format.Array{Shape: mask.shape}, &format.Array{Shape: ids.shape}
		return format.Malformed(p.path()+":attention_mask", "", "has shape %s, but input_ids %s", a.ShapeString(), b.ShapeString())
	}
	for _, name := range []string{inputIDs, "attention_mask"} {
		s, ok := p.sources[name]
		if !ok {
			continue
		}
		a := &format.Array{Name: p.path() + ":" + name, Shape: s.shape}
		switch extra := s.width - p.cols; {
		case p.meta.Align == AlignShifted && extra != 1:
			return p.disagree(a, "[B, S] with one column more, as align is shifted")
		case p.meta.Align == AlignUnshifted && extra != 0:
			return p.disagree(a, "[B, S] with as many columns, as align is unshifted")
		case p.packed && p.meta.Align == AlignResponse && extra != 0:
			n.add(p.path(), name+" cannot be given to the sequences of packed rows, since it has other columns than "+p.maskName+": ignored")
			delete(p.sources, name)
		default:
			p.prompt = max(extra, -1)
		}
	}
	return nil
}
