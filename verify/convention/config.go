package convention

import (
	"fmt"
	"io"
	"maps"
	"slices"
	"strings"
	"unicode/utf8"

	"plumbline/internal/format"
)

// maxOptionsFile bounds a file of options, in bytes.
const maxOptionsFile = 1 << 20

// ReadOptions reads a file of options for [Declare]: one JSON object, or lines of the form
//
//	clip.low = 0.2          # none, true, "text", [1, 0.5] and null are values, too
//
// In JSON, names may be written with dots or as objects in objects, {"clip": {"low": 0.2}}, and all of it may stand under
// the key options. Names are those of options and facts (see [FactNames]). With the entry framework, "trl-grpo" for
// instance, they may also be the framework's own; it is returned, and "" if there is none.
//
// Errors name the file, and the line or byte: a file that is no regular file, is above 1 MiB or holds NUL, no UTF-8, a name
// given twice, a name that is unknown, with the nearest one, and a value that the option cannot have.
func ReadOptions(file string) (options []NameValue, framework string, err error) {
	f, err := format.Open(file)
	if err != nil {
		return nil, "", err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxOptionsFile+1))
	if err != nil {
		return nil, "", fmt.Errorf("%s: %w", file, err)
	}
	return parseOptions(file, data)
}

func parseOptions(file string, data []byte) (options []NameValue, framework string, err error) {
	text := string(data)
	switch {
	case len(data) > maxOptionsFile:
		err = format.Malformed(file, "", "a file of options has at most %d bytes", maxOptionsFile)
	case strings.Contains(text, "\x00"):
		err = format.Malformed(file, format.Offset(int64(strings.IndexByte(text, 0))), "a NUL byte in a file of options")
	case !utf8.ValidString(text):
		err = format.Malformed(file, "", "a file of options must be UTF-8")
	case strings.HasPrefix(strings.TrimSpace(text), "{"):
		options, err = jsonOptions(file, data)
	default:
		options, err = lineOptions(file, text)
	}
	if err != nil {
		return nil, "", err
	}
	options, framework, err = knownOptions(options)
	if err != nil {
		return nil, "", fmt.Errorf("%s: %w", file, err)
	}
	return options, framework, nil
}

// OptionsOf is ReadOptions for a tree that was read elsewhere, from YAML for instance: nil, bool, float64, string, []any
// and map[string]any. The options are in the order of their names.
func OptionsOf(tree map[string]any) (options []NameValue, framework string, err error) {
	for _, name := range slices.Sorted(maps.Keys(tree)) {
		options = append(options, NameValue{name, tree[name]})
	}
	return knownOptions(options)
}

// knownOptions unfolds objects, takes out the framework, and refuses unknown names where there is none, repeated ones, and
// illegal values.
func knownOptions(options []NameValue) (flat []NameValue, framework string, err error) {
	var list []NameValue
	for _, o := range options {
		switch inner, object := o.Value.(map[string]any); {
		case o.Name == "framework":
			text, is := o.Value.(string)
			if !is {
				return nil, "", fmt.Errorf("framework: %s is no name of a framework", showValue(o.Value))
			}
			if framework != "" && framework != text {
				return nil, "", fmt.Errorf("framework is given twice")
			}
			framework = text
		case o.Name == "options" && object:
			for _, name := range slices.Sorted(maps.Keys(inner)) {
				list = append(list, NameValue{name, inner[name]})
			}
		default:
			list = append(list, o)
		}
	}
	_, tables := tablesOf(framework)
	if framework == "" {
		tables = nil
	}
	seen := map[string]bool{}
	for _, o := range list {
		for _, o := range flatten(nil, o, tables) {
			if seen[o.Name] {
				return nil, "", fmt.Errorf("%.64s is given twice", o.Name)
			}
			seen[o.Name] = true
			flat = append(flat, o)
		}
	}
	if framework == "" {
		if err := onlyNeutral(flat); err != nil {
			return nil, "", err
		}
	}
	if _, err := Declare(framework, "", flat, ""); err != nil {
		return nil, "", err
	}
	return flat, framework, nil
}

// onlyNeutral refuses the first name that is neither an option nor a fact.
func onlyNeutral(options []NameValue) error {
	names := append(Names(), nativeShared().names...)
	for _, o := range options {
		if slices.Contains(names, o.Name) {
			continue
		}
		for _, t := range natives() {
			if _, theirs := t.find(o.Name); theirs {
				return fmt.Errorf("%.64s is no option but a name of %s; with framework = %s the file is read as such", o.Name, t.name, t.name)
			}
		}
		return fmt.Errorf("no option %.64q; did you mean %q?", o.Name, nearestName(o.Name, names))
	}
	return nil
}

// jsonOptions reads the members of an object in their order.
func jsonOptions(file string, data []byte) ([]NameValue, error) {
	s := format.NewScanner(file, data, 0)
	var options []NameValue
	err := s.Document(func(key string) error {
		v, err := s.Value()
		options = append(options, NameValue{strings.Clone(key), v})
		return err
	})
	return options, err
}

// lineOptions reads lines of the form name = value.
func lineOptions(file, text string) ([]NameValue, error) {
	var options []NameValue
	for n, line := range strings.Split(text, "\n") {
		where := fmt.Sprintf("line %d", n+1)
		line = strings.TrimSpace(line)
		if line == "" || line[0] == '#' {
			continue
		}
		name, value, ok := strings.Cut(line, "=")
		name, value = strings.TrimSpace(name), strings.TrimSpace(value)
		if !ok || name == "" || strings.ContainsAny(name, " \t\"") {
			if strings.Contains(line, ":") {
				return nil, format.Malformed(file, where, "%.64q is no line of the form name = value (YAML is read from a file named .yaml)", line)
			}
			return nil, format.Malformed(file, where, "%.64q is no line of the form name = value", line)
		}
		v, err := lineValue(file, value)
		if err != nil {
			return nil, format.Malformed(file, where, "%.64s has the value %.64q: text in quotes, a list in brackets and an object in braces are written as in JSON", name, value)
		}
		options = append(options, NameValue{name, v})
	}
	return options, nil
}

// lineValue reads JSON where value begins like it, and else one word, up to a comment.
func lineValue(file, value string) (any, error) {
	if value != "" && strings.Contains(`"[{`, value[:1]) {
		s := format.NewScanner(file, []byte(value), 0)
		v, err := s.Value()
		if err == nil {
			err = s.End()
		}
		return v, err
	}
	if i := strings.Index(value, " #"); i >= 0 {
		value = strings.TrimSpace(value[:i])
	}
	switch value {
	case "":
		return nil, fmt.Errorf("no value")
	case "null":
		return nil, nil
	case "true", "false":
		return value == "true", nil
	}
	if x, ok := parseNumber(value); ok {
		return x, nil
	}
	return value, nil
}
