package bug

import (
	"fmt"
	"slices"
	"strings"
	"sync"
)

// registry is an embedded text of entries, which is read when one is first asked for.
type registry[T any] struct {
	file string
	id   func(e *T) string
	all  func() []*T
}

func newRegistry[T any](file, text string, parse func(text string) ([]*T, error), id func(e *T) string) registry[T] {
	return registry[T]{file, id, sync.OnceValue(func() []*T {
		list, err := parse(text)
		if err != nil {
			panic("bug: " + err.Error())
		}
		return list
	})}
}

// find returns the entry of that id, nil if there is none.
func (r registry[T]) find(id string) *T {
	if i := slices.IndexFunc(r.all(), func(e *T) bool { return strings.EqualFold(r.id(e), id) }); i >= 0 {
		return r.all()[i]
	}
	return nil
}

// mustFind is find, and panics where the text lacks the entry.
func (r registry[T]) mustFind(id string) *T {
	if e := r.find(id); e != nil {
		return e
	}
	panic(fmt.Sprintf("bug: %q is not in %s", id, r.file))
}

// parseEntries reads a text: an id in the first column, its fields below it behind two spaces, # for comments. A field is a text, – an empty one, or a list
// of words.
func parseEntries[T any](file, text string, add func(id string) *T, fields func(e *T) (texts map[string]*string, lists map[string]*[]string)) ([]*T, error) {
	var list []*T
	id := ""
	for n, line := range strings.Split(text, "\n") {
		switch {
		case strings.TrimSpace(line) == "" || strings.HasPrefix(line, "#"):
			continue
		case !strings.HasPrefix(line, " "):
			id = line
			list = append(list, add(id))
			continue
		case len(list) == 0:
			return nil, fmt.Errorf("%s:%d: a field before the first id", file, n+1)
		}
		texts, lists := fields(list[len(list)-1])
		key, value, _ := strings.Cut(strings.TrimSpace(line), " ")
		value = strings.TrimSpace(value)
		field := texts[key]
		switch {
		case lists[key] != nil:
			*lists[key] = strings.Fields(value)
		case field == nil:
			return nil, fmt.Errorf("%s:%d: %s has a field %q", file, n+1, id, key)
		case *field != "" || value == "":
			return nil, fmt.Errorf("%s:%d: %s of %s is empty, or there twice", file, n+1, key, id)
		case value != "–":
			*field = value
		}
	}
	return list, nil
}
