package dump

import (
	"context"
	"fmt"
	"maps"
	"slices"
	"strings"

	"plumbline/internal/format"
)

// maxOpen is how many files of a step stay open between the two looks at them.
const maxOpen = 32

// Limits of the values of a pooled batch, which has more of them than its files where rows are filled up to one width. A
// packed row of 131,072 tokens of which one sequence takes half has some 130 sequences, so 65 times as many.
const (
	smallValues = 1 << 24 // that any batch may have: 128 MiB
	largeValues = 1 << 28 // up to which it may have maxFilling times those of the files
	maxFilling  = 128
	maxGrowth   = 4 // beyond that
)

// Batch reads the files of a step and pools them: rows one below the other in order of rank, micro-batch and row, as
// wide as the widest, narrower ones filled up with masked cells. A tensor is in the batch if all files have it (logits:
// if any has), grad, update and weights as the first file has them. Packed rows are taken apart, one row per sequence.
//
// Contradictions between the files are a *format.Error; files that should be there and are not are Batch.Missing.
func (r *Run) Batch(ctx context.Context, step int) (_ *Batch, err error) {
	files := r.Of(step)
	if len(files) == 0 {
		return nil, fmt.Errorf("no file for step %d", step)
	}
	o := &opener{opt: r.opt}
	defer o.close()
	var parts []*part
	defer func() {
		for _, p := range parts {
			p.release()
		}
	}()
	n := &notes{}
	g := merger{notes: n}
	for _, f := range files {
		c, err := o.openContainer(f.location)
		if err != nil {
			return nil, err
		}
		p := &part{container: c, names: c.tensorNames()}
		parts = append(parts, p)
		if p.meta, err = c.metadata(o); err != nil {
			return nil, err
		}
		if now := (File{Step: p.meta.Step, Rank: p.meta.Rank, MicroBatch: p.meta.MicroBatch}); now.compare(&f) != 0 {
			return nil, format.Malformed(f.Path, "", "has changed since the run was opened: it was of step %d, rank %d, micro-batch %d", f.Step, f.Rank, f.MicroBatch)
		}
		if err := g.add(p.meta, f.Path); err != nil {
			return nil, err
		}
		if r.Keep != nil {
			p.names = slices.DeleteFunc(p.names, func(name string) bool { return !needed(name) && !r.Keep(name) })
		}
		if err := p.plan(ctx, n); err != nil {
			return nil, err
		}
		if len(files) > maxOpen {
			p.release()
		}
	}
	b := &Batch{Meta: g.Meta}
	if err := b.layOut(parts, files, g.lossy, n); err != nil {
		return nil, err
	}
	for i, p := range parts {
		if err := b.fill(ctx, o, i, p); err != nil {
			return nil, err
		}
		p.release()
	}
	b.Notes, b.Unread = n.list(), n.names
	b.Missing = missing(b.Files, &b.Meta)
	return b, nil
}

// needed reports whether a tensor is read whatever the caller keeps.
func needed(name string) bool {
	switch name {
	case responseMask, labelsMask, segmentIDs, cuSeqlens, "logp_chosen", "logp_rejected":
		return true
	}
	return false
}

// release closes the file of p, which can be opened again.
func (p *part) release() {
	if p.st != nil || p.npz != nil {
		p.close()
		p.st, p.npz = nil, nil
	}
}

// reopen opens the file of p if it is not open.
func (p *part) reopen(o *opener) error {
	if p.st != nil || p.npz != nil {
		return nil
	}
	c, err := o.openContainer(p.location)
	if err != nil {
		return err
	}
	p.st, p.npz = c.st, c.npz
	return nil
}

// layOut makes the grid and its tensors, the elements 0; lossy are those that were cast down.
func (b *Batch) layOut(parts []*part, files []File, lossy map[string]bool, n *notes) error {
	for i, p := range parts {
		info := FileInfo{
			Name: files[i].Path, Step: files[i].Step, Rank: files[i].Rank, MicroBatch: files[i].MicroBatch, Lo: b.Rows, Cols: p.width,
			Scalars: p.meta.Scalars, Stored: [2]int{p.rows, p.cols}, Packed: p.packed, PromptCols: p.prompt, source: files[i],
		}
		b.Rows += len(p.segments)
		info.Hi = b.Rows
		b.Cols = max(b.Cols, p.width)
		b.Files = append(b.Files, info)
	}
	b.Tensors = map[string]*Tensor{}
	names := map[string]int{}
	for _, p := range parts {
		for name := range p.sources {
			names[name]++
		}
	}
	var values, stored int64 // of all tensors, in the batch and in the files
	for _, name := range slices.Sorted(maps.Keys(names)) {
		if names[name] < len(parts) && !isLogits(name) && !isFree(name) {
			var without []string
			for _, p := range parts {
				if _, ok := p.sources[name]; !ok {
					without = append(without, p.path())
				}
			}
			b.Partial = append(b.Partial, name)
			n.add(some(without), fmt.Sprintf("has no tensor %s, which other files of the step have: it is left out", name))
			continue
		}
		t, err := b.join(name, parts)
		if err != nil {
			return err
		}
		t.Casts = lossy[name]
		if t.Layout == Free {
			t.Files = names[name]
			keepFirst(name, parts, n)
		}
		b.Tensors[name] = t
		elems, _, ok := format.CheckedSize(t.Shape, 8)
		if !ok || values > 1<<62-elems {
			return tooLarge(parts[0], b)
		}
		values += elems
		for _, p := range parts {
			if s, ok := p.sources[name]; ok {
				size, _, _ := format.CheckedSize(s.shape, 1)
				stored += size
			}
		}
	}
	grid, _, ok := format.CheckedSize([]int{b.Rows, b.Cols}, 1)
	if limit := max(smallValues, min(maxFilling*stored, largeValues), maxGrowth*stored); !ok || values+grid/8 > limit {
		return tooLarge(parts[0], b)
	}
	b.Mask = make([]bool, b.Rows*b.Cols)
	b.Origin = make([]Origin, 0, b.Rows)
	for i, p := range parts {
		for _, s := range p.segments {
			copy(b.Mask[len(b.Origin)*b.Cols:], p.mask[s.row*p.cols+s.lo:s.row*p.cols+s.hi])
			b.Origin = append(b.Origin, Origin{File: i, Row: s.row, Col: s.lo, Cols: s.hi - s.lo})
		}
		p.mask = nil
	}
	for _, t := range b.Tensors {
		t.Data = make([]float64, format.Elements(t.Shape))
	}
	return nil
}

func tooLarge(p *part, b *Batch) error {
	return format.Malformed(p.path(), "", "the rows of step %d, filled up to one width, make a grid of %d rows and %d columns, whose tensors would take many times the memory of what is stored",
		p.meta.Step, b.Rows, b.Cols)
}

// keepFirst leaves the tensor called name to the first file that has it.
func keepFirst(name string, parts []*part, n *notes) {
	var with []string
	for _, p := range parts {
		if _, ok := p.sources[name]; !ok {
			continue
		}
		if with = append(with, p.path()); len(with) > 1 {
			delete(p.sources, name)
		}
	}
	if len(with) > 1 {
		prefix, _, _ := strings.Cut(name, "/")
		n.add(with[0], fmt.Sprintf("%s is taken from here; %s too has it", prefix, some(with[1:])))
	}
}

// isFree reports whether a tensor belongs to no row.
func isFree(name string) bool {
	d, _ := define(name)
	return d.extent == anyShape
}

// join decides layout, shape and type of the tensor called name.
func (b *Batch) join(name string, parts []*part) (*Tensor, error) {
	t := &Tensor{Name: name, Width: 1}
	first := -1 // the file whose source decides the layout
	for i, p := range parts {
		s, ok := p.sources[name]
		switch {
		case !ok:
		case first < 0:
			first = i
		case parts[first].sources[name].ambiguous && !s.ambiguous:
			first = i
		}
	}
	head := parts[first].sources[name]
	t.Layout, t.Type, t.Width = head.layout, head.dtype, head.width
	if t.Layout == Free {
		t.Shape, t.Width = head.shape, 1
		return t, nil
	}
	d, _ := define(name)
	if d.extent == idGrid {
		t.Width = 0
	}
	some := false // a file has not all rows of logits
	for _, p := range parts {
		s, ok := p.sources[name]
		some = some || !ok || isLogits(name) && p.meta.logitsRows != nil
		if !ok {
			continue
		}
		if t.Type != s.dtype {
			t.Type = coarser(t.Type, s.dtype)
		}
		switch {
		case s.layout != t.Layout && !s.ambiguous, d.extent != idGrid && s.width != t.Width:
			one, two := &format.Array{Shape: head.shape}, &format.Array{Shape: s.shape}
			return nil, format.Malformed(p.path()+":"+name, "", "has shape %s, but %s in %s, which is of the same step: they cannot be pooled",
				two.ShapeString(), one.ShapeString(), parts[first].path())
		case d.extent == idGrid:
			t.Width = max(t.Width, p.idWidth(s))
		}
	}
	switch {
	case t.Layout == PerFile:
		t.Shape = []int{len(parts)}
	case t.Layout == PerRow && (d.extent == rowVector || d.extent == idGrid):
		t.Shape = []int{b.Rows, t.Width}
	case t.Layout == PerRow:
		t.Shape = []int{b.Rows}
	case isLogits(name) && some:
		t.Layout, t.Rows = Slice, b.logitsRows(parts, name)
		t.Shape = []int{len(t.Rows), b.Cols, t.Width}
	case isLogits(name):
		t.Shape = []int{b.Rows, b.Cols, t.Width}
	default:
		t.Shape = []int{b.Rows, b.Cols}
	}
	return t, nil
}

// idWidth returns the columns of input_ids that the widest row of p takes.
func (p *part) idWidth(s source) int {
	if p.packed {
		return p.width + s.width - p.cols
	}
	return s.width
}

// coarser returns the type with the larger unit roundoff; that of integers is 0.
func coarser(a, b format.DType) format.DType {
	u, _ := a.Unit()
	v, _ := b.Unit()
	if u >= v {
		return a
	}
	return b
}

// logitsRows returns the rows of the batch that the files have the logits called name for.
func (b *Batch) logitsRows(parts []*part, name string) []int {
	rows := []int{}
	for i, p := range parts {
		if _, ok := p.sources[name]; !ok {
			continue
		}
		for j, s := range p.segments {
			if p.logitsRow(s.row) >= 0 {
				rows = append(rows, b.Files[i].Lo+j)
			}
		}
	}
	return rows
}

// logitsRow returns the row of the stored logits that belongs to a row of the grid, or −1.
func (p *part) logitsRow(row int) int {
	if p.meta.logitsRows == nil {
		return row
	}
	if i, ok := slices.BinarySearch(p.meta.logitsRows, row); ok {
		return i
	}
	return -1
}
