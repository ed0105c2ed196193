package convention

import (
	"fmt"
	"slices"
	"strconv"
	"strings"
)

// NativeWords returns how a framework's configuration says that an option has a value, as one writes it in Python:
// `loss_type="dr_grpo"`. A name that sets the option only together with others says so less surely and comes later. It is empty where
// the framework has no such setting.
func NativeWords(framework, option string, v Value) []string {
	_, tables := tablesOf(framework)
	type word struct {
		text string
		rank int // conditions that must hold, then what else it sets
	}
	var found []word
	for _, t := range tables {
		for _, name := range t.names {
			for _, r := range t.rules[name] {
				i := slices.IndexFunc(r.effects, func(e nativeEffect) bool { return e.what == setsOption && e.target == option })
				if i < 0 {
					continue
				}
				text := pythonWord(r, r.effects[i].text, v)
				if text == "" {
					continue
				}
				short := name[strings.LastIndexByte(name, '.')+1:]
				text = short + "=" + text
				rank := len(r.effects)
				for _, c := range r.when {
					if !c.not {
						rank += 100
					}
				}
				if !slices.ContainsFunc(found, func(w word) bool { return w.text == text }) {
					found = append(found, word{text, rank})
				}
			}
		}
	}
	slices.SortStableFunc(found, func(a, b word) int { return a.rank - b.rank })
	words := make([]string, len(found))
	for i, w := range found {
		words[i] = w.text
	}
	return words
}

// pythonWord returns the value under which a rule sets an option to v, "" if it does not or if many values do.
func pythonWord(r nativeRule, effect string, v Value) string {
	if effect == "$" && (v.Kind() == Number || v.Kind() == Bool) {
		return python(v.String())
	}
	if effect != v.String() {
		return ""
	}
	var words []string
	for _, p := range r.pattern {
		switch p {
		case "absent", "number", "negative", "count", "numeral", "bool", "text", "list", "single", "pair", "low_high", "any":
			return ""
		}
		words = append(words, p)
	}
	if len(words) == 0 {
		return ""
	}
	return python(words[0])
}

// python writes a word of a table as a Python literal.
func python(word string) string {
	switch word {
	case "true":
		return "True"
	case "false":
		return "False"
	case "null", "none":
		return "None"
	}
	if _, err := strconv.ParseFloat(word, 64); err == nil {
		return word
	}
	return fmt.Sprintf("%q", word)
}
