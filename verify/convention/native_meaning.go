package convention

import (
	"slices"
	"strings"
)

// NativeMeaning is what a framework's own name of an option means here.
type NativeMeaning struct {
	Table  string      // profile or program, and its release: "verl 0.9.1"
	Name   string      // in full
	Values [][2]string // what it may be, and what that sets
}

// NativeMeanings returns what a name means in the tables of the frameworks, in full, without its first parts, or by an alias. Names that
// every framework may use (facts of a run) are not among them.
func NativeMeanings(name string) (all []NativeMeaning) {
	for _, t := range slices.Concat(natives(), nativesByName(), nativesByAlgorithm()) {
		full, ok := t.find(name)
		if _, shared := nativeShared().find(name); !ok || shared || strings.HasSuffix(full, ".*") {
			continue
		}
		m := NativeMeaning{Table: strings.TrimSpace(t.name + " " + t.release), Name: full}
		for _, r := range t.rules[full] {
			line := [2]string{r.value(), r.sets()}
			if line[0] != "" && !slices.Contains(m.Values, line) {
				m.Values = append(m.Values, line)
			}
		}
		all = append(all, m)
	}
	return all
}

// value says for which values of its name a rule is, "" where it is for none that is declared.
func (r *nativeRule) value() string {
	var all []string
	for _, p := range r.pattern {
		if p == "absent" {
			continue
		}
		if words := classes[p]; words != "" {
			p = words
		}
		all = append(all, p)
	}
	return strings.Join(all, ", ")
}

// sets says what a rule does, with the conditions under which it does it.
func (r *nativeRule) sets() string {
	var all []string
	for _, e := range r.effects {
		switch e.what {
		case setsOption:
			all = append(all, e.target+"="+e.source())
		case keepsFact:
			all = append(all, "kept as "+e.text)
		case isBeyond:
			all = append(all, "no option: "+r.note)
		case isIgnored:
			all = append(all, "nothing that is judged")
		}
	}
	text := strings.Join(all, ", ")
	for i, c := range r.when {
		is := " is "
		if c.not {
			is = " is not "
		}
		text += [2]string{", where ", " and "}[min(i, 1)] + c.name[strings.LastIndexByte(c.name, '.')+1:] + is + strings.Join(c.pattern, " or ")
	}
	return text
}

// source says what an option is set to.
func (e nativeEffect) source() string {
	its, other, two := strings.Cut(e.text, "@")
	switch {
	case two && its == "":
		return "the value of " + other
	case two:
		return "what its values and those of " + other + " make"
	case e.text == "$1" || e.text == "$2":
		return map[string]string{"$1": "the first", "$2": "the second"}[e.text] + " of its numbers"
	}
	return strings.Replace(e.text, "$", "its value", 1)
}
