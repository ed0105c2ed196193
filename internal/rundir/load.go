package rundir

import (
	"crypto/sha256"
	"errors"
	"fmt"
	"io"
	"io/fs"
	"os"
	"path/filepath"
	"slices"
	"strings"

	"plumbline/internal/format"
)

// Checkpoint is one whose manifest was right in everything when it was read.
type Checkpoint struct {
	Path     string
	Name     string // "step_100", "final"
	Manifest *Manifest
}

// Refusal is a checkpoint that is not accepted, and why.
type Refusal struct {
	Name string
	Err  error
}

// Verify reads every byte of a checkpoint and compares it with its manifest. A directory without a manifest, with a file more or
// less, with a symbolic link, another size or another hash, or under the name of another step is an error that says which.
func Verify(path string) (*Checkpoint, error) {
	root, err := os.OpenRoot(path)
	if err != nil {
		return nil, err
	}
	defer root.Close()
	shown := filepath.Join(path, ManifestName)
	f, err := openRegular(root, ManifestName)
	if errors.Is(err, fs.ErrNotExist) {
		return nil, format.Malformed(path, "", "has no %s: the save did not end", ManifestName)
	}
	if err != nil {
		return nil, fmt.Errorf("%s: %w", shown, err)
	}
	text, err := io.ReadAll(io.LimitReader(f, maxManifest+1))
	f.Close()
	if err != nil {
		return nil, fmt.Errorf("%s: %w", shown, err)
	}
	if len(text) > maxManifest {
		return nil, format.Malformed(shown, "", "has more than %d bytes", maxManifest)
	}
	m, err := parseManifest(shown, text)
	if err != nil {
		return nil, err
	}
	name := filepath.Base(filepath.Clean(path))
	if strings.HasPrefix(name, "step_") && name != fmt.Sprintf("step_%d", m.Step) {
		return nil, format.Malformed(shown, "", "is of step %d", m.Step)
	}
	if err := sameFiles(root, path, m); err != nil {
		return nil, err
	}
	for _, name := range m.names() {
		if name == ManifestName {
			continue
		}
		if err := verifyFile(root, path, name, m.Files[name]); err != nil {
			return nil, err
		}
	}
	return &Checkpoint{Path: path, Name: name, Manifest: m}, nil
}

func sameFiles(root *os.Root, path string, m *Manifest) error {
	entries, err := fs.ReadDir(root.FS(), ".")
	if err != nil {
		return fmt.Errorf("%s: %w", path, err)
	}
	want := m.names()
	var got []string // sorted, as they come
	for _, e := range entries {
		got = append(got, e.Name())
		if _, ok := slices.BinarySearch(want, e.Name()); !ok {
			return format.Malformed(path, "", "holds %.80q, which its manifest does not name", e.Name())
		}
	}
	for _, name := range want {
		if _, ok := slices.BinarySearch(got, name); !ok {
			return format.Malformed(path, "", "lacks %s", name)
		}
	}
	return nil
}

func verifyFile(root *os.Root, path, name string, want Entry) error {
	shown := filepath.Join(path, name)
	f, err := openRegular(root, name)
	if err != nil {
		return fmt.Errorf("%s: %w", shown, err)
	}
	defer f.Close()
	info, err := f.Stat()
	if err != nil {
		return err
	}
	if info.Size() != want.Size {
		return format.Malformed(shown, "", "has %d bytes, its manifest says %d", info.Size(), want.Size)
	}
	d := &digest{whole: sha256.New(), head: sha256.New()}
	if _, err := io.Copy(d, f); err != nil {
		return fmt.Errorf("%s: %w", shown, err)
	}
	got := d.entry()
	if !strings.HasSuffix(name, ".safetensors") {
		got.Header = ""
	}
	if got != want {
		return format.Malformed(shown, "", "is not what was saved: its sha256 is %s", got.SHA256)
	}
	return nil
}

// openRegular opens a file of root that is no link, device or directory.
func openRegular(root *os.Root, name string) (*os.File, error) {
	info, err := root.Lstat(name)
	if err != nil {
		return nil, err
	}
	if !info.Mode().IsRegular() {
		return nil, errors.New("is no regular file")
	}
	return root.OpenFile(name, os.O_RDONLY|openFlags, 0)
}

// verifyOwn is Verify for a checkpoint in the folder of a run: a link to one elsewhere is refused.
func verifyOwn(path string) (*Checkpoint, error) {
	info, err := os.Lstat(path)
	if err != nil {
		return nil, err
	}
	if !info.IsDir() {
		return nil, format.Malformed(path, "", "is no folder; a link to a checkpoint elsewhere is not followed (--resume takes it by its name)")
	}
	return Verify(path)
}

// Newest returns the newest checkpoint of a run's folder that is whole, nil if there is none, and those newer ones that are
// refused. The file latest is not asked: it may be older than a checkpoint whose save was killed after the rename.
func Newest(path string) (*Checkpoint, []Refusal, error) {
	names, err := OS{}.Names(path)
	if err != nil {
		return nil, nil, err
	}
	var refused []Refusal
	list := byStep(names)
	for _, name := range slices.Backward(list) {
		c, err := verifyOwn(filepath.Join(path, name))
		if err == nil {
			return c, refused, nil
		}
		refused = append(refused, Refusal{name, err})
	}
	return nil, refused, nil
}

// Resume makes c what the next checkpoint follows. Checkpoints that would be in the way, newer than c, are renamed to
// NAME.aside-N: they are refused ones, or those of a future that is trained anew. It returns their new names. The file latest says c.
func (r *Run) Resume(c *Checkpoint) (aside []string, err error) {
	names, err := r.disk.Names(r.path)
	if err != nil {
		return nil, err
	}
	list := byStep(names)
	at := slices.Index(list, c.Name)
	if at < 0 || filepath.Clean(c.Path) != filepath.Join(r.path, c.Name) {
		at = -1 // of another run: all are in the way
	}
	for _, name := range list[at+1:] {
		to, err := r.asideName(name)
		if err != nil {
			return aside, err
		}
		if err := r.disk.Rename(filepath.Join(r.path, name), filepath.Join(r.path, to)); err != nil {
			return aside, err
		}
		aside, r.aside = append(aside, to), true
	}
	r.last = c.Name
	if at >= 0 { // a save that was killed after its rename left latest at the one before
		return aside, r.point(c.Name)
	}
	return aside, r.disk.SyncDir(r.path)
}

// asideName returns a name that is free for what has another one and is put aside.
func (r *Run) asideName(name string) (string, error) {
	for i := 1; ; i++ {
		to := fmt.Sprintf("%s.aside-%d", name, i)
		if there, err := r.disk.Exists(filepath.Join(r.path, to)); err != nil || !there {
			return to, err
		}
	}
}
