package peft

import (
	"regexp"
	"slices"
	"strconv"
	"strings"

	"plumbline/internal/format"
)

// Targets names modules: by a list of paths or their ends after a dot, or by a regular expression for the whole path. In
// target_modules the word "all-linear" in place of an expression means every linear module but the output layer.
type Targets struct {
	List  []string
	Regex string
}

func (t Targets) allLinear() bool { return strings.EqualFold(t.Regex, "all-linear") }

// either returns the list, or the expression as a list of one.
func (t Targets) either() []string {
	if t.Regex != "" {
		return []string{t.Regex}
	}
	return t.List
}

// set returns the names of the list.
func (t Targets) set() map[string]bool {
	set := make(map[string]bool, len(t.List))
	for _, name := range t.List {
		set[name] = true
	}
	return set
}

// named reports whether path, or its end after a dot, is in set; list is the same as a list, for a set that was not made.
func named(set map[string]bool, list []string, path string) bool {
	if set == nil {
		return slices.ContainsFunc(list, func(name string) bool { return endsWith(path, name) })
	}
	if set[path] {
		return true
	}
	for i := range len(path) {
		if path[i] == '.' && set[path[i+1:]] {
			return true
		}
	}
	return false
}

// endsWith reports whether name is path, or its end after a dot.
func endsWith(path, name string) bool {
	return path == name || strings.HasSuffix(path, name) && strings.HasSuffix(path[:len(path)-len(name)], ".")
}

// targets returns the value called key, a string or an array of strings.
func targets(o *format.Object, key string) Targets {
	if text, ok := o.Members[key].(string); ok {
		return Targets{Regex: text}
	}
	return Targets{List: o.Texts(key)}
}

// Target reports whether the module at path gets an adapter. With "all-linear" it does unless it is excluded; that the
// module is linear and not the output layer is for the caller to know.
func (c *Config) Target(path string) bool {
	if c.Exclude.Regex != "" && c.matches(whole, c.Exclude.Regex, path) || named(c.exclude, c.Exclude.List, path) || c.saves(path) {
		return false
	}
	switch {
	case c.Targets.allLinear():
		return true
	case c.Targets.Regex != "":
		return c.matches(whole, c.Targets.Regex, path)
	case !named(c.targets, c.Targets.List, path):
		return false
	case len(c.Layers) == 0 || slices.Contains(c.Targets.List, path): // a whole path is not asked for its layer
		return true
	}
	for _, re := range c.layerPatterns() {
		if m := re.FindStringSubmatch(path); m != nil {
			i, err := strconv.Atoi(m[re.SubexpIndex("idx")])
			return err == nil && slices.Contains(c.Layers, i)
		}
	}
	return false
}

// anyLayer finds the first numbered part of a path after two others.
var anyLayer = regexp.MustCompile(`^.*?\.[^.]*\.(?P<idx>\d+)\.`)

func (c *Config) layerPatterns() []*regexp.Regexp {
	if len(c.LayersPattern) == 0 {
		return []*regexp.Regexp{anyLayer}
	}
	var list []*regexp.Regexp
	for _, p := range c.LayersPattern {
		if re := c.compiled(pattern{layer, p}); re != nil {
			list = append(list, re)
		}
	}
	return list
}

// saves reports whether the module at path is part of one of modules_to_save, and so no target.
func (c *Config) saves(path string) bool {
	return slices.ContainsFunc(c.ModulesToSave, func(m string) bool { return c.matches(within, m, path) })
}

// SavesTensor reports whether PEFT saves the base's tensor called name beside the factors: a bias, by the setting bias, or a
// tensor of modules_to_save, if its module or one around it has a path that ends in one of the names. That end need not
// follow a dot (utils/other.py _set_trainable), so "norm" saves "input_layernorm", too.
func (c *Config) SavesTensor(name string) bool {
	if module, ok := strings.CutSuffix(name, ".bias"); ok && (c.Bias == "all" || c.Bias == "lora_only" && c.Target(module)) {
		return true
	}
	for i, r := range name {
		if r == '.' && slices.ContainsFunc(c.ModulesToSave, func(m string) bool { return strings.HasSuffix(name[:i], m) }) {
			return true
		}
	}
	return false
}
