package projection

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"plumbline/internal/format"
	"plumbline/internal/format/npy"
	"plumbline/internal/format/safetensors"
)

// maxTensors bounds the tensors of one file, and the spans of a recorded order. The largest adapters have some 100,000.
const maxTensors = 1 << 17

// container is the arrays of one file, or the one that was asked for.
type container struct {
	path     string
	names    []string // of the arrays inside the file; of a .npy file the path
	arrays   []*format.Array
	metadata map[string]string
}

func (c *container) add(name string, a *format.Array) {
	c.names, c.arrays = append(c.names, name), append(c.arrays, a)
}

// arrays opens the file of name and returns its arrays, or the one that the name asks for.
func (l *Loaded) arrays(role, name string, opt npy.Options) (container, error) {
	path, member := splitMember(name)
	kind, err := kindOf(path)
	if err != nil {
		return container{}, err
	}
	if member != "" && kind == ".npy" {
		return container{}, usage("%s: a .npy file has no members", name)
	}
	c := container{path: path}
	switch kind {
	case ".npy":
		f, err := npy.Open(path, opt)
		if err != nil {
			return c, err
		}
		l.open = append(l.open, f)
		c.add(path, f.Array)
	case ".npz":
		a, err := npy.OpenArchive(path, opt)
		if err != nil {
			return c, err
		}
		l.open = append(l.open, a)
		names := a.Names()
		if member != "" {
			names = []string{member}
		}
		if role == "basis" && len(names) > 1 {
			return c, severalArrays(path, names)
		}
		for _, n := range names {
			array, err := a.Array(n)
			if errors.Is(err, fs.ErrNotExist) {
				return c, usage("%s has no member %q; it has: %s", path, n, some(a.Names()))
			}
			if err != nil {
				return c, err
			}
			c.add(n, array)
		}
	case ".safetensors":
		f, err := safetensors.Open(path)
		if err != nil {
			return c, err
		}
		l.open = append(l.open, f)
		c.metadata = f.Metadata
		if member != "" {
			one, ok := f.Tensor(member)
			if !ok {
				return c, usage("%s has no tensor %q; it has: %s", path, member, some(tensorNames(f)))
			}
			c.add(member, one)
			break
		}
		if role == "basis" && f.Len() > 1 {
			return c, severalArrays(path, tensorNames(f))
		}
		if f.Len() > maxTensors {
			return c, format.Malformed(path, "", "%d tensors; at most %d are judged", f.Len(), maxTensors)
		}
		for n, a := range f.Tensors() {
			c.add(n, a)
		}
	}
	what := fmt.Sprintf("%d tensors", len(c.arrays))
	if len(c.arrays) == 1 {
		what = c.arrays[0].ShapeString() + " " + c.arrays[0].Type
		if t := c.arrays[0].DType; t != format.Unknown {
			what = c.arrays[0].ShapeString() + " " + t.String()
		}
	}
	l.note(role, name, path, what, func() (*format.File, error) { return format.Open(path) })
	return c, nil
}

// note records a file and starts its digest.
func (l *Loaded) note(role, name, path, what string, open func() (*format.File, error)) {
	f := &File{Role: role, Path: name, What: what, sum: make(chan string, 1)}
	l.Files = append(l.Files, f)
	if info, err := os.Stat(path); err == nil {
		f.Size = info.Size()
	}
	go func() {
		sum := ""
		if r, err := open(); err == nil {
			sum, _ = format.Digest(l.ctx, r)
			r.Close()
		}
		f.sum <- sum
	}()
}

// splitMember splits FILE:MEMBER. A file whose own name holds a colon wins; else FILE is the longest prefix that is there.
func splitMember(name string) (path, member string) {
	if _, err := os.Lstat(name); err == nil {
		return name, ""
	}
	for i := strings.LastIndexByte(name, ':'); i > 0; i = strings.LastIndexByte(name[:i], ':') {
		if info, err := os.Lstat(name[:i]); err == nil && !info.IsDir() {
			return name[:i], name[i+1:]
		}
	}
	return name, ""
}

// kindOf decides the format of a file by its ending or, where that says nothing, by its first bytes.
func kindOf(path string) (string, error) {
	switch ext := strings.ToLower(filepath.Ext(path)); ext {
	case ".npy", ".npz", ".safetensors":
		return ext, nil
	}
	f, err := format.Open(path)
	if err != nil {
		return "", err
	}
	defer f.Close()
	head := make([]byte, 9)
	n, err := f.ReadAt(head, 0)
	if err != nil && err != io.EOF {
		return "", fmt.Errorf("%s: %w", path, err)
	}
	head = head[:n]
	text, ext := string(head), strings.ToLower(filepath.Ext(path))
	switch {
	case strings.HasPrefix(text, "\x93NUMPY"):
		return ".npy", nil
	case len(head) == 9 && head[8] == '{' && text[4:8] == "\x00\x00\x00\x00": // a header below 4 GiB
		return ".safetensors", nil
	case strings.HasPrefix(text, "PK") && ext != ".pt" && ext != ".pth" && ext != ".bin":
		return ".npz", nil
	case strings.HasPrefix(text, "PK"), len(head) > 1 && head[0] == 0x80 && head[1] >= 2 && head[1] <= 5:
		return "", format.Malformed(path, "", "refused: a pickle of PyTorch, which is never loaded; convert it: %s", convert(path, strings.TrimSuffix(path, filepath.Ext(path))+".safetensors"))
	}
	return "", format.Malformed(path, "", "not one of .npy, .npz and .safetensors, by its ending and its first bytes")
}

// convert returns the command line that turns a pickle into safetensors, for a machine that has torch.
func convert(from, to string) string {
	return `python -c 'import sys, torch, safetensors.torch as s; t = torch.load(sys.argv[1], weights_only=True); ` +
		`s.save_file({k: v.contiguous() for k, v in ({"Q": t} if torch.is_tensor(t) else t).items()}, sys.argv[2], {"format": "pt"})' ` +
		format.ShellQuote(from) + " " + format.ShellQuote(to)
}

func severalArrays(path string, names []string) error {
	return usage("%s holds %d arrays (%s): name the basis, %s:NAME", path, len(names), some(names), path)
}

func tensorNames(f *safetensors.File) []string {
	var names []string
	for n := range f.Tensors() {
		names = append(names, n)
	}
	return names
}

// some lists the first names.
func some(names []string) string {
	if len(names) > 8 {
		names = append(names[:8:8], "…")
	}
	return strings.Join(names, ", ")
}

// set reads the tensors of a file into memory. Of a dump only those below grad/ are taken.
func (l *Loaded) set(role, name string, opt npy.Options) (Set, error) {
	c, err := l.arrays(role, name, opt)
	if err != nil {
		return Set{}, err
	}
	return c.set(name)
}

func (c *container) set(name string) (Set, error) {
	s := Set{Name: name}
	dump := slices.ContainsFunc(c.names, func(n string) bool { return strings.HasPrefix(n, "grad/") })
	for i, a := range c.arrays {
		if dump && !strings.HasPrefix(c.names[i], "grad/") {
			continue
		}
		t := Tensor{Name: c.names[i], DType: a.DType, Type: a.Type, Shape: a.Shape}
		if a.DType.Float() { // others are only named: as float64 they could take eight times the file
			var err error
			if t.Data, err = a.Float64s(); err != nil {
				return s, err
			}
		}
		s.Tensors = append(s.Tensors, t)
	}
	return s, nil
}
