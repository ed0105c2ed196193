package golden

import (
	"fmt"
	"slices"

	"plumbline/verify/check"
)

// UnknownCheck lists what no other check looks at.
var UnknownCheck = &check.Check[*Set]{
	Name: "golden/unknown",
	Doc: `every section has a check

Lists the sections of the folder that the reference has no functions for yet, and the goldens of another layout than a
section's (models/*/golden.json, tokenizer.json): UNDETERMINED, by name, with the number of entries. None of their numbers
is compared. Functions that are unknown in a section that has a check are listed by that check.`,
	Source: "verify golden: what the reference does not know is UNDETERMINED and listed",
	Fix:    "only a change of the reference can decide it",
	Run:    runUnknown,
}

func runUnknown(s *Set) ([]check.Result, error) {
	repeat := s.repeatAll("golden/unknown")
	judged := 0
	t := &tally{groups: map[string]*group{}}
	for _, name := range s.names() {
		if slices.ContainsFunc(sections, func(k *section) bool { return k.name == name }) {
			judged++
			continue
		}
		for _, e := range s.selected(name) {
			t.undetermined(e, "section "+short(name)+": no check knows this section")
		}
	}
	var out []check.Result
	for _, key := range t.order {
		out = append(out, t.groups[key].result(repeat))
	}
	if s.Pattern == "" {
		for _, o := range s.Others {
			out = append(out, check.Result{Subject: short(o.Name), Verdict: check.Undetermined, Repeat: repeat,
				Reason: fmt.Sprintf("%s: no section, and verify golden does not compute it", o.What)})
		}
	}
	if len(out) == 0 && judged > 0 && s.Pattern == "" {
		return []check.Result{{Subject: fmt.Sprintf("%d sections", judged), Verdict: check.Pass, Compared: judged, Reason: "each has a check"}}, nil
	}
	return capped(out, "things without a check"), nil
}

// Summary says in one line how many entries agree, differ and are undetermined.
func Summary(results []check.Result) string {
	n := map[check.Verdict]float64{}
	for _, r := range results {
		n[r.Verdict] += fact(r, "entries")
	}
	all := n[check.Pass] + n[check.Fail] + n[check.Undetermined]
	if all == 0 {
		return "no entries"
	}
	return fmt.Sprintf("%s: %.0f agree, %.0f differ, %.0f undetermined (%.1f %%)", count(int(all)), n[check.Pass], n[check.Fail], n[check.Undetermined], 100*n[check.Undetermined]/all)
}
