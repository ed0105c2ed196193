package convention

import (
	"fmt"
	"slices"
	"strconv"
	"strings"

	"plumbline/verify/check"
)

// translation is what one table makes of the native names.
type translation struct {
	table   *nativeTable
	set     *Set
	taken   map[string]Translation // by name in the file
	ignored map[string]bool
	beyond  map[string]string
	unknown []string
	changed []Override
}

// translate returns what the tables that know most of the names make of them: one, unless several know as many. It is an
// error if none of these can.
func translate(tables []*nativeTable, native []NameValue, origin string) ([]*translation, error) {
	if len(tables) == 0 {
		tables = []*nativeTable{nativeShared()}
	}
	fewest := len(native)
	for _, t := range tables {
		fewest = min(fewest, unknownTo(t, native))
	}
	var results []*translation
	var failed error
	for _, t := range tables {
		if unknownTo(t, native) != fewest {
			continue
		}
		r, err := t.translate(native, origin)
		if err == nil {
			results = append(results, r)
		} else if failed == nil {
			failed = err
		}
	}
	if len(results) == 0 {
		return nil, failed
	}
	return results, nil
}

func unknownTo(t *nativeTable, native []NameValue) (n int) {
	for _, o := range native {
		if _, ok := t.find(o.Name); !ok {
			n++
		}
	}
	return n
}

// applied is the rule that decides a name.
type applied struct {
	rule  *nativeRule
	name  string // in the file
	value any
	words string
}

func (t *nativeTable) translate(native []NameValue, origin string) (*translation, error) {
	r := &translation{table: t, set: &Set{}, taken: map[string]Translation{}, ignored: map[string]bool{}, beyond: map[string]string{}}
	declared := map[string]NameValue{} // by the name in the table
	for _, o := range native {
		name, ok := t.find(o.Name)
		if !ok {
			r.unknown = append(r.unknown, o.Name)
			continue
		}
		if strings.HasSuffix(name, ".*") {
			r.ignored[o.Name] = true
			continue
		}
		if before, twice := declared[name]; twice && showValue(before.Value) != showValue(o.Value) {
			return nil, fmt.Errorf("%s and %s are the same option of %s", words(before), words(o), t.name)
		}
		declared[name] = o
	}
	var rules []applied
	for _, name := range t.names {
		o, is := declared[name]
		rule, reason := t.decide(name, o.Value, is, declared)
		switch {
		case rule != nil && is:
			rules = append(rules, applied{rule, o.Name, o.Value, words(o)})
		case rule != nil: // absent speaks for the name that it copies
			for _, e := range rule.effects {
				if from, ok := declared[strings.TrimPrefix(e.text, "@")]; ok {
					rules = append(rules, applied{rule, from.Name, nil, words(from)})
				}
			}
		case is && reason == "":
			return nil, t.refuse(name, o)
		case is:
			r.taken[o.Name] = Translation{Words: words(o), Note: reason}
		}
	}
	slices.SortStableFunc(rules, func(a, b applied) int { return a.rule.line - b.rule.line })
	for _, a := range rules {
		if err := r.apply(a, declared, origin); err != nil {
			return nil, err
		}
	}
	return r, nil
}

// decide returns the rule for a name, or why it decides nothing; neither if the value is illegal.
func (t *nativeTable) decide(name string, v any, is bool, declared map[string]NameValue) (rule *nativeRule, reason string) {
	for i := range t.rules[name] {
		r := &t.rules[name][i]
		if !matches(r.pattern, v, is) {
			continue
		}
		failed := slices.IndexFunc(r.when, func(c nativeCondition) bool {
			o, given := declared[c.name]
			return matches(c.pattern, o.Value, given) == c.not
		})
		if failed < 0 {
			return r, ""
		}
		if reason == "" {
			c := r.when[failed]
			if o, given := declared[c.name]; given {
				reason = "has no effect with " + words(o)
			} else {
				reason = "decides nothing as long as " + c.name + " is not declared"
			}
		}
	}
	return nil, reason
}

// refuse is the error of a value that a name cannot have.
func (t *nativeTable) refuse(name string, o NameValue) error {
	legal, literals := t.legal(name)
	err := fmt.Errorf("%s is no legal value of %s; want %s", words(o), t.name, legal)
	if s, ok := o.Value.(string); ok && len(literals) > 0 {
		err = fmt.Errorf("%w; did you mean %q?", err, check.Nearest(clipped(s), literals))
	}
	return err
}

// apply sets what a rule says.
func (r *translation) apply(a applied, declared map[string]NameValue, origin string) error {
	t := r.taken[a.name]
	t.Words = a.words
	for _, e := range a.rule.effects {
		switch e.what {
		case isIgnored:
			r.ignored[a.name] = true
		case isBeyond:
			r.beyond[a.name] = a.words + ": " + a.rule.note
			r.set = r.set.WithFact(e.target, a.value)
			for _, stage := range strings.Split(e.text, ",") {
				r.set = r.set.withBeyond(Stage(stage), r.beyond[a.name])
			}
		case keepsFact:
			value := a.value
			if text, isText := value.(string); isText && slices.Contains(a.rule.pattern, "numeral") {
				value, _ = parseNumber(text)
			}
			r.set = r.set.WithFact(e.target, value)
			t.Fact = e.target
		case setsOption:
			v, missing, err := e.value(a, declared)
			if err != nil {
				return fmt.Errorf("%s: %w", a.words, err)
			}
			if missing != "" {
				t.Note = missing + " is not declared"
				continue
			}
			r.assign(e.target, v, from(a.words, origin))
			t.Sets = append(t.Sets, Assignment{e.target, v})
		}
	}
	if len(t.Sets) > 0 || t.Fact != "" || t.Note != "" {
		r.taken[a.name] = t
	}
	return nil
}

func (r *translation) assign(option string, v Value, origin string) {
	if was := r.set.Value(option); was.Kind() != Unknown && was != v {
		r.changed = append(r.changed, Override{option, was, v, r.set.Origin(option), origin})
	}
	r.set = r.set.With(option, v, origin)
}

// value returns the value that an effect gives its option, or the name of which it would be the value.
func (e *nativeEffect) value(a applied, declared map[string]NameValue) (v Value, missing string, err error) {
	text := e.text
	switch {
	case strings.HasPrefix(text, "@"):
		o, ok := declared[text[1:]]
		if !ok || o.Value == nil {
			return Value{}, text[1:], nil
		}
		text = showValue(o.Value)
	case strings.Contains(text, "@"):
		what, name, _ := strings.Cut(text, "@")
		if text, err = sumEffect(what, a.value, declared[name].Value); err != nil {
			return Value{}, "", err
		}
	case text == "1-$":
		x, _ := a.value.(float64)
		text = strconv.FormatFloat(1-x, 'g', 15, 64) // 1 − 0.7 is 0.3
	case text == "$":
		text = showValue(a.value)
	case text == "$1" || text == "$2":
		pair, ok := a.value.([]any)
		if !ok {
			pair = lowHigh(a.value.(string))
		}
		text = showValue(pair[text[1]-'1'])
	}
	v, err = Parse(e.target, text)
	return v, "", err
}
