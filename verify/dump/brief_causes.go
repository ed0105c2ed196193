package dump

import (
	"fmt"
	"slices"
	"strings"

	"plumbline/verify/bug"
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

// underTemperature puts under a temperature that one of two passes of the trainer has what the engine says of the same: that the old pass is the one apart from
// it, and by which factor. An engine with a temperature of its own beside a right old pass is another cause.
func underTemperature(found []check.Finding, results []check.Result) []check.Finding {
	at := func(name string) int {
		return slices.IndexFunc(found, func(f check.Finding) bool { return f.Name == name && groupOf(f.Seen[0]) == "agreement" })
	}
	passes := slices.IndexFunc(found, func(f check.Finding) bool {
		return f.Name == "LOGP-TEMPERATURE" && slices.Contains(f.Seen, "agreement/old")
	})
	if passes < 0 || at("OLD-OTHER-PASS") < 0 {
		return found
	}
	kept := slices.Clone(found)
	for _, name := range []string{"OLD-OTHER-PASS", "GEN-TEMPERATURE-TWICE"} {
		if i := at(name); i >= 0 {
			list(&kept[passes], &found[i], results)
		}
	}
	return slices.DeleteFunc(kept, func(f check.Finding) bool {
		return groupOf(f.Seen[0]) == "agreement" && (f.Name == "OLD-OTHER-PASS" || f.Name == "GEN-TEMPERATURE-TWICE")
	})
}

// underLearned puts the likeness of a temperature in a later step under a bug of the loss that was recomputed before it, where the log-probs of the policy are those of the
// dumped logits: a policy that learned from a wrong loss has moved farther, and a distribution that gets sharper is like one at a lower temperature.
func underLearned(found []check.Finding, results []check.Result) []check.Finding {
	if !slices.ContainsFunc(results, func(r check.Result) bool { return r.Check == "logp/new" && r.Verdict == check.Pass }) {
		return found
	}
	i := slices.IndexFunc(found, func(f check.Finding) bool {
		return f.Pattern && f.Name == "LOGP-TEMPERATURE" && f.Seen[0] == "agreement/temperature" && len(f.Seen) == 1
	})
	if i < 0 {
		return found
	}
	j := slices.IndexFunc(found, func(g check.Finding) bool {
		return g.Verdict == check.Fail && !g.Pattern && bug.Find(g.Name) != nil && slices.Contains(losses, groupOf(g.Seen[0])) && g.First >= 0 && g.First < found[i].First
	})
	if j < 0 {
		return found
	}
	found[j].Or = append(found[j].Or, fmt.Sprintf("besides, from step %d on the old and the new pass differ as two temperatures do", found[i].First))
	list(&found[j], &found[i], results)
	return slices.Delete(found, i, i+1)
}

// underShift puts a mask whose place is wrong under log-probs that are read from the next or the last position, if it would stand right there: labels that were not
// shifted are what both are made of.
func (s *session) underShift(found []check.Finding, results []check.Result) []check.Finding {
	at := func(id string, names ...string) int {
		return slices.IndexFunc(found, func(f check.Finding) bool {
			return f.Seen[0] == id && (len(names) == 0 || slices.Contains(names, f.Name))
		})
	}
	mask, logp := at("masks/position"), at("logp/new", "LOGP-SAME-POSITION", "LOGP-SHIFT")
	i := slices.IndexFunc(s.tracks, func(t *track) bool { return t.check.ID == "masks/position" && t.first != nil })
	if mask < 0 || logp < 0 || i < 0 {
		return found
	}
	o := s.tracks[i].first
	b := o.Case.B
	for _, by := range []int{-1, 1} {
		shifted := make([]bool, len(b.Mask))
		for k, m := range b.Mask {
			if col := k%b.Cols + by; m && col >= 0 && col < b.Cols {
				shifted[k+by] = true
			}
		}
		if stage.Judge(o.Check, b.WithMask(shifted), o.Case.Set).Verdict == check.Pass {
			list(&found[logp], &found[mask], results)
			return slices.Delete(found, mask, mask+1)
		}
	}
	return found
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
			if f := &found[i]; slices.Contains(names, f.Name) || len(names) == 0 && counted(res) && slices.ContainsFunc(f.Results, func(k int) bool { return leadsTo(&results[k], res) }) {
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
			if (slices.Contains(theirs, f.Name) || f.Name == of.Check) && consequence(f.Name, res.Check, names) && (groupOf(res.Check) != "gae" || groupOf(of.Check) == "reward" || f.Name == "ROWS-SWAPPED") {
				return f
			}
		}
	}
	return nil
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
