package convention

import (
	_ "embed"
	"fmt"
	"math"
	"slices"
	"strconv"
	"strings"
	"sync"
)

//go:embed native/common.txt
var nativeCommon string

//go:embed native/trl-common.txt
var nativeTRL string

//go:embed native/trl-online.txt
var nativeOnline string

//go:embed native/trl-grpo.txt
var nativeGRPO string

//go:embed native/trl-rloo.txt
var nativeRLOO string

//go:embed native/trl-ppo.txt
var nativePPO string

//go:embed native/trl-dpo.txt
var nativeDPO string

//go:embed native/trl-sft.txt
var nativeSFT string

//go:embed native/verl.txt
var nativeVerl string

//go:embed native/openrlhf.txt
var nativeOpenRLHF string

//go:embed native/open-instruct.txt
var nativeOpenInstruct string

//go:embed native/cleanrl.txt
var nativeCleanRL string

// natives are the tables, one per configuration class, in the order in which they are tried and printed.
var natives = sync.OnceValue(func() []*nativeTable {
	return readNatives([]string{nativeGRPO, nativeOnline, nativeTRL}, []string{nativeRLOO, nativeOnline, nativeTRL}, []string{nativePPO, nativeTRL},
		[]string{nativeVerl}, []string{nativeOpenRLHF})
})

// nativesByName are tables of programs that are no libraries: beta and gamma of a file that names no framework are not looked for in them.
var nativesByName = sync.OnceValue(func() []*nativeTable { return readNatives([]string{nativeOpenInstruct}, []string{nativeCleanRL}) })

// nativesByAlgorithm are tables whose names mean other things in the other trainers of a framework: they are read where both are named.
var nativesByAlgorithm = sync.OnceValue(func() []*nativeTable {
	return readNatives([]string{nativeDPO, nativeTRL}, []string{nativeSFT, nativeTRL})
})

func readNatives(tables ...[]string) (all []*nativeTable) {
	for _, parts := range tables {
		t, err := readNative(append(parts, nativeCommon)...)
		if err != nil {
			panic("convention: native tables: " + err.Error())
		}
		all = append(all, t)
	}
	return all
}

// nativeShared is the table of names that belong to no framework.
var nativeShared = sync.OnceValue(func() *nativeTable {
	t, err := readNative(nativeCommon)
	if err != nil {
		panic("convention: native tables: " + err.Error())
	}
	return t
})

// nativeTable says what the names of one configuration class mean. A line of its text is
//
//	NAME  PATTERN  EFFECT...  [if COND,...]  [| NOTE]
//
// PATTERN is what the value must be: null, true, false, a number, a word, or one of the classes number, negative, count (0,
// 1, 2 …), numeral (a number as text), bool, text, list (of numbers), single, pair, low_high (two numbers as text, 0.5_5.0),
// losses (two or more of TRL's preference losses), any; several are separated by a bar; absent stands for a name that is not declared. The first line of a name whose pattern
// and conditions hold decides; a name whose value no line has is an error.
//
// EFFECT is option=value, where $ is the value itself, 1-$ is 1 minus it, $1 and $2 are the numbers of a pair or low_high and @other the value
// of another name; $loss@other and its like are what [sumEffect] makes of both; fact or fact=NAME keeps the value for those who know what to do with it; beyond=STAGES keeps it and says that no
// option expresses what it does, NOTE says what that is and STAGES to whose numbers (see [Set.Beyond]); ignored does nothing.
//
// COND is other=PATTERN or other!=PATTERN. Of a name that is not declared, only absent and != hold.
//
// Further lines: "table NAME FAMILY RELEASE"; "under PREFIX" goes before the names that follow, "under" alone ends it;
// "alias OLD NAME" is another name of the same; "ignored: NAME..." are names that decide nothing, NAME.* with all below it.
// A # begins a comment.
//
// Where the names have dots, a name may be written without its first parts: clip_ratio for actor_rollout_ref.actor.clip_ratio.
// If that fits several, it is the first of the table.
type nativeTable struct {
	name, family, release string
	names                 []string // in the order of the text
	rules                 map[string][]nativeRule
	short                 map[string]string // every form of a name → the name
	groups                map[string]bool   // the first parts of these forms
	lines                 int               // rules so far
}

type nativeRule struct {
	pattern []string
	effects []nativeEffect
	when    []nativeCondition
	note    string
	line    int
}

type nativeEffect struct {
	what   effectKind
	target string // option, or the name of a fact
	text   string // of the value: "grpo", "$", "$1", "@epsilon"
}

type effectKind uint8

const (
	setsOption effectKind = iota
	keepsFact
	isBeyond
	isIgnored
)

type nativeCondition struct {
	name    string
	not     bool
	pattern []string
}

func readNative(texts ...string) (*nativeTable, error) {
	t := &nativeTable{rules: map[string][]nativeRule{}, short: map[string]string{}, groups: map[string]bool{}}
	for _, text := range texts {
		prefix := ""
		for n, line := range strings.Split(text, "\n") {
			if err := t.readLine(line, &prefix); err != nil {
				return nil, fmt.Errorf("%s, line %d: %w", t.name, n+1, err)
			}
		}
	}
	for _, name := range t.names {
		for i := range t.rules[name] {
			r := &t.rules[name][i]
			for j := range r.when {
				if err := t.resolve(&r.when[j].name); err != nil {
					return nil, fmt.Errorf("%s: %s: %w", t.name, name, err)
				}
			}
			for j := range r.effects {
				if what, other, is := strings.Cut(r.effects[j].text, "@"); is {
					if err := t.resolve(&other); err != nil {
						return nil, fmt.Errorf("%s: %s: %w", t.name, name, err)
					}
					r.effects[j].text = what + "@" + other
				}
			}
		}
	}
	for form := range t.short {
		group, _, _ := strings.Cut(form, ".")
		t.groups[group] = true
	}
	return t, nil
}

func (t *nativeTable) resolve(name *string) error {
	full, ok := t.short[*name]
	if !ok {
		return fmt.Errorf("there is no name %s", *name)
	}
	*name = full
	return nil
}

func (t *nativeTable) readLine(line string, prefix *string) error {
	if i := strings.Index(line, "#"); i >= 0 {
		line = line[:i]
	}
	line, note, _ := strings.Cut(line, " | ")
	cells := strings.Fields(line)
	if len(cells) == 0 {
		return nil
	}
	switch cells[0] {
	case "table":
		if t.name == "" && len(cells) > 2 {
			t.name, t.family = cells[1], cells[2]
			t.release = strings.Join(cells[3:], " ")
		}
		return nil
	case "under":
		*prefix = strings.Join(cells[1:], ".")
		if *prefix != "" {
			*prefix += "."
		}
		return nil
	case "alias":
		if len(cells) != 3 || t.rules[cells[2]] == nil {
			return fmt.Errorf("alias of a name that is not there: %s", line)
		}
		if _, twice := t.short[cells[1]]; !twice {
			t.short[cells[1]] = cells[2]
		}
		return nil
	case "ignored:":
		for _, name := range cells[1:] {
			if t.rules[*prefix+name] == nil { // what a table says goes before what it shares with others
				t.add(*prefix+name, nativeRule{pattern: []string{"any"}, effects: []nativeEffect{{what: isIgnored}}})
			}
		}
		return nil
	}
	if len(cells) < 3 {
		return fmt.Errorf("%q is no name, pattern and effect", line)
	}
	r := nativeRule{pattern: strings.Split(cells[1], "|"), note: strings.TrimSpace(note)}
	rest := cells[2:]
	if i := slices.Index(rest, "if"); i >= 0 {
		if i+2 != len(rest) {
			return fmt.Errorf("%q: want one word after if", line)
		}
		for _, c := range strings.Split(rest[i+1], ",") {
			name, pattern, ok := strings.Cut(c, "=")
			if !ok {
				return fmt.Errorf("condition %q has no =", c)
			}
			name, not := strings.CutSuffix(name, "!")
			r.when = append(r.when, nativeCondition{name, not, strings.Split(pattern, "|")})
		}
		rest = rest[:i]
	}
	for _, cell := range rest {
		e, err := readEffect(cell, cells[0], *prefix+cells[0])
		if err != nil {
			return err
		}
		r.effects = append(r.effects, e)
	}
	if r.has(isBeyond) != (r.note != "") || len(r.effects) == 0 {
		return fmt.Errorf("%q: a note belongs to beyond, and beyond has one", line)
	}
	t.add(*prefix+cells[0], r)
	return nil
}

func readEffect(cell, name, full string) (nativeEffect, error) {
	target, text, given := strings.Cut(cell, "=")
	switch target {
	case "ignored":
		return nativeEffect{what: isIgnored}, nil
	case "beyond":
		for _, stage := range strings.Split(text, ",") {
			if !slices.Contains(Stages, Stage(stage)) {
				return nativeEffect{}, fmt.Errorf("%q: beyond %q, want stages", name, stage)
			}
		}
		return nativeEffect{what: isBeyond, target: full, text: text}, nil
	case "fact":
		if !given {
			text = name
		}
		return nativeEffect{what: keepsFact, target: text}, nil
	}
	e := nativeEffect{target: target, text: text}
	o, err := Find(target)
	if err == nil && !strings.HasPrefix(text, "$") && text != "1-$" && !strings.HasPrefix(text, "@") {
		_, err = o.Parse(text)
	}
	return e, err
}

// add appends a rule and lists the forms of the name.
func (t *nativeTable) add(name string, r nativeRule) {
	if t.rules[name] == nil {
		t.names = append(t.names, name)
		for form := name; ; {
			if _, taken := t.short[form]; !taken {
				t.short[form] = name
			}
			_, rest, dotted := strings.Cut(form, ".")
			if !dotted || rest == "*" {
				break
			}
			form = rest
		}
	}
	t.lines++
	r.line = t.lines
	t.rules[name] = append(t.rules[name], r)
}

func (r *nativeRule) has(what effectKind) bool {
	return slices.ContainsFunc(r.effects, func(e nativeEffect) bool { return e.what == what })
}

// maxName bounds the time that a name of dots takes, in bytes; the longest name of verl has 96.
const maxName = 256

// find returns the name that is written as s: in full, or without its first parts. Flags may keep their dashes, Hydra's
// overrides their plus signs. A name that ends in .* stands for what is below it.
func (t *nativeTable) find(s string) (string, bool) {
	s = strings.TrimLeft(s, "+-")
	if name, ok := t.short[s]; ok || len(s) > maxName {
		return name, ok
	}
	for i := range len(s) + 1 {
		if i == len(s) || s[i] == '.' {
			if name, ok := t.short[s[:i]+".*"]; ok {
				return name, true
			}
		}
	}
	return "", false
}

// legal says which values the name takes.
func (t *nativeTable) legal(name string) (text string, words []string) {
	var all []string
	for _, r := range t.rules[name] {
		for _, p := range r.pattern {
			if p == "absent" {
				continue
			}
			if s, ok := classes[p]; ok {
				p = s
			} else {
				words = append(words, p)
			}
			if !slices.Contains(all, p) {
				all = append(all, p)
			}
		}
	}
	return strings.Join(all, ", "), words
}

// classes are the patterns that are no word, in words.
var classes = map[string]string{"any": "anything", "number": "a number", "negative": "a number < 0", "count": "a whole number ≥ 0", "numeral": "a number",
	"bool": "true or false", "text": "text", "list": "a list of numbers", "single": "one number", "pair": "two numbers", "low_high": "LOW_HIGH", "losses": "two or more losses",
	"null": "null", "true": "true", "false": "false"}

func isClass(p string) bool { return classes[p] != "" }

// matches reports whether v is one of the pattern.
func matches(pattern []string, v any, declared bool) bool {
	return slices.ContainsFunc(pattern, func(p string) bool { return matchesOne(p, v, declared) })
}

func matchesOne(p string, v any, declared bool) bool {
	if !declared || p == "absent" {
		return !declared && p == "absent"
	}
	if p == "any" {
		return true
	}
	switch v := v.(type) {
	case nil:
		return p == "null"
	case bool:
		return p == "bool" || p == strconv.FormatBool(v) || p == "off" && !v || p == "on" && v // YAML reads these words as truth values
	case float64:
		x, literal := parseNumber(p)
		return finite(v) && (p == "number" || p == "count" && v >= 0 && v == math.Trunc(v) || p == "negative" && v < 0 || literal && x == v)
	case string:
		_, numeral := parseNumber(v)
		return p == "text" || p == "numeral" && numeral || p == "low_high" && len(lowHigh(v)) == 2 || p == v && !isClass(p)
	case []any:
		if len(v) == 1 { // a list of one word is the word
			if word, is := v[0].(string); is {
				return matchesOne(p, word, declared)
			}
		}
		if p == "losses" {
			_, is := readPairSum(v, nil)
			return is
		}
		ok := p == "list" || p == "pair" && len(v) == 2 || p == "single" && len(v) == 1
		for _, e := range v {
			x, is := e.(float64)
			ok = ok && is && finite(x)
		}
		return ok
	}
	return false
}

// lowHigh returns the two numbers of a text like 0.5_5.0, nil if it is none.
func lowHigh(s string) []any {
	low, high, _ := strings.Cut(s, "_")
	x, isLow := parseNumber(strings.TrimSpace(low))
	y, isHigh := parseNumber(strings.TrimSpace(high))
	if !isLow || !isHigh {
		return nil
	}
	return []any{x, y}
}

func finite(x float64) bool { return !math.IsNaN(x) && !math.IsInf(x, 0) }
