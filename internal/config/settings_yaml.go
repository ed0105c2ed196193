package config

import (
	"bytes"
	"errors"
	"fmt"
	"io"
	"strconv"
	"strings"
	"unicode/utf8"

	"go.yaml.in/yaml/v3"
)

type namedValue struct {
	name string
	value
}

// parseSettings returns the values of a YAML file by their dotted names, and the first entry of its key defaults.
func parseSettings(file string, data []byte) (values []namedValue, defaults string, err error) {
	switch {
	case len(data) > maxBytes:
		return nil, "", fmt.Errorf("%s: a configuration has at most %d bytes", file, maxBytes)
	case bytes.IndexByte(data, 0) >= 0:
		return nil, "", fmt.Errorf("%s: a NUL byte in a configuration", file)
	case !utf8.Valid(data):
		return nil, "", fmt.Errorf("%s: a configuration must be UTF-8", file)
	}
	defer func() {
		if p := recover(); p != nil { // the library panics on its own errors and recovers most of them
			err = fmt.Errorf("%s: no YAML that can be read: %v", file, p)
		}
	}()
	dec := yaml.NewDecoder(bytes.NewReader(data))
	var doc yaml.Node
	if err := dec.Decode(&doc); err == io.EOF {
		return nil, "", fmt.Errorf("%s: is empty", file)
	} else if err != nil {
		return nil, "", fmt.Errorf("%s: no YAML: %w", file, err)
	}
	if err := dec.Decode(new(yaml.Node)); err == nil {
		return nil, "", fmt.Errorf("%s: a second document", file)
	} else if err != io.EOF {
		return nil, "", fmt.Errorf("%s: no YAML: %w", file, err)
	}
	if len(doc.Content) != 1 || doc.Content[0].Kind != yaml.MappingNode {
		return nil, "", fmt.Errorf("%s: want a mapping", file)
	}
	w := &walker{file: file, seen: map[string]bool{}}
	if err := w.walk(doc.Content[0], "", 0); err != nil {
		return nil, "", err
	}
	return w.values, w.defaults, nil
}

type walker struct {
	file     string
	values   []namedValue
	seen     map[string]bool
	defaults string
}

func (w *walker) where(n *yaml.Node) string {
	return w.file + ":" + strconv.Itoa(n.Line) + ":" + strconv.Itoa(n.Column)
}

// refuse returns an error for what no configuration needs, and readers treat differently.
func (w *walker) refuse(n *yaml.Node, depth int) error {
	switch {
	case depth > maxDepth:
		return fmt.Errorf("%s: more than %d lists and mappings in each other", w.where(n), maxDepth)
	case n.Anchor != "" || n.Kind == yaml.AliasNode:
		return fmt.Errorf("%s: anchors and aliases are not read: write the value out", w.where(n))
	case n.Style&yaml.TaggedStyle != 0:
		return fmt.Errorf("%s: the tag %.32s is not read", w.where(n), n.Tag)
	}
	return nil
}

func (w *walker) walk(n *yaml.Node, prefix string, depth int) error {
	if err := w.refuse(n, depth); err != nil {
		return err
	}
	for i := 0; i+1 < len(n.Content); i += 2 {
		key, v := n.Content[i], n.Content[i+1]
		if err := w.refuse(key, depth); err != nil {
			return err
		}
		if key.Kind != yaml.ScalarNode || key.Value == "" {
			return fmt.Errorf("%s: want a plain key", w.where(key))
		}
		if key.Value == "<<" && key.Style == 0 {
			return fmt.Errorf("%s: merge keys are not read: write the values out", w.where(key))
		}
		if len(prefix)+len(key.Value) > maxName {
			return fmt.Errorf("%s: a key of more than %d bytes: %.64q", w.where(key), maxName, key.Value)
		}
		name := prefix + key.Value
		if w.seen[name] {
			return fmt.Errorf("%s: the key %.64q is given twice", w.where(key), name)
		}
		w.seen[name] = true
		if err := w.refuse(v, depth+1); err != nil {
			return err
		}
		var err error
		switch {
		case name == "defaults":
			err = w.inherit(v)
		case v.Kind == yaml.MappingNode:
			err = w.walk(v, name+".", depth+1)
		case v.Kind == yaml.SequenceNode:
			err = w.list(v, name)
		default:
			err = w.scalar(v, name)
		}
		if err != nil {
			return err
		}
	}
	return nil
}

func (w *walker) inherit(v *yaml.Node) error {
	first := v
	if v.Kind == yaml.SequenceNode {
		if len(v.Content) != 1 {
			return fmt.Errorf("%s: defaults names one file", w.where(v))
		}
		first = v.Content[0]
	}
	if first.Kind != yaml.ScalarNode || first.Value == "" {
		return fmt.Errorf("%s: defaults names a file", w.where(v))
	}
	w.defaults = first.Value
	return w.refuse(first, 1)
}

func (w *walker) list(v *yaml.Node, name string) error {
	out := namedValue{name, value{isList: true, where: w.where(v)}}
	for _, e := range v.Content {
		if err := w.refuse(e, 1); err != nil {
			return err
		}
		_, text := scalar(e.Value).(string)
		if e.Kind != yaml.ScalarNode || !text && !quotedStyle(e) {
			return fmt.Errorf("%s: %s: want a list of texts", w.where(e), name)
		}
		out.list = append(out.list, e.Value)
	}
	w.values = append(w.values, out)
	return nil
}

func (w *walker) scalar(v *yaml.Node, name string) error {
	if v.Kind != yaml.ScalarNode {
		return errors.New(w.where(v) + ": want a value")
	}
	if !quotedStyle(v) && scalar(v.Value) == nil {
		return fmt.Errorf("%s: %s: has no value", w.where(v), name)
	}
	w.values = append(w.values, namedValue{name, value{text: v.Value, quoted: quotedStyle(v), where: w.where(v)}})
	return nil
}

func quotedStyle(n *yaml.Node) bool { return n.Style != 0 && n.Style != yaml.FlowStyle }

// YAML returns the settings as a file that ReadFile reads back to the same values: every key, in the order in which the keys
// were bound, none of it inherited.
func (s *Settings) YAML() []byte {
	var b strings.Builder
	var open []string
	for _, f := range s.fields {
		parts := strings.Split(f.Name, ".")
		same := 0
		for same < len(open) && same < len(parts)-1 && open[same] == parts[same] {
			same++
		}
		open = open[:same]
		for _, p := range parts[same : len(parts)-1] {
			fmt.Fprintf(&b, "%s%s:\n", strings.Repeat("  ", len(open)), p)
			open = append(open, p)
		}
		fmt.Fprintf(&b, "%s%s: %s\n", strings.Repeat("  ", len(open)), parts[len(parts)-1], yamlText(f.get()))
	}
	return []byte(b.String())
}

func yamlText(v any) string {
	switch v := v.(type) {
	case float64:
		return yamlFloat(v)
	case string:
		return strconv.Quote(v)
	case []string:
		q := make([]string, len(v))
		for i, e := range v {
			q[i] = strconv.Quote(e)
		}
		return "[" + strings.Join(q, ", ") + "]"
	}
	return fmt.Sprint(v)
}

// yamlFloat is a number that YAML 1.1 reads as one, too: 1.0e-05.
func yamlFloat(x float64) string {
	text := strconv.FormatFloat(x, 'g', -1, 64)
	switch {
	case text == "+Inf":
		return ".inf"
	case text == "-Inf":
		return "-.inf"
	}
	mantissa, exponent, has := strings.Cut(text, "e")
	if !strings.Contains(mantissa, ".") {
		mantissa += ".0"
	}
	if has {
		return mantissa + "e" + exponent
	}
	return mantissa
}
