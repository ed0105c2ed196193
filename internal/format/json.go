package format

import (
	"math"
	"strconv"
	"strings"
	"unsafe"
)

// MaxDepth is the largest nesting of JSON arrays and objects that is read.
const MaxDepth = 64

// Kind is what a JSON value is, told by its first byte.
type Kind uint8

// The kinds. KindInvalid says that no value starts here.
const (
	KindInvalid Kind = iota
	KindNull
	KindBool
	KindNumber
	KindString
	KindArray
	KindObject
)

// String returns k with its article, for messages.
func (k Kind) String() string {
	return [...]string{"no value", "null", "a boolean", "a number", "a string", "an array", "an object"}[k]
}

// Scanner reads one JSON document (RFC 8259), value by value, in the order of the text. Beyond the grammar it refuses
// invalid UTF-8, lone surrogates, a byte order mark, two equal keys in one object (equal after unescaping), nesting
// deeper than MaxDepth and anything but white space after the document (End). Skipped values are held to the same rules.
//
// Strings and keys without escapes are not copied. Beside the strings with escapes a document costs at most 16 bytes per
// key of its largest object and of those around it.
//
// Errors are *Error with the byte offset. After an error, the callbacks' included, every method returns that error.
type Scanner struct {
	file  string
	text  string
	base  int64
	pos   int
	depth int
	value int      // start of the value read last
	count int      // values read so far, to see that a callback read one
	keys  []uint32 // start of every key of the objects at hand, outermost first
	err   error
}

// NewScanner returns a Scanner of data, which lies at offset base of file. data must not change as long as the Scanner
// or a string that it returned is in use: they share its memory. It panics if data is 4 GiB or longer.
func NewScanner(file string, data []byte, base int64) *Scanner {
	if uint64(len(data)) > math.MaxUint32 {
		panic("format: NewScanner: data of 4 GiB or more")
	}
	return &Scanner{file: file, text: unsafe.String(unsafe.SliceData(data), len(data)), base: base}
}

// Kind returns the kind of the next value without reading it.
func (s *Scanner) Kind() Kind {
	s.space()
	if s.err != nil || s.pos == len(s.text) {
		return KindInvalid
	}
	switch c := s.text[s.pos]; {
	case c == '{':
		return KindObject
	case c == '[':
		return KindArray
	case c == '"':
		return KindString
	case c == '-' || '0' <= c && c <= '9':
		return KindNumber
	case c == 't' || c == 'f':
		return KindBool
	case c == 'n':
		return KindNull
	}
	return KindInvalid
}

// Malformed returns an *Error at the start of the string, number, boolean or null read last, and stops the Scanner.
func (s *Scanner) Malformed(msg string, args ...any) error { return s.fail(s.value, msg, args...) }

// Object reads an object and calls f for every key; f must read the value of the key, if only with Skip. An error of f
// ends the reading and is returned. A duplicate key is found when the object ends at the latest, so f may see it first.
func (s *Scanner) Object(f func(key string) error) error {
	if err := s.open(KindObject); err != nil {
		return err
	}
	first := len(s.keys)
	for i := 0; ; i++ {
		if more, err := s.next(i, '}'); err != nil {
			return err
		} else if !more {
			break
		}
		key, err := s.key(first)
		if err != nil {
			return err
		}
		before, err := s.before()
		if err != nil {
			return err
		}
		if err := s.after(f(key), before); err != nil {
			return err
		}
	}
	if err := s.checkKeys(first); err != nil {
		return err
	}
	s.keys = s.keys[:first]
	s.depth--
	return nil
}

// Document is Object for the object that is the whole document: nothing but white space may follow it.
func (s *Scanner) Document(f func(key string) error) error {
	if err := s.Object(f); err != nil {
		return err
	}
	return s.End()
}

// Array reads an array and calls f for every element, with its index; f must read the element, if only with Skip. An
// error of f ends the reading and is returned.
func (s *Scanner) Array(f func(i int) error) error {
	if err := s.open(KindArray); err != nil {
		return err
	}
	for i := 0; ; i++ {
		if more, err := s.next(i, ']'); err != nil {
			return err
		} else if !more {
			break
		}
		before, err := s.before()
		if err != nil {
			return err
		}
		if err := s.after(f(i), before); err != nil {
			return err
		}
	}
	s.depth--
	return nil
}

// String reads a string. If it has no escapes it shares the memory of the document.
func (s *Scanner) String() (string, error) {
	if err := s.want(KindString); err != nil {
		return "", err
	}
	raw, size, err := s.scanString()
	if err != nil {
		return "", err
	}
	return unescape(raw, size), nil
}

// Number reads a number and returns its text, of any length and range.
func (s *Scanner) Number() (string, error) {
	if err := s.want(KindNumber); err != nil {
		return "", err
	}
	t, i := s.text[s.pos:], 0
	digits := func() bool {
		j := i
		for i < len(t) && '0' <= t[i] && t[i] <= '9' {
			i++
		}
		return i > j
	}
	if t[0] == '-' {
		i++
	}
	zero := i
	if !digits() {
		if strings.HasPrefix(t[i:], "Inf") {
			return "", s.fail(s.pos, "-Infinity is not JSON")
		}
		return "", s.fail(s.pos, "number without digits after the sign")
	}
	if t[zero] == '0' && i > zero+1 {
		return "", s.fail(s.pos, "number with a leading zero")
	}
	if i < len(t) && t[i] == '.' {
		if i++; !digits() {
			return "", s.fail(s.pos, "number without digits after the point")
		}
	}
	if i < len(t) && (t[i] == 'e' || t[i] == 'E') {
		if i++; i < len(t) && (t[i] == '+' || t[i] == '-') {
			i++
		}
		if !digits() {
			return "", s.fail(s.pos, "number without digits in the exponent")
		}
	}
	s.pos += i
	return t[:i], nil
}

// Int reads an integer that fits an int64. A number with a point or an exponent is refused, whatever its value, and so
// is -0, which other readers take for a float.
func (s *Scanner) Int() (int64, error) { return integer(s, "an int64", strconv.ParseInt) }

// Uint reads an integer that fits a uint64, like Int.
func (s *Scanner) Uint() (uint64, error) { return integer(s, "a uint64", strconv.ParseUint) }

func integer[T int64 | uint64](s *Scanner, what string, parse func(t string, base, bits int) (T, error)) (T, error) {
	t, err := s.Number()
	if err != nil {
		return 0, err
	}
	if strings.ContainsAny(t, ".eE") || t == "-0" {
		return 0, s.Malformed("found %s, want an integer", shorten(t))
	}
	n, err := parse(t, 10, 64)
	if err != nil {
		return 0, s.Malformed("integer %s does not fit %s", shorten(t), what)
	}
	return n, nil
}

// Float reads a number as the nearest float64. One that is too large for a float64 is refused; see Number.
func (s *Scanner) Float() (float64, error) {
	t, err := s.Number()
	if err != nil {
		return 0, err
	}
	v, perr := strconv.ParseFloat(t, 64)
	if perr != nil {
		return 0, s.Malformed("number %s does not fit a float64", shorten(t))
	}
	return v, nil
}

// Bool reads true or false.
func (s *Scanner) Bool() (bool, error) {
	if err := s.want(KindBool); err != nil {
		return false, err
	}
	if s.text[s.pos] == 't' {
		return true, s.literal("true")
	}
	return false, s.literal("false")
}

// Null reads null.
func (s *Scanner) Null() error {
	if err := s.want(KindNull); err != nil {
		return err
	}
	return s.literal("null")
}

// Value reads a value of any kind: nil, bool, float64, string, []any or map[string]any.
func (s *Scanner) Value() (any, error) {
	switch s.Kind() {
	case KindNull:
		return nil, s.Null()
	case KindBool:
		return s.Bool()
	case KindNumber:
		return s.Float()
	case KindArray:
		list := []any{}
		err := s.Array(func(int) error {
			v, err := s.Value()
			list = append(list, v)
			return err
		})
		return list, err
	case KindObject:
		object := map[string]any{}
		err := s.Object(func(key string) error {
			v, err := s.Value()
			object[strings.Clone(key)] = v
			return err
		})
		return object, err
	}
	text, err := s.String()
	return strings.Clone(text), err
}

// Skip reads a value of any kind.
func (s *Scanner) Skip() (err error) {
	switch s.Kind() {
	case KindObject:
		return s.Object(func(string) error { return s.Skip() })
	case KindArray:
		return s.Array(func(int) error { return s.Skip() })
	case KindString:
		if err = s.want(KindString); err == nil {
			_, _, err = s.scanString()
		}
	case KindNumber:
		_, err = s.Number()
	case KindBool:
		_, err = s.Bool()
	case KindNull:
		err = s.Null()
	default:
		if err = s.err; err == nil {
			err = s.fail(s.pos, "found %s, want a value", s.found())
		}
	}
	return err
}

// Raw reads past a value and returns its text and the offset of its first byte in the file, so that another Scanner can read it: what
// is wrong with the value beyond its syntax is then no error of s.
func (s *Scanner) Raw() (text string, at int64, err error) {
	s.space()
	from := s.pos
	err = s.Skip()
	return s.text[from:s.pos], s.base + int64(from), err
}

// End demands that nothing but white space is left.
func (s *Scanner) End() error {
	if s.space(); s.err == nil && s.pos < len(s.text) {
		return s.fail(s.pos, "found %s after the end of the JSON document", s.found())
	}
	return s.err
}

func (s *Scanner) fail(at int, msg string, args ...any) error {
	s.err = Malformed(s.file, Offset(s.base+int64(at)), msg, args...)
	return s.err
}

func (s *Scanner) space() {
	for s.pos < len(s.text) {
		switch s.text[s.pos] {
		case ' ', '\t', '\n', '\r':
			s.pos++
		default:
			return
		}
	}
}

// want moves to the next value, which must be of kind k.
func (s *Scanner) want(k Kind) error {
	if s.err != nil {
		return s.err
	}
	if s.Kind() != k {
		return s.fail(s.pos, "found %s, want %s", s.found(), k)
	}
	s.value = s.pos
	s.count++
	return nil
}

// open moves into the next value, an array or object.
func (s *Scanner) open(k Kind) error {
	if err := s.want(k); err != nil {
		return err
	}
	if s.depth++; s.depth > MaxDepth {
		return s.fail(s.pos, "nested deeper than %d", MaxDepth)
	}
	s.pos++
	return nil
}

// next moves to member i of an array or object, or past the bracket that ends it.
func (s *Scanner) next(i int, end byte) (more bool, err error) {
	s.space()
	switch {
	case s.pos < len(s.text) && s.text[s.pos] == end:
		s.pos++
		return false, nil
	case i == 0:
		return true, nil
	case s.pos < len(s.text) && s.text[s.pos] == ',':
		s.pos++
		return true, nil
	}
	return false, s.fail(s.pos, "found %s, want ',' or '%c'", s.found(), end)
}

// before moves to the value that a callback is to read and returns the number of values read before it.
func (s *Scanner) before() (int, error) {
	if s.Kind() == KindInvalid {
		return 0, s.fail(s.pos, "found %s, want a value", s.found())
	}
	return s.count, nil
}

// after takes the error of a callback that was called when before values had been read.
func (s *Scanner) after(err error, before int) error {
	if s.err == nil {
		s.err = err
	}
	if s.err == nil && s.count == before {
		panic("format: Scanner: the callback read no value")
	}
	return s.err
}

func (s *Scanner) literal(word string) error {
	if !strings.HasPrefix(s.text[s.pos:], word) {
		return s.fail(s.pos, "found %s, want %s", s.found(), word)
	}
	s.pos += len(word)
	return nil
}
