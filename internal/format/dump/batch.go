package dump

import (
	"context"
	"iter"
	"maps"
	"slices"

	"plumbline/internal/format"
)

// Batch is one optimisation step: the files of all its ranks and micro-batches pooled, their rows one below the other in
// order of (rank, micro-batch, row), packed rows taken apart into one row per segment.
type Batch struct {
	Meta       Meta       // what holds for the whole step; Rank and MicroBatch are those of the first file
	Files      []FileInfo // in order of rank and micro-batch
	Rows, Cols int        // of the response grid; Cols is the widest file's, narrower ones are filled up with masked cells
	Origin     []Origin   // of every row
	Mask       []bool     // Rows×Cols: response_mask, or labels_mask of a dump of supervised fine-tuning
	Tensors    map[string]*Tensor

	// Missing names the ranks and micro-batches that the files declare and that are not there; denominators and pooled
	// statistics are then unknown.
	Missing []string
	Notes   []string // what was read in another way than it was written, in words

	// Unread is what the files have under names that dump.md does not know, and Partial are the tensors that some files of the step
	// have and others lack.
	Unread  []Unread
	Partial []string
}

// Unread is a name that nobody reads.
type Unread struct {
	Name, File string
	Key        bool // of the metadata; else of a tensor
}

// FileInfo is a file of a batch and the rows that come from it.
type FileInfo struct {
	Name                   string
	Step, Rank, MicroBatch int
	Lo, Hi                 int // rows [Lo, Hi)
	Cols                   int // width of its own grid, of packed rows that of the longest sequence
	Scalars                []Scalar

	Stored     [2]int // rows and columns of the grid in the file
	Packed     bool   // its rows were taken apart
	PromptCols int    // column of input_ids that column 0 of the grid belongs to; −1 where it cannot be told
	source     File
}

// Origin is the place of a row in its file.
type Origin struct {
	File int // index of FileInfo
	Row  int // row of the file's tensors
	Col  int // column of the row's first cell, not 0 for segments of packed rows
	Cols int // columns of the row, what is behind them was filled up; 0: all of the grid
}

// Layout says what an element of a tensor belongs to.
type Layout uint8

const (
	PerToken Layout = iota // [Rows, Cols], or [Rows, Cols, Width]
	PerRow                 // [Rows], or [Rows, Width]
	PerFile                // a scalar in every file: [len(Files)]
	Free                   // any other shape, of the first file that has it: "grad/NAME", "weights", …
	Slice                  // [len(Tensor.Rows), Cols, Width]: a per-token tensor of some rows only (logits)
)

// Tensor is a tensor of a batch. Booleans are 0 and 1, integers exact up to 2^53.
type Tensor struct {
	Name   string
	Layout Layout
	Width  int // values of a cell or row, 1 but for logits, rewards_per_func, input_ids, attention_mask
	Shape  []int
	Data   []float64
	Rows   []int        // of a Slice, increasing
	Type   format.DType // as stored; of files with different types the coarsest
	Casts  bool         // the hook cast it down before storing (listed in lossy)
	Files  int          // of a Free tensor: files of the step that have it, of which it is that of the first
}

// Token returns the data of a per-token tensor, nil if there is none of that name.
func (b *Batch) Token(name string) []float64 { return b.data(name, PerToken) }

// Row returns the data of a per-row tensor, nil if there is none of that name.
func (b *Batch) Row(name string) []float64 { return b.data(name, PerRow) }

// PerFile returns the data of a scalar, nil if there is none of that name.
func (b *Batch) PerFile(name string) []float64 { return b.data(name, PerFile) }

func (b *Batch) data(name string, l Layout) []float64 {
	if t := b.Tensors[name]; t != nil && t.Layout == l {
		return t.Data
	}
	return nil
}

// Names returns the names of the tensors, sorted.
func (b *Batch) Names() []string { return slices.Sorted(maps.Keys(b.Tensors)) }

// With returns a copy of b in which data stands in place of the tensor of that name; all else is shared.
func (b *Batch) With(name string, data []float64) *Batch {
	c := *b
	c.Tensors = maps.Clone(b.Tensors)
	t := Tensor{Name: name, Width: 1}
	if old := b.Tensors[name]; old != nil {
		t = *old
	}
	t.Data = data
	c.Tensors[name] = &t
	return &c
}

// Without returns a copy of b that lacks the tensors of these names; all else is shared.
func (b *Batch) Without(names ...string) *Batch {
	c := *b
	c.Tensors = maps.Clone(b.Tensors)
	for _, n := range names {
		delete(c.Tensors, n)
	}
	return &c
}

// WithMask returns a copy of b with another mask; all else is shared.
func (b *Batch) WithMask(mask []bool) *Batch {
	c := *b
	c.Mask = mask
	return &c
}

// Tokens are the cells of the grid that are in the mask, in their order.
func (b *Batch) Tokens() iter.Seq[int] { return among(b.Mask, 0, len(b.Mask)) }

// TokensOf are those of a row.
func (b *Batch) TokensOf(row int) iter.Seq[int] { return b.TokensIn(row, row+1) }

// TokensIn are those of the rows from lo up to hi.
func (b *Batch) TokensIn(lo, hi int) iter.Seq[int] { return among(b.Mask, lo*b.Cols, hi*b.Cols) }

func among(mask []bool, lo, hi int) iter.Seq[int] {
	return func(yield func(int) bool) {
		for i := lo; i < hi; i++ {
			if mask[i] && !yield(i) {
				return
			}
		}
	}
}

// TokenID returns the id of the token that a cell of the grid belongs to, from response_ids or else from input_ids, or
// false where neither is there or the cell lies behind the columns of its file.
func (b *Batch) TokenID(row, col int) (id int, ok bool) {
	o := b.Origin[row]
	if col < 0 || col >= b.Cols || o.Cols > 0 && col >= o.Cols {
		return 0, false
	}
	if ids := b.Token("response_ids"); ids != nil {
		return int(ids[row*b.Cols+col]), true
	}
	ids, prompt := b.Tensors[inputIDs], b.Files[o.File].PromptCols
	if ids == nil || ids.Layout != PerRow || prompt < 0 {
		return 0, false
	}
	return int(ids.Data[row*ids.Width+prompt+col]), true
}

// SHA256 returns the digest of the file, which is read for it.
func (f *FileInfo) SHA256(ctx context.Context) (string, error) { return f.source.SHA256(ctx) }

// File returns the index of the file that row r comes from.
func (b *Batch) File(r int) int { return b.Origin[r].File }

// Select returns the batch of some of b's rows, given in ascending order, with the files they come from. Scalars of the files and
// tensors that belong to no row are shared.
func (b *Batch) Select(rows []int) *Batch {
	c := *b
	c.Rows = len(rows)
	c.Files = slices.Clone(b.Files)
	for i, f := range b.Files {
		c.Files[i].Lo, _ = slices.BinarySearch(rows, f.Lo)
		c.Files[i].Hi, _ = slices.BinarySearch(rows, f.Hi)
	}
	c.Origin = pick(b.Origin, rows, 1)
	c.Mask = pick(b.Mask, rows, b.Cols)
	c.Tensors = make(map[string]*Tensor, len(b.Tensors))
	for name, t := range b.Tensors {
		u := *t
		switch t.Layout {
		case PerToken:
			u.Data = pick(t.Data, rows, b.Cols*t.Width)
		case PerRow:
			u.Data = pick(t.Data, rows, t.Width)
		case Slice:
			var at []int // of the rows in t.Data
			u.Rows = nil
			for i, r := range rows {
				if k, ok := slices.BinarySearch(t.Rows, r); ok {
					at, u.Rows = append(at, k), append(u.Rows, i)
				}
			}
			u.Data = pick(t.Data, at, b.Cols*t.Width)
			u.Shape = []int{len(at), b.Cols, t.Width}
		}
		if (t.Layout == PerToken || t.Layout == PerRow) && len(t.Shape) > 0 {
			u.Shape = append([]int{len(rows)}, t.Shape[1:]...)
		}
		c.Tensors[name] = &u
	}
	return &c
}

func pick[E any](x []E, rows []int, width int) []E {
	y := make([]E, 0, len(rows)*width)
	for _, r := range rows {
		y = append(y, x[r*width:(r+1)*width]...)
	}
	return y
}
