package convention

import "strings"

// whitens are the estimators of advantages that a profile of groups does not have and that whiten: REINFORCE++ and its form with a baseline
// (verl 0.9.1 compute_reinforce_plus_plus_baseline_outcome_advantage, OpenRLHF 0.11.2 compute_advantages_and_returns).
var whitens = map[string]bool{"rfpp": true, "rfpp_baseline": true}

// WithCompanions returns s with what a declared estimator brings with it. A profile says of an option that it does not apply, and means its own
// estimator; where another one is declared by the name of the option, what the framework's own name for it sets beside it holds, as if that had been
// declared, and what the framework has no name for is unknown. The same of whitening whose scope is declared: its other options are unknown.
// profile is the origin of what the profile says, framework as for [Declare].
func (s *Set) WithCompanions(framework, profile string) *Set {
	kind, declared := s.at("adv.kind")
	declared = declared && kind.value.Kind() == Enum && kind.origin != profile
	scope, scoped := s.at("whiten.scope")
	scoped = scoped && scope.value.Kind() == Enum && scope.origin != profile && scope.value.Text() != "none"
	if !declared && !scoped {
		return s
	}
	for _, o := range index().list {
		a, known := s.at(o.Name)
		if !known || a.value.Kind() != NotApplicable || a.origin != profile {
			continue
		}
		white := strings.HasPrefix(o.Name, "whiten.")
		if declared {
			if v, words, ok := companion(framework, "adv.kind", kind.value.Text(), o); ok {
				s = s.With(o.Name, v, words)
				continue
			}
		} else if white {
			if v, words, ok := companion(framework, "whiten.scope", scope.value.Text(), o); ok {
				s = s.With(o.Name, v, words)
				continue
			}
		}
		if white && (scoped || whitens[kind.value.Text()]) {
			s = s.With(o.Name, Value{}, "")
		}
	}
	return s
}

// companion returns the value that the names of a framework give an option where they set another one, of, to text: the one that all of them give.
func companion(framework, of, is string, o *Option) (v Value, words string, ok bool) {
	_, tables := tablesOf(framework)
	for _, t := range tables {
		for _, name := range t.names {
			for _, r := range t.rules[name] {
				text, sets := "", false
				for _, e := range r.effects {
					sets = sets || e.what == setsOption && e.target == of && e.text == is
					if e.what == setsOption && e.target == o.Name && !strings.ContainsAny(e.text, "$@") {
						text = e.text
					}
				}
				if !sets {
					continue
				}
				w, err := o.Parse(text)
				if text == "" || err != nil || ok && w != v {
					return Value{}, "", false
				}
				v, words, ok = w, name+"="+strings.Join(r.pattern, "|"), true
			}
		}
	}
	return v, words, ok
}
