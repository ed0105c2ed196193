package npy

import (
	"strings"

	"plumbline/internal/format"
)

// maxDepth bounds the nesting of lists and tuples. NumPy writes 2 levels for a structured type and more only for types
// nested in it.
const maxDepth = 64

type kind uint8

const (
	str   kind = iota // a quoted string
	word              // an unquoted run of letters, digits, signs and points: a number, True, False
	tuple             // (), (x,), (x, y)
	list              // [], [x]
)

// literal is a value of the part of Python's literal grammar that a header is written in.
type literal struct {
	kind  kind
	text  string    // the content of a str without its quotes, escapes as they stand; the characters of a word
	n     int       // items of a tuple or list
	items []literal // the first maxItems of a tuple; a header can have thousands in a list that is refused as a whole
	pos   int       // of its first byte in the header
}

// maxItems is one more than a shape may have.
const maxItems = format.MaxRank + 1

// parser reads the header of a .npy file. Its grammar:
//
//	header = "{" [ pair { "," pair } [ "," ] ] "}"
//	pair   = str ":" value
//	value  = str | word | tuple | list
//	str    = "'" … "'" | '"' … '"'
//	tuple  = "(" ")" | "(" value "," [ value { "," value } [ "," ] ] ")"
//	list   = "[" [ value { "," value } [ "," ] ] "]"
//
// with white space anywhere between tokens. Nothing is evaluated.
type parser struct {
	text    []byte
	pos     int
	name    string // of the file
	base    int64  // offset of text in the file
	suffixL bool   // integers may carry the L of Python 2
	sawL    bool
}

func (p *parser) fail(pos int, msg string, args ...any) error {
	return format.Malformed(p.name, format.Offset(p.base+int64(pos)), msg, args...)
}

// next skips white space and returns the byte at pos, or 0 at the end. A NUL in the header is no token either way.
func (p *parser) next() byte {
	for p.pos < len(p.text) && strings.IndexByte(" \t\n\r\f", p.text[p.pos]) >= 0 {
		p.pos++
	}
	if p.pos == len(p.text) {
		return 0
	}
	return p.text[p.pos]
}

// skip consumes c if it is the next token.
func (p *parser) skip(c byte) bool {
	if p.next() != c {
		return false
	}
	p.pos++
	return true
}

// unexpected says what stands at pos in place of want.
func (p *parser) unexpected(want string) error {
	if c := p.next(); p.pos < len(p.text) {
		return p.fail(p.pos, "header: found %q, want %s", c, want)
	}
	return p.fail(p.pos, "header ends, want %s", want)
}

// dict parses the whole header and calls pair for each key, which is a str, and its value.
func (p *parser) dict(pair func(key, value literal) error) error {
	if p.next(); !p.skip('{') {
		return p.fail(p.pos, "header is not a Python dict: %.40q", p.text[p.pos:])
	}
	for !p.skip('}') {
		key, err := p.value(0)
		if err != nil {
			return err
		}
		if key.kind != str {
			return p.fail(key.pos, "header: a key is %s, want a string", key)
		}
		if !p.skip(':') {
			return p.unexpected(`":"`)
		}
		value, err := p.value(0)
		if err != nil {
			return err
		}
		if err := pair(key, value); err != nil {
			return err
		}
		if !p.skip(',') && p.next() != '}' {
			return p.unexpected(`"," or "}"`)
		}
	}
	if p.next(); p.pos < len(p.text) {
		return p.unexpected("nothing behind the dict")
	}
	return nil
}

func (p *parser) value(depth int) (literal, error) {
	c := p.next()
	l := literal{pos: p.pos}
	switch {
	case depth > maxDepth:
		return l, p.fail(p.pos, "header is nested deeper than %d", maxDepth)
	case c == '\'' || c == '"':
		return p.quoted(c)
	case c == '(':
		l.kind = tuple
		return p.sequence(l, ')', depth)
	case c == '[':
		l.kind = list
		return p.sequence(l, ']', depth)
	}
	for p.pos < len(p.text) && isWord(p.text[p.pos]) {
		p.pos++
	}
	if p.pos == l.pos {
		return l, p.unexpected("a string, number, tuple or list")
	}
	l.kind, l.text = word, string(p.text[l.pos:p.pos])
	if digits, ok := strings.CutSuffix(l.text, "L"); ok && p.suffixL && plainInteger(digits) {
		l.text, p.sawL = digits, true
	}
	return l, nil
}

func isWord(c byte) bool {
	return c >= '0' && c <= '9' || c >= 'a' && c <= 'z' || c >= 'A' && c <= 'Z' || strings.IndexByte("_.+-", c) >= 0
}

// quoted parses a string in the quotes q. A backslash keeps the character behind it from ending the string; escapes are
// not replaced, since no name that is looked for contains one.
func (p *parser) quoted(q byte) (literal, error) {
	l := literal{kind: str, pos: p.pos}
	for p.pos++; p.pos < len(p.text); p.pos++ {
		switch p.text[p.pos] {
		case q:
			l.text = string(p.text[l.pos+1 : p.pos])
			p.pos++
			return l, nil
		case '\n':
			return l, p.fail(l.pos, "header: a string is not closed on its line")
		case '\\':
			p.pos++
		}
	}
	return l, p.fail(l.pos, "header: a string is not closed")
}

// sequence parses the items of l, a tuple or list, up to the bracket end.
func (p *parser) sequence(l literal, end byte, depth int) (literal, error) {
	p.pos++
	comma := true
	for !p.skip(end) {
		if !comma {
			return l, p.unexpected(`"," or "` + string(end) + `"`)
		}
		item, err := p.value(depth + 1)
		if err != nil {
			return l, err
		}
		if l.n++; l.kind == tuple && l.n <= maxItems {
			l.items = append(l.items, item)
		}
		comma = p.skip(',')
	}
	if l.kind == tuple && l.n == 1 && !comma {
		return l, p.fail(l.pos, "header: %s in parentheses, want a tuple (x,)", l.items[0])
	}
	return l, nil
}
