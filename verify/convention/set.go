package convention

import (
	"fmt"
	"maps"
	"slices"
	"strings"
)

// Set gives options a value, each with the place it comes from, and holds the facts of a run that are no conventions: how
// many micro-batches make a step, how long a response may be. It is never changed: With and the like return copies. The zero
// Set knows nothing.
type Set struct {
	values map[string]assigned
	last   *change            // what With has put over values
	among  map[string][]Value // where the value is unknown: it is one of these
	facts  map[string]any
	beyond map[Stage]string // what is declared and no option expresses, in words
}

type assigned struct {
	value  Value
	origin string
}

// change is another value of one option, put over those before it: a search of a small batch makes thousands of sets that differ in one
// value, and copies of all values would be a sixth of its time.
type change struct {
	option string
	to     assigned
	before *change
	depth  int
}

// mostChanges is how many changes a value is looked for in before they are written into a copy.
const mostChanges = 4

// at returns what s gives an option, and whether it gives it a value.
func (s *Set) at(option string) (assigned, bool) {
	for c := s.last; c != nil; c = c.before {
		if c.option == option {
			return c.to, c.to.value.Kind() != Unknown
		}
	}
	a, ok := s.values[option]
	return a, ok
}

// all returns the values with the changes in them, as a map that the caller may write into.
func (s *Set) all() map[string]assigned {
	values := maps.Clone(s.values)
	if values == nil {
		values = map[string]assigned{}
	}
	for c := s.last; c != nil; c = c.before {
		if a, ok := s.at(c.option); ok {
			values[c.option] = a
		} else {
			delete(values, c.option)
		}
	}
	return values
}

// FromProfile returns the values of p, with its name as their origin.
func FromProfile(p *Profile) *Set {
	s := &Set{values: map[string]assigned{}, among: map[string][]Value{}}
	for _, t := range p.all {
		if t.Value.Kind() != Unknown {
			s.values[t.Option.Name] = assigned{t.Value, p.Name}
		} else if len(t.Among) > 0 {
			s.among[t.Option.Name] = t.Among
		}
	}
	return s
}

// Value returns the value of an option, unknown if s has none.
func (s *Set) Value(option string) Value {
	a, _ := s.at(option)
	return a.value
}

// Origin returns where the value of an option comes from, "" if s has none.
func (s *Set) Origin(option string) string {
	a, _ := s.at(option)
	return a.origin
}

// Declares reports whether the files or the user give an option its value, and no profile ("name@version"), search ("search") or check ("stage/output").
func (s *Set) Declares(option string) bool {
	origin := s.Origin(option)
	return s.Value(option).Known() && origin != "search" && !strings.ContainsAny(origin, "@/")
}

// Fact returns a fact of the run: a float64, string, bool, or a list of these.
func (s *Set) Fact(name string) (any, bool) {
	v, ok := s.facts[name]
	return v, ok
}

// Facts returns the names of the facts, sorted.
func (s *Set) Facts() []string { return slices.Sorted(maps.Keys(s.facts)) }

// Among returns what an option without a value may be: what the profile leaves open, or else every value that some framework
// has. It is empty for options of any number that nobody has.
func (s *Set) Among(option string) []Value {
	if a := s.among[option]; len(a) > 0 {
		return a
	}
	o, err := Find(option)
	if err != nil {
		panic("convention: " + err.Error())
	}
	if o.Type == BoolType {
		return []Value{{kind: Bool}, {kind: Bool, b: true}}
	}
	var all []Value
	for _, text := range o.Values {
		v, err := o.Parse(text)
		if err != nil {
			panic("convention: " + err.Error())
		}
		all = append(all, v)
	}
	return all
}

// With returns s with another value of one option. Unknown takes the value away.
func (s *Set) With(option string, v Value, origin string) *Set {
	c := *s
	if c.last != nil && c.last.depth == mostChanges {
		c.values, c.last = s.all(), nil
	}
	to := &change{option: option, before: c.last, depth: 1}
	if c.last != nil {
		to.depth += c.last.depth
	}
	if v.Kind() != Unknown {
		to.to = assigned{v, origin}
	}
	c.last = to
	return &c
}

// WithFact returns s with another fact.
func (s *Set) WithFact(name string, v any) *Set {
	c := *s
	c.facts = maps.Clone(s.facts)
	if c.facts == nil {
		c.facts = map[string]any{}
	}
	c.facts[name] = v
	return &c
}

// Beyond returns what was declared that changes the numbers of a stage and that no option expresses, "" if nothing was:
// "no_std_norm=true: the mean of the advantages is subtracted, …".
func (s *Set) Beyond(stage Stage) string { return s.beyond[stage] }

func (s *Set) withBeyond(stage Stage, text string) *Set {
	c := *s
	c.beyond = maps.Clone(s.beyond)
	if c.beyond == nil {
		c.beyond = map[Stage]string{}
	}
	if old := c.beyond[stage]; old != "" && old != text {
		text = old + "; " + text
	}
	c.beyond[stage] = text
	return &c
}

// Override is an option of which a stronger declaration says something else than a weaker one.
type Override struct {
	Option   string
	From, To Value
	Was, Now string // origins
}

// Over returns s with the values and facts of t, which are stronger, in their place, and what that changed.
func (s *Set) Over(t *Set) (*Set, []Override) {
	c := &Set{values: s.all(), among: s.among, facts: maps.Clone(s.facts), beyond: s.beyond}
	if c.facts == nil {
		c.facts = map[string]any{}
	}
	var changed []Override
	stronger := t.all()
	for _, name := range slices.Sorted(maps.Keys(stronger)) {
		a, b := c.values[name], stronger[name]
		if a.value.Kind() != Unknown && a.value != b.value {
			changed = append(changed, Override{name, a.value, b.value, a.origin, b.origin})
		}
		c.values[name] = b
	}
	maps.Copy(c.facts, t.facts)
	for stage, text := range t.beyond {
		c = c.withBeyond(stage, text)
	}
	return c, changed
}

// Names returns the options that have a value, in the order of [Options].
func (s *Set) Names() []string {
	var names []string
	for _, o := range index().list {
		if _, ok := s.at(o.Name); ok {
			names = append(names, o.Name)
		}
	}
	return names
}

// NumberValue returns the value x of an option of numbers.
func NumberValue(x float64) Value { return Value{kind: Number, num: [3]float64{x}} }

// FactsOnly returns the facts of s, and what is beyond options, without its values.
func (s *Set) FactsOnly() *Set { return &Set{facts: s.facts, beyond: s.beyond} }

// Text returns what s says, and not who says it: sets of one text judge alike.
func (s *Set) Text() string {
	var b strings.Builder
	values := s.all()
	for _, name := range slices.Sorted(maps.Keys(values)) {
		v := values[name].value
		fmt.Fprintf(&b, "%s=%d %s\n", name, v.kind, v)
	}
	for _, name := range slices.Sorted(maps.Keys(s.among)) {
		fmt.Fprintf(&b, "%s of %v\n", name, s.among[name])
	}
	for _, name := range s.Facts() {
		fmt.Fprintf(&b, "%s: %#v\n", name, s.facts[name])
	}
	for _, stage := range slices.Sorted(maps.Keys(s.beyond)) {
		fmt.Fprintf(&b, "beyond %v: %s\n", stage, s.beyond[stage])
	}
	return b.String()
}
