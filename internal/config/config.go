// Package config reads the configurations of other programs: YAML and JSON files, files of command-line arguments, and shell
// scripts that start a trainer, all into one kind of tree. Nothing in a file is executed.
//
// What a value means is not decided here: a tree says what the file says.
package config

import (
	"errors"
	"fmt"
	"io"
	"maps"
	"path/filepath"
	"slices"
	"strings"
	"unicode/utf8"

	"plumbline/internal/format"
)

// Limits of a file.
const (
	maxBytes = 1 << 20
	maxDepth = 64  // of lists and mappings in each other
	maxName  = 256 // bytes of a name with dots; a file can hold as many names as bytes, each under a long one
)

// File is a configuration. Trees hold nil, bool, float64, string, []any and map[string]any.
type File struct {
	Tree    map[string]any
	Program string   // of a script or list of arguments: the words before the first argument, "python3 -m verl.trainer.main_ppo"
	Deleted []string // names that Hydra's ~NAME takes away
	Unread  []Unread // in the order in which they were met
	Open    bool     // of a script: a word of the command is an expansion that it does not decide, and may be any arguments
}

// Unread is a name whose value the file does not hold: Why is what stands there, "$LR" or "${data.lr}", or a reason.
type Unread struct{ Name, Why string }

// Read reads the file by its name and content: .yaml and .yml, one JSON object, and otherwise arguments, one or many on a
// line, as they are or inside a shell script (see [Arguments]).
//
// Errors name the file and the line. They are of no kind; only what [format.Open] refuses is a *format.Error.
func Read(file string) (*File, error) {
	f, err := format.Open(file)
	if err != nil {
		return nil, err
	}
	defer f.Close()
	data, err := io.ReadAll(io.LimitReader(f, maxBytes+1))
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	c, err := Parse(filepath.Base(file), data)
	if err != nil {
		return nil, fmt.Errorf("%s: %w", file, err)
	}
	return c, nil
}

// Bytes returns the content of the regular file of that name, which may have as many bytes as a configuration. What is refused is an
// error of no kind, what cannot be opened that of package os.
func Bytes(file string) ([]byte, error) {
	text, err := format.ReadFile(file, maxBytes)
	return text, plain(err)
}

// Parse is Read for the bytes of a file of that name.
func Parse(name string, data []byte) (*File, error) {
	switch {
	case len(data) > maxBytes:
		return nil, fmt.Errorf("a configuration has at most %d bytes", maxBytes)
	case slices.Contains(data, 0):
		return nil, errors.New("a NUL byte in a configuration")
	case !utf8.Valid(data):
		return nil, errors.New("a configuration must be UTF-8")
	}
	text := strings.TrimPrefix(string(data), "\uFEFF")
	ext := strings.ToLower(filepath.Ext(name))
	switch {
	case ext == ".yaml" || ext == ".yml":
		return YAML(text)
	case strings.HasPrefix(strings.TrimSpace(text), "{"):
		return JSON(text)
	}
	return Arguments(text)
}

// JSON reads one object. Duplicate keys, depth above 64 and bare NaN are errors.
func JSON(text string) (*File, error) {
	s := format.NewScanner("JSON", []byte(text), 0)
	v, err := s.Value()
	if err == nil {
		err = s.End()
	}
	if err != nil {
		return nil, plain(err)
	}
	tree, is := v.(map[string]any)
	if !is {
		return nil, errors.New("want one JSON object")
	}
	c := &File{Tree: tree}
	c.interpolate()
	return c, nil
}

// plain drops the kind of a *format.Error: a configuration that cannot be read is a mistake in the call of a program, not a
// malformed input of it.
func plain(err error) error {
	if format.IsMalformed(err) {
		return errors.New(err.Error())
	}
	return err
}

// Merge puts what over says in place of what c says, and takes away what it deletes.
func (c *File) Merge(over *File) {
	for _, name := range over.Deleted {
		deleteAt(c.Tree, name)
	}
	mergeTree(c.Tree, over.Tree)
	c.Unread = append(c.Unread, over.Unread...)
	c.Open = c.Open || over.Open
	if over.Program != "" {
		c.Program = over.Program
	}
}

func mergeTree(into, from map[string]any) {
	for _, k := range slices.Sorted(maps.Keys(from)) {
		a, isA := into[k].(map[string]any)
		b, isB := from[k].(map[string]any)
		switch {
		case isA && isB:
			mergeTree(a, b)
		case isB:
			c := map[string]any{} // a copy: trees are not shared between files
			mergeTree(c, b)
			into[k] = c
		default:
			into[k] = from[k]
		}
	}
}

// setAt puts a value at a name with dots. Where a part of the name is a value already, the rest of the name is one key; so is
// all of a name with more parts than a tree is deep.
func setAt(tree map[string]any, name string, v any) {
	if strings.Count(name, ".") > maxDepth {
		tree[name] = v
		return
	}
	for {
		first, rest, dotted := strings.Cut(name, ".")
		if !dotted || first == "" || rest == "" {
			tree[name] = v
			return
		}
		inner, is := tree[first].(map[string]any)
		if !is {
			if _, taken := tree[first]; taken {
				tree[name] = v
				return
			}
			inner = map[string]any{}
			tree[first] = inner
		}
		tree, name = inner, rest
	}
}

// at returns the value at a name with dots.
func at(tree map[string]any, name string) (any, bool) {
	for {
		first, rest, dotted := strings.Cut(name, ".")
		v, ok := tree[first]
		if !dotted || !ok {
			return v, ok
		}
		inner, is := v.(map[string]any)
		if !is {
			return nil, false
		}
		tree, name = inner, rest
	}
}

func deleteAt(tree map[string]any, name string) {
	for {
		first, rest, dotted := strings.Cut(name, ".")
		if !dotted {
			delete(tree, name)
			return
		}
		inner, is := tree[first].(map[string]any)
		if !is {
			return
		}
		tree, name = inner, rest
	}
}
