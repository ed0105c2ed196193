package config

import (
	"bytes"
	"fmt"
	"regexp"
	"strconv"
	"strings"
	"unicode/utf8"
)

var (
	assigned    = regexp.MustCompile(`^([A-Za-z_][A-Za-z0-9_]*)[ \t]*=[ \t]*(.*)$`)
	pythonWhole = regexp.MustCompile(`^[-+]?(0|[1-9][0-9]*(_[0-9]+)*|0o[0-7]+|0x[0-9a-fA-F]+)$`)
	pythonFloat = regexp.MustCompile(`^[-+]?(([0-9]+(_[0-9]+)*)?\.[0-9]+|[0-9]+(_[0-9]+)*\.?)([eE][-+]?[0-9]+)?$`)
)

// parseAssignments returns the values of a file as nanoGPT's configurations are: lines "name = literal", with comments. A literal is
// True, False, None, an integer, a number, or text in single or double quotes. The file is read, never executed: anything else is
// an error with its line. None is the empty text.
func parseAssignments(file string, data []byte) ([]namedValue, error) {
	switch {
	case len(data) > maxBytes:
		return nil, fmt.Errorf("%s: a configuration has at most %d bytes", file, maxBytes)
	case bytes.IndexByte(data, 0) >= 0:
		return nil, fmt.Errorf("%s: a NUL byte in a configuration", file)
	case !utf8.Valid(data):
		return nil, fmt.Errorf("%s: a configuration must be UTF-8", file)
	}
	var values []namedValue
	seen := map[string]bool{}
	for n, line := range strings.Split(strings.TrimPrefix(string(data), "\ufeff"), "\n") {
		where := file + ":" + strconv.Itoa(n+1)
		line = strings.TrimRight(line, " \t\r")
		if line == "" || strings.HasPrefix(strings.TrimLeft(line, " \t"), "#") {
			continue
		}
		m := assigned.FindStringSubmatch(line)
		if m == nil || strings.HasPrefix(m[2], "=") {
			return nil, fmt.Errorf("%s: want name = literal: the file is read, not executed", where)
		}
		if seen[m[1]] {
			return nil, fmt.Errorf("%s: %.64q is given twice", where, m[1])
		}
		seen[m[1]] = true
		v, err := literal(m[2])
		if err != nil {
			return nil, fmt.Errorf("%s: %.64s: %w", where, m[1], err)
		}
		v.where = where
		values = append(values, namedValue{m[1], v})
	}
	return values, nil
}

// literal reads one value of Python, and the comment that may follow it.
func literal(s string) (value, error) {
	if s != "" && (s[0] == '\'' || s[0] == '"') {
		return pythonText(s)
	}
	word, _, _ := strings.Cut(s, "#")
	switch word = strings.TrimSpace(word); {
	case word == "True" || word == "False":
		return value{text: strings.ToLower(word)}, nil
	case word == "None":
		return value{quoted: true}, nil
	case pythonWhole.MatchString(word):
		return value{text: strings.ReplaceAll(word, "_", "")}, nil
	case pythonFloat.MatchString(word):
		x, err := strconv.ParseFloat(strings.ReplaceAll(word, "_", ""), 64)
		if err != nil {
			return value{}, fmt.Errorf("%.64s is out of range", word)
		}
		return value{text: yamlFloat(x)}, nil
	}
	return value{}, fmt.Errorf("%.64q is no literal: want True, False, None, a number, or text in quotes", word)
}

// pythonText reads text in quotes.
func pythonText(s string) (value, error) {
	var b strings.Builder
	for i := 1; i < len(s); i++ {
		switch c := s[i]; {
		case c == s[0]:
			rest := strings.TrimSpace(s[i+1:])
			if rest != "" && rest[0] != '#' {
				return value{}, fmt.Errorf("%.64q follows the text: want one literal", rest)
			}
			return value{text: b.String(), quoted: true}, nil
		case c == '\\':
			if i++; i == len(s) {
				return value{}, fmt.Errorf("the text has no end")
			}
			plain, ok := map[byte]byte{'\\': '\\', '\'': '\'', '"': '"', 'n': '\n', 't': '\t'}[s[i]]
			if !ok {
				return value{}, fmt.Errorf(`the escape \%c is not read`, s[i])
			}
			b.WriteByte(plain)
		default:
			b.WriteByte(c)
		}
	}
	return value{}, fmt.Errorf("the text has no end")
}
