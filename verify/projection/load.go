package projection

import (
	"context"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"

	"plumbline/internal/format"
	"plumbline/internal/format/npy"
	"plumbline/internal/format/safetensors"
)

// Paths names the files of an input. A name is FILE, or FILE:MEMBER for one array of an .npz or .safetensors file.
type Paths struct {
	Basis                     string
	Grads, Projected, Updates []string
	Adapter, Init             string // folders with adapter_model.safetensors, or such files
	Reader                    npy.Options
}

// Names returns the files of p as they were named, members cut off; of a folder the adapter's file.
func (p *Paths) Names() []string {
	var out []string
	for _, list := range [][]string{{p.Basis}, p.Grads, p.Projected, p.Updates} {
		for _, name := range list {
			path, _ := splitMember(name)
			out = append(out, path)
		}
	}
	for _, dir := range []string{p.Adapter, p.Init} {
		out = append(out, dir, filepath.Join(dir, adapterFile))
	}
	return out
}

// UsageError says that the names on the command line do not make sense together.
type UsageError struct{ Msg string }

func (e *UsageError) Error() string { return e.Msg }

func usage(format string, args ...any) error { return &UsageError{fmt.Sprintf(format, args...)} }

// File is a file that was read, for the report.
type File struct {
	Role, Path, What string
	Size             int64
	sum              chan string
}

// SHA256 returns the digest of the whole file, which is computed while the checks run; "" if it could not be read to the
// end.
func (f *File) SHA256() string {
	s := <-f.sum
	f.sum <- s
	return s
}

// Loaded is an input read from files, which stay open for the passes over the basis until Close.
type Loaded struct {
	Input *Input
	Files []*File
	ctx   context.Context
	open  []io.Closer
}

// Close closes the files.
func (l *Loaded) Close() error {
	var errs []error
	for _, c := range l.open {
		errs = append(errs, c.Close())
	}
	return errors.Join(errs...)
}

// Load opens the files that p names. Gradients, updates and adapters are read into memory; of the basis only the header
// is. Errors are a *UsageError, one of format.Malformed, or of package os. When ctx ends, so do the passes over the files.
func Load(ctx context.Context, p Paths) (_ *Loaded, err error) {
	l := &Loaded{Input: &Input{Context: ctx}, ctx: ctx}
	defer func() {
		if err != nil {
			l.Close()
		}
	}()
	if len(p.Projected) > 0 && len(p.Grads) > 0 && len(p.Projected) != len(p.Grads) {
		return nil, usage("%d raw gradients (--grad), but %d projected ones (--projected): give one for each, in the same order", len(p.Grads), len(p.Projected))
	}
	if p.Init != "" && p.Adapter == "" {
		return nil, usage("--init without --adapter: there is nothing to compare it with")
	}
	basis, err := l.arrays("basis", p.Basis, p.Reader)
	if err != nil {
		return nil, err
	}
	if len(basis.arrays) == 0 {
		return nil, format.Malformed(p.Basis, "", "holds no arrays")
	}
	for _, set := range []struct {
		role  string
		paths []string
		to    *[]Set
	}{{"grad", p.Grads, &l.Input.Grads}, {"projected", p.Projected, &l.Input.Projected}, {"update", p.Updates, &l.Input.Updates}} {
		for _, path := range set.paths {
			s, err := l.set(set.role, path, p.Reader)
			if err != nil {
				return nil, err
			}
			*set.to = append(*set.to, s)
		}
	}
	for _, a := range []struct {
		role, path string
		to         **Set
	}{{"adapter", p.Adapter, &l.Input.Adapter}, {"init", p.Init, &l.Input.Init}} {
		if a.path == "" {
			continue
		}
		s, err := l.adapter(a.role, a.path, p.Reader)
		if err != nil {
			return nil, err
		}
		*a.to = &s
	}
	l.Input.Basis, err = l.basis(basis)
	return l, err
}

const adapterFile = "adapter_model.safetensors"

// adapter reads the adapter in a folder as PEFT saves it, or in a .safetensors file.
func (l *Loaded) adapter(role, path string, opt npy.Options) (Set, error) {
	info, err := os.Stat(path)
	if err != nil {
		return Set{}, err
	}
	if !info.IsDir() {
		return l.set(role, path, opt)
	}
	d, err := format.OpenDir(path)
	if err != nil {
		return Set{}, err
	}
	l.open = append(l.open, d)
	full := filepath.Join(path, adapterFile)
	f, err := d.Open(adapterFile)
	if err != nil {
		if errors.Is(err, fs.ErrNotExist) && d.Has("adapter_model.bin") {
			return Set{}, format.Malformed(filepath.Join(path, "adapter_model.bin"), "", "refused: a pickle, which is never loaded; convert it: %s", convert(filepath.Join(path, "adapter_model.bin"), full))
		}
		if info, lerr := os.Lstat(full); lerr == nil && info.Mode()&fs.ModeSymlink != 0 && !format.IsMalformed(err) && !errors.Is(err, fs.ErrPermission) {
			return Set{}, format.Malformed(full, "", "is a symbolic link that leads out of the folder or nowhere: %v", err)
		}
		return Set{}, err
	}
	st, err := safetensors.Parse(f)
	if err != nil {
		f.Close()
		return Set{}, err
	}
	l.open = append(l.open, st)
	l.note(role, full, full, fmt.Sprintf("%d tensors", st.Len()), func() (*format.File, error) { return d.Open(adapterFile) })
	c := container{path: full}
	for n, a := range st.Tensors() {
		c.add(n, a)
	}
	return c.set(path)
}

// basis decides how the array of the basis is read.
func (l *Loaded) basis(c container) (*Basis, error) {
	a := c.arrays[0]
	b := &Basis{Name: a.Name, DType: a.DType, Type: a.Type, Stored: a.Shape, Notes: a.Notes, Elements: a.ReadFloat64}
	if len(a.Shape) == 2 {
		b.ColumnMajor = a.ColumnMajor
		b.D, b.K = a.Shape[0], a.Shape[1]
		if b.D < b.K && (l.hasLength(b.K) || !l.hasLength(b.D)) { // K may be the rank of an adapter, and so the rows of lora_A
			b.D, b.K, b.Transposed = b.K, b.D, true
		}
	}
	switch k := Kind(c.metadata["kind"]); k {
	case AnyKind, Flat, Side:
		b.Kind = k
	default:
		b.Notes = append(b.Notes, fmt.Sprintf("metadata kind %.64q is neither flat nor side: ignored", k))
	}
	if order := c.metadata["order"]; order != "" {
		spans, err := parseOrder(c.path, order)
		if err != nil {
			return nil, err
		}
		b.Order = spans
	}
	return b, nil
}

// hasLength reports whether any vector or matrix of the input fits n rows.
func (l *Loaded) hasLength(n int) bool {
	sets := append(append(append([]Set(nil), l.Input.Grads...), l.Input.Projected...), l.Input.Updates...)
	if l.Input.Adapter != nil {
		sets = append(sets, *l.Input.Adapter)
	}
	for _, s := range sets {
		total := 0
		for _, t := range s.Tensors {
			total += len(t.Data)
			if len(t.Data) == n || len(t.Shape) == 2 && t.Shape[0] == n {
				return true
			}
		}
		if total == n {
			return true
		}
	}
	return false
}

// parseOrder reads the JSON text [["name", length], …] of a metadata entry.
func parseOrder(path, text string) ([]Span, error) {
	var spans []Span
	sc := format.NewScanner(path+": metadata order", []byte(text), 0)
	err := sc.Array(func(int) error {
		var span Span
		n := 0
		err := sc.Array(func(i int) error {
			n++
			var err error
			switch i {
			case 0:
				if span.Name, err = sc.String(); err == nil && len(span.Name) > safetensors.MaxName {
					err = sc.Malformed("a name of %d bytes, want at most %d", len(span.Name), safetensors.MaxName)
				}
			case 1:
				var length int64
				length, err = sc.Int()
				span.Len = int(length)
			default:
				err = sc.Skip()
			}
			return err
		})
		if err == nil && (n != 2 || span.Len < 0) {
			err = sc.Malformed(`want [["name", length], …]`)
		}
		if err == nil && len(spans) == maxTensors {
			err = sc.Malformed("more than %d tensors", maxTensors)
		}
		spans = append(spans, span)
		return err
	})
	if err == nil {
		err = sc.End()
	}
	return spans, err
}
