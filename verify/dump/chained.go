package dump

import (
	"math"
	"slices"

	"plumbline/verify/check"
	"plumbline/verify/stage"
	"plumbline/verify/tol"
)

// chained puts a failure under one that stands before it where it is right by the right values of that output: the program went on with other numbers than
// the dumped ones, and only these are wrong (diagnosis.md, Judging: local and chained).
func (s *session) chained(found []check.Finding, results []check.Result) []check.Finding {
	kept := slices.Clone(found)
	for i := 0; i < len(kept); i++ {
		f := &kept[i]
		later := s.failureOf(results[f.Results[0]].Check)
		if later == nil {
			continue
		}
		j := slices.IndexFunc(kept[:i], func(g check.Finding) bool {
			if slices.Index(severity, g.Verdict) > slices.Index(severity, f.Verdict) {
				return false
			}
			earlier := s.failureOf(results[g.Results[0]].Check)
			return earlier != nil && rightBy(earlier, later)
		})
		if j >= 0 {
			list(&kept[j], f, results)
			kept = slices.Delete(kept, i, i+1)
			i--
		}
	}
	return kept
}

// failureOf is the first failure of the numbers of a check, nil where there is none.
func (s *session) failureOf(id string) *stage.Outcome {
	i := slices.IndexFunc(s.tracks, func(t *track) bool { return t.check.ID == id })
	if i < 0 || s.tracks[i].first == nil || s.tracks[i].first.Pred == nil || len(s.tracks[i].failing) == 0 {
		return nil
	}
	return s.tracks[i].first
}

// rightBy reports whether a failure is none once the output of one before it has its right values.
func rightBy(earlier, later *stage.Outcome) bool {
	b, set := later.Case.B, later.Case.Set
	name := earlier.Check.Output
	t := b.Tensors[name]
	if t == nil || name == later.Check.Output {
		return false
	}
	right := stage.Judge(earlier.Check, b, set)
	if right.Pred == nil || right.Verdict != check.Fail || len(right.Pred.Want) != len(t.Data) {
		return false
	}
	o := stage.Judge(later.Check, b.With(name, right.Pred.Want), set)
	return o.Verdict == check.Pass || o.Verdict == check.Fail && o.Pred != nil && nearly(o)
}

// nearly reports whether all numbers are right but for what the program's own rounding of the output before, of which the right values have none, leaves in them.
func nearly(o *stage.Outcome) bool {
	const roundings = 16 // of float32
	for i, want := range o.Pred.Want {
		if o.Pred.Judge != nil && !o.Pred.Judge[i] {
			continue
		}
		if !(math.Abs(o.Got[i]-want) <= o.Limit(i)+roundings*tol.U32*max(math.Abs(want), o.Tally.Scale)) {
			return false
		}
	}
	return true
}
