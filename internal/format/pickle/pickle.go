// Package pickle says what a Python pickle would do, and executes none of it: it lists the opcodes, the names that would
// be imported, the names that would be called, the keys of dicts, and of a PyTorch checkpoint the tensors and storages.
//
// A pickle is a program for a stack machine, and loading it runs whatever functions it names. The machine here moves
// unknown objects about where the real one makes them, so it knows what is called and never calls. Protocols 0 to 5 are
// read as pickletools.py of Python 3.11 documents them; checkpoints as torch/serialization.py of torch 2.15.0 writes
// them, both the zip archive and the sequence of pickles that torch.save wrote before version 1.6.
//
// What is listed is what this program would do by the rules of Python's own unpickler. It is no proof of innocence:
// a name that is harmless by itself may not be so in another library's hands.
package pickle

import (
	"fmt"
	"io"
	"path"
	"slices"
	"strings"

	"plumbline/internal/format"
	"plumbline/internal/format/zip"
)

// maxEntries is the most members of a checkpoint's archive: one for each storage.
const maxEntries = 1_000_000

// maxPrograms is the most pickles of a file that are followed.
const maxPrograms = 1000

// Container is what the program lies in.
type Container string

// The containers.
const (
	Plain       Container = "pickle"
	TorchZip    Container = "torch zip archive"
	TorchLegacy Container = "torch file of the form before version 1.6"
)

// Summary is what a pickle does.
type Summary struct {
	Path      string
	Container Container
	Protocol  int       // the highest that is declared, 0 if none is
	Programs  int       // pickles one behind the other
	Opcodes   []Opcode  // that occur, by their code
	Globals   []Global  // names that are imported, in the order of the file
	Keys      []string  // distinct strings that are keys of dicts, in the order of the file, each at most 1024 bytes
	Tensors   []Tensor  // that the checkpoint holds, under the keys that lead to them
	Storages  []Storage // in the order of the file
	Numbers   []Number  // whole numbers of the checkpoint, the first few thousand
	Reals     []Real    // numbers with a fraction, the first few thousand
	Problems  []string  // why the tensors cannot be what they are declared to be
	Notes     []string  // what else a reader should know

	partial bool
}

// Opcode counts an opcode.
type Opcode struct {
	Name  string
	Count int
}

// Global is a name that loading would import, and how often it would be called.
type Global struct {
	Module, Name string // both empty: computed by the program, so that only running it would tell
	Opcode       string // by which it is named first
	Offset       int64  // of that opcode, in the file
	Count, Calls int    // how often it is named; how often REDUCE, NEWOBJ, INST or OBJ call it
}

// String returns the name as Python writes it.
func (g Global) String() string {
	if g.Module == "" && g.Name == "" {
		return "(a name that the program computes)"
	}
	return g.Module + "." + g.Name
}

// note adds a note once.
func (s *Summary) note(msg string, args ...any) {
	s.partial = true
	text := fmt.Sprintf(msg, args...)
	if slices.Contains(s.Notes, text) {
		return
	}
	if len(s.Notes) < 64 {
		s.Notes = append(s.Notes, text)
	}
}

// ScanAt lists the pickle in the first size bytes of r: a bare one, or data.pkl of a PyTorch archive; path is for messages. Content that
// is no pickle, or one that Python's unpickler would give up on, is a *format.Error.
//
// Memory is bounded by 16 MiB and five times the size of the file.
func ScanAt(r io.ReaderAt, size int64, path string) (*Summary, error) {
	var head [4]byte
	n, err := io.ReadFull(&format.Section{R: r, End: min(size, 4)}, head[:min(size, 4)])
	if err != nil && err != io.EOF {
		return nil, fmt.Errorf("%s: reading at byte %d: %w", path, n, err)
	}
	if n == 0 {
		return nil, format.Malformed(path, "", "is empty, want a pickle")
	}
	if string(head[:]) == "PK\x03\x04" {
		return scanZip(r, size, path)
	}
	m := newMachine(r, 0, size, path, size)
	if err := m.sequence(); err != nil {
		return nil, err
	}
	return m.out, nil
}

// newMachine makes a machine for the program between from and end of a file of size bytes.
func newMachine(r io.ReaderAt, from, end int64, path string, size int64) *machine {
	return &machine{
		stream: stream{r: r, path: path, start: from, pos: from, end: end, buf: make([]byte, 0, min(end-from, 256<<10)), at: from},
		out:    &Summary{Path: path, Container: Plain}, size: size,
		globals: map[[2]string]int{}, texts: map[string]interned{}, storages: map[string]int{}, filled: map[string]bool{}, budget: 1<<20 + size,
	}
}

// sequence runs the pickles of a file that is no archive.
func (m *machine) sequence() error {
	top, err := m.program()
	if err != nil {
		return err
	}
	m.out.Programs = 1
	if m.magic {
		return m.legacy()
	}
	m.walk(top)
	for m.pos < m.end && m.out.Programs < maxPrograms {
		from := m.pos
		if b, err := m.take(1); err != nil || b[0] != opProto {
			m.pos = from
			break
		}
		m.pos = from
		if top, err = m.program(); err != nil {
			if !format.IsMalformed(err) {
				return err
			}
			m.out.Notes = append(m.out.Notes, fmt.Sprintf("bytes from %d on begin like a pickle and are none: %v", from, err))
			m.pos = from
			break
		}
		m.out.Programs++
		m.walk(top)
	}
	switch {
	case m.pos < m.end && m.out.Programs == maxPrograms:
		m.out.note("%d bytes behind the first %d pickles are not followed", m.end-m.pos, maxPrograms)
	case m.pos < m.end:
		m.out.Notes = append(m.out.Notes, fmt.Sprintf("%d bytes behind the last pickle", m.end-m.pos))
	}
	m.finish()
	return nil
}

// legacy runs the pickles behind the magic number: protocol, system, the object, the keys of the storages; then follow
// the storages, each as the number of its elements in 8 bytes and the elements.
func (m *machine) legacy() error {
	m.out.Container = TorchLegacy
	for i := range 4 {
		top, err := m.program()
		if err != nil {
			return err
		}
		m.out.Programs++
		if i == 2 {
			m.walk(top)
		}
	}
	have, want := uint64(m.end-m.pos), uint64(0)
	for _, s := range m.out.Storages {
		if want += 8 + uint64(s.Bytes); want > have {
			break // before a sum of many wraps around
		}
	}
	if have != want {
		m.out.problem("%d bytes of storages, want %d or more for the %d that are declared", have, want, len(m.out.Storages))
	}
	m.finish()
	return nil
}

// scanZip reads an archive of torch.save. Checksums are not compared: torch can be told to write none.
func scanZip(r io.ReaderAt, size int64, file string) (*Summary, error) {
	entries, err := zip.Directory(r, size, file, maxEntries, func(full string) (string, error) {
		if len(full) > maxText {
			return "", fmt.Errorf("name of %d bytes, want at most %d", len(full), maxText)
		}
		return full, nil
	})
	if err != nil {
		return nil, format.Unread(file, err)
	}
	var program *zip.Entry
	for _, e := range entries {
		if path.Base(e.Name) != "data.pkl" {
			continue
		}
		if program != nil {
			return nil, format.Malformed(file, "", "two programs, %q and %q", program.Name, e.Name)
		}
		program = e
	}
	if program == nil {
		return nil, format.Malformed(file, "", "zip archive without data.pkl: no checkpoint of PyTorch")
	}
	shown := file + ":" + program.Name
	off, err := program.Data(r, shown)
	if err != nil {
		return nil, format.Unread(shown, err)
	}
	if program.Method != zip.Stored || program.Size != program.Packed {
		return nil, format.Malformed(shown, "", "is compressed (method %d, %d of %d bytes); torch stores it", program.Method, program.Packed, program.Size)
	}
	m := newMachine(r, off, off+program.Packed, shown, size)
	m.out.Container = TorchZip
	top, err := m.program()
	if err != nil {
		return nil, err
	}
	m.out.Programs = 1
	m.walk(top)
	if m.pos < m.end {
		m.out.Notes = append(m.out.Notes, fmt.Sprintf("%d bytes behind the pickle", m.end-m.pos))
	}
	if err := m.members(entries, strings.TrimSuffix(program.Name, "data.pkl")); err != nil {
		return nil, err
	}
	m.finish()
	m.out.Path = file
	return m.out, nil
}

// members compares the storages with the members of the archive. An error means that the file could not be read.
func (m *machine) members(entries []*zip.Entry, prefix string) error {
	big, script := false, false
	for i := range m.out.Storages {
		m.out.Storages[i].Stored = -1
	}
	unused := 0
	for _, e := range entries {
		if e.Name == prefix+"byteorder" {
			big = e.Size != int64(len("little"))
		}
		if name, _ := strings.CutPrefix(e.Name, prefix); !script && (name == "constants.pkl" || strings.HasPrefix(name, "code/")) {
			m.out.Notes = append(m.out.Notes, fmt.Sprintf("is TorchScript: %q holds code that is compiled when it is loaded", e.Name))
			script = true
		}
	}
	for _, e := range entries {
		key, ok := strings.CutPrefix(e.Name, prefix+"data/")
		if !ok {
			continue
		}
		i, ok := m.storages[key]
		if !ok {
			unused++
			continue
		}
		m.out.Storages[i].Stored = e.Size
		if e.Method != zip.Stored || e.Size != e.Packed {
			m.out.problem("storage %q is compressed (method %d, %d of %d bytes); torch stores it", key, e.Method, e.Packed, e.Size)
			continue
		}
		if big {
			continue
		}
		switch at, err := e.Data(m.r, m.path); {
		case err == nil:
			m.out.Storages[i].At = at
		case !format.IsMalformed(err):
			return format.Unread(m.path, err)
		default:
			m.out.problem("storage %q: %v", key, err)
		}
	}
	for _, s := range m.out.Storages {
		switch {
		case s.Stored < 0:
			m.out.problem("storage %q is not in the archive", s.Key)
		case s.Stored != s.Bytes:
			m.out.problem("storage %q has %d bytes, want %d for %d elements of %s", s.Key, s.Stored, s.Bytes, s.Elements, s.DType)
		}
	}
	if unused > 0 && !m.out.partial {
		m.out.Notes = append(m.out.Notes, fmt.Sprintf("%d members of the archive are storages of no tensor", unused))
	}
	return nil
}

// problem adds a problem, up to a hundred.
func (s *Summary) problem(msg string, args ...any) {
	if len(s.Problems) < 100 {
		s.Problems = append(s.Problems, fmt.Sprintf(msg, args...))
	}
}

// finish turns the counts into the list.
func (m *machine) finish() {
	for code, n := range m.counts {
		if n > 0 {
			m.out.Opcodes = append(m.out.Opcodes, Opcode{opcodes[code].name, n})
		}
	}
}
