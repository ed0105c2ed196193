package update

import (
	"regexp"
	"slices"
	"strings"
)

// unspared are the names that transformers.Trainer 5.23 (get_decay_parameter_names) leaves out of the decay, and those of OpenRLHF 0.11.2
// (get_optimizer_grouped_parameters), the norms of GPT-2 among them, which the Trainer knows by their class.
var unspared = regexp.MustCompile(`bias|layernorm|rmsnorm|(?:^|\.)norm(?:$|\.)|_norm(?:$|\.)|norm\.weight|(?:^|\.)ln_f\.|(?:^|\.)ln_?\d*\.weight`)

// ofBiasOrNorm reports whether a name is one of those.
func ofBiasOrNorm(name string) bool { return unspared.MatchString(strings.ToLower(name)) }

// spared reports whether a decay leaves the tensor out.
func (g group) spared(s spare) bool {
	switch s {
	case spareNames:
		return g.named
	case spareVectors:
		return g.dims == 1 && !g.flat
	}
	return false
}

// spares are the choices that make a difference on the sample, among those that are declared; all where nobody says.
func (s *sample) spares(declared string) []spare {
	var all []spare
	switch declared {
	case "none":
		return []spare{spareNone}
	case "biases_and_norms":
	default:
		all = append(all, spareNone)
	}
	for _, choice := range []spare{spareNames, spareVectors} {
		same := func(other spare) bool {
			return !slices.ContainsFunc(s.groups, func(g group) bool { return g.spared(choice) != g.spared(other) })
		}
		if !slices.ContainsFunc(all, same) {
			all = append(all, choice)
		}
	}
	return all
}

// words names the choice as the option does.
func (s spare) words() string {
	if s == spareNone {
		return "none"
	}
	return "biases_and_norms"
}

// left are the tensors that a decay leaves out, the first of them by name.
func (s *sample) left(of spare) (names []string) {
	for _, g := range s.groups {
		if g.spared(of) {
			names = append(names, g.name)
		}
	}
	return names
}
