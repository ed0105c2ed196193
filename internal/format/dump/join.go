package dump

import (
	"maps"
	"reflect"
	"slices"
)

// Join returns the rows of batches of several steps as those of one batch, in order, under the metadata of the first. It
// has the options that all of them have with equal values, and the tensors that all of them have; the rest, and tensors
// that belong to no row or to some rows only, are left out.
func Join(batches ...*Batch) *Batch {
	first := batches[0]
	b := &Batch{Meta: first.Meta, Tensors: map[string]*Tensor{}}
	b.Meta.Options = slices.DeleteFunc(slices.Clone(first.Meta.Options), func(o Option) bool {
		return slices.ContainsFunc(batches, func(other *Batch) bool {
			return !slices.ContainsFunc(other.Meta.Options, func(p Option) bool { return reflect.DeepEqual(o, p) })
		})
	})
	for _, s := range batches {
		b.Cols = max(b.Cols, s.Cols)
	}
	for _, s := range batches {
		for _, f := range s.Files {
			f.Lo, f.Hi = f.Lo+b.Rows, f.Hi+b.Rows
			b.Files = append(b.Files, f)
		}
		for _, o := range s.Origin {
			o.File += len(b.Files) - len(s.Files)
			if o.Cols == 0 && s.Cols < b.Cols {
				o.Cols = s.Cols
			}
			b.Origin = append(b.Origin, o)
		}
		b.Mask = append(b.Mask, widen(s.Mask, s.Cols, b.Cols)...)
		b.Missing = append(b.Missing, s.Missing...)
		for _, n := range s.Notes {
			if !slices.Contains(b.Notes, n) {
				b.Notes = append(b.Notes, n)
			}
		}
		b.Rows += s.Rows
	}
	for _, name := range slices.Sorted(maps.Keys(first.Tensors)) {
		if t := joined(name, batches, b); t != nil {
			b.Tensors[name] = t
		}
	}
	return b
}

// joined returns the tensor of that name of all batches for b, nil if they have none that can be joined.
func joined(name string, batches []*Batch, b *Batch) *Tensor {
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
	for _, s := range batches {
		u := s.Tensors[name]
		switch {
		case t.Layout == PerToken:
			t.Data = append(t.Data, widen(u.Data, s.Cols*u.Width, b.Cols*u.Width)...)
		case d.extent == idGrid:
			t.Data = append(t.Data, widen(u.Data, u.Width, t.Width)...)
		default:
			t.Data = append(t.Data, u.Data...)
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
