package config

import (
	"maps"
	"regexp"
	"slices"
	"strings"
)

// OmegaConf's ${a.b}, and its oc.select with a default.
var (
	reference = regexp.MustCompile(`^\$\{([A-Za-z_][A-Za-z0-9_]*(?:\.[A-Za-z_][A-Za-z0-9_]*)*)\}$`)
	selection = regexp.MustCompile(`^\$\{oc\.select:\s*([A-Za-z_][A-Za-z0-9_.]*)\s*(?:,([^${}]*))?\}$`)
)

// maxHops bounds a chain of references.
const maxHops = 16

// interpolate replaces values that are references to other values, takes out what the file does not say (OmegaConf's ???,
// references to what is elsewhere) and lists it, and notes Hydra's defaults, which are other files.
func (c *File) interpolate() {
	_, isList := c.Tree["defaults"].([]any)
	if isList {
		delete(c.Tree, "defaults")
		c.Unread = append(c.Unread, Unread{"defaults", "other files, which are not followed; .hydra/config.yaml of the run says all"})
	}
	c.resolveIn(c.Tree, "")
}

func (c *File) resolveIn(tree map[string]any, prefix string) {
	for _, k := range slices.Sorted(maps.Keys(tree)) {
		switch v := tree[k].(type) {
		case map[string]any:
			c.resolveIn(v, cut(prefix+k)+".")
		case string:
			w, ok := c.resolve(v)
			if !ok {
				delete(tree, k)
				c.Unread = append(c.Unread, Unread{cut(prefix + k), v})
			} else {
				tree[k] = w
			}
		case []any:
			for _, e := range v {
				if s, is := e.(string); is && strings.Contains(s, "${") {
					delete(tree, k)
					c.Unread = append(c.Unread, Unread{cut(prefix + k), s})
					break
				}
			}
		}
	}
}

// cut returns the start of a name that is longer than any that a program has.
func cut(name string) string {
	if len(name) <= maxName {
		return name
	}
	return strings.ToValidUTF8(name[:maxName-len("…")], "") + "…"
}

// maxReference bounds the text that is looked at for a reference, as often as others refer to it.
const maxReference = 512

// resolve follows the references from a value.
func (c *File) resolve(s string) (v any, ok bool) {
	v = s
	for range maxHops {
		s, is := v.(string)
		switch {
		case !is:
			_, tree := v.(map[string]any)
			return v, !tree
		case s == "???":
			return nil, false
		case !strings.Contains(s, "${"):
			return s, true
		case len(s) > maxReference:
			return nil, false
		}
		if m := reference.FindStringSubmatch(s); m != nil {
			if v, ok = at(c.Tree, m[1]); !ok {
				return nil, false
			}
			continue
		}
		m := selection.FindStringSubmatch(s)
		if m == nil {
			return nil, false
		}
		if v, ok = at(c.Tree, m[1]); !ok {
			v = scalar(strings.Trim(strings.TrimSpace(m[2]), `"'`))
		}
	}
	return nil, false // a cycle
}
