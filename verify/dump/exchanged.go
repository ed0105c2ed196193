package dump

import (
	"fmt"
	"slices"
	"strings"

	"plumbline/verify/bug"
	"plumbline/verify/check"
	"plumbline/verify/convention"
)

// recipes are clip bounds, low and high, that published recipes have: DAPO's clip-higher (arXiv 2503.14476, 4.1) and GSPO's (arXiv 2507.18071, 5.1).
var recipes = [][2]string{{"0.2", "0.28"}, {"3e-4", "4e-4"}}

// exchanged fails a check that is right under the bounds of a recipe in each other's place, where nobody declares them. They are two numbers that one recipe alone
// has together, and the wider one below is what it is there to prevent: unlikely tokens of good answers are held, and those of bad ones are not.
func (s *session) exchanged(r *Report) {
	if s.profile != nil {
		return
	}
	for _, t := range s.tracks {
		if t.silent || !t.searched || len(t.failing) > 0 || !slices.ContainsFunc(recipes, func(bounds [2]string) bool {
			return t.decidedTo("clip.low", bounds[1]) && t.decidedTo("clip.high", bounds[0])
		}) || t.decidedTo("loss.kind", "cispo") {
			continue
		}
		low, high := t.decidedValue("clip.low").String(), t.decidedValue("clip.high").String()
		if t.unmeant(r, "CLIP-SIDES-SWAPPED", "a recipe has these two in each other's place", "the bounds are those of a recipe, exchanged",
			check.OptionChange{Option: "clip.low", Value: low, Declared: high, Origin: "the recipe"}, check.OptionChange{Option: "clip.high", Value: high, Declared: low, Origin: "the recipe"}) {
			return
		}
	}
}

// rewarded fails a check that is right where responses without an end get more than their scores, where nobody declares it: the penalty is added.
func (s *session) rewarded(r *Report) {
	if s.profile != nil {
		return
	}
	for _, t := range s.tracks {
		if t.silent || !t.searched || len(t.failing) > 0 || !t.decidedTo("eos.rule", "subtract") {
			continue
		}
		x := t.decidedValue("eos.penalty")
		if x.Kind() != convention.Number || !(x.Num() < 0) {
			continue
		}
		right := convention.NumberValue(-x.Num()).String()
		if t.unmeant(r, "EOS-PENALTY-SIGN", "responses that did not end get more than their scores", "no penalty is a reward",
			check.OptionChange{Option: "eos.penalty", Value: x.String(), Declared: right, Origin: "a penalty"}) {
			return
		}
	}
}

// decidedValue returns the value of an option that all fits have, and the zero value where they do not.
func (t *track) decidedValue(option string) (v convention.Value) {
	for _, c := range t.decided() {
		if c.Option == option {
			v = c.To
		}
	}
	return v
}

// unmeant fails the check of a track that is right under values that nobody means, as a bug, and reports whether it was passed before.
func (t *track) unmeant(r *Report, id, why, evidence string, values ...check.OptionChange) bool {
	i := slices.IndexFunc(r.Results, func(res check.Result) bool { return res.Check == t.check.ID && res.Verdict == check.Pass })
	if i < 0 {
		return false
	}
	var has, say []string
	for _, v := range values {
		has, say = append(has, v.Option+"="+v.Value), append(say, "--set "+v.Option+"="+v.Value)
	}
	n := bug.MustFind(id)
	res := &r.Results[i]
	res.Verdict, res.Where = check.Fail, ""
	res.Reason = fmt.Sprintf("the numbers are right with %s: %s", strings.Join(has, " and "), why)
	res.Fix = fmt.Sprintf("where it is meant, say so: %s; else %s", strings.Join(say, " "), n.Fix)
	res.Explanations = []check.Explanation{{Fault: n.ID, Title: n.Title, Cause: n.Cause, Rows: n.Rows, Evidence: evidence, Options: values}}
	return true
}
