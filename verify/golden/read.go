package golden

import (
	"errors"
	"fmt"
	"math"
	"slices"
	"strings"

	"plumbline/internal/format"
	"plumbline/internal/format/safetensors"
)

// sectionFile is a section's JSON file.
type sectionFile struct {
	Section, File           string
	Peer, Version, Function string // of a file that says them once for all entries
	Tokenizer               string // sha256 of the tokenizer, of a file of texts with their ids
	known                   bool
	count                   int
	entries                 []*Entry
	ids                     map[string]bool
}

// what says whose the entries of a file without a section are.
func (s *sectionFile) what() string {
	by := ""
	if s.Peer != "" {
		by = fmt.Sprintf(" of %s@%s %s", short(s.Peer), short(s.Version), short(s.Function))
	}
	return fmt.Sprintf("%d entries%s", s.count, by)
}

// readSection reads a section's JSON file, which messages call file. Of a section that is not known only the names of its
// entries are kept.
func readSection(file string, text []byte, known bool) (*sectionFile, error) {
	s := &sectionFile{known: known, ids: map[string]bool{}}
	j := format.NewScanner(file, text, 0)
	seen := false
	err := j.Document(func(key string) (err error) {
		switch key {
		case "section":
			s.Section, err = j.String()
		case "file":
			s.File, err = j.String()
		case "peer", "version", "function", "tokenizer_json_sha256":
			if j.Kind() != format.KindString {
				return j.Skip()
			}
			text, err := j.String()
			*map[string]*string{"peer": &s.Peer, "version": &s.Version, "function": &s.Function, "tokenizer_json_sha256": &s.Tokenizer}[key] = text
			return err
		case "entries":
			if !known && j.Kind() != format.KindArray {
				return j.Skip()
			}
			seen = true
			err = j.Array(func(int) error {
				s.count++
				if !known && j.Kind() != format.KindObject {
					return j.Skip()
				}
				if !known {
					return s.entry(j, file)
				}
				text, at, err := j.Raw()
				if err != nil {
					return err
				}
				return s.entry(format.NewScanner(file, []byte(text), at), file)
			})
		default:
			err = j.Skip()
		}
		return err
	})
	if err == nil && known && !seen {
		err = format.Malformed(file, "", "key entries is missing")
	}
	return s, err
}

// entry reads one entry.
func (s *sectionFile) entry(j *format.Scanner, file string) error {
	e := &Entry{File: file, Options: map[string]any{}, In: map[string]*Value{}, Out: map[string]*Value{}}
	texts := map[string]*string{"id": &e.ID, "case": &e.Case, "peer": &e.Peer, "version": &e.Version, "function": &e.Function}
	err := j.Object(func(key string) (err error) {
		switch {
		case texts[key] != nil && (s.known || j.Kind() == format.KindString):
			*texts[key], err = j.String()
		case !s.known:
			err = j.Skip()
		case key == "options":
			err = j.Object(func(name string) (err error) {
				e.Options[name], err = j.Value()
				return err
			})
		case key == "inputs":
			err = readValues(j, e.In)
		case key == "outputs":
			err = readValues(j, e.Out)
		default:
			err = j.Skip()
		}
		return err
	})
	switch {
	case err != nil:
		if at, ok := errors.AsType[*format.Error](err); ok && e.ID != "" && !strings.Contains(at.Where, "entry ") {
			at.Where = place(e) + ", " + at.Where
		}
		if !s.known {
			return err
		}
		e.bad = err
	case !s.known:
		s.entries = append(s.entries, e)
		return nil
	case e.ID == "" || e.Peer == "" || e.Function == "":
		e.bad = format.Malformed(file, fmt.Sprintf("entry %d", s.count-1), "id, peer and function must be there: they are %.64q, %.64q and %.64q", e.ID, e.Peer, e.Function)
	case s.ids[e.ID]:
		e.bad = format.Malformed(file, place(e), "is there twice")
	}
	s.ids[e.ID] = true
	s.entries = append(s.entries, e)
	return nil
}

// readValues reads {name: value, …} where a value is {"tensor": name}, {"value": x} or {"raises": type, "message": text},
// each with "dtype" and "shape" where the producer told them.
func readValues(j *format.Scanner, into map[string]*Value) error {
	return j.Object(func(name string) error {
		v := new(Value)
		kinds := 0
		err := j.Object(func(key string) (err error) {
			switch key {
			case "tensor":
				kinds++
				if v.Tensor, err = j.String(); err == nil && v.Tensor == "" {
					err = j.Malformed("%s: a tensor without a name", short(name))
				}
			case "value":
				kinds++
				if v.Raw, err = j.Value(); err == nil {
					v.Data = numbers(v.Raw)
				}
			case "raises":
				kinds++
				if v.Raises, err = j.String(); err == nil && v.Raises == "" {
					err = j.Malformed("%s: an exception without a type", short(name))
				}
			case "message":
				v.Message, err = j.String()
			case "dtype":
				v.Declared, err = j.String()
			case "shape":
				v.Shape, err = readShape(j)
			default:
				err = j.Skip()
			}
			return err
		})
		if err == nil && kinds != 1 {
			err = j.Malformed("%s: want one of tensor, value and raises", short(name))
		}
		into[name] = v
		return err
	})
}

// numbers returns the numbers of a JSON value: a number or boolean alone, non-finite ones as the strings nan, inf and
// -inf, or the items of a list of such. It is nil for everything else.
func numbers(raw any) []float64 {
	list, ok := raw.([]any)
	if !ok {
		list = []any{raw}
	}
	x := make([]float64, 0, len(list))
	for _, item := range list {
		v, ok := number(item)
		if !ok {
			return nil
		}
		x = append(x, v)
	}
	return x
}

// number returns one number.
func number(raw any) (float64, bool) {
	switch v := raw.(type) {
	case float64:
		return v, true
	case bool:
		if v {
			return 1, true
		}
		return 0, true
	case string:
		switch v {
		case "nan":
			return math.NaN(), true
		case "inf":
			return math.Inf(1), true
		case "-inf":
			return math.Inf(-1), true
		}
	}
	return 0, false
}

// tensorFile decodes the tensors of a section, each once.
type tensorFile struct {
	file *safetensors.File
	seen map[string]*Value
}

func parseTensors(r interface {
	ReadAt([]byte, int64) (int, error)
}, size int64, path string) (*tensorFile, error) {
	f, err := safetensors.ParseAt(r, size, path)
	if err != nil {
		return nil, err
	}
	return &tensorFile{f, map[string]*Value{}}, nil
}

// declarable are the names that producers give element types.
var declarable = map[string]format.DType{"bool": format.Bool, "int8": format.I8, "uint8": format.U8, "int16": format.I16, "int32": format.I32,
	"int64": format.I64, "float16": format.F16, "bfloat16": format.BF16, "float32": format.F32, "float64": format.F64}

// fill reads the tensor that v names and compares it with what the entry says of it.
func (t *tensorFile) fill(v *Value) error {
	at, ok := t.seen[v.Tensor]
	if !ok {
		array, ok := t.file.Tensor(v.Tensor)
		if !ok {
			return fmt.Errorf("no tensor %.64q in %s", v.Tensor, t.file.Path)
		}
		x, err := array.Float64s()
		if err != nil {
			return err
		}
		at = &Value{DType: array.DType, Shape: array.Shape, Data: x}
		t.seen[v.Tensor] = at
	}
	if v.Shape != nil && !slices.Equal(v.Shape, at.Shape) {
		return fmt.Errorf("tensor %.64q has shape %v, the entry says %v", v.Tensor, at.Shape, v.Shape)
	}
	if d, ok := declarable[v.Declared]; v.Declared != "" && (!ok || d != at.DType) {
		return fmt.Errorf("tensor %.64q holds %v, the entry says %.64q", v.Tensor, at.DType, v.Declared)
	}
	v.DType, v.Shape, v.Data = at.DType, at.Shape, at.Data
	return nil
}

// readManifest reads {name: sha256, …}, or an object that holds this under sha256.
func readManifest(file, base string, text []byte) (*Manifest, error) {
	m := &Manifest{Name: base, SHA256: map[string]string{}}
	j := format.NewScanner(file, text, 0)
	digest := func(name string) error {
		d, err := j.String()
		if err == nil && (len(d) != 64 || strings.Trim(d, "0123456789abcdef") != "") {
			err = j.Malformed("%.64q: %.80q is no sha256 in lower case", name, d)
		}
		m.SHA256[name] = d
		return err
	}
	err := j.Document(func(key string) error {
		switch {
		case key == "sha256" && j.Kind() == format.KindObject:
			return j.Object(digest)
		case base == "manifest.json":
			return j.Skip()
		}
		return digest(key)
	})
	return m, err
}
