package runlog

import (
	"bytes"
	"strings"
)

// table is a CSV file under way.
type table struct {
	names []int // -1: a column that is not read
	comma byte
}

// header returns the columns that a line names, nil where it names none: two names or more, or one that is known, and no number.
func (r *Reader) header(s []byte) *table {
	const mostColumns = 4096
	if len(s) > 1<<18 {
		return nil
	}
	var comma byte
	for _, c := range []byte{',', '\t', ';'} {
		if bytes.IndexByte(s, c) >= 0 {
			comma = c
			break
		}
	}
	var cells [][]byte
	if comma == 0 {
		if !bytes.HasPrefix(s, []byte("memory.used")) { // nvidia-smi --query-gpu=memory.used
			return nil
		}
		cells = [][]byte{s}
	} else {
		cells = split(s, comma, nil)
	}
	if len(cells) > mostColumns || len(cells) == 0 {
		return nil
	}
	known := 0
	var names []string
	for _, c := range cells {
		if _, missing, ok := number(c); ok && !missing {
			return nil
		}
		name := strings.Trim(string(c), `"' `)
		if i := strings.LastIndex(name, " - "); i >= 0 { // "run - loss" of W&B
			name = name[i+3:]
		}
		if strings.ContainsAny(name, "{}=:'\"") { // a dictionary, or pairs
			return nil
		}
		if strings.HasSuffix(name, "__MIN") || strings.HasSuffix(name, "__MAX") {
			name = ""
		}
		if name == "Step" || name == "Global Step" {
			name = "step"
		}
		if name != "" && r.Known(name) {
			known++
		}
		names = append(names, name)
	}
	if known == 0 {
		return nil
	}
	t := &table{comma: comma}
	for _, name := range names {
		i := -1
		if name != "" {
			var err error
			if i, err = r.name([]byte(name)); err != nil {
				return nil
			}
		}
		t.names = append(t.names, i)
	}
	return t
}

// row reads a line under the header; ok is false where it is none.
func (t *table) row(r *Reader, s []byte) (ok bool, err error) {
	at, cells := 0, 0
	good := true
	cell := func(c []byte) {
		cells++
		if at >= len(t.names) {
			return
		}
		name := t.names[at]
		at++
		if name < 0 {
			return
		}
		if t.comma == ';' {
			c = decimalComma(c)
		}
		v, missing, isNumber := number(bytes.TrimSpace(c))
		if !isNumber {
			word, rest, _ := bytes.Cut(bytes.TrimSpace(c), []byte(" "))
			switch string(rest) { // units of nvidia-smi
			case "MiB", "%", "W", "MHz", "C", "GiB":
				v, missing, isNumber = number(word)
			}
		}
		if isNumber && !(missing && len(c) == 0) {
			unit, padded := half(c)
			r.row.Fields = append(r.row.Fields, Field{Name: name, Value: v, Missing: missing, Half: unit, Padded: padded})
		}
	}
	if t.comma == 0 {
		cell(s)
	} else if bytes.IndexByte(s, '"') >= 0 {
		for _, c := range split(s, t.comma, nil) {
			cell(c)
		}
	} else {
		for rest := s; ; {
			i := bytes.IndexByte(rest, t.comma)
			if i < 0 {
				cell(rest)
				break
			}
			cell(rest[:i])
			rest = rest[i+1:]
		}
	}
	whole := cells == len(t.names) || t.comma == '\t' && cells < len(t.names) // empty cells at the end are white space
	good = whole && len(r.row.Fields) > 0
	if !good {
		r.row.Fields = r.row.Fields[:0]
	}
	return good, nil
}

// split cuts a line of CSV; cells in quotes lose them.
func split(s []byte, comma byte, list [][]byte) [][]byte {
	for {
		if len(s) > 0 && s[0] == '"' {
			end := 1
			for end < len(s) && !(s[end] == '"' && (end+1 == len(s) || s[end+1] == comma)) {
				end++
			}
			list = append(list, bytes.ReplaceAll(s[1:min(end, len(s))], []byte(`""`), []byte(`"`)))
			if end+1 >= len(s) {
				return list
			}
			s = s[end+2:]
			continue
		}
		i := bytes.IndexByte(s, comma)
		if i < 0 {
			return append(list, bytes.TrimSpace(s))
		}
		list = append(list, bytes.TrimSpace(s[:i]))
		s = s[i+1:]
	}
}

// decimalComma returns a cell such as 0,123 with a point. A file whose columns are parted by semicolons is of a locale, or of pandas'
// decimal=",", in which the comma is that of decimals.
func decimalComma(c []byte) []byte {
	i := bytes.IndexByte(c, ',')
	if i < 0 || bytes.IndexByte(c, '.') >= 0 || bytes.IndexByte(c[i+1:], ',') >= 0 {
		return c
	}
	c = bytes.Clone(c)
	c[i] = '.'
	return c
}
