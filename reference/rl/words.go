package rl

import (
	"maps"
	"slices"
)

// words are the values of an enumerated option: names[i] is the word of the constant i of type T.
type words[T ~int] struct {
	option string
	names  []string
}

// declared holds the words of every enumeration, by the name of its option.
var declared = map[string][]string{}

// enumeration declares the words of an option in the order of its constants. They stand nowhere else: package convention
// takes the legal values of an option from [Words].
func enumeration[T ~int](option string, names ...string) words[T] {
	need(declared[option] == nil, "rl: option "+option+" is declared twice")
	declared[option] = names
	return words[T]{option, names}
}

// has reports whether v is one of the constants.
func (w words[T]) has(v T) bool { return v >= 0 && int(v) < len(w.names) }

// text returns the word of v, "invalid" for what is no constant.
func (w words[T]) text(v T) string {
	if !w.has(v) {
		return "invalid"
	}
	return w.names[v]
}

// parse returns the constant of the word s, or an [OptionError].
func (w words[T]) parse(s string) (T, error) {
	if i := slices.Index(w.names, s); i >= 0 {
		return T(i), nil
	}
	return 0, &OptionError{Option: w.option, Value: s, Allowed: w.names}
}

// Words returns the words of an enumerated option in the order of its constants, nil if this package has no such option.
func Words(option string) []string { return slices.Clone(declared[option]) }

// Enumerations returns the names of the options whose words this package declares, in alphabetical order.
func Enumerations() []string { return slices.Sorted(maps.Keys(declared)) }
