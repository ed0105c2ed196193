package dump

import (
	"slices"
	"strings"

	"plumbline/verify/check"
	"plumbline/verify/stage"
)

// withoutPatterns puts what two passes' disagreement looks like under the finding that recomputed the log-probs, if there is one: that
// one has the numbers.
func withoutPatterns(found []check.Finding) []check.Finding {
	logp := slices.IndexFunc(found, func(f check.Finding) bool { return groupOf(f.Seen[0]) == "logp" && !f.Pattern && f.Right != "" })
	if logp < 0 {
		return found
	}
	to := &found[logp]
	kept := found[:0:0]
	for i := range found {
		f := &found[i]
		if i == logp || groupOf(f.Seen[0]) != "agreement" {
			continue
		}
		to.Seen, to.Results = append(to.Seen, f.Seen...), append(to.Results, f.Results...)
		if f.Pattern && f.Name != to.Name {
			to.Or = append(to.Or, "the pattern of "+f.Name+": "+f.Title)
		}
	}
	for i := range found {
		if i == logp || groupOf(found[i].Seen[0]) != "agreement" {
			kept = append(kept, found[i])
		}
	}
	return kept
}

// underGradients puts losses that fail without a name under the finding of their gradient, if that is a bug of what is summed and of what it is divided
// by. Both are of one sum; what it takes in from outside the mask may not be in the dump as the program had it, and has no gradient there.
func underGradients(found []check.Finding, results []check.Result) []check.Finding {
	kept := found[:0:0]
	for i := range found {
		f := &found[i]
		loss := f.Results[0]
		to := -1
		if f.Verdict == check.Fail && !slices.ContainsFunc(f.Results, func(k int) bool { return len(causes(&results[k])) > 0 }) {
			to = slices.IndexFunc(found, func(g check.Finding) bool {
				return (strings.HasPrefix(g.Name, "LOSS-MASK-") || strings.HasPrefix(g.Name, "AGG-")) &&
					slices.ContainsFunc(g.Results, func(k int) bool { return slices.Contains(stage.LossesOf[results[k].Check], results[loss].Check) })
			})
		}
		if to < 0 {
			kept = append(kept, *f)
			continue
		}
		j := slices.IndexFunc(kept, func(g check.Finding) bool { return g.Name == found[to].Name && g.Results[0] == found[to].Results[0] })
		g := &found[to] // what stands behind the loss is kept later
		if j >= 0 {
			g = &kept[j]
		}
		g.Seen, g.Results = append(g.Seen, f.Seen...), append(g.Results, f.Results...)
	}
	return kept
}

// causeOf returns the finding that a result belongs to, nil if it is one of its own.
func (s *session) causeOf(found []check.Finding, results []check.Result, res *check.Result) *check.Finding {
	names := causes(res)
	if res.Verdict != check.Fail && res.Verdict != check.Convention {
		for i := range found {
			if f := &found[i]; slices.Contains(names, f.Name) {
				return f
			}
		}
		for i := range found { // of one kind of thing that is lacking
			if f := &found[i]; f.Verdict == res.Verdict && f.Title == res.Reason && res.Reason != "" {
				return f
			}
		}
		return nil
	}
	for i := range found {
		f := &found[i]
		if f.Verdict != check.Fail && f.Verdict != check.Convention {
			continue
		}
		for _, k := range f.Results {
			of := &results[k]
			theirs := causes(of)
			shared := slices.ContainsFunc(names, func(n string) bool { return slices.Contains(theirs, n) })
			if shared && (len(res.Explanations) == 0 || len(of.Explanations) == 0 || !disjointSteps(res, of)) {
				return f
			}
			if len(names) == 0 && after(res.Check, of.Check) {
				return f
			}
			if slices.Contains(theirs, f.Name) && consequence(f.Name, res.Check, names) {
				return f
			}
		}
	}
	return nil
}

// consequence reports whether a failure with these names is what a bug before it leads to. Between log-probs of other rows a line has a
// slope near 0, which is no temperature; what the program made of the rows before they were exchanged, as rewards and logged numbers, cannot
// be right by the exchanged ones; a count of the tokens is not one of a mask that was shifted; and a KL of the rollout's log-probs has no gradient.
func consequence(bug, later string, names []string) bool {
	logged := groupOf(later) == "scalars" && !slices.ContainsFunc(names, func(n string) bool { return !strings.HasPrefix(n, "METRIC-") })
	switch bug {
	case "ROWS-SWAPPED":
		return later == "agreement/temperature" || later == acrossFirst || logged || len(names) == 0 && slices.Contains([]string{"reward", "advantage", "gae"}, groupOf(later))
	case "MASK-SHIFT":
		return later == "aggregate/num_items"
	case "KL-OF-OLD", "KL-OF-GEN": // numbers of the rollout carry no gradient
		return later == "gradient/dlogp" && (len(names) == 0 || slices.Contains(names, "KL-DETACHED"))
	}
	return false
}

// causes are the names of all that explains a result: bugs, and options with the values under which it would be right.
func causes(res *check.Result) []string {
	var names []string
	for _, e := range res.Explanations {
		if e.Lead {
			continue
		}
		if e.Fault != "" && e.Fault != "FACTOR" {
			names = append(names, e.Fault)
		}
		for _, o := range e.Options {
			names = append(names, o.Option+"="+o.Value)
		}
		if e.Fault == "FACTOR" {
			names = append(names, e.Title)
		}
	}
	return names
}

func disjointSteps(a, b *check.Result) bool {
	return a.Steps != nil && b.Steps != nil && a.Steps.Bad > 0 && b.Steps.Bad > 0 && a.Steps.Bad == a.Steps.Judged && b.Steps.Bad == b.Steps.Judged && a.Steps.First != b.Steps.First
}
