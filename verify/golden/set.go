// Package golden judges the reference by what released frameworks returned for the same inputs.
//
// A golden set is a folder of sections. A section is a JSON file that lists calls of functions, with options, inputs and
// outputs, and a safetensors file that holds their tensors. Two sections have another layout: models, a folder for each with
// golden.json beside the model and its adapter, and texts with the ids of a tokenizer. Every entry is recomputed with the
// packages below reference under the options of its function and compared element by element: to 1e-12 relative, and further
// only by what a named float32 leak of the framework allows ([Leaks]) or the check's documentation says. What the reference
// does not know is UNDETERMINED.
package golden

import (
	"context"
	"fmt"
	"maps"
	"path"
	"path/filepath"
	"slices"
	"strings"

	"plumbline/internal/format"
	"plumbline/verify/check"
	"plumbline/verify/convention"
)

// Set is a golden set in memory.
type Set struct {
	Dir      string              // as the user wrote it; "" for the set that is part of the program
	Manifest *Manifest           // nil if the folder has none
	Files    []File              // every file of the folder, by name
	Sections map[string]*Section // by name
	Others   []Other             // JSON files that are no goldens of a known layout

	Pattern string          // judges only entries that it selects, see [Entry.Matches]; "" takes all
	Context context.Context // ends the work between two entries and between two files; nil means never

	bad   []error                           // of the entries that could not be judged, in order
	sum   func(name string) (string, error) // sha256 of a file
	close func() error
}

// Malformed returns what is wrong with the first of the entries that could not be judged, once the checks have run; nil if all
// could.
func (s *Set) Malformed() error {
	switch n := len(s.bad); {
	case n == 0:
		return nil
	case n == 1:
		return s.bad[0]
	default:
		return fmt.Errorf("%w (and %d more malformed entries)", s.bad[0], n-1)
	}
}

// File is one file of a set.
type File struct {
	Name   string // with slashes, from the folder
	Size   int64
	SHA256 string // of a file that was read; "" of the others, whose digest the manifest check computes
	Odd    string // what it is if it is not a regular file inside the folder
}

// Manifest is the list of files that their producer left.
type Manifest struct {
	Name   string            // MANIFEST.json or manifest.json
	Files  []string          // the files that it was read from: one, or one in each of several folders
	SHA256 map[string]string // by name
}

// add adds the manifest of the files of a folder.
func (m *Manifest) add(folder string, other *Manifest) {
	files := other.Files
	if files == nil {
		files = []string{other.Name}
	}
	for _, f := range files {
		m.Files = append(m.Files, path.Join(folder, f))
	}
	for name, sum := range other.SHA256 {
		m.SHA256[path.Join(folder, name)] = sum
	}
}

// Section is the entries of one section.
type Section struct {
	Name    string
	File    string // name of the JSON file
	Entries []*Entry
}

// Other is a JSON file that is no section.
type Other struct {
	Name string // file
	What string // what it says of itself: producer and number of entries
}

// Entry is one call of a function of a framework.
type Entry struct {
	ID, Case, Peer, Version, Function string

	File    string         // where it stands, for messages
	Options map[string]any // as JSON has them: nil, bool, float64, string, []any, map[string]any
	In, Out map[string]*Value

	bad       error          // why it cannot be judged
	model     *modelFolder   // that a golden of a model is of
	tokenizer *tokenizerFile // that the ids of a text are of

	bend func(*convention.Set) *convention.Set // of tests: what the tables would say if a line were wrong
}

// Value is an input or an output of an entry: a tensor, a scalar, a list, or an exception.
type Value struct {
	Tensor   string       // name in the safetensors file, "" for what is not a tensor
	DType    format.DType // of the stored tensor
	Declared string       // element type of an output as its producer named it
	Shape    []int        // nil for what is not a tensor
	Data     []float64    // of a tensor, row-major; of a number, one; of a list of numbers, its items
	Raw      any          // of what is not a tensor, as JSON has it
	Raises   string       // type of the exception, "" if there was none
	Message  string       // of the exception
}

// Name returns the entry as a finding names it.
func (e *Entry) Name() string {
	return fmt.Sprintf("%s  %s@%s %s, case %s", short(e.ID), short(e.Peer), short(e.Version), short(e.Function), short(e.Case))
}

// Matches reports whether pattern is the entry's id, case, function or peer, or a glob of one of them in which * does not
// cross a slash.
func (e *Entry) Matches(pattern string) bool {
	for _, s := range []string{e.ID, e.Case, e.Function, e.Peer} {
		if ok, err := path.Match(pattern, s); s == pattern || err == nil && ok {
			return true
		}
	}
	return pattern == ""
}

// selected returns the entries of section name that the pattern takes.
func (s *Set) selected(name string) []*Entry {
	section := s.Sections[name]
	if section == nil {
		return nil
	}
	var entries []*Entry
	for _, e := range section.Entries {
		if e.Matches(s.Pattern) {
			entries = append(entries, e)
		}
	}
	return entries
}

// Selected returns how many entries the pattern takes.
func (s *Set) Selected() int {
	n := 0
	for name := range s.Sections {
		n += len(s.selected(name))
	}
	return n
}

// names returns the names of the sections in order.
func (s *Set) names() []string { return slices.Sorted(maps.Keys(s.Sections)) }

// stopped returns the error of a context that has ended.
func (s *Set) stopped() error {
	if s.Context == nil {
		return nil
	}
	return s.Context.Err()
}

// repeat returns the flags that judge one entry again.
func (s *Set) repeat(id string, e *Entry) string {
	return "--select " + id + " --entry " + format.ShellQuote(e.ID)
}

// repeatAll returns the flags that run one check again.
func (s *Set) repeatAll(id string) string {
	if s.Pattern != "" {
		return "--select " + id + " --entry " + format.ShellQuote(s.Pattern)
	}
	return "--select " + id
}

// short cuts a text from a file to what fits on a line.
func short(s string) string {
	if r := []rune(s); len(r) > 80 {
		return string(r[:79]) + "…"
	}
	return s
}

// Suite is the checks of verify golden, in the order of the report.
var Suite = check.Suite[*Set]{
	ManifestCheck,
	GAE, MaskedStats, GroupAdvantages, KL, PolicyLoss, ValueLoss, LogProbEntropy, AdamW,
	Int8, Int8Layers, LoRALinear, Models, Tokenizer,
	UnknownCheck,
}

// Paths returns the paths of the files of a folder.
func (s *Set) Paths() []string {
	paths := make([]string, len(s.Files))
	for i, f := range s.Files {
		paths[i] = filepath.Join(s.Dir, filepath.FromSlash(f.Name))
	}
	return paths
}

// IDs returns the ids of all entries.
func (s *Set) IDs() []string {
	var ids []string
	for _, name := range s.names() {
		for _, e := range s.Sections[name].Entries {
			ids = append(ids, e.ID)
		}
	}
	return ids
}

// What says what a file holds.
func (s *Set) What(file string) string {
	switch folder, base := path.Base(path.Dir(file)), path.Base(file); {
	case base == "golden.json" || folder == "base" || folder == "adapter":
		return "of a model"
	case folder == textSection && base == "tokenizer.json" || strings.HasSuffix(base, ".json.gz"):
		return "a tokenizer"
	}
	for _, section := range s.Sections {
		if section.File == file {
			return count(len(section.Entries))
		}
	}
	switch {
	case s.Manifest != nil && slices.Contains(s.Manifest.Files, file):
		return "sha256 of the files"
	case strings.HasSuffix(file, ".json"):
		return "another layout"
	}
	return "tensors"
}
