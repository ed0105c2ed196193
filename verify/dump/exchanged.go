package dump

import (
	"fmt"
	"slices"

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
		i := slices.IndexFunc(r.Results, func(res check.Result) bool { return res.Check == t.check.ID && res.Verdict == check.Pass })
		if i < 0 {
			continue
		}
		var low, high convention.Value
		for _, c := range t.decided() {
			switch c.Option {
			case "clip.low":
				low = c.To
			case "clip.high":
				high = c.To
			}
		}
		n := bug.MustFind("CLIP-SIDES-SWAPPED")
		res := &r.Results[i]
		res.Verdict, res.Where = check.Fail, ""
		res.Reason = fmt.Sprintf("the numbers are right with clip.low=%s and clip.high=%s: a recipe has these two in each other's place", low, high)
		res.Fix = fmt.Sprintf("where it is meant, say so: --set clip.low=%s --set clip.high=%s; else %s", low, high, n.Fix)
		res.Explanations = []check.Explanation{{Fault: n.ID, Title: n.Title, Cause: n.Cause, Rows: n.Rows, Evidence: "the bounds are those of a recipe, exchanged",
			Options: []check.OptionChange{{Option: "clip.low", Value: low.String(), Declared: high.String(), Origin: "the recipe"}, {Option: "clip.high", Value: high.String(), Declared: low.String(), Origin: "the recipe"}}}}
		return
	}
}
