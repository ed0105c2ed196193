// Package projection judges a gradient projection: the basis Q, gradients, updates and adapters that are meant to have
// no component in span(Q).
//
// The projection is P g = g − Q(Qᵀg) with Q of d rows and K orthonormal columns. A basis is read in one of two ways:
// flat, against a whole vector of d numbers (one tensor, or all LoRA tensors in a row), and side, on the left of every
// d×r matrix (the lora_B of an output d wide). Sums over rows are accumulated in float64, block by block, so that a
// basis may be larger than memory; the order of the sums does not depend on the number of threads.
package projection

import (
	"cmp"
	"context"
	"fmt"
	"sync"

	"plumbline/internal/format"
)

// DefaultTol is the limit of the first source document on max|Qᵀv| and max|QᵀQ − I|.
const DefaultTol = 1e-5

// Kind says how a basis is applied.
type Kind string

const (
	AnyKind Kind = ""     // inferred from the shapes
	Flat    Kind = "flat" // to a vector of d numbers
	Side    Kind = "side" // to the columns of a d×r matrix
)

// Basis is Q and what is known of its storage.
type Basis struct {
	Name        string
	DType       format.DType
	Type        string // the file's own name of the element type
	Stored      []int  // shape in the file
	D, K        int    // rows and columns as read; 0 if Stored is not two-dimensional
	Transposed  bool   // stored as K×d
	ColumnMajor bool   // stored in Fortran order
	Kind        Kind   // stated by the file
	Order       []Span // of the tensors in a flat vector, stated by the file
	Notes       []string

	// Elements stores the elements at, at+1, … in dst, in the order of the storage. It is safe for concurrent use.
	Elements func(dst []float64, at int) error
}

// byColumn reports whether the storage holds Q column by column.
func (b *Basis) byColumn() bool { return b.Transposed != b.ColumnMajor }

// rows stores the rows from, from+1, … of Q in dst, whose length is a multiple of K.
func (b *Basis) rows(dst []float64, from int) error {
	if !b.byColumn() {
		return b.Elements(dst, from*b.K)
	}
	n := len(dst) / b.K
	column := make([]float64, n)
	for j := range b.K {
		if err := b.Elements(column, j*b.D+from); err != nil {
			return err
		}
		for i, v := range column {
			dst[i*b.K+j] = v
		}
	}
	return nil
}

// Span is one tensor's place in a flat vector.
type Span struct {
	Name string
	Len  int
}

// DenseBasis returns a basis held in memory, q[i*k+j]. The element type says how it was stored.
func DenseBasis(q []float64, d, k int, dtype format.DType) *Basis {
	if len(q) != d*k {
		panic("projection: length of q is not d·k")
	}
	return &Basis{
		Name: "Q", DType: dtype, Type: dtype.String(), Stored: []int{d, k}, D: d, K: k,
		Elements: func(dst []float64, at int) error { copy(dst, q[at:]); return nil },
	}
}

// Tensor is a named array in memory, row-major.
type Tensor struct {
	Name  string
	DType format.DType
	Type  string // the file's own name of the element type
	Shape []int
	Data  []float64 // nil if DType is no floating-point type

	noise []float32 // bound on the storage error of each element, where it is not the one of Data in DType
}

// Set is the tensors of one file.
type Set struct {
	Name    string
	Tensors []Tensor
}

// Input is what a suite examines. Basis is demanded, the rest may be absent.
type Input struct {
	Basis *Basis
	Tol   float64 // 0 means DefaultTol
	Kind  Kind    // stated by the user; overrides the file

	Grads     []Set // raw where Projected has the set of the same index, else claimed to be projected
	Projected []Set
	Updates   []Set // what the optimiser added to the weights
	Adapter   *Set
	Init      *Set // the adapter before training

	Reference bool                               // evaluate in one piece, without blocks or threads
	Threads   int                                // 0: GOMAXPROCS
	Progress  func(pass string, done, total int) // rows; may be nil
	Context   context.Context                    // nil: never cancelled

	once   sync.Once
	facts  *facts
	err    error
	widest int // columns of the widest target
}

func (in *Input) tol() float64 {
	return cmp.Or(in.Tol, DefaultTol)
}

// kind returns the reading that was stated, and by whom.
func (in *Input) kind() (Kind, string) {
	if in.Kind != AnyKind {
		return in.Kind, "as stated with --kind"
	}
	if in.Basis.Kind != AnyKind {
		return in.Basis.Kind, "as the basis file states"
	}
	return AnyKind, ""
}

// usable reports whether Q can be computed with: two-dimensional, of floating type, 0 < K < d. QᵀQ of a matrix that is
// wider than high would take the square of its width in memory, for nothing.
func (b *Basis) usable() bool {
	return len(b.Stored) == 2 && b.K > 0 && b.K < b.D && b.DType.Float() && b.Elements != nil
}

func shapeString(shape []int) string { return (&format.Array{Shape: shape}).ShapeString() }

func (t *Tensor) describe() string {
	return fmt.Sprintf("%s has shape %s, %d elements", t.Name, shapeString(t.Shape), len(t.Data))
}

// Numbers returns Q, row by row.
func (b *Basis) Numbers() ([]float64, error) {
	q := make([]float64, b.D*b.K)
	return q, b.rows(q, 0)
}

// With returns a copy of in after change, with nothing measured yet.
func (in *Input) With(change func(*Input)) *Input {
	c := &Input{Basis: in.Basis, Tol: in.Tol, Kind: in.Kind, Grads: in.Grads, Projected: in.Projected, Updates: in.Updates,
		Adapter: in.Adapter, Init: in.Init, Reference: in.Reference, Threads: in.Threads, Progress: in.Progress, Context: in.Context}
	change(c)
	return c
}
