package checkpoint

import (
	"bytes"
	"crypto/sha256"
	"encoding/hex"
	"io"
	"path"
	"regexp"
	"slices"
	"strconv"
	"strings"

	"plumbline/internal/format"
)

// state reads the scalars of a state.json or a trainer_state.json, whose log may be long.
func (f *Folder) state(u *Unit, base string) (*format.Object, error) {
	if !u.has(base) {
		return nil, nil
	}
	name := path.Join(u.Dir, base)
	text, err := f.text(name, format.MaxIndex)
	if err == nil {
		var o *format.Object
		if o, err = parseScalars(f.shown(name), withoutNaN(text)); err == nil {
			return o, nil
		}
	}
	return nil, f.refuse(err)
}

// withoutNaN returns a JSON text with 0 for the words NaN, Infinity and -Infinity, which Python's json writes and no standard knows:
// transformers' Trainer has them in its log. Offsets stay, and nothing inside a string changes.
func withoutNaN(text []byte) []byte {
	out := slices.Clone(text)
	inside := false
	for i := 0; i < len(out); i++ {
		switch {
		case inside && out[i] == '\\':
			i++
		case out[i] == '"':
			inside = !inside
		case !inside:
			for _, word := range []string{"NaN", "-Infinity", "Infinity"} {
				if bytes.HasPrefix(out[i:], []byte(word)) {
					copy(out[i:], "0"+strings.Repeat(" ", len(word)-1))
					i += len(word) - 1
					break
				}
			}
		}
	}
	return out
}

// lastLogged is the member that parseScalars adds: the largest step of log_history.
const lastLogged = "log_history.step"

// parseScalars reads an object and leaves out the elements of its arrays; objects inside keep their keys alone.
func parseScalars(file string, text []byte) (*format.Object, error) {
	s := format.NewScanner(file, text, 0)
	members := map[string]any{}
	err := s.Document(func(key string) (err error) {
		switch s.Kind() {
		case format.KindString:
			members[key], err = s.String()
		case format.KindNumber:
			var n string
			n, err = s.Number()
			members[key] = format.Number(n)
		case format.KindBool:
			members[key], err = s.Bool()
		case format.KindArray:
			members[key] = []any{}
			if key != "log_history" {
				return s.Skip()
			}
			last := int64(-1)
			err = s.Array(func(int) error {
				if s.Kind() != format.KindObject {
					return s.Skip()
				}
				return s.Object(func(key string) error {
					if key != "step" || s.Kind() != format.KindNumber {
						return s.Skip()
					}
					n, err := s.Float()
					last = max(last, int64(min(max(n, -1), largest)))
					return err
				})
			})
			if last >= 0 {
				members[lastLogged] = format.Number(strconv.FormatInt(last, 10))
			}
		case format.KindObject:
			members[key] = map[string]any{}
			err = s.Skip()
		default:
			err = s.Skip()
		}
		return err
	})
	if err != nil {
		return nil, err
	}
	// Questions about the members need an object of format, which only its parser makes.
	o, err := format.ParseObject(file, []byte("{}"))
	if err == nil {
		o.Members = members
	}
	return o, err
}

// Manifest is a MANIFEST.json: what a save held when it was complete.
type Manifest struct {
	File        string
	Files       map[string]manifestFile
	Fingerprint string // base_fingerprint
	Trainer     string // "ppo", "grpo", …
	Step        int    // -1 if it is not there
	changed     bool   // it is not what was written: manifest_sha256 is not that of the rest
}

type manifestFile struct {
	size   int64
	sha256 string
}

func (f *Folder) manifest(u *Unit) error {
	if !u.has("MANIFEST.json") {
		return nil
	}
	name := path.Join(u.Dir, "MANIFEST.json")
	text, err := f.text(name, format.MaxIndex)
	if err == nil {
		u.Manifest, err = parseManifest(f.shown(name), text)
	}
	return f.refuse(err)
}

func parseManifest(file string, text []byte) (*Manifest, error) {
	m := &Manifest{File: file, Files: map[string]manifestFile{}, Step: -1}
	own, sum := false, ""
	s := format.NewScanner(file, text, 0)
	err := s.Document(func(key string) error {
		switch {
		case key == "files":
			return s.Object(func(name string) error {
				e := manifestFile{size: -1}
				err := s.Object(func(key string) (err error) {
					switch key {
					case "size":
						e.size, err = s.Int()
					case "sha256":
						e.sha256, err = s.String()
					default:
						err = s.Skip()
					}
					return err
				})
				m.Files[name] = e
				return err
			})
		case key == "config_sha256": // of a run of plumbline, whose manifests have a digest of themselves
			own = true
			return s.Skip()
		case key == "manifest_sha256" && s.Kind() == format.KindString:
			var err error
			sum, err = s.String()
			return err
		case key == "base_fingerprint" && s.Kind() == format.KindString:
			var err error
			m.Fingerprint, err = s.String()
			return err
		case key == "trainer" && s.Kind() == format.KindString:
			var err error
			m.Trainer, err = s.String()
			return err
		case key == "step" && s.Kind() == format.KindNumber:
			n, err := s.Int()
			m.Step = int(min(n, largest))
			return err
		}
		return s.Skip()
	})
	if err != nil {
		return nil, err
	}
	if i := bytes.LastIndex(text, []byte(sum)); sum != "" { // computed with the digest left empty
		d := sha256.New()
		d.Write(text[:i])
		d.Write(text[i+len(sum):])
		m.changed = hex.EncodeToString(d.Sum(nil)) != sum
	} else {
		m.changed = own
	}
	return m, nil
}

// sha256 returns the digest of a whole file.
func (f *Folder) sha256(name string) (string, error) {
	blob, err := f.Tree.Open(name)
	if err != nil {
		return "", err
	}
	defer blob.Close()
	h := sha256.New()
	if _, err := io.CopyBuffer(h, io.NewSectionReader(blob, 0, blob.Len()), make([]byte, 1<<20)); err != nil {
		return "", err
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// fingerprint is the digest of a base as hf.Folder.Fingerprint computes it: for each of its files of weights, in the
// order of the names, the size as eight little-endian bytes, the header and the first and the last MiB of the elements.
func (f *Folder) fingerprint(u *Unit) (string, error) {
	h := sha256.New()
	const part = 1 << 20
	for _, c := range u.Containers {
		if c.Role != weightsRole {
			continue
		}
		blob, err := f.Tree.Open(c.Name)
		if err != nil {
			return "", err
		}
		var size [8]byte
		for i := range size {
			size[i] = byte(c.Size >> (8 * i))
		}
		h.Write(size[:])
		for _, r := range []*io.SectionReader{
			io.NewSectionReader(blob, 8, c.Header-8),
			io.NewSectionReader(blob, c.Header, min(part, c.Size-c.Header)),
			io.NewSectionReader(blob, max(c.Header, c.Size-part), min(part, c.Size-c.Header)),
		} {
			if _, err := io.Copy(h, r); err != nil {
				blob.Close()
				return "", err
			}
		}
		if err := blob.Close(); err != nil {
			return "", err
		}
	}
	return hex.EncodeToString(h.Sum(nil)), nil
}

// Run is what a run folder says of itself.
type Run struct {
	Dir       string // inside the tree
	File      string // effective_config.yaml
	Every     int    // save_interval, 0 if unknown
	Keep      int    // checkpoints that are kept: 0 all, -1 if unknown
	Total     int    // steps, 0 if unknown
	Algorithm string // ppo, grpo, …; "" if unknown
	HasConfig bool
	Steps     []int // of step_N folders
	StepsAt   []*Unit
	Final     *Unit
	Latest    string // what the file latest names
}

// sealed reports whether a checkpoint of the run has a manifest.
func (r *Run) sealed() bool {
	return r.Final != nil && r.Final.Manifest != nil || slices.ContainsFunc(r.StepsAt, func(u *Unit) bool { return u.Manifest != nil })
}

var stepName = regexp.MustCompile(`^(?:global_)?step[_-]?(\d{1,9})$|^checkpoint-(\d{1,9})$|^global_step(\d{1,9})$`)

// stepOf returns the step in the last part of a directory's name.
func stepOf(dir string) (int, bool) {
	m := stepName.FindStringSubmatch(path.Base(dir))
	if m == nil {
		return 0, false
	}
	n, err := strconv.Atoi(m[1] + m[2] + m[3])
	return n, err == nil
}

// readRun reads what a run folder of ours or of system C says of itself; nil if the tree is none.
func (f *Folder) readRun() (*Run, error) {
	r := &Run{Dir: ".", Keep: -1}
	for _, u := range f.Units {
		if path.Dir(u.Dir) != "." {
			continue
		}
		if n, ok := stepOf(u.Dir); ok && strings.HasPrefix(path.Base(u.Dir), "step") {
			r.Steps, r.StepsAt = append(r.Steps, n), append(r.StepsAt, u)
		} else if u.Dir == "final" {
			r.Final = u
		}
	}
	r.HasConfig = f.seen["effective_config.yaml"]
	if len(r.Steps) == 0 && !r.HasConfig { // others call a folder final, too
		return nil, nil
	}
	if f.seen["latest"] {
		text, err := f.text("latest", 4096)
		if err = f.refuse(err); err != nil {
			return nil, err
		}
		r.Latest = strings.TrimSpace(string(text))
	}
	if !r.HasConfig {
		return r, nil
	}
	r.File = f.shown("effective_config.yaml")
	text, err := f.text("effective_config.yaml", format.MaxConfig)
	if err = f.refuse(err); err != nil {
		return nil, err
	}
	r.readConfig(string(text))
	return r, nil
}

var yamlScalar = regexp.MustCompile(`^\s*([A-Za-z_][A-Za-z0-9_.]*)\s*:\s*["']?([^"'#]*?)["']?\s*(?:#.*)?$`)

// readConfig takes the few scalars that decide what a run folder must hold, wherever in the document they stand; the
// rest of the YAML is not looked at.
func (r *Run) readConfig(text string) {
	for line := range strings.Lines(text) {
		m := yamlScalar.FindStringSubmatch(strings.TrimRight(line, "\r\n"))
		if m == nil {
			continue
		}
		key := m[1][strings.LastIndexByte(m[1], '.')+1:]
		n, err := strconv.Atoi(m[2])
		switch {
		case (key == "save_interval" || key == "save_steps") && err == nil && n > 0:
			r.Every = n
		case key == "keep" && err == nil && n >= 0:
			r.Keep = n
		case (key == "total_steps" || key == "total_ppo_steps" || key == "max_steps" || key == "num_steps") && err == nil && n > 0:
			r.Total = n
		case (key == "algorithm" || key == "trainer") && m[2] != "":
			r.Algorithm = strings.ToLower(m[2])
		}
	}
}
