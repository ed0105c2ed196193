package dump

import (
	"context"
	"fmt"
	"slices"

	"plumbline/internal/format"
)

// segment is a row of a batch in the grid of its file: the cells [lo, hi) of a row.
type segment struct{ row, lo, hi int }

// part is the share of one file in a batch: what it holds and where, checked, nothing but the mask read yet.
type part struct {
	*container           // open, or to be opened again
	meta       *metadata // of this file
	names      []string  // of the tensors to look at, sorted
	rows, cols int       // of the grid as stored
	maskName   string    // the tensor that gave the grid its shape
	maskShape  []int
	mask       []bool // rows×cols
	packed     bool   // rows were taken apart
	segments   []segment
	width      int // of the widest segment
	sources    map[string]source
	prompt     int // column of input_ids that belongs to column 0 of the grid, −1 if unknown
}

// blockSize is how many elements are read between two looks at the context.
const blockSize = 1 << 18

// read reads the elements of a, in index order, into dst, which has their number.
func read(ctx context.Context, a *format.Array, dst []float64) error {
	if a.ColumnMajor && len(a.Shape) > 1 {
		if err := ctx.Err(); err != nil {
			return err
		}
		all, err := a.Float64s()
		copy(dst, all)
		return err
	}
	for at := 0; at < len(dst); at += blockSize {
		if err := ctx.Err(); err != nil {
			return err
		}
		if err := a.ReadFloat64(dst[at:min(at+blockSize, len(dst))], at); err != nil {
			return err
		}
	}
	return nil
}

// plan looks at the tensors of the file and reads its mask.
func (p *part) plan(ctx context.Context, n *notes) error {
	p.sources = map[string]source{}
	for _, text := range p.notes() {
		n.add(p.path(), text)
	}
	if p.meta.stepless {
		n.add(p.path(), "the metadata say no step: 0 is taken")
	}
	for _, key := range p.meta.unknown {
		n.unread(Unread{Name: key, File: p.path(), Key: true})
	}
	if len(p.meta.unknown) > 0 {
		n.add(p.path(), "unknown keys of the metadata are ignored: "+list(p.meta.unknown))
	}
	if p.meta.pairs {
		n.add(p.path(), "the metadata say no algorithm: the rows are pairs, as "+list(ofPairs.first())+" are")
	}
	var err error
	if gridOf(p.meta.Algorithm) != ofTokens {
		err = p.rowGrid(n)
	} else if err = p.tokenGrid(ctx, n); err == nil {
		err = p.split(ctx, n)
	}
	if err != nil {
		return err
	}
	for _, s := range p.segments {
		p.width = max(p.width, s.hi-s.lo)
	}
	if err := p.checkDummy(); err != nil {
		return err
	}
	var unknown, unused []string
	for _, name := range p.names {
		d, known := define(name)
		switch {
		case name == p.maskName || name == segmentIDs || name == cuSeqlens:
		case !known && name != responseMask && name != labelsMask:
			unknown = append(unknown, name)
			n.unread(Unread{Name: name, File: p.path()})
		case !known || !d.belongs(p.meta.Algorithm):
			unused = append(unused, name)
		default:
			if err := p.addSource(name, d, n); err != nil {
				return err
			}
		}
	}
	if len(unknown) > 0 {
		n.add(p.path(), "unknown tensors are ignored: "+list(unknown))
	}
	if len(unused) > 0 {
		n.add(p.path(), fmt.Sprintf("not part of a dump of algorithm %q, ignored: %s", p.meta.Algorithm, list(unused)))
	}
	return p.checkIDs(n)
}

// belongs reports whether a dump of the algorithm can hold the tensor. A grid of pairs or of labelled answers has no tokens.
func (d definition) belongs(algorithm string) bool {
	g := gridOf(algorithm)
	if g == ofTokens || d.of != ofTokens {
		return d.of == g
	}
	switch d.extent {
	case perRow, rowVector, scalar, anyShape:
		return true
	}
	return false
}

// list formats the first names of a list.
func list(names []string) string {
	const most = 8
	if len(names) > most {
		return fmt.Sprintf("%.64q and %d more", names[:most], len(names)-most)
	}
	return fmt.Sprintf("%.64q", names)
}

// has reports whether the file holds a tensor of that name.
func (p *part) has(name string) bool {
	_, ok := slices.BinarySearch(p.names, name)
	return ok
}

// array returns the tensor called name and passes on what there is to note of it.
func (p *part) array(name string, n *notes) (*format.Array, error) {
	a, err := p.tensor(name)
	if err != nil {
		return nil, err
	}
	for _, text := range a.Notes {
		n.add(p.path(), name+": "+text)
	}
	if a.ColumnMajor {
		n.add(p.path(), name+" is stored in Fortran order and was transposed")
	}
	return a, nil
}

// first returns the tensors that a grid without tokens needs; the first of them gives its rows.
func (g grid) first() []string {
	if g == ofAnswers {
		return []string{"logp_policy", "desirable"}
	}
	return []string{"logp_chosen", "logp_rejected"}
}

// rowGrid makes the grid of a dump of preference optimisation: a row per pair or per answer, one column.
func (p *part) rowGrid(n *notes) error {
	needs := gridOf(p.meta.Algorithm).first()
	for _, name := range needs {
		if !p.has(name) {
			return format.Malformed(p.path(), "", "no tensor %s, which algorithm %s needs; it has %s", name, p.meta.Algorithm, list(p.names))
		}
	}
	a, err := p.array(needs[0], n)
	if err != nil {
		return err
	}
	if len(a.Shape) == 0 || len(a.Shape) > 2 || len(a.Shape) == 2 && a.Shape[1] != 1 {
		return format.Malformed(a.Name, "", "has shape %s, want [B]", a.ShapeString())
	}
	if a.Shape[0] == 0 {
		return format.Malformed(a.Name, "", "has shape %s: no rows", a.ShapeString())
	}
	p.rows, p.cols, p.maskShape = a.Shape[0], 1, a.Shape
	if err := number.checkType(a); err != nil {
		return err
	}
	p.mask = make([]bool, p.rows)
	for i := range p.mask {
		p.mask[i] = true
	}
	p.wholeRows()
	return nil
}

// tokenGrid reads the mask.
func (p *part) tokenGrid(ctx context.Context, n *notes) error {
	p.maskName = responseMask
	switch sft := labelled(p.meta.Algorithm); {
	case sft && p.has(labelsMask):
		p.maskName = labelsMask
	case sft && p.has(responseMask):
		n.add(p.path(), "response_mask is taken for the labels_mask of algorithm "+p.meta.Algorithm)
	case sft:
		return format.Malformed(p.path(), "", "no tensor labels_mask, which algorithm %s needs; it has %s", p.meta.Algorithm, list(p.names))
	case !p.has(responseMask):
		hint := ""
		if p.has(labelsMask) {
			hint = `; labels_mask stands for it only where the metadata say "algorithm": "sft"`
		} else if p.has("logp_chosen") {
			hint = `; it is not needed where the metadata say "algorithm": "dpo"`
		}
		return format.Malformed(p.path(), "", "no tensor response_mask, which every dump needs; it has %s%s", list(p.names), hint)
	}
	a, err := p.array(p.maskName, n)
	if err != nil {
		return err
	}
	switch {
	case len(a.Shape) != 2:
		return format.Malformed(a.Name, "", "has shape %s, want [B, T]", a.ShapeString())
	case a.Shape[0] == 0:
		return format.Malformed(a.Name, "", "has shape %s: no rows", a.ShapeString())
	case a.Shape[1] == 0:
		return format.Malformed(a.Name, "", "has shape %s: no columns", a.ShapeString())
	}
	if err := flag.checkType(a); err != nil {
		return err
	}
	p.rows, p.cols, p.maskShape = a.Shape[0], a.Shape[1], a.Shape
	p.mask = make([]bool, p.rows*p.cols)
	p.wholeRows()
	return eachBlock(ctx, a, func(at int, block []float64) error {
		for i, v := range block {
			if v != 0 && v != 1 {
				return format.Malformed(a.Name, format.Place(at+i, a.Shape), "found %v, want 0 or 1", v)
			}
			p.mask[at+i] = v == 1
		}
		return nil
	})
}

// eachBlock reads a block by block, in index order, into memory that is used again.
func eachBlock(ctx context.Context, a *format.Array, f func(at int, block []float64) error) error {
	n := a.Len()
	if a.ColumnMajor && len(a.Shape) > 1 {
		all := make([]float64, n)
		if err := read(ctx, a, all); err != nil {
			return err
		}
		return f(0, all)
	}
	buf := make([]float64, min(n, blockSize))
	for at := 0; at < n; at += len(buf) {
		if err := ctx.Err(); err != nil {
			return err
		}
		block := buf[:min(len(buf), n-at)]
		if err := a.ReadFloat64(block, at); err != nil {
			return err
		}
		if err := f(at, block); err != nil {
			return err
		}
	}
	return nil
}

// wholeRows makes every row of the grid one segment.
func (p *part) wholeRows() {
	p.segments = make([]segment, p.rows)
	for i := range p.segments {
		p.segments[i] = segment{i, 0, p.cols}
	}
}

// checkDummy demands that the first column of full-length tensors, which belongs to no prediction, is masked.
func (p *part) checkDummy() error {
	if p.meta.Align != AlignUnshifted || gridOf(p.meta.Algorithm) != ofTokens {
		return nil
	}
	for _, s := range p.segments {
		if p.mask[s.row*p.cols+s.lo] {
			return format.Malformed(p.path()+":"+p.maskName, fmt.Sprintf("[%d, %d]", s.row, s.lo),
				"is 1, but with align unshifted the first token of a sequence is predicted by nothing: want 0")
		}
	}
	return nil
}
