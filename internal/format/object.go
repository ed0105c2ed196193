package format

import (
	"fmt"
	"io"
	"maps"
	"math"
	"slices"
	"strconv"
	"strings"
)

// Limits of the JSON documents that are read whole.
const (
	MaxConfig  = 1 << 20  // bytes of a configuration
	MaxIndex   = 64 << 20 // bytes of an index or a tokenizer
	maxMembers = 65_536   // values of a configuration, at every depth together
)

// ReadAll returns the bytes of f, of which there may be limit at most.
func (f *File) ReadAll(limit int64) ([]byte, error) {
	if f.Size > limit {
		return nil, Malformed(f.Path, "", "has %d bytes, want at most %d", f.Size, limit)
	}
	b := make([]byte, f.Size)
	if n, err := f.ReadAt(b, 0); n < len(b) {
		if err == nil || err == io.EOF {
			err = io.ErrUnexpectedEOF // the file was cut after it was opened
		}
		return nil, fmt.Errorf("%s: reading at byte %d: %w", f.Path, n, err)
	}
	return b, nil
}

// ReadFile returns the bytes of the regular file at path, as [Open] and [File.ReadAll] have them.
func ReadFile(path string, limit int64) ([]byte, error) {
	f, err := Open(path)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	return f.ReadAll(limit)
}

// Number is the text of a JSON number.
type Number string

// Object is a JSON object whose members are asked for by name and type: a configuration. A member that is absent or null
// takes the default of the question. The first member of another type or range is what Err returns; the questions after
// it answer with their defaults.
type Object struct {
	File    string // for messages
	Where   string // key of the object in its document, "" for the document itself
	Members map[string]any
	err     *error // shared with the objects inside
}

// ParseObject reads a document that is one object. Its values are nil, bool, Number, string, []any and map[string]any.
func ParseObject(file string, text []byte) (*Object, error) {
	if len(text) > MaxConfig {
		return nil, Malformed(file, "", "has %d bytes, want at most %d", len(text), MaxConfig)
	}
	s, left := NewScanner(file, text, 0), maxMembers
	members := map[string]any{}
	err := s.Document(func(key string) (err error) {
		members[key], err = value(s, &left)
		return err
	})
	if err != nil {
		return nil, err
	}
	return &Object{File: file, Members: members, err: new(error)}, nil
}

// value reads a value of any kind, one of left.
func value(s *Scanner, left *int) (any, error) {
	if *left--; *left < 0 {
		return nil, Malformed(s.file, Offset(s.base+int64(s.pos)), "more than %d values", maxMembers)
	}
	switch s.Kind() {
	case KindObject:
		m := map[string]any{}
		return m, s.Object(func(key string) (err error) {
			m[key], err = value(s, left)
			return err
		})
	case KindArray:
		a := []any{}
		err := s.Array(func(int) error {
			v, err := value(s, left)
			a = append(a, v)
			return err
		})
		return a, err
	case KindString:
		return s.String()
	case KindNumber:
		t, err := s.Number()
		return Number(t), err
	case KindBool:
		return s.Bool()
	}
	return nil, s.Skip() // null, or no value
}

// Err returns the first error of the questions.
func (o *Object) Err() error { return *o.err }

// Malformed makes an error about a member what Err returns, unless there is one.
func (o *Object) Malformed(key, msg string, args ...any) {
	if *o.err == nil {
		*o.err = Malformed(o.File, o.at(key), msg, args...)
	}
}

func (o *Object) at(key string) string {
	key = fmt.Sprintf("%.64s", key)
	if o.Where == "" {
		return key
	}
	return o.Where + "." + key
}

// Has reports whether key is there and not null, which is how Python writes None.
func (o *Object) Has(key string) bool { return o.Members[key] != nil }

// Bool returns the boolean called key.
func (o *Object) Bool(key string, absent bool) bool {
	v, ok := o.Members[key].(bool)
	if !ok {
		o.want(key, "a boolean")
		return absent
	}
	return v
}

// Text returns the string called key.
func (o *Object) Text(key, absent string) string {
	v, ok := o.Members[key].(string)
	if !ok {
		o.want(key, "a string")
		return absent
	}
	return v
}

// Texts returns the array of strings called key, nil if it is absent.
func (o *Object) Texts(key string) []string {
	a, ok := o.Members[key].([]any)
	if !ok {
		o.want(key, "an array of strings")
		return nil
	}
	texts := make([]string, len(a))
	for i, v := range a {
		if texts[i], ok = v.(string); !ok {
			o.Malformed(key, "element %d is %s, want a string", i, describe(v))
			return nil
		}
	}
	return texts
}

// Int returns the integer called key, which must lie in [least, most] unless it is absent.
func (o *Object) Int(key string, absent, least, most int) int {
	if n, ok := o.Members[key].(Number); ok {
		i, bad := n.int(least, most)
		if bad != "" {
			o.Malformed(key, "%s", bad)
			return absent
		}
		return i
	}
	o.want(key, "an integer")
	return absent
}

// Ints returns the integer or the array of integers called key, nil if it is absent. All must lie in [least, most].
func (o *Object) Ints(key string, least, most int) []int {
	a, ok := o.Members[key].([]any)
	if _, one := o.Members[key].(Number); one {
		a, ok = []any{o.Members[key]}, true
	}
	if !ok {
		o.want(key, "an integer or an array of integers")
		return nil
	}
	ints := make([]int, len(a))
	for i, v := range a {
		n, ok := v.(Number)
		if !ok {
			o.Malformed(key, "element %d is %s, want an integer", i, describe(v))
			return nil
		}
		var bad string
		if ints[i], bad = n.int(least, most); bad != "" {
			o.Malformed(key, "element %d %s", i, bad)
			return nil
		}
	}
	return ints
}

func (n Number) int(least, most int) (i int, bad string) {
	i, err := strconv.Atoi(string(n))
	switch {
	case strings.ContainsAny(string(n), ".eE") || n == "-0":
		return 0, fmt.Sprintf("is %.32s, want an integer", n)
	case err != nil || i < least || i > most:
		return 0, fmt.Sprintf("is %.32s, want an integer in [%d, %d]", n, least, most)
	}
	return i, ""
}

// Float returns the number called key, which must be finite and lie in [least, most] unless it is absent.
func (o *Object) Float(key string, absent, least, most float64) float64 {
	n, ok := o.Members[key].(Number)
	if !ok {
		o.want(key, "a number")
		return absent
	}
	v, err := strconv.ParseFloat(string(n), 64)
	if err != nil || math.IsInf(v, 0) || !(v >= least && v <= most) {
		o.Malformed(key, "is %.32s, want a number in [%g, %g]", string(n), least, most)
		return absent
	}
	return v
}

// Object returns the object called key, nil if it is absent.
func (o *Object) Object(key string) *Object {
	m, ok := o.Members[key].(map[string]any)
	if !ok {
		o.want(key, "an object")
		return nil
	}
	return &Object{o.File, o.at(key), m, o.err}
}

// Keys returns the names of the members in increasing order.
func (o *Object) Keys() []string {
	return slices.Sorted(maps.Keys(o.Members))
}

// want complains about a member that is there and not what was asked for.
func (o *Object) want(key, what string) {
	if v := o.Members[key]; v != nil {
		o.Malformed(key, "is %s, want %s", describe(v), what)
	}
}

// describe names the kind of a value of an Object, with scalars as they stand.
func describe(v any) string {
	switch v := v.(type) {
	case nil:
		return "null"
	case bool:
		return strconv.FormatBool(v)
	case Number:
		return fmt.Sprintf("%.32s", string(v))
	case string:
		return strconv.Quote(shorten(v))
	case []any:
		return "an array"
	}
	return "an object"
}
