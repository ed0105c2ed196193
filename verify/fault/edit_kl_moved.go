package fault

import "plumbline/verify/stage"

// klMoves are the cells that the KL of a token in its reward may be of by mistake, as inputs of one tensor of log-probs.
var klMoves = []struct {
	title string
	of    func(name string) input
}{
	{"one token late: that of the token before, in the first column none", func(name string) input { return shifted(name, 1) }},
	{"one token early: that of the token behind, in the last column none", func(name string) input { return shifted(name, -1) }},
	{"one token late: that of the token before, in the first column its own", func(name string) input { return keepingEnds(name, 1) }},
	{"one token early: that of the token behind, in the last column its own", func(name string) input { return keepingEnds(name, -1) }},
	{"from the row before", func(name string) input { return rolled(name, 1) }},
	{"from the row behind", func(name string) input { return rolled(name, -1) }},
	{"from the rows in reversed order", reversed},
}

// movedKLEdits returns edits of rewards whose KL is that of other cells, where it was not dumped and the log-probs of the rollout give it: both of them
// are read elsewhere then, which no edit of one tensor is.
func movedKLEdits(o *stage.Outcome) (list []edit) {
	b := o.Case.B
	if o.Check.ID != "reward/token" || b.Token("kl") != nil || b.Token("logp_old") == nil || b.Token("logp_ref") == nil {
		return nil
	}
	for _, m := range klMoves {
		list = append(list, edit{id: "OTHER-TENSOR", title: "the KL of a token is read " + m.title, changes: 1, predict: guarded(ofBoth(m.of))})
	}
	for _, by := range []int{1, -1} {
		word := map[int]string{1: "late: that of the token before", -1: "early: that of the token behind"}[by]
		list = append(list, edit{id: "OTHER-TENSOR", title: "the KL of a token is rolled: read one token " + word + ", the end of the row at its beginning", changes: 1,
			predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
				return rolledRow([]string{"logp_old", "logp_ref"}, by, c, ch)
			}})
	}
	return list
}

// ofBoth changes the log-probs of the policy that sampled and of the reference in one way.
func ofBoth(of func(name string) input) input { return both(of("logp_old"), of("logp_ref")) }
