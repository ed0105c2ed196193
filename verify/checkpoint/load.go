package checkpoint

import (
	"context"
	"errors"
	"path"
)

// Paths names the folders of an input.
type Paths struct {
	Dir                         string
	Base, Init, Merged, Against string // "": none
}

// Load opens the folders. Errors are a *UsageError or one of package os; what is malformed inside is kept in the folders.
func Load(ctx context.Context, p Paths) (_ *Input, err error) {
	in := &Input{Context: ctx}
	defer func() {
		if err != nil {
			in.Close()
		}
	}()
	for _, o := range []struct {
		path string
		to   **Folder
	}{{p.Dir, &in.Folder}, {p.Base, &in.Base}, {p.Init, &in.Init}, {p.Merged, &in.Merged}, {p.Against, &in.Against}} {
		if o.path == "" {
			continue
		}
		if *o.to, err = OpenFolder(o.path); err != nil {
			return nil, err
		}
	}
	return in, nil
}

// Close closes the files.
func (in *Input) Close() error {
	var errs []error
	for _, f := range in.folders() {
		errs = append(errs, f.Close())
	}
	return errors.Join(errs...)
}

// File is a file that was read, for the report.
type File struct {
	Role, Path, What, SHA256 string
	Size                     int64
}

// Digests are computed of whole files of up to hashed bytes, as long as all together have no more than hashedAll; a list
// has at most listed files.
const (
	hashed    = 64 << 20
	hashedAll = 512 << 20
	listed    = 200
)

// ListFiles returns the files of tensors, configurations and pickles of the input.
func (in *Input) ListFiles() ([]File, error) {
	var list []File
	var sums []func() error
	left := int64(hashedAll)
	for _, o := range []struct {
		role string
		f    *Folder
	}{{"checkpoint", in.Folder}, {"base", in.Base}, {"init", in.Init}, {"merged", in.Merged}, {"against", in.Against}} {
		if o.f == nil {
			continue
		}
		for _, u := range o.f.Units {
			what := map[string]string{}
			for _, c := range u.Containers {
				what[c.Name] = plural(len(c.Tensors), "tensor")
			}
			for _, p := range u.Pickles {
				what[p.Name] = "pickle, listed and not loaded"
			}
			for _, b := range []string{"adapter_config.json", "config.json", indexFile, "MANIFEST.json"} {
				if u.has(b) {
					what[path.Join(u.Dir, b)] = "configuration"
				}
			}
			for _, e := range o.f.Entries {
				w, ok := what[e.Name]
				if !ok || path.Dir(e.Name) != u.Dir {
					continue
				}
				if len(list) == listed {
					break
				}
				i := len(list)
				list = append(list, File{Role: o.role, Path: o.f.shown(e.Name), What: w, Size: e.Size})
				if e.Size > hashed || e.Size > left {
					continue
				}
				left -= e.Size
				sums = append(sums, func() (err error) {
					list[i].SHA256, err = o.f.sha256(e.Name)
					return err
				})
			}
		}
	}
	return list, in.parallel("digests", len(sums), 0, func(i int, _ []byte) error { return sums[i]() })
}
