package dump

import (
	"cmp"
	"maps"
	"reflect"
	"slices"
)

// Join returns the rows of batches of several steps as those of one batch, in order of (rank, step, row), under the metadata
// of the first. It has the options that all of them have with equal values, and the tensors that all of them have; the rest,
// and tensors that belong to no row or to some rows only, are left out.
func Join(batches ...*Batch) *Batch {
	first := batches[0]
	b := &Batch{Meta: first.Meta, Tensors: map[string]*Tensor{}}
	b.Meta.Options = slices.DeleteFunc(slices.Clone(first.Meta.Options), func(o Option) bool {
		return slices.ContainsFunc(batches, func(other *Batch) bool {
			return !slices.ContainsFunc(other.Meta.Options, func(p Option) bool { return reflect.DeepEqual(o, p) })
		})
	})
	var parts []slab
	for _, s := range batches {
		b.Cols = max(b.Cols, s.Cols)
		b.Missing = append(b.Missing, s.Missing...)
		for _, n := range s.Notes {
			if !slices.Contains(b.Notes, n) {
				b.Notes = append(b.Notes, n)
			}
		}
		for i := range s.Files {
			parts = append(parts, slab{s, i})
		}
	}
	slices.SortStableFunc(parts, func(p, q slab) int { return cmp.Compare(p.file().Rank, q.file().Rank) })
	for i, p := range parts {
		f := *p.file()
		for _, o := range p.b.Origin[f.Lo:f.Hi] {
			o.File = i
			if o.Cols == 0 && p.b.Cols < b.Cols {
				o.Cols = p.b.Cols
			}
			b.Origin = append(b.Origin, o)
		}
		b.Mask = append(b.Mask, widen(p.b.Mask[f.Lo*p.b.Cols:f.Hi*p.b.Cols], p.b.Cols, b.Cols)...)
		f.Step, f.Lo, f.Hi = p.b.Meta.Step, b.Rows, b.Rows+f.Hi-f.Lo
		b.Files = append(b.Files, f)
		b.Rows = f.Hi
	}
	for _, name := range slices.Sorted(maps.Keys(first.Tensors)) {
		if t := b.joined(name, batches, parts); t != nil {
			b.Tensors[name] = t
		}
	}
	return b
}

// slab is the rows of a file of a batch.
type slab struct {
	b *Batch
	i int
}

func (p slab) file() *FileInfo { return &p.b.Files[p.i] }

// joined returns the tensor of that name of all batches for b, nil if they have none that can be joined.
func (b *Batch) joined(name string, batches []*Batch, parts []slab) *Tensor {
	t := *batches[0].Tensors[name]
	t.Data = nil
	d, _ := define(name)
	for _, s := range batches {
		u := s.Tensors[name]
		if u == nil || u.Layout != t.Layout || u.Layout == Free || u.Layout == Slice || u.Width != t.Width && d.extent != idGrid {
			return nil
		}
		t.Width = max(t.Width, u.Width)
		t.Type = coarser(t.Type, u.Type)
		t.Casts = t.Casts || u.Casts
	}
	for _, p := range parts {
		u, f := p.b.Tensors[name], p.file()
		switch {
		case t.Layout == PerFile:
			t.Data = append(t.Data, u.Data[p.i])
		case t.Layout == PerToken:
			from, to := p.b.Cols*u.Width, b.Cols*u.Width
			t.Data = append(t.Data, widen(u.Data[f.Lo*from:f.Hi*from], from, to)...)
		default:
			t.Data = append(t.Data, widen(u.Data[f.Lo*u.Width:f.Hi*u.Width], u.Width, t.Width)...)
		}
	}
	t.Shape = slices.Clone(t.Shape)
	t.Shape[0] = b.Rows
	switch {
	case t.Layout == PerFile:
		t.Shape[0] = len(b.Files)
	case t.Layout == PerToken:
		t.Shape[1] = b.Cols
	case d.extent == idGrid:
		t.Shape[1] = t.Width
	}
	return &t
}

// widen returns rows of from elements as rows of to elements, filled up with zeros.
func widen[E any](x []E, from, to int) []E {
	if from == to || from == 0 {
		return x
	}
	y := make([]E, len(x)/from*to)
	for r := range len(x) / from {
		copy(y[r*to:], x[r*from:(r+1)*from])
	}
	return y
}
