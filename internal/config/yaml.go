package config

import (
	"errors"
	"fmt"
	"io"
	"math"
	"regexp"
	"strconv"
	"strings"

	"go.yaml.in/yaml/v3"
)

// YAML reads one document: a mapping, or a list of words such as Hydra's overrides.yaml, which is read as [Arguments].
//
// Scalars are what PyYAML and OmegaConf make of them, since those read the files: yes and off are booleans, and 1e-5, which
// YAML 1.1 calls a string and every trainer turns into a number, is a number. A number in a form that readers disagree about
// (010, 1_000, 1:30) stays text, so that it is refused where a number is due and nowhere else. ${NAME} is replaced where NAME
// is in the file.
//
// Errors: anchors, aliases and merge keys, tags, a second document, a key that is no scalar or is given twice, depth above 64.
func YAML(text string) (c *File, err error) {
	defer func() {
		if p := recover(); p != nil { // the library panics on its own errors and recovers most of them
			c, err = nil, fmt.Errorf("no YAML that can be read: %v", p)
		}
	}()
	dec := yaml.NewDecoder(strings.NewReader(text))
	var doc yaml.Node
	if err := dec.Decode(&doc); err == io.EOF {
		return nil, errors.New("is empty")
	} else if err != nil {
		return nil, fmt.Errorf("no YAML: %w", err)
	}
	if err := dec.Decode(new(yaml.Node)); err == nil {
		return nil, errors.New("a second document")
	} else if err != io.EOF {
		return nil, fmt.Errorf("no YAML: %w", err)
	}
	if len(doc.Content) != 1 {
		return nil, errors.New("no YAML document")
	}
	v, err := yamlValue(doc.Content[0], 0)
	if err != nil {
		return nil, err
	}
	switch v := v.(type) {
	case map[string]any:
		c := &File{Tree: v}
		c.interpolate()
		return c, nil
	case []any:
		var words []string
		for _, e := range v {
			word, is := e.(string)
			if !is {
				return nil, errors.New("a list, but not of arguments")
			}
			words = append(words, word)
		}
		return arguments(words), nil
	}
	return nil, errors.New("want a mapping")
}

func yamlValue(n *yaml.Node, depth int) (any, error) {
	fail := func(msg string, args ...any) (any, error) {
		return nil, fmt.Errorf("line %d, column %d: "+msg, append([]any{n.Line, n.Column}, args...)...)
	}
	switch {
	case depth > maxDepth:
		return fail("more than %d lists and mappings in each other", maxDepth)
	case n.Anchor != "" || n.Kind == yaml.AliasNode:
		return fail("anchors and aliases are not read: write the value out")
	case n.Style&yaml.TaggedStyle != 0:
		return fail("the tag %.32s is not read", n.Tag)
	}
	switch n.Kind {
	case yaml.SequenceNode:
		list := []any{}
		for _, e := range n.Content {
			v, err := yamlValue(e, depth+1)
			if err != nil {
				return nil, err
			}
			list = append(list, v)
		}
		return list, nil
	case yaml.MappingNode:
		object := map[string]any{}
		for i := 0; i+1 < len(n.Content); i += 2 {
			key := n.Content[i]
			if key.Kind != yaml.ScalarNode || key.Anchor != "" || key.Style&yaml.TaggedStyle != 0 {
				return nil, fmt.Errorf("line %d, column %d: want a plain key", key.Line, key.Column)
			}
			if key.Value == "<<" && key.Style == 0 {
				return nil, fmt.Errorf("line %d, column %d: merge keys are not read: write the values out", key.Line, key.Column)
			}
			if _, twice := object[key.Value]; twice {
				return nil, fmt.Errorf("line %d, column %d: the key %.64q is given twice", key.Line, key.Column, key.Value)
			}
			v, err := yamlValue(n.Content[i+1], depth+1)
			if err != nil {
				return nil, err
			}
			object[key.Value] = v
		}
		return object, nil
	case yaml.ScalarNode:
		if n.Style != 0 && n.Style != yaml.FlowStyle {
			return n.Value, nil // quoted, literal or folded
		}
		return scalar(n.Value), nil
	}
	return fail("no value")
}

var decimal = regexp.MustCompile(`^[-+]?(0|[1-9][0-9]*|(0|[1-9][0-9]*)?\.[0-9]+|(0|[1-9][0-9]*)\.)([eE][-+]?[0-9]+)?$`)

// scalar is what a plain word of YAML stands for.
func scalar(s string) any {
	switch s {
	case "", "~", "null", "Null", "NULL":
		return nil
	case "true", "True", "TRUE", "yes", "Yes", "YES", "on", "On", "ON":
		return true
	case "false", "False", "FALSE", "no", "No", "NO", "off", "Off", "OFF":
		return false
	case ".nan", ".NaN", ".NAN":
		return math.NaN()
	case ".inf", ".Inf", ".INF", "+.inf", "+.Inf", "+.INF":
		return math.Inf(1)
	case "-.inf", "-.Inf", "-.INF":
		return math.Inf(-1)
	}
	if decimal.MatchString(s) {
		x, err := strconv.ParseFloat(s, 64)
		if err == nil {
			return x
		}
	}
	return s
}
