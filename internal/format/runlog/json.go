package runlog

import (
	"bufio"
	"bytes"
	"errors"
	"io"
	"strconv"
	"unicode/utf8"

	"plumbline/internal/format"
)

// object reads a line that is an object of JSON: its numbers, those of objects inside it under "outer/inner". Arrays and texts are
// passed over. Names around all metrics, as verl has "data", are left out.
func (r *Reader) object(s []byte) error {
	p := parser{s: s, r: r}
	r.depth = 0
	if err := p.object(nil); err != nil {
		return err
	}
	if p.space(); p.i != len(s) {
		return errJSON
	}
	return nil
}

var errJSON = errors.New("no object of JSON")

// wrappers are names that hold all metrics of a line and are no part of theirs.
var wrappers = map[string]bool{"data": true, "metrics": true, "log": true, "logs": true, "history": true}

const maxDepth = 64

// parser walks JSON, with the numbers that JSON does not have, and dictionaries of Python.
type parser struct {
	s []byte
	i int
	r *Reader
}

func (p *parser) space() {
	for p.i < len(p.s) && (p.s[p.i] == ' ' || p.s[p.i] == '\t' || p.s[p.i] == '\n' || p.s[p.i] == '\r') {
		p.i++
	}
}

// text returns what stands between quotes, without resolving escapes where there are none.
func (p *parser) text() ([]byte, error) {
	quote := p.s[p.i]
	from := p.i + 1
	for i := from; ; {
		j := bytes.IndexByte(p.s[i:], quote)
		if j < 0 {
			return nil, errJSON
		}
		i += j
		n := 0
		for i-1-n >= from && p.s[i-1-n] == '\\' {
			n++
		}
		if n%2 == 1 {
			i++
			continue
		}
		p.i = i + 1
		raw := p.s[from:i]
		if bytes.IndexByte(raw, '\\') < 0 {
			return raw, nil
		}
		return unescaped(raw), nil
	}
}

func unescaped(raw []byte) []byte {
	if s, err := strconv.Unquote(`"` + string(bytes.ReplaceAll(bytes.ReplaceAll(raw, []byte(`\/`), []byte("/")), []byte(`"`), []byte(`\"`))) + `"`); err == nil {
		return []byte(s)
	}
	return raw
}

// object reads the object that begins here; path is the name of what holds it.
func (p *parser) object(path []byte) error {
	if p.r.depth++; p.r.depth > maxDepth {
		return errJSON
	}
	defer func() { p.r.depth-- }()
	p.i++
	for first := true; ; first = false {
		p.space()
		if p.i >= len(p.s) {
			return errJSON
		}
		if p.s[p.i] == '}' {
			p.i++
			return nil
		}
		if !first {
			if p.s[p.i] != ',' {
				return errJSON
			}
			p.i++
			p.space()
			if p.i < len(p.s) && p.s[p.i] == '}' { // Python allows it
				continue
			}
		}
		if p.i >= len(p.s) || p.s[p.i] != '"' && p.s[p.i] != '\'' {
			return errJSON
		}
		key, err := p.text()
		if err != nil {
			return err
		}
		p.space()
		if p.i >= len(p.s) || p.s[p.i] != ':' {
			return errJSON
		}
		p.i++
		p.space()
		if err := p.member(path, key); err != nil {
			return err
		}
	}
}

func (p *parser) member(path, key []byte) error {
	if p.i >= len(p.s) {
		return errJSON
	}
	switch p.s[p.i] {
	case '{':
		if wrappers[string(key)] {
			return p.object(path)
		}
		return p.object(joined(path, key))
	case '[':
		return p.skip()
	case '"', '\'':
		from := p.i
		text, err := p.text()
		if err != nil {
			return err
		}
		if len(path) == 0 && string(key) == "event" {
			p.r.row.Event = string(text)
			return nil
		}
		if len(text) <= 32 {
			_, err = p.r.token(joined(path, key), p.s[from:p.i])
		}
		return err
	}
	tok := p.scalar()
	ok, err := p.r.token(joined(path, key), tok)
	if err == nil && !ok {
		err = errJSON
	}
	return err
}

// scalar returns the token that begins here: it ends before a comma or a closing bracket that it has not opened.
func (p *parser) scalar() []byte {
	from, open := p.i, 0
	for ; p.i < len(p.s); p.i++ {
		c := p.s[p.i]
		if c == '(' {
			open++
		}
		if c == ')' {
			open--
		}
		if open <= 0 && (c == ',' || c == '}' || c == ']') {
			break
		}
	}
	end := p.i
	for end > from && (p.s[end-1] == ' ' || p.s[end-1] == '\t' || p.s[end-1] == '\r' || p.s[end-1] == '\n') {
		end--
	}
	tok := p.s[from:end]
	if len(tok) == 0 {
		return []byte("?") // no number: {"a":,}
	}
	return tok
}

// skip passes over an array.
func (p *parser) skip() error {
	for depth := 0; p.i < len(p.s); {
		switch p.s[p.i] {
		case '[', '{':
			if depth++; depth > maxDepth {
				return errJSON
			}
		case ']', '}':
			if depth--; depth == 0 {
				p.i++
				return nil
			}
		case '"', '\'':
			if _, err := p.text(); err != nil {
				return err
			}
			continue
		}
		p.i++
	}
	return errJSON
}

func joined(path, key []byte) []byte {
	if len(path) == 0 {
		return key
	}
	return append(append(append(make([]byte, 0, len(path)+len(key)+1), path...), '/'), key...)
}

// isDocument reports whether a file is one JSON document in several lines, or a list: trainer_state.json, a history.
func isDocument(head []byte) bool {
	s := bytes.TrimLeft(head, " \t\r\n")
	if len(s) == 0 {
		return false
	}
	first, _, _ := bytes.Cut(s, []byte("\n"))
	first = bytes.TrimSpace(first)
	switch s[0] {
	case '[':
		rest := bytes.TrimLeft(s[1:], " \t\r\n")
		return len(rest) > 0 && (rest[0] == '{' || rest[0] == ']')
	case '{':
		if len(first) == 1 {
			return true
		}
		_, rest, _ := bytes.Cut(s, []byte("\n"))
		oneLine := !bytes.HasPrefix(bytes.TrimSpace(rest), []byte("{")) // JSON lines may hold a number for each class
		return oneLine && isFrame(s) || bytes.Contains(s, []byte(`"log_history"`)) && bytes.HasPrefix(s, first)
	}
	return false
}

// document reads a JSON document. The objects of its lists are the lines of the log: "log_history" of trainer_state.json, or the list
// that it is. An object of columns, {"loss": {"0": 1.5, …}}, is what a data frame is written as.
func (r *Reader) document(b *bufio.Reader) error {
	data, err := io.ReadAll(io.LimitReader(b, maxDocument+1))
	if err != nil {
		return err
	}
	if len(data) > maxDocument {
		return format.Malformed(r.path, "", "a JSON document of more than %d bytes", maxDocument)
	}
	r.Bytes = int64(len(data))
	if i := bytes.IndexByte(data, 0); i >= 0 {
		return format.Malformed(r.path, format.Offset(int64(i)), "a NUL byte: this is no log")
	}
	if !utf8.Valid(data) {
		data = bytes.ToValidUTF8(data, []byte("?"))
	}
	p := &parser{s: data, r: r}
	p.space()
	list := p.i
	if p.s[p.i] == '{' {
		at := bytes.Index(data, []byte(`"log_history"`))
		if at < 0 {
			return r.columns(p)
		}
		open := bytes.IndexByte(data[at:], '[')
		if open < 0 {
			return format.Malformed(r.path, "log_history", "is no list")
		}
		list = at + open
	}
	p.i = list + 1
	for {
		p.space()
		switch {
		case p.i >= len(data):
			r.Cut = true
			return nil
		case data[p.i] == ']':
			return nil
		case data[p.i] == ',':
			p.i++
			continue
		case data[p.i] != '{':
			return format.Malformed(r.path, format.Offset(int64(p.i)), "want an object of numbers")
		}
		from := p.i
		r.Lines++
		r.row = Row{Line: r.Lines, Fields: r.row.Fields[:0], Raw: true}
		r.depth = 0
		if err := p.object(nil); err != nil {
			if format.IsMalformed(err) {
				return err
			}
			if bytes.Count(data[from:], []byte("}")) == 0 || !bytes.HasSuffix(bytes.TrimSpace(data), []byte("]")) && !bytes.HasSuffix(bytes.TrimSpace(data), []byte("}")) {
				r.Cut = true
				return nil
			}
			return format.Malformed(r.path, format.Offset(int64(from)), "an object that is cut or broken")
		}
		r.row.Text = data[from:p.i]
		if err := r.give(JSON); err != nil {
			return err
		}
	}
}

// columns reads one object: a row of numbers, or the columns of a table.
func (r *Reader) columns(p *parser) error {
	if isFrame(p.s[p.i:]) {
		return r.frame(p)
	}
	from := p.i
	r.Lines++
	r.row = Row{Line: 1, Fields: r.row.Fields[:0], Raw: true}
	r.depth = 0
	if err := p.object(nil); err != nil {
		if format.IsMalformed(err) {
			return err
		}
		return format.Malformed(r.path, format.Offset(int64(from)), "an object that is cut or broken")
	}
	return r.give(JSON)
}

// isFrame reports whether the first member of an object is an object whose first key is a number: {"loss": {"0": 1.5, …}}, as a data
// frame of pandas is written by columns.
func isFrame(s []byte) bool {
	space := func() { s = bytes.TrimLeft(s, " \t\r\n") }
	next := func(c byte) bool {
		space()
		if len(s) == 0 || s[0] != c {
			return false
		}
		s = s[1:]
		return true
	}
	text := func() (t []byte) {
		p := &parser{s: s}
		t, err := p.text()
		if err != nil {
			return nil
		}
		s = s[p.i:]
		return t
	}
	if !next('{') {
		return false
	}
	if space(); len(s) == 0 || s[0] != '"' || text() == nil || !next(':') || !next('{') {
		return false
	}
	if space(); len(s) == 0 || s[0] != '"' {
		return false
	}
	n, err := strconv.Atoi(string(text()))
	return err == nil && n >= 0
}

// frame reads a table by its columns. A cell that holds no number is left out.
func (r *Reader) frame(p *parser) error {
	broken := func() error {
		return format.Malformed(r.path, format.Offset(int64(p.i)), "a column that is cut or broken")
	}
	var names []int
	rows, order := map[int][]Field{}, []int(nil)
	err := p.members(func(column []byte) error {
		name, err := r.name(bytes.Clone(column))
		if err != nil {
			return err
		}
		names = append(names, name)
		if p.i >= len(p.s) || p.s[p.i] != '{' {
			return errJSON
		}
		return p.members(func(key []byte) error {
			at, err := strconv.Atoi(string(key))
			if err != nil {
				return errJSON
			}
			if rows[at] == nil {
				order = append(order, at)
				rows[at] = make([]Field, 0, len(names))
			}
			switch p.s[p.i] {
			case '{', '[':
				return p.skip()
			}
			from := p.i
			if p.s[p.i] == '"' {
				if _, err := p.text(); err != nil {
					return err
				}
			} else {
				p.scalar()
			}
			if v, missing, ok := number(bytes.TrimSpace(p.s[from:p.i])); ok {
				unit, padded := half(p.s[from:p.i])
				rows[at] = append(rows[at], Field{Name: name, Value: v, Missing: missing, Half: unit, Padded: padded})
			}
			return nil
		})
	})
	if format.IsMalformed(err) {
		return err
	}
	if p.space(); err != nil || p.i != len(p.s) {
		return broken()
	}
	hasStep := false
	for _, i := range names {
		switch r.Names[i] {
		case "_step", "step", "global_step":
			hasStep = true
		}
	}
	for n, at := range order {
		r.Lines = int64(n) + 1
		r.row = Row{Line: r.Lines, Fields: append(r.row.Fields[:0], rows[at]...), Raw: true}
		if !hasStep {
			if err := r.add([]byte("_step"), float64(at), false, 0, false); err != nil {
				return err
			}
		}
		if err := r.give(JSON); err != nil {
			return err
		}
	}
	return nil
}

// members gives each the name of every member of the object that begins here; each reads its value.
func (p *parser) members(each func(key []byte) error) error {
	p.i++
	for first := true; ; first = false {
		p.space()
		if p.i < len(p.s) && p.s[p.i] == '}' {
			p.i++
			return nil
		}
		if !first {
			if p.i >= len(p.s) || p.s[p.i] != ',' {
				return errJSON
			}
			p.i++
			p.space()
		}
		if p.i >= len(p.s) || p.s[p.i] != '"' {
			return errJSON
		}
		key, err := p.text()
		if err != nil {
			return err
		}
		if p.space(); p.i >= len(p.s) || p.s[p.i] != ':' {
			return errJSON
		}
		p.i++
		if p.space(); p.i >= len(p.s) {
			return errJSON
		}
		if err := each(key); err != nil {
			return err
		}
	}
}
