package format

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
	"unicode/utf16"
	"unicode/utf8"
)

// fewKeys is the number of keys up to which a new key of an object is compared with all before it; the keys of a larger
// object are sorted when it ends.
const fewKeys = 16

// scanString moves past the string at pos. It returns the text between the quotes and its length after unescaping, which
// differ if and only if there are escapes.
func (s *Scanner) scanString() (raw string, size int, err error) {
	start := s.pos + 1
	for i := start; i < len(s.text); {
		switch c := s.text[i]; {
		case c == '"':
			s.pos = i + 1
			return s.text[start:i], size, nil
		case c == '\\':
			r, n, bad := escape(s.text[i:])
			if bad != "" {
				return "", 0, s.fail(i, "%s", bad)
			}
			i, size = i+n, size+utf8.RuneLen(r)
		case c < ' ':
			return "", 0, s.fail(i, "control character 0x%02x in a string", c)
		case c < utf8.RuneSelf:
			i, size = i+1, size+1
		default:
			r, n := utf8.DecodeRuneInString(s.text[i:])
			if r == utf8.RuneError && n == 1 {
				return "", 0, s.fail(i, "invalid UTF-8: byte 0x%02x", c)
			}
			i, size = i+n, size+n
		}
	}
	return "", 0, s.fail(start-1, "string without an end")
}

// unescape returns the string with the given text between its quotes and length.
func unescape(raw string, size int) string {
	if len(raw) == size {
		return raw
	}
	var b strings.Builder
	b.Grow(size)
	for raw != "" {
		n := strings.IndexByte(raw, '\\')
		if n < 0 {
			n = len(raw)
		}
		b.WriteString(raw[:n])
		if raw = raw[n:]; raw != "" {
			r, n, _ := escape(raw)
			b.WriteRune(r)
			raw = raw[n:]
		}
	}
	return b.String()
}

// escape decodes the escape sequence at the start of t and returns the bytes that it takes, or says what is wrong.
func escape(t string) (r rune, n int, bad string) {
	if len(t) < 2 {
		return 0, 0, "escape without an end"
	}
	if t[1] != 'u' {
		if i := strings.IndexByte(`"\/bfnrt`, t[1]); i >= 0 {
			return rune("\"\\/\b\f\n\r\t"[i]), 2, ""
		}
		return 0, 0, "unknown escape in a string"
	}
	r, ok := hex4(t[2:])
	if !ok {
		return 0, 0, `\u without four hexadecimal digits`
	}
	if !utf16.IsSurrogate(r) {
		return r, 6, ""
	}
	if rest := t[6:]; strings.HasPrefix(rest, `\u`) {
		if low, ok := hex4(rest[2:]); ok {
			if r = utf16.DecodeRune(r, low); r != utf8.RuneError {
				return r, 12, ""
			}
		}
	}
	return 0, 0, "lone surrogate in a string"
}

func hex4(t string) (r rune, ok bool) {
	if len(t) < 4 {
		return 0, false
	}
	for _, c := range []byte(t[:4]) {
		switch {
		case '0' <= c && c <= '9':
			c -= '0'
		case 'a' <= c|0x20 && c|0x20 <= 'f':
			c = c | 0x20 - 'a' + 10
		default:
			return 0, false
		}
		r = r<<4 | rune(c)
	}
	return r, true
}

// key reads a key and the colon after it. The keys of the object are s.keys[first:].
func (s *Scanner) key(first int) (string, error) {
	if s.Kind() != KindString {
		return "", s.fail(s.pos, "found %s, want a key in quotes", s.found())
	}
	at := s.pos
	raw, size, err := s.scanString()
	if err != nil {
		return "", err
	}
	if err := s.addKey(first, at); err != nil {
		return "", err
	}
	if s.space(); s.pos == len(s.text) || s.text[s.pos] != ':' {
		return "", s.fail(s.pos, "found %s, want ':' after the key", s.found())
	}
	s.pos++
	return unescape(raw, size), nil
}

// addKey records the key that starts at offset at, for the object whose keys are s.keys[first:].
func (s *Scanner) addKey(first, at int) error {
	if keys := s.keys[first:]; len(keys) < fewKeys {
		for _, k := range keys {
			if s.compareKeys(k, uint32(at)) == 0 {
				return s.duplicateKey(at)
			}
		}
	}
	if len(s.keys) == cap(s.keys) {
		s.keys = slices.Grow(s.keys, max(len(s.keys), 4*fewKeys)) // doubled, to be bounded by four times the last size
	}
	s.keys = append(s.keys, uint32(at))
	return nil
}

// checkKeys looks for duplicates among s.keys[first:] if addKey has not done so.
func (s *Scanner) checkKeys(first int) error {
	keys := s.keys[first:]
	if len(keys) <= fewKeys {
		return nil
	}
	slices.SortFunc(keys, s.compareKeys)
	for i := 1; i < len(keys); i++ {
		if s.compareKeys(keys[i-1], keys[i]) == 0 {
			return s.duplicateKey(int(max(keys[i-1], keys[i])))
		}
	}
	return nil
}

func (s *Scanner) duplicateKey(at int) error {
	s.pos = at
	raw, size, _ := s.scanString()
	return s.fail(at, "duplicate key %s", strconv.Quote(shorten(unescape(raw, size))))
}

// compareKeys orders the keys that start at a and b, both already scanned, by their code points after unescaping.
func (s *Scanner) compareKeys(a, b uint32) int {
	t, u := s.text[a+1:], s.text[b+1:]
	for {
		i := 0
		for t[i] == u[i] && t[i] != '"' && t[i] != '\\' {
			i++
		}
		// Equal bytes up to here, so both stand at the start of a character or both inside one, where no escape can be.
		t, u = t[i:], u[i:]
		switch {
		case t[0] == '"' && u[0] == '"':
			return 0
		case t[0] == '"':
			return -1
		case u[0] == '"':
			return 1
		case t[0] != '\\' && u[0] != '\\':
			return int(t[0]) - int(u[0]) // UTF-8 sorts like its code points
		}
		r, n := character(t)
		q, m := character(u)
		if r != q {
			return int(r) - int(q)
		}
		t, u = t[n:], u[m:]
	}
}

// character decodes the character, escaped or not, at the start of t.
func character(t string) (rune, int) {
	if t[0] == '\\' {
		r, n, _ := escape(t)
		return r, n
	}
	return utf8.DecodeRuneInString(t)
}

// found says what stands at pos.
func (s *Scanner) found() string {
	t := s.text[s.pos:]
	switch {
	case t == "":
		return "the end of the data"
	case strings.HasPrefix(t, "\ufeff"):
		return "a byte order mark"
	case strings.HasPrefix(t, "NaN"), strings.HasPrefix(t, "Infinity"):
		return "NaN or Infinity, which is not JSON"
	}
	switch k := s.Kind(); {
	case k == KindBool && !strings.HasPrefix(t, "true") && !strings.HasPrefix(t, "false"):
	case k == KindNull && !strings.HasPrefix(t, "null"):
	case k != KindInvalid:
		return k.String()
	}
	if r, n := utf8.DecodeRuneInString(t); r != utf8.RuneError || n > 1 {
		return strconv.QuoteRune(r)
	}
	return fmt.Sprintf("byte 0x%02x", t[0])
}

// shorten cuts text for a message.
func shorten(t string) string {
	const most = 64
	if len(t) <= most {
		return t
	}
	cut := most
	for !utf8.RuneStart(t[cut]) {
		cut--
	}
	return t[:cut] + "…"
}
