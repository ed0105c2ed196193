package checkpoint

import (
	"errors"
	"fmt"
	"io"
	"io/fs"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"plumbline/internal/arch"
	"plumbline/internal/format"
	"plumbline/internal/format/hf"
	"plumbline/internal/format/safetensors"
)

// Folder is a tree and what lies in it.
type Folder struct {
	Tree    Tree
	Entries []Entry
	Units   []*Unit
	Refused []error // files that are malformed or lead out, in the order of their names
	Hostile []error // what was read and is refused for what it says: pickles that run commands, methods that are none
	Run     *Run    // what a run folder says of itself
	pool    *pool
	seen    map[string]bool // entries by name
	name    string          // last part of the folder's real path
}

// Close closes the files.
func (f *Folder) Close() error {
	err := f.pool.Close()
	if c, ok := f.Tree.(io.Closer); ok {
		err = errors.Join(err, c.Close())
	}
	return err
}

// OpenFolder reads what lies in the folder at p, but no elements. What is malformed is kept for the report in Refused;
// an error means that the folder could not be read.
func OpenFolder(p string) (*Folder, error) {
	d, err := openDisk(p)
	if err != nil {
		return nil, err
	}
	f, err := NewFolder(d)
	if err != nil {
		d.Close()
		return nil, err
	}
	if real, err := filepath.EvalSymlinks(p); err == nil {
		if real, err = filepath.Abs(real); err == nil {
			f.name = filepath.Base(real)
		}
	}
	return f, nil
}

// stepOf returns the step in the name of a unit's directory, which may be that of the folder itself.
func (f *Folder) stepOf(u *Unit) (int, bool) {
	if u.Dir == "." {
		return stepOf(f.name)
	}
	return stepOf(u.Dir)
}

// NewFolder is OpenFolder for a tree.
func NewFolder(t Tree) (*Folder, error) {
	f := &Folder{Tree: t, pool: &pool{}, seen: map[string]bool{}, name: path.Base(t.Path())}
	var err error
	if f.Entries, err = t.Entries(); err != nil {
		return nil, err
	}
	dirs := map[string]*Unit{}
	var order []*Unit
	for _, e := range f.Entries {
		f.seen[e.Name] = true
	}
	for _, e := range f.Entries {
		if f.beside(e.Name) {
			continue
		}
		if e.Err != nil {
			if !format.IsMalformed(e.Err) {
				return nil, e.Err
			}
			f.Refused = append(f.Refused, e.Err)
			continue
		}
		dir := path.Dir(e.Name)
		u := dirs[dir]
		if u == nil {
			u = &Unit{Dir: dir, Entries: map[string]Entry{}}
			dirs[dir] = u
			order = append(order, u)
		}
		u.Entries[path.Base(e.Name)] = e
	}
	slices.SortFunc(order, func(a, b *Unit) int { return compareNatural(a.Dir, b.Dir) })
	for _, u := range order {
		interesting, err := f.load(u)
		if err != nil {
			return nil, err
		}
		if interesting {
			f.Units = append(f.Units, u)
		}
	}
	for _, u := range f.of(Adapter) {
		if dir := dirs[path.Dir(u.Dir)]; dir != nil && u.Dir != "." {
			if u.Meta, err = f.object(dir, "lora_train_meta.json"); err != nil {
				return nil, err
			}
		}
	}
	f.Run, err = f.readRun()
	return f, err
}

// beside reports whether an entry lies in a folder of a run and is no checkpoint: the numbers of its updates, the adapter before
// the first one, which is untrained and right so, the basis that it is kept from, and checkpoints that were put aside.
func (f *Folder) beside(name string) bool {
	if !f.seen["effective_config.yaml"] && !f.seen["latest"] {
		return false
	}
	first, _, inside := strings.Cut(name, "/")
	switch {
	case !inside:
		return first == "basis.safetensors"
	case first == "dump", first == "rollouts", first == "lora_init":
		return true
	}
	return strings.Contains(first, ".aside-")
}

// refuse keeps an error about a file's content; others end the reading.
func (f *Folder) refuse(err error) error {
	if err == nil || !format.IsMalformed(err) {
		return err
	}
	f.Refused = append(f.Refused, err)
	return nil
}

// shown is the name of an entry for messages.
func (f *Folder) shown(name string) string { return path.Join(f.Tree.Path(), name) }

// text reads a whole small file.
func (f *Folder) text(name string, limit int64) ([]byte, error) {
	blob, err := f.Tree.Open(name)
	if err != nil {
		return nil, err
	}
	defer blob.Close()
	if blob.Len() > limit {
		return nil, format.Malformed(f.shown(name), "", "has %d bytes, want at most %d", blob.Len(), limit)
	}
	b := make([]byte, blob.Len())
	if n, err := blob.ReadAt(b, 0); n < len(b) {
		if err == nil || err == io.EOF {
			err = io.ErrUnexpectedEOF
		}
		return nil, fmt.Errorf("%s: reading at byte %d: %w", f.shown(name), n, err)
	}
	return b, nil
}

// object reads a configuration; nil if it is not there or malformed.
func (f *Folder) object(u *Unit, base string) (*format.Object, error) {
	if _, ok := u.Entries[base]; !ok {
		return nil, nil
	}
	name := path.Join(u.Dir, base)
	text, err := f.text(name, format.MaxConfig)
	if err == nil {
		var o *format.Object
		if o, err = format.ParseObject(f.shown(name), text); err == nil {
			return o, nil
		}
	}
	return nil, f.refuse(err)
}

// load reads the files of one directory and says whether it is a unit.
func (f *Folder) load(u *Unit) (interesting bool, err error) {
	if err := f.configs(u); err != nil {
		return false, err
	}
	for _, base := range slices.SortedFunc(maps.Keys(u.Entries), compareNatural) {
		switch {
		case strings.HasSuffix(base, ".safetensors"):
			if err := f.refuse(f.container(u, base)); err != nil {
				return false, err
			}
			interesting = true
		case isPickle(base) || base == dcpMetadata && u.distributed():
			p, err := f.pickle(u, base)
			if err != nil {
				return false, err
			}
			u.Pickles = append(u.Pickles, p)
			interesting = true
		}
	}
	if err := f.index(u); err != nil {
		return false, err
	}
	u.others()
	if err := f.refuse(f.agree(u)); err != nil {
		return false, err
	}
	weights := len(u.tensors(weightsRole)) > 0
	switch {
	case u.has("adapter_config.json") || u.has("adapter_model.safetensors") || u.has("adapter_model.bin") || onlyLora(u):
		u.Kind = Adapter
		u.pairs, u.rest = pairs(u.tensors(weightsRole))
	case weights || u.Index != nil || u.weightPickle():
		u.Kind = Whole
	case u.has("config.json"):
		u.Kind = Config
	}
	if u.Lora != nil && !slices.Contains(peftTypes, u.Lora.Type) {
		f.Hostile = append(f.Hostile, format.Malformed(u.Lora.File, "peft_type", "%.64q is no method of PEFT", u.Lora.Type))
	}
	return interesting || u.Kind != State || u.State != nil || u.Manifest != nil, nil
}

// configs reads the small files.
func (f *Folder) configs(u *Unit) error {
	o, err := f.object(u, "adapter_config.json")
	if err != nil {
		return err
	}
	if o != nil {
		u.Lora, err = parseLora(o)
		if err != nil {
			u.Lora = nil
			if err := f.refuse(err); err != nil {
				return err
			}
		}
	}
	if err := f.config(u); err != nil {
		return err
	}
	for _, base := range []string{"state.json", "trainer_state.json"} {
		if u.State == nil {
			if u.State, err = f.state(u, base); err != nil {
				return err
			}
		}
	}
	if err := f.manifest(u); err != nil {
		return err
	}
	return f.tokenizer(u)
}

// maxLayers is far above every model, and small enough for a list of their tensors.
const maxLayers = 4096

// config reads a config.json.
func (f *Folder) config(u *Unit) error {
	if !u.has("config.json") {
		return nil
	}
	name := path.Join(u.Dir, "config.json")
	text, err := f.text(name, format.MaxConfig)
	if err == nil {
		u.Config, err = hf.ParseConfig(f.shown(name), text)
	}
	if err == nil {
		if u.Config.Layers > maxLayers { // lists are made of them
			return f.refuse(format.Malformed(f.shown(name), "num_hidden_layers", "is %d, want at most %d", u.Config.Layers, maxLayers))
		}
		if u.Config.Validate() == nil {
			u.Model = &arch.Model{Name: u.Config.File, Config: u.Config.Config}
		}
	}
	return f.refuse(err)
}

// container reads the header of a .safetensors file.
func (f *Folder) container(u *Unit, base string) error {
	name := path.Join(u.Dir, base)
	r := &reader{tree: f.Tree, name: name, pool: f.pool}
	st, err := safetensors.ParseAt(r, u.Entries[base].Size, f.shown(name))
	if err != nil {
		return err
	}
	c := &Container{Name: name, Role: roleOf(base), Size: st.Size, Header: 8 + st.Header, Metadata: st.Metadata}
	for n, a := range st.Tensors() {
		t := &Tensor{Name: n, File: name, Role: c.Role, Array: a}
		if c.Role == weightsRole && headKey(n) && base != "adapter_model.safetensors" {
			t.Role = headRole
		}
		c.Tensors = append(c.Tensors, t)
	}
	u.Containers = append(u.Containers, c)
	return nil
}

// roleOf says what a file of that name is for.
func roleOf(base string) role {
	switch base = strings.ToLower(base); {
	case strings.Contains(base, "optim"):
		return optimizerRole
	case strings.HasPrefix(base, "value_head") || strings.HasPrefix(base, "v_head"):
		return headRole
	}
	return weightsRole
}

// headKey reports whether a tensor belongs to a value head on top of a language model: v_head of TRL, value_head of
// system C and OpenRLHF.
func headKey(name string) bool {
	for part := range strings.SplitSeq(name, ".") {
		if part == "v_head" || part == "value_head" {
			return true
		}
	}
	return false
}

// onlyLora reports whether a directory without an adapter's files holds an adapter all the same.
func onlyLora(u *Unit) bool {
	list := u.tensors(weightsRole)
	for _, t := range list {
		if _, _, kind, _ := loraKey(t.Name); kind == partNone {
			return false
		}
	}
	return len(list) > 0
}

// of returns the units of that kind.
func (f *Folder) of(k Kind) []*Unit {
	var list []*Unit
	for _, u := range f.Units {
		if u.Kind == k {
			list = append(list, u)
		}
	}
	return list
}

// missing reports whether err says that a file is not there.
func missing(err error) bool { return errors.Is(err, fs.ErrNotExist) }
