package peft

import (
	"errors"
	"fmt"
	"regexp"
	"regexp/syntax"
	"strings"

	"plumbline/internal/format"
)

// Bounds of the patterns of one configuration; the last two are of those that are not plain names.
const (
	maxPatterns = 16_384  // names included
	maxRegex    = 8 << 10 // bytes, together
	maxProgram  = 10_000  // characters and classes with counted repetitions written out, together
)

// maxSaved bounds modules_to_save, of which each name is compared with every part of a path.
const maxSaved = 512

// maxWork bounds the steps of all expressions for the bytes of all names that they are asked about: each step may be taken at
// each byte.
const maxWork = 1 << 29

// affordable refuses expressions that would take minutes for so many names; file is that of the configuration.
func (c *Config) affordable(file string, names func(yield func(string) bool)) error {
	bytes := 0
	for name := range names {
		if bytes += len(name); c.steps > 0 && bytes > maxWork/c.steps {
			return format.Malformed(file, "", "its regular expressions, of %d steps together, are too long for the names that they are asked about", c.steps)
		}
	}
	return nil
}

// form is what PEFT makes of a pattern of a configuration (tuners/tuners_utils.py, utils/other.py).
type form uint8

const (
	whole  form = iota // re.fullmatch(p, path): target_modules, exclude_modules
	ending             // re.match(r"(.*\.)?(p)$", path): rank_pattern, alpha_pattern
	within             // re.match(r"(^|.*\.)p($|\..*)", path): modules_to_save
	layer              // re.match(r"(?:^|.*?\.)p\.(?P<idx>\d+)\.", path): layers_pattern
)

func (f form) expression(p string) string {
	switch f {
	case whole:
		return `^(?:` + p + `)$`
	case ending:
		return `^(.*\.)?(` + p + `)$`
	case within:
		return `^(^|.*\.)` + p + `($|\..*)`
	}
	return `^(?:^|.*?\.)` + p + `\.(?P<idx>\d+)\.`
}

// pattern is an expression in its form.
type pattern struct {
	form form
	text string
}

// plain reports whether p is a name, in which only the point has a meaning: any character.
func plain(p string) bool {
	return strings.IndexFunc(p, func(c rune) bool {
		return !('a' <= c && c <= 'z' || 'A' <= c && c <= 'Z' || '0' <= c && c <= '9' || c == '_' || c == '.')
	}) < 0
}

// alike reports whether the plain pattern p matches s, byte by byte.
func alike(p, s string) bool {
	if len(p) != len(s) {
		return false
	}
	for i := range len(p) {
		if p[i] != '.' && p[i] != s[i] {
			return false
		}
	}
	return true
}

// find matches a plain pattern.
func (p pattern) find(path string) bool {
	n := len(path) - len(p.text)
	switch {
	case n < 0:
		return false
	case p.form == whole:
		return alike(p.text, path)
	case p.form == ending:
		return alike(p.text, path[n:]) && (n == 0 || path[n-1] == '.')
	}
	for i := 0; i <= n; i++ { // within
		end := i + len(p.text)
		if (i == 0 || path[i-1] == '.') && (end == len(path) || path[end] == '.') && alike(p.text, path[i:end]) {
			return true
		}
	}
	return false
}

// matches reports whether p matches path. Expressions were compiled by check; those of a Config that was not checked are
// compiled here, and one that cannot be matches nothing.
func (c *Config) matches(f form, text, path string) bool {
	p := pattern{f, text}
	if plain(text) && f != layer {
		return p.find(path)
	}
	re := c.compiled(p)
	return re != nil && re.MatchString(path)
}

func (c *Config) compiled(p pattern) *regexp.Regexp {
	re := c.expressions[p]
	if re == nil {
		re, _ = regexp.Compile(p.form.expression(p.text))
	}
	return re
}

// compiler compiles the expressions of a configuration within the bounds.
type compiler struct {
	done           map[pattern]*regexp.Regexp
	count          int
	bytes, program int
}

// add compiles an expression of Python's module re. What RE2 lacks (look-around, back-references) is refused.
func (c *compiler) add(f form, text string) error {
	if c.count++; c.count > maxPatterns {
		return fmt.Errorf("more than %d patterns", maxPatterns)
	}
	p := pattern{f, text}
	if plain(text) && f != layer || c.done[p] != nil {
		return nil
	}
	if c.bytes += len(text); c.bytes > maxRegex {
		return fmt.Errorf("the regular expressions have more than %d bytes together", maxRegex)
	}
	if _, err := syntax.Parse(text, syntax.Perl); err != nil { // alone first: "a)(b" is none, and messages are about what was written
		return unreadable(text, err)
	}
	tree, err := syntax.Parse(f.expression(text), syntax.Perl)
	if err != nil {
		return unreadable(text, err)
	}
	if c.program += program(tree, maxProgram); c.program > maxProgram {
		return fmt.Errorf("%.64q: repetitions written out need more than %d steps", text, maxProgram)
	}
	re, err := regexp.Compile(f.expression(text))
	if err != nil {
		return unreadable(text, err)
	}
	c.done[p] = re
	return nil
}

func unreadable(text string, err error) error {
	if at, ok := errors.AsType[*syntax.Error](err); ok {
		return fmt.Errorf("%.64q is no regular expression that can be read: %s %.32q", text, at.Code, at.Expr)
	}
	return err
}

// program returns how large the compiled form of re is about, no more than limit+1.
func program(re *syntax.Regexp, limit int) int {
	n := 1 + len(re.Rune)
	for _, sub := range re.Sub {
		if n += program(sub, limit); n > limit {
			return limit + 1
		}
	}
	if re.Op == syntax.OpRepeat {
		n *= max(re.Min, re.Max, 1)
	}
	return min(n, limit+1)
}
