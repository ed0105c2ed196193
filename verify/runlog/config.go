package runlog

import (
	"encoding/json"
	"maps"
	"slices"
	"strings"
)

// ParseConfig reads lines of "key=value", YAML as far as it is maps of scalars and of lists of them, and a JSON object: keys of nested maps are
// joined by dots, and a list is its items in brackets. What W&B keeps as the value of a key is under the key, too. lines are where they stand,
// from 1.
func ParseConfig(text string) (config map[string]string, lines map[string]int) {
	config, lines = map[string]string{}, map[string]int{}
	if !parseObject(text, config, lines) {
		parseLines(text, config, lines)
	}
	for _, name := range slices.Sorted(maps.Keys(config)) {
		if key, ok := strings.CutSuffix(name, ".value"); ok {
			if _, other := config[key]; !other {
				config[key], lines[key] = config[name], lines[name]
			}
		}
	}
	return config, lines
}

func parseLines(text string, config map[string]string, lines map[string]int) {
	var path []string
	var depth []int
	var items []string // of the list under the key that path ends with
	for i, line := range strings.Split(text, "\n") {
		if k := strings.Index(line, " #"); k >= 0 {
			line = line[:k]
		}
		trimmed := strings.TrimSpace(line)
		if trimmed == "" || strings.HasPrefix(trimmed, "#") {
			continue
		}
		indent := len(line) - len(strings.TrimLeft(line, " "))
		if item, ok := strings.CutPrefix(trimmed, "-"); ok {
			if k := len(depth); k > 0 && depth[k-1] <= indent && !strings.Contains(item, ": ") {
				items = append(items, scalar(item))
				name := strings.Join(path, ".")
				config[name] = "[" + strings.Join(items, ", ") + "]"
				if len(items) == 1 {
					lines[name] = i + 1
				}
			}
			continue
		}
		items = nil
		for len(depth) > 0 && depth[len(depth)-1] >= indent {
			depth, path = depth[:len(depth)-1], path[:len(path)-1]
		}
		key, value, ok := strings.Cut(trimmed, ":")
		if eq := strings.Index(trimmed, "="); eq > 0 && (!ok || eq < len(key)) {
			key, value = trimmed[:eq], trimmed[eq+1:]
		} else if !ok {
			continue
		}
		key, value = strings.Trim(strings.TrimSpace(key), `"'`), scalar(value)
		if value == "" {
			depth, path = append(depth, indent), append(path, key)
			continue
		}
		name := strings.Join(append(slices.Clone(path), key), ".")
		config[name], lines[name] = value, i+1
	}
}

func scalar(text string) string { return strings.Trim(strings.TrimSpace(text), `"',`) }

// parseObject reads a JSON object; it reports whether the text is one.
func parseObject(text string, config map[string]string, lines map[string]int) bool {
	if !strings.HasPrefix(strings.TrimSpace(text), "{") {
		return false
	}
	d := json.NewDecoder(strings.NewReader(text))
	d.UseNumber()
	var object map[string]any
	if d.Decode(&object) != nil || d.More() {
		return false
	}
	places := map[string]int{} // of a key's first line
	for i, line := range strings.Split(text, "\n") {
		for rest := line; ; {
			_, after, ok := strings.Cut(rest, `"`)
			if !ok {
				break
			}
			word, more, ok := strings.Cut(after, `"`)
			if !ok {
				break
			}
			if rest = more; strings.HasPrefix(strings.TrimLeft(rest, " \t"), ":") && places[word] == 0 {
				places[word] = i + 1
			}
		}
	}
	var walk func(path []string, value any)
	walk = func(path []string, value any) {
		if inner, ok := value.(map[string]any); ok {
			for k, v := range inner {
				walk(append(slices.Clone(path), k), v)
			}
			return
		}
		name := strings.Join(path, ".")
		config[name], lines[name] = word(value), places[path[len(path)-1]]
	}
	for k, v := range object {
		walk([]string{k}, v)
	}
	return true
}

// word is a JSON value as YAML has it in a line.
func word(value any) string {
	switch v := value.(type) {
	case nil:
		return "null"
	case string:
		return v
	case json.Number:
		return v.String()
	case []any:
		var items []string
		for _, x := range v {
			items = append(items, word(x))
		}
		return "[" + strings.Join(items, ", ") + "]"
	}
	b, err := json.Marshal(value) // a bool, or a map in a list
	if err != nil {
		return ""
	}
	return string(b)
}
