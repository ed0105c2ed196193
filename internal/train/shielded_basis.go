package train

import (
	"bytes"
	"crypto/sha256"
	"encoding/binary"
	"encoding/hex"
	"encoding/json"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"math"
	"path/filepath"
	"slices"
	"strings"

	"plumbline/internal/format"
	"plumbline/internal/format/npy"
	"plumbline/internal/format/safetensors"
	"plumbline/reference/linalg"
)

// The two readings of a basis.
const (
	Flat = "flat" // (P, k): of one vector of all LoRA numbers, tensors sorted by name
	Side = "side" // (d, k): of every lora_B, d wide, from the left
)

// peftPrefix stands before the names of the adapter's tensors in the files of PEFT.
const peftPrefix = "base_model.model."

// Basis is Q, a matrix of d rows and k orthonormal columns.
type Basis struct {
	Kind   string // Flat, Side, or "" where the file does not say
	D, K   int
	Q      []float64 // [D, K]
	Order  []Span    // of the tensors of a flat vector, nil where the file does not say
	Repair string    // what had to be repaired, "" for nothing
}

// Span is a tensor's place in a flat vector.
type Span struct {
	Name string
	Len  int
}

// UnfitError is an input that was read and cannot be trained with.
type UnfitError struct{ Msg string }

func (e *UnfitError) Error() string { return e.Msg }

// ExitCode is that of a failed check.
func (e *UnfitError) ExitCode() int { return 1 }

func unfit(format string, a ...any) error { return &UnfitError{fmt.Sprintf(format, a...)} }

// Flattened returns the order of a flat vector of the LoRA tensors: sorted by their names in the files of PEFT.
func Flattened(params []Param) []Span {
	var list []Span
	for _, p := range params {
		if strings.Contains(p.Name, ".lora_") {
			list = append(list, Span{peftPrefix + p.Name, len(p.Data)})
		}
	}
	slices.SortFunc(list, func(a, b Span) int { return strings.Compare(a.Name, b.Name) })
	return list
}

func total(order []Span) (n int) {
	for _, s := range order {
		n += s.Len
	}
	return n
}

// ReadBasis reads a basis from a .safetensors or .npy file and validates it for the parameters: two dimensions, a floating-point
// type, d rows (the width of a lora_B for a side basis, the length of the flat vector for a flat one), 0 < k < d, finite, orthonormal
// to 1e-5. One that is not orthonormal is replaced by the Q of its QR decomposition, which Repair says. kind is Flat, Side or "" for
// what the file says, else for what fits.
//
// A file that is not there is fs.ErrNotExist with the command that makes one; what is no such file is malformed; the rest is an
// *[UnfitError].
func ReadBasis(path, kind string, params []Param) (*Basis, error) {
	array, metadata, close, err := openMatrix(path)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, fmt.Errorf("no basis: %w; make one: train shielded basis.from=embeddings projection.basis=%s; or projection.mode=off", err, format.ShellQuote(path))
	}
	if err != nil {
		return nil, err
	}
	defer close()
	b := &Basis{Kind: kind}
	says := metadata["kind"]
	switch {
	case says != "" && says != Flat && says != Side:
		return nil, format.Malformed(path, "metadata kind", "is %.64q, want flat or side", says)
	case kind != "" && says != "" && kind != says:
		return nil, unfit("%s says that it is a %s basis, projection.kind is %s", path, says, kind)
	case kind == "":
		b.Kind = says
	}
	if text := metadata["order"]; text != "" {
		if b.Order, err = parseOrder(path, text); err != nil {
			return nil, err
		}
	}
	switch {
	case len(array.Shape) != 2:
		return nil, unfit("%s: the basis is %d-dimensional, shape %s; want two dimensions, (d, k)", path, len(array.Shape), array.ShapeString())
	case !array.DType.Float():
		return nil, unfit("%s: the basis is stored as %s, want a floating-point type", path, array.Type)
	}
	b.D, b.K = array.Shape[0], array.Shape[1]
	if err := b.fits(path, params); err != nil {
		return nil, err
	}
	switch {
	case b.K == 0:
		return nil, unfit("%s: the basis is empty, shape %s: 0 < k < d", path, array.ShapeString())
	case b.K >= b.D:
		return nil, unfit("%s: the basis spans the whole space (H4b): k = %d of d = %d, every gradient becomes 0; k at most d/4", path, b.K, b.D)
	}
	if b.Q, err = array.Float64s(); err != nil {
		return nil, err
	}
	for i, v := range b.Q {
		if math.IsNaN(v) || math.IsInf(v, 0) {
			return nil, unfit("%s: the basis is not finite: row %d, column %d is %g", path, i/b.K, i%b.K, v)
		}
	}
	return b, b.orthonormalise(path)
}

// fits compares the rows with the parameters and settles the kind.
func (b *Basis) fits(path string, params []Param) error {
	order := Flattened(params)
	widths := map[int]bool{}
	for _, p := range params {
		if strings.Contains(p.Name, ".lora_B") {
			widths[p.Shape[0]] = true
		}
	}
	if b.Kind == "" {
		switch flat := total(order) == b.D; {
		case flat && widths[b.D]:
			return unfit("%s: %d rows fit the flat vector and the width of a target: say projection.kind", path, b.D)
		case flat:
			b.Kind = Flat
		case widths[b.D]:
			b.Kind = Side
		default:
			return unfit("%s: the basis has d = %d rows; the flat vector has P = %d numbers, the outputs of the targets are %v wide", path, b.D, total(order), slices.Sorted(maps.Keys(widths)))
		}
	}
	switch {
	case b.Kind == Flat && b.D != total(order):
		return unfit("%s: a flat basis of P = %d rows; the LoRA tensors have %d numbers", path, b.D, total(order))
	case b.Kind == Side && !widths[b.D]:
		return unfit("%s: a side basis of d = %d rows; the outputs of the targets are %v wide", path, b.D, slices.Sorted(maps.Keys(widths)))
	case b.Kind == Flat && b.Order != nil && !slices.Equal(b.Order, order):
		return unfit("%s: its order of the LoRA tensors is not that of this adapter: %d tensors from %q, here %d from %q", path, len(b.Order), b.Order[0].Name, len(order), order[0].Name)
	}
	return nil
}

// maxDefect is the largest max|QᵀQ − I| of an orthonormal basis: systems A.4.
const maxDefect = 1e-5

func (b *Basis) orthonormalise(path string) error {
	defect, i, j := linalg.Defect(linalg.Gram(b.Q, b.K), b.K)
	if defect <= maxDefect {
		return nil
	}
	q, rank, ok := linalg.Orthonormalise(b.Q, b.K)
	if !ok {
		return unfit("%s: the basis is not orthonormal, max|QᵀQ − I| = %.3g, and has rank 0", path, defect)
	}
	b.Repair = fmt.Sprintf("%s: the basis is not orthonormal (A5): max|QᵀQ − I| = %.3g at columns %d and %d; orthonormalised, rank %d of %d columns", path, defect, i, j, rank, b.K)
	b.Q, b.K = q, rank
	return nil
}

// openMatrix opens the only array of a file.
func openMatrix(path string) (a *format.Array, metadata map[string]string, close func() error, err error) {
	switch strings.ToLower(filepath.Ext(path)) {
	case ".npy":
		f, err := npy.Open(path, npy.Options{})
		if err != nil {
			return nil, nil, nil, err
		}
		return f.Array, nil, f.Close, nil
	case ".pt", ".pth", ".bin", ".pkl":
		f, err := format.Open(path)
		if err != nil {
			return nil, nil, nil, err
		}
		f.Close()
		return nil, nil, nil, format.Malformed(path, "", `refused: a pickle of PyTorch, which is never loaded; convert it: python -c 'import sys, torch, safetensors.torch as s; s.save_file({"Q": torch.load(sys.argv[1], weights_only=True).contiguous()}, sys.argv[2])' %s %s`,
			format.ShellQuote(path), format.ShellQuote(strings.TrimSuffix(path, filepath.Ext(path))+".safetensors"))
	}
	f, err := safetensors.Open(path)
	if err != nil {
		return nil, nil, nil, err
	}
	if f.Len() != 1 {
		f.Close()
		return nil, nil, nil, format.Malformed(path, "", "holds %d tensors, want the basis alone", f.Len())
	}
	for _, array := range f.Tensors() {
		a = array
	}
	return a, f.Metadata, f.Close, nil
}

// parseOrder reads [["name", length], …].
func parseOrder(path, text string) ([]Span, error) {
	var list []Span
	s := format.NewScanner(path+": metadata order", []byte(text), 0)
	err := s.Array(func(int) error {
		var span Span
		n := 0
		err := s.Array(func(i int) (err error) {
			n++
			switch i {
			case 0:
				span.Name, err = s.String()
			case 1:
				var length int64
				length, err = s.Int()
				span.Len = int(length)
			default:
				err = s.Skip()
			}
			return err
		})
		if err == nil && (n != 2 || span.Len < 0) {
			err = s.Malformed(`want [["name", length], …]`)
		}
		span.Name = strings.Clone(span.Name)
		list = append(list, span)
		return err
	})
	if err == nil {
		err = s.End()
	}
	if err == nil && len(list) == 0 {
		err = s.Malformed("is empty")
	}
	return list, err
}

// Write stores the basis as float32 in a .safetensors file, with its kind, and the order of a flat one, in the metadata.
func (b *Basis) Write(path, from string) error {
	return format.WriteFile(path, func(w io.Writer) error { return b.encode(w, from) })
}

// IsIn reports whether the file at path is the one that Write would make. The error is fs.ErrNotExist where there is none.
func (b *Basis) IsIn(path, from string) (bool, error) {
	var made bytes.Buffer
	if err := b.encode(&made, from); err != nil {
		return false, err
	}
	f, err := format.Open(path)
	if err != nil {
		return false, err
	}
	defer f.Close()
	if f.Size != int64(made.Len()) {
		return false, nil
	}
	there, err := f.ReadAll(int64(made.Len()))
	return bytes.Equal(made.Bytes(), there), err
}

func (b *Basis) encode(w io.Writer, from string) error {
	metadata := map[string]string{"kind": b.Kind, "from": from}
	if b.Kind == Flat {
		pairs := make([][2]any, len(b.Order))
		for i, s := range b.Order {
			pairs[i] = [2]any{s.Name, s.Len}
		}
		text, err := json.Marshal(pairs)
		if err != nil {
			return err
		}
		metadata["order"] = string(text)
	}
	return safetensors.Write(w, metadata, []safetensors.Tensor{{Name: "Q", DType: format.F32, Shape: []int{b.D, b.K}, Data: b.Q}})
}

// Fingerprint identifies the numbers of the basis and its kind.
func (b *Basis) Fingerprint() string {
	var buf bytes.Buffer
	fmt.Fprintln(&buf, b.Kind, b.D, b.K)
	for _, v := range b.Q {
		buf.Write(binary.LittleEndian.AppendUint64(nil, math.Float64bits(v)))
	}
	sum := sha256.Sum256(buf.Bytes())
	return hex.EncodeToString(sum[:])
}

// Defect returns max|QᵀQ − I|.
func (b *Basis) Defect() float64 {
	d, _, _ := linalg.Defect(linalg.Gram(b.Q, b.K), b.K)
	return d
}
