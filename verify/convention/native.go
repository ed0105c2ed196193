package convention

import (
	"fmt"
	"maps"
	"slices"
	"strings"
	"sync"
	"unicode"
)

// NameValue is an option as a file has it: Value is nil, a bool, a float64, a string, a []any or a map[string]any of these.
type NameValue struct {
	Name  string
	Value any
}

// Declared is what the options of a file say.
type Declared struct {
	Set       *Set          // options with the words of the file as their origin, and facts
	Table     string        // whose names were understood: "trl-grpo 1.16.0", several with commas; "" if none were needed
	Taken     []Translation // what set an option or a fact, in the order of the file
	Overrides []Override    // where two of them said different things
	Ignored   []string      // known names that decide nothing a check looks at
	Beyond    []string      // what changes the numbers and no option expresses: "top_entropy_quantile=0.2: tokens of …"
	Ambiguous []string      // names that mean different things to the frameworks that have them, and so set nothing
	Unknown   []string      // names that nobody knows, each with the nearest known one
	Warning   string        // the names were read as those of another release; "" if not
}

// Translation is what one name of a file set.
type Translation struct {
	Words string       // of the file: "loss_type=grpo"
	Sets  []Assignment // options
	Fact  string       // name under which the value is kept, "" if it is not
	Note  string       // why it sets less than it might, "" if it does not
}

// Assignment is an option and the value that it got.
type Assignment struct {
	Option string
	Value  Value
}

func (a Assignment) String() string { return a.Option + "=" + a.Value.String() }

// String returns "loss_type=grpo → loss.kind=ppo, agg.kind=…".
func (t Translation) String() string {
	var right []string
	for _, a := range t.Sets {
		right = append(right, a.String())
	}
	if t.Fact != "" {
		right = append(right, "fact "+t.Fact)
	}
	s := t.Words
	if len(right) > 0 {
		s += " → " + strings.Join(right, ", ")
	}
	if t.Note != "" {
		s += " (" + t.Note + ")"
	}
	return s
}

// Declare reads options under neutral names and under those of a framework. framework is free text in which one of trl,
// verl, openrlhf, open-instruct and cleanrl is looked for, and grpo, rloo, ppo to tell the trainers of TRL apart ("trl", "TRL-GRPO", "trl/ppo");
// where it does not tell, the trainer that knows most of the names is taken, and if several do, what they agree on. Empty,
// it stands for all of them; any other framework has no table, its names are unknown, which is a warning. Facts of a run (see [FactNames]) have
// TRL's names everywhere. origin, such as the name of the file, follows the words in the origins of the values; "" adds
// nothing.
//
// A neutral name is stronger than a native one; of two native names that set one option, the one further down in the table
// is, as in the framework. What is missing is unknown, with one exception: epsilon without epsilon_high is both, as in
// every release of TRL. null is what the framework means by None. Objects are read as names with dots.
//
// Errors: a value that the name cannot have, a name given twice with two values, and a name that begins like an option, as
// in clip.lo, and is none. Other unknown names are listed.
func Declare(framework, version string, options []NameValue, origin string) (*Declared, error) {
	family, tables := tablesOf(framework)
	var flat []NameValue
	for _, o := range options {
		flat = flatten(flat, o, tables)
	}
	neutral, native, err := split(flat, tables, family != "")
	if err != nil {
		return nil, err
	}
	results, err := translate(tables, native, origin)
	if err != nil {
		return nil, err
	}
	d := agreed(results, native)
	if err := d.declareNeutral(neutral, origin); err != nil {
		return nil, err
	}
	d.putInOrder(flat)
	switch t := results[0].table; {
	case family != "" && len(tables) == 0 && len(d.Unknown) > 0:
		d.Warning = fmt.Sprintf("the option names of %.64q are not known; those of %s are", framework, strings.Join(families(), ", "))
	case len(results) == 1 && d.Table != "" && version != "" && !sameMinor(version, t.release):
		d.Warning = fmt.Sprintf("the option names are read as %s has them, declared is %.64q", d.Table, version)
	}
	return d, nil
}

// HasTable reports whether the names of a framework's options are known; see [Declare] for what framework may be.
func HasTable(framework string) bool {
	_, tables := tablesOf(framework)
	return len(tables) > 0
}

// KnownNative returns the names that a framework's options may have, in the order of its tables; see [Declare] for what
// framework may be. Names of facts and of the metadata come last.
func KnownNative(framework string) []string {
	_, tables := tablesOf(framework)
	var names []string
	seen := map[string]bool{}
	for _, t := range append(slices.Clone(tables), nativeShared()) {
		for _, n := range t.names {
			if !seen[n] {
				seen[n] = true
				names = append(names, n)
			}
		}
	}
	return names
}

// NativeName returns the name by which a framework's table has a name that may be an alias or lack its first parts, name itself if it has none.
func NativeName(framework, name string) string {
	_, tables := tablesOf(framework)
	for _, t := range tables {
		if full, ok := t.find(name); ok {
			return full
		}
	}
	return name
}

// FactNames returns the names of the facts that a file of neutral options may have, beside the options.
func FactNames() []string {
	var names []string
	for _, n := range nativeShared().names {
		if slices.ContainsFunc(nativeShared().rules[n], func(r nativeRule) bool { return r.has(keepsFact) }) {
			names = append(names, n)
		}
	}
	return names
}

// sameMinor reports whether two versions agree in their first two numbers, or are one commit of which more or fewer digits are given.
func sameMinor(a, b string) bool {
	const digits = 7 // that git abbreviates a commit to
	if min(len(a), len(b)) >= digits && (strings.HasPrefix(a, b) || strings.HasPrefix(b, a)) {
		return true
	}
	x, _, okA := release(a)
	y, _, okB := release(b)
	return okA && okB && len(x) > 1 && len(y) > 1 && slices.Equal(x[:2], y[:2])
}

func families() []string {
	var all []string
	for _, t := range slices.Concat(natives(), nativesByName()) {
		if !slices.Contains(all, t.family) {
			all = append(all, t.family)
		}
	}
	return all
}

// tablesOf returns the framework that the text names, "" if the text is empty, and the tables that it may mean.
func tablesOf(framework string) (family string, tables []*nativeTable) {
	words := strings.FieldsFunc(strings.ToLower(framework), func(r rune) bool { return !unicode.IsLetter(r) && !unicode.IsDigit(r) })
	if len(words) == 0 {
		return "", natives()
	}
	for _, t := range nativesByAlgorithm() {
		if _, algorithm, _ := strings.Cut(t.name, "-"); slices.Contains(words, t.family) && slices.Contains(words, algorithm) {
			return t.family, []*nativeTable{t}
		}
	}
	for _, t := range slices.Concat(natives(), nativesByName()) {
		if !slices.ContainsFunc(strings.Split(t.family, "-"), func(word string) bool { return !slices.Contains(words, word) }) {
			tables = append(tables, t)
		}
	}
	for _, t := range tables {
		if _, algorithm, _ := strings.Cut(t.name, "-"); slices.Contains(words, algorithm) {
			return t.family, []*nativeTable{t}
		}
	}
	return words[0], tables
}

// flatten appends o, or what is in it if it is an object whose name no table has.
func flatten(flat []NameValue, o NameValue, tables []*nativeTable) []NameValue {
	object, is := o.Value.(map[string]any)
	if is {
		for _, t := range tables {
			if _, known := t.find(o.Name); known {
				return append(flat, o)
			}
		}
	}
	if !is || len(object) == 0 {
		return append(flat, o)
	}
	for _, key := range slices.Sorted(maps.Keys(object)) {
		flat = flatten(flat, NameValue{o.Name + "." + key, object[key]}, tables)
	}
	return flat
}

// split tells neutral names from others. A name that looks like an option and is none is an error, unless a named
// framework has such names itself.
func split(flat []NameValue, tables []*nativeTable, named bool) (neutral, native []NameValue, err error) {
	for _, o := range flat {
		group, _, dotted := strings.Cut(o.Name, ".")
		_, isOption := index().at[o.Name]
		both := nativeShared().rules[o.Name] != nil // align
		for _, t := range tables {
			both = both || named && t.rules[o.Name] != nil // OpenRLHF's reward.clip_range
		}
		switch {
		case isOption && !both:
			neutral = append(neutral, o)
		case dotted && optionGroups()[group] && !known(tables, o.Name) && !(named && theirs(tables, group)):
			_, err := Find(o.Name)
			return nil, nil, err
		default:
			native = append(native, o)
		}
	}
	return neutral, native, nil
}

// optionGroups are the first parts of the names of options.
var optionGroups = sync.OnceValue(func() map[string]bool {
	groups := map[string]bool{}
	for _, o := range index().list {
		if group, _, dotted := strings.Cut(o.Name, "."); dotted {
			groups[group] = true
		}
	}
	return groups
})

func theirs(tables []*nativeTable, group string) bool {
	return slices.ContainsFunc(tables, func(t *nativeTable) bool { return t.groups[group] })
}

func known(tables []*nativeTable, name string) bool {
	return slices.ContainsFunc(tables, func(t *nativeTable) bool { _, ok := t.find(name); return ok })
}
