package dump

import (
	"fmt"
	"maps"
	"slices"
	"strings"

	"plumbline/internal/format"
	"plumbline/internal/format/dump"
)

// sameRun looks for a step of another run among those of one: what is the same at every other step, before it and behind it, and is
// another at this one. A run that changes a type or a setting keeps the change for a while; that it takes it back at the next step, and
// changes nothing else in all its steps, is told from a file of another run by nobody.
type sameRun struct {
	signs map[string]map[string]*occurrence // by what it is of and what it says
	steps int
	ids   []string // of rows that have other tokens at another step
}

// occurrence is at which steps a thing was so.
type occurrence struct{ count, first, last int }

const fewSigns = 3 // of a thing that is said to be one throughout

// settingWords are parts of the names of options that a run may change at any step: schedules, adaptive coefficients, counts.
var settingWords = []string{"lr", "learning", "coef", "beta", "kl", "num_", "count", "items", "tokens", "batch", "step", "epoch", "size", "weights", "seed"}

// look takes down what one step says.
func (s *sameRun) look(n *StepNotes, m *dump.Meta) {
	if s.signs == nil {
		s.signs = map[string]map[string]*occurrence{}
	}
	s.steps++
	say := func(of, what string) {
		if s.signs[of] == nil {
			s.signs[of] = map[string]*occurrence{}
		}
		o := s.signs[of][what]
		if o == nil {
			if len(s.signs[of]) >= fewSigns {
				return
			}
			o = &occurrence{first: n.Step}
			s.signs[of][what] = o
		}
		o.count, o.last = o.count+1, n.Step
	}
	for i, name := range n.Names {
		say("the type of "+name, fmt.Sprint(format.DType(n.Types[i])))
	}
	say("world_size", fmt.Sprint(m.WorldSize))
	say("compute_dtype", m.ComputeDType)
	for _, o := range m.Options {
		name := strings.ToLower(o.Name)
		if slices.ContainsFunc(settingWords, func(w string) bool { return strings.Contains(name, w) }) {
			continue
		}
		switch o.Value.(type) {
		case nil, bool, float64, string:
			say("the option "+o.Name, fmt.Sprint(o.Value))
		}
	}
}

// lines says which steps are strangers.
func (s *sameRun) lines() []string {
	lines := slices.Clone(s.ids)
	odd := map[int][]string{}
	for _, of := range slices.Sorted(maps.Keys(s.signs)) {
		values := s.signs[of]
		if len(values) != 2 || s.steps < 4 {
			continue
		}
		names := slices.Sorted(maps.Keys(values))
		for i, name := range names {
			one, other := values[name], values[names[1-i]]
			if one.count == 1 && other.count == s.steps-1 && other.first < one.first && one.first < other.last {
				odd[one.first] = append(odd[one.first], fmt.Sprintf("%s is %s, and %s in all %d other steps", of, shownValue(name), shownValue(names[1-i]), other.count))
			}
		}
	}
	for _, step := range slices.Sorted(maps.Keys(odd)) {
		lines = append(lines, fmt.Sprintf("step %d may be of another run: %s", step, strings.Join(odd[step][:min(3, len(odd[step]))], "; ")))
	}
	return lines
}

func shownValue(v string) string {
	if v == "" {
		return "not said"
	}
	return fmt.Sprintf("%.40s", v)
}

// others takes out of the names of a step's rows those that an earlier step gave to other tokens: rows of another run, or numbers that
// begin again with every rollout.
func (h *history) others(n *StepNotes) (line string) {
	if !n.ByID {
		return ""
	}
	count := 0
	for r, k := range n.Keys {
		e := h.rows[k]
		if k == "" || e == nil || r >= len(n.Starts) || n.Starts[r].IDs == 0 || e.ids == 0 || n.Starts[r].IDs == e.ids {
			continue
		}
		if count++; line == "" {
			line = fmt.Sprintf("sample_id %s is of other tokens at step %d than at step %d", k, n.Step, e.step)
		}
		delete(h.rows, k)
	}
	if count > 1 {
		line += fmt.Sprintf(", and so are %d more", count-1)
	}
	return line
}
