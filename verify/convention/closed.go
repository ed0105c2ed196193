package convention

import (
	"slices"
	"strings"
	"sync"
)

// Possible reports whether some configuration of p's framework, release and algorithm can have the value: a profile of the same
// framework and algorithm has it or leaves the option open, or the configuration class translates something to it. Of a framework
// without a table of its configuration only the profiles speak. What no configuration can have is no convention there, but a bug.
func (p *Profile) Possible(option string, v Value) bool {
	if v.Kind() == NotApplicable || v.Kind() == Unknown {
		return true
	}
	name, _, _ := strings.Cut(p.Name, "@")
	for _, q := range Profiles() {
		if other, _, _ := strings.Cut(q.Name, "@"); other == name && q.Allows(option, v) {
			return true
		}
	}
	return p.Configurable(option, v)
}

// Configurable reports whether p allows the value, or the configuration class of its framework translates something to it.
func (p *Profile) Configurable(option string, v Value) bool {
	if p.Allows(option, v) {
		return true
	}
	name, _, _ := strings.Cut(p.Name, "@")
	_, tables := tablesOf(p.Framework + " " + p.Algorithm)
	for _, t := range tables {
		if family, _, _ := strings.Cut(t.name, "-"); family != t.name && t.name != name {
			continue // the table of another algorithm
		}
		if w := t.reachable()[option]; w.any && v.Kind() == Number || slices.Contains(w.texts, v.String()) {
			return true
		}
	}
	return false
}

// Profile returns the profile that options of s come from, nil if none does.
func (s *Set) Profile() *Profile {
	values := s.all()
	for _, p := range AllProfiles() {
		for _, a := range values {
			if a.origin == p.Name {
				return p
			}
		}
	}
	return nil
}

// reach is what a configuration can make of an option.
type reach struct {
	any   bool // a number of the configuration itself
	texts []string
}

var reached sync.Map // of *nativeTable to map[string]reach

// reachable returns, by option, the values that the rules of t give.
func (t *nativeTable) reachable() map[string]reach {
	if m, ok := reached.Load(t); ok {
		return m.(map[string]reach)
	}
	m := map[string]reach{}
	for _, name := range t.names {
		for _, r := range t.rules[name] {
			for _, e := range r.effects {
				if e.what != setsOption {
					continue
				}
				w := m[e.target]
				switch {
				case e.text == "$":
					w.any = true
					w.texts = append(w.texts, r.pattern...)
				case strings.ContainsAny(e.text, "$@"):
					w.any = true
				default:
					w.texts = append(w.texts, e.text)
				}
				m[e.target] = w
			}
		}
	}
	reached.Store(t, m)
	return m
}
