// Package check turns comparisons into verdicts.
//
// A [Check] is a documented value: its id, what it computes and by which source, how to mend what it finds, the function
// that runs it and the executable faults it must catch. A [Suite] runs a list of them over one input. A finding is a
// [Result]; an error means that the check could not run. Nothing else in plumbline decides whether a number is right.
package check

import (
	"fmt"
	"math/rand/v2"
	"path"
	"slices"
	"strings"

	"plumbline/internal/words"
)

// Check examines an input of type P.
type Check[P any] struct {
	Name   string // id, "basis/orthonormal"
	Doc    string // first line: title without a capital or a full stop; then the formula and what is compared
	Source string // document, section and formula it implements
	Fix    string // what to do about a failure
	Run    func(P) ([]Result, error)
	Faults []Fault[P] // planted in healthy data, Run must report each of them
}

// Fault is a bug as a function: Plant returns a copy of a healthy input as a program with that bug would have left it.
type Fault[P any] struct {
	ID     string // row of the fault catalogue, or a mnemonic
	Title  string
	Cause  string
	Fix    string
	Source string
	Want   Verdict // of the check that ships the fault: Fail where nothing else is said
	Plant  func(r *rand.Rand, healthy P) P
}

// Info is what is known of a check without running it.
type Info struct {
	Name, Doc, Source, Fix string
	Faults                 []FaultInfo
}

// FaultInfo describes one fault of a check.
type FaultInfo struct{ ID, Title, Cause, Fix, Source string }

// Title returns the first line of the documentation.
func (i Info) Title() string { return strings.SplitN(i.Doc, "\n", 2)[0] }

// Info describes c.
func (c *Check[P]) Info() Info {
	info := Info{Name: c.Name, Doc: c.Doc, Source: c.Source, Fix: c.Fix}
	for _, f := range c.Faults {
		info.Faults = append(info.Faults, FaultInfo{f.ID, f.Title, f.Cause, f.Fix, f.Source})
	}
	return info
}

// Suite is an ordered list of checks of one command.
type Suite[P any] []*Check[P]

// Infos describes the checks of s in order.
func (s Suite[P]) Infos() []Info {
	infos := make([]Info, len(s))
	for i, c := range s {
		infos[i] = c.Info()
	}
	return infos
}

// Selection restricts a suite. The patterns are check ids, or globs in which * does not cross a slash; an id's first part
// alone selects its whole group.
type Selection struct {
	Select  []string // empty: all
	Ignore  []string
	Require []string // undecided is then exit code 6
}

// Validate returns an error that names a pattern matching none of the ids, with the nearest id.
func (s Selection) Validate(ids []string) error {
	for _, list := range [][]string{s.Select, s.Ignore, s.Require} {
		for _, p := range list {
			if !slices.ContainsFunc(ids, func(id string) bool { return matches(p, id) }) {
				return fmt.Errorf("no check matches %q; did you mean %q? (verify list prints all)", p, Nearest(p, ids))
			}
		}
	}
	return nil
}

// Takes reports whether the check of that id is run.
func (s Selection) Takes(id string) bool {
	return (len(s.Select) == 0 || matchesAny(s.Select, id)) && !matchesAny(s.Ignore, id)
}

// Demands reports whether the check of that id was asked for by name.
func (s Selection) Demands(id string) bool {
	return matchesAny(s.Require, id) || matchesAny(s.Select, id)
}

func matchesAny(patterns []string, id string) bool {
	return slices.ContainsFunc(patterns, func(p string) bool { return matches(p, id) })
}

func matches(pattern, id string) bool {
	ok, err := path.Match(pattern, id)
	return err == nil && ok || strings.HasPrefix(id, pattern+"/")
}

// Run runs the selected checks on in, one after another, and returns their results in order. The first error ends it.
func (s Suite[P]) Run(in P, sel Selection) ([]Result, error) {
	var all []Result
	for _, c := range s {
		if !sel.Takes(c.Name) {
			continue
		}
		results, err := c.Run(in)
		if err != nil {
			return all, fmt.Errorf("%s: %w", c.Name, err)
		}
		all = slices.Grow(all, len(results))
		for _, r := range results {
			if r.Verdict < Pass || r.Verdict > Untested {
				panic("check: " + c.Name + " returned a result without a verdict")
			}
			r.Check = c.Name
			r.Demanded = sel.Demands(c.Name)
			if r.Fix == "" && r.Verdict.bad() {
				r.Fix = c.Fix
			}
			all = append(all, r)
		}
		if len(results) == 0 && sel.Demands(c.Name) {
			all = append(all, Result{Check: c.Name, Verdict: Undetermined, Demanded: true, Reason: "asked for by name, but the input has nothing it applies to"})
		}
	}
	return all, nil
}

// Nearest returns the candidate with the smallest edit distance to s. From the third character on, all that one has more than
// the other at its end counts between two letters and three: tolerance is near to tol, epsilon_hihg nearer to epsilon_high than to
// epsilon.
func Nearest(s string, candidates []string) string {
	best, min := "", 1<<30
	for _, c := range candidates {
		d := 2 * words.Distance(s, c)
		if d > 5 && len(s) >= 3 && len(c) >= 3 && (strings.HasPrefix(s, c) || strings.HasPrefix(c, s)) {
			d = 5
		}
		if d < min {
			best, min = c, d
		}
	}
	return best
}

// Similar returns the [Nearest] candidate, or "" where more than half of s would have to be written anew.
func Similar(s string, candidates []string) string {
	best := Nearest(s, candidates)
	if best == "" || strings.HasPrefix(s, best) || strings.HasPrefix(best, s) || 2*words.Distance(s, best) <= len(s) {
		return best
	}
	return ""
}
