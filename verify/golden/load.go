package golden

import (
	"bytes"
	"context"
	"crypto/sha256"
	"encoding/hex"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"os"
	"path"
	"path/filepath"
	"slices"
	"strings"
	"syscall"

	data "plumbline/golden"
	"plumbline/internal/format"
)

// Limits of a folder. The embedded set is a thousandth of each.
const (
	maxFile  = 1 << 30 // bytes of a file that is read; others are hashed piece by piece
	maxFiles = 20_000
)

// parts are the folders of goldens that are one set in the program. Of a folder of which files are named, only those are.
var parts = []struct {
	folder string
	files  []string
}{{folder: "rl"}, {folder: "quant"}, {folder: "lora"},
	{folder: "models/arcagent"}, {folder: "models/gpt2"}, {folder: "models/gptj"}, {folder: "models/judge"}, {folder: "models/llama"},
	{folder: "models/maskedgpt"}, {folder: "models/qwen2"}, {folder: "models/qwen2b"},
	{"tokenizer", []string{"strings.json", "smollm2.json.gz"}}}

// Embedded returns the set that is part of the program. Its files are named as they lie in the repository's golden folder.
func Embedded(ctx context.Context) (*Set, error) {
	all := &Set{Sections: map[string]*Section{}, Manifest: &Manifest{Name: "manifest.json", SHA256: map[string]string{}}, Context: ctx}
	for _, part := range parts {
		folder, err := fs.Sub(data.Data, part.folder)
		if err != nil {
			return nil, err
		}
		s, err := load(ctx, "", path.Join("golden", part.folder), folder, func(name string) (io.ReadCloser, int64, error) {
			f, err := folder.Open(name)
			if err != nil {
				return nil, 0, err
			}
			info, err := f.Stat()
			if err != nil {
				return nil, 0, err
			}
			return f, info.Size(), nil
		})
		if err != nil {
			return nil, err
		}
		if part.files != nil {
			maps.DeleteFunc(s.Manifest.SHA256, func(name, _ string) bool { return !slices.Contains(part.files, name) })
		}
		all.join(part.folder, s)
	}
	return all, nil
}

// join adds a set whose files lie in the folder called part.
func (s *Set) join(part string, t *Set) {
	for _, f := range t.Files {
		f.Name = path.Join(part, f.Name)
		s.Files = append(s.Files, f)
	}
	if t.Manifest != nil {
		s.Manifest.add(part, t.Manifest)
	}
	for name, section := range t.Sections {
		section.File = path.Join(part, section.File)
		if old := s.Sections[name]; old != nil {
			section.Entries = append(old.Entries, section.Entries...)
		}
		s.Sections[name] = section
	}
	for _, o := range t.Others {
		s.Others = append(s.Others, Other{Name: path.Join(part, o.Name), What: o.What})
	}
	digest := t.sum
	before := s.sum
	s.sum = func(name string) (string, error) {
		if rest, ok := strings.CutPrefix(name, part+"/"); ok {
			return digest(rest)
		}
		return before(name)
	}
}

// Open reads the set in the folder dir. Sections whose names have a check are read whole; of others only what names their
// entries is. An error about the content is one of format.Malformed.
func Open(ctx context.Context, dir string) (*Set, error) {
	if info, err := os.Stat(dir); err != nil {
		return nil, err
	} else if !info.IsDir() {
		return nil, &fs.PathError{Op: "open", Path: dir, Err: syscall.ENOTDIR}
	}
	root, err := os.OpenRoot(dir)
	if err != nil {
		return nil, err
	}
	s, err := load(ctx, dir, dir, root.FS(), func(name string) (io.ReadCloser, int64, error) {
		f, err := format.OpenIn(root, filepath.FromSlash(name), filepath.Join(dir, filepath.FromSlash(name)))
		if err != nil {
			return nil, 0, inside(err, filepath.Join(dir, filepath.FromSlash(name)))
		}
		return f, f.Size, nil
	})
	if err != nil {
		root.Close()
		return nil, err
	}
	s.close = root.Close
	return s, nil
}

// Close closes the folder. The checks but that of the manifest need it no longer.
func (s *Set) Close() error {
	if s.close == nil {
		return nil
	}
	return s.close()
}

// inside turns the error of opening a file by a name that the folder holds into one about the folder, unless the
// environment is to blame: a link that leads out or to nothing is content, a file that may not be read is not.
func inside(err error, shown string) error {
	for _, env := range []error{fs.ErrPermission, fs.ErrClosed, syscall.EIO, syscall.EMFILE, syscall.ENFILE, syscall.ENOMEM} {
		if errors.Is(err, env) {
			return fmt.Errorf("%s: %w", shown, err)
		}
	}
	if format.IsMalformed(err) {
		return err
	}
	return format.Malformed(shown, "", "cannot be opened inside the folder: %v", err)
}

// opener opens a file of a folder by its name with slashes.
type opener func(name string) (io.ReadCloser, int64, error)

// loader reads the files of a folder.
type loader struct {
	set  *Set
	at   string // the folder as messages have it
	ctx  context.Context
	open opener
}

func load(ctx context.Context, dir, at string, folder fs.FS, open opener) (*Set, error) {
	l := &loader{&Set{Dir: dir, Sections: map[string]*Section{}, Context: ctx}, at, ctx, open}
	l.set.sum = l.sum
	if err := l.list(folder); err != nil {
		return nil, err
	}
	for i := range l.set.Files {
		if err := ctx.Err(); err != nil {
			return nil, err
		}
		if err := l.file(&l.set.Files[i]); err != nil {
			return nil, err
		}
	}
	return l.set, nil
}

// list notes every file of the folder.
func (l *loader) list(folder fs.FS) error {
	return fs.WalkDir(folder, ".", func(name string, d fs.DirEntry, err error) error {
		switch {
		case err != nil:
			return fmt.Errorf("%s: %w", l.shown(name), err)
		case l.ctx.Err() != nil:
			return l.ctx.Err()
		case d.IsDir():
			return nil
		case len(l.set.Files) == maxFiles:
			return format.Malformed(l.shown("."), "", "holds more than %d files: this is no golden set", maxFiles)
		}
		f := File{Name: name}
		if info, err := fs.Stat(folder, name); err != nil { // follows links, inside the folder only
			f.Odd = "a link that leads out of the folder or to nothing"
		} else if f.Size = info.Size(); !info.Mode().IsRegular() {
			f.Odd = "not a regular file"
		}
		l.set.Files = append(l.set.Files, f)
		return nil
	})
}

// shown returns name as a message has it.
func (l *loader) shown(name string) string {
	return filepath.Join(l.at, filepath.FromSlash(name))
}

// file reads f if it is a manifest, a section or another golden.
func (l *loader) file(f *File) error {
	folder, base := path.Split(f.Name)
	name, isJSON := strings.CutSuffix(base, ".json")
	switch {
	case !isJSON, f.Odd != "" && folder != "":
		return nil
	case base == "golden.json":
		return l.model(f)
	case base == "manifest.json" && l.has(folder+"golden.json") && !l.has("MANIFEST.json"), folder == "" && base == "MANIFEST.json",
		folder == "" && base == "manifest.json" && !l.has("MANIFEST.json"):
		text, err := l.read(f)
		if err != nil {
			return err
		}
		m, err := readManifest(l.shown(f.Name), base, text)
		if err != nil {
			return err
		}
		if l.set.Manifest == nil {
			l.set.Manifest = &Manifest{Name: base, SHA256: map[string]string{}}
		}
		l.set.Manifest.add(path.Clean(folder), m)
		return nil
	case folder != "":
		return nil
	}
	text, err := l.read(f)
	if err != nil {
		return err
	}
	s, err := readSection(l.shown(f.Name), text, hasFile(name))
	if err != nil {
		return err
	}
	switch {
	case s.Section == "" && s.Tokenizer != "":
		return l.texts(f, text)
	case s.Section == "" && !s.known:
		l.set.Others = append(l.set.Others, Other{Name: f.Name, What: s.what()})
		return nil
	case s.Section != name:
		return format.Malformed(l.shown(f.Name), "section", "is %.64q, the file's name says %.64q", s.Section, name)
	}
	if s.known {
		if err := l.resolve(s); err != nil {
			return err
		}
	}
	l.set.Sections[name] = &Section{Name: name, File: f.Name, Entries: s.entries}
	return nil
}

// hasFile reports whether the entries of the section of that name stand in one file of that name.
func hasFile(name string) bool {
	return name != models.name && name != texts.name && slices.ContainsFunc(sections, func(s *section) bool { return s.name == name })
}

// has reports whether the folder holds a file of that name.
func (l *loader) has(name string) bool { return l.find(name) != nil }

// find returns the file of that name, nil if there is none.
func (l *loader) find(name string) *File {
	i := slices.IndexFunc(l.set.Files, func(f File) bool { return f.Name == name })
	if i < 0 {
		return nil
	}
	return &l.set.Files[i]
}

// read returns the content of f and notes its digest.
func (l *loader) read(f *File) ([]byte, error) {
	r, size, err := l.open(f.Name)
	if err != nil {
		return nil, err
	}
	defer r.Close()
	if size > maxFile {
		return nil, format.Malformed(l.shown(f.Name), "", "has %d bytes, want at most %d", size, maxFile)
	}
	text := make([]byte, size)
	if _, err := io.ReadFull(r, text); err != nil {
		return nil, fmt.Errorf("%s: %w", l.shown(f.Name), err)
	}
	sum := sha256.Sum256(text)
	f.Size, f.SHA256 = size, hex.EncodeToString(sum[:])
	return text, nil
}

// sum returns the digest of a file that was not read.
func (l *loader) sum(name string) (string, error) {
	r, _, err := l.open(name)
	if err != nil {
		return "", err
	}
	defer r.Close()
	sum, err := format.Digest(l.ctx, r)
	if err != nil && l.ctx.Err() == nil {
		err = fmt.Errorf("%s: %w", l.shown(name), err)
	}
	return sum, err
}

// resolve reads the tensors that the entries name. A tensor that several entries name is decoded once.
func (l *loader) resolve(s *sectionFile) error {
	file := l.shown(s.Section + ".json")
	var tensors *tensorFile
	for _, e := range s.entries {
		for _, group := range []map[string]*Value{e.In, e.Out} {
			for _, name := range slices.Sorted(maps.Keys(group)) {
				v := group[name]
				if v.Tensor == "" {
					continue
				}
				if tensors == nil {
					var err error
					if tensors, err = l.tensors(file, s.File); err != nil {
						return err
					}
				}
				if err := tensors.fill(v); err != nil && e.bad == nil {
					e.bad = format.Malformed(file, place(e), "%s: %v", short(name), err)
				}
			}
		}
	}
	return nil
}

// tensors opens the safetensors file that the section in file names.
func (l *loader) tensors(file, name string) (*tensorFile, error) {
	f := l.find(name)
	if f == nil {
		return nil, format.Malformed(file, "file", "%.64q is no file of the folder", name)
	}
	content, err := l.read(f)
	if err != nil {
		return nil, err
	}
	return parseTensors(bytes.NewReader(content), int64(len(content)), l.shown(name))
}

// place names an entry in an error.
func place(e *Entry) string { return fmt.Sprintf("entry %.64q", e.ID) }
