package fault

import (
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// leftForms are what advantages of a group are that a loop over the groups left out: of options, those without a baseline or a scale, and 0.
var leftForms = []struct {
	title string
	of    func(c *stage.Case, ch *stage.Check) *stage.Prediction
}{
	{"keeps its scores as advantages", func(c *stage.Case, ch *stage.Check) *stage.Prediction {
		return under(both(changedOr("adv.center", "none"), changedOr("adv.scale", "none")), c, ch)
	}},
	{"is centred and not divided by its deviation", func(c *stage.Case, ch *stage.Check) *stage.Prediction {
		return under(option("adv.scale", "none"), c, ch)
	}},
	{"is divided by its deviation and not centred", func(c *stage.Case, ch *stage.Check) *stage.Prediction {
		return under(option("adv.center", "none"), c, ch)
	}},
	{"has advantages of 0", func(c *stage.Case, ch *stage.Check) *stage.Prediction {
		return multiple(0, c, ch)
	}},
}

// changedOr is [option], and the input as it is where it has the value.
func changedOr(name, value string) input {
	return func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
		if c.Set.Value(name) == parsed(name, value) {
			return c.B, c.Set, true
		}
		return option(name, value)(c)
	}
}

// leftGroups returns edits of group advantages that are right but for one group of the rollout, the first or the last: a loop that begins or ends one too early
// or too late.
func leftGroups(o *stage.Outcome) (list []edit) {
	if o.Check.ID != "advantage/group" || o.Case.B.Row("group_id") == nil {
		return nil
	}
	for _, last := range []bool{true, false} {
		for _, f := range leftForms {
			title := map[bool]string{true: "the last group of the rollout ", false: "the first group of the rollout "}[last] + f.title
			list = append(list, edit{id: "ADV-GROUP-LEFT-OUT", title: title, changes: 1, foreign: true, predict: func(c *stage.Case, ch *stage.Check) *stage.Prediction {
				id, p, q := c.B.Row("group_id"), under(sameInput, c, ch), f.of(c, ch)
				if p == nil || q == nil || len(id) != c.B.Rows || len(id) < 2 || len(p.Want) != len(q.Want) || len(p.Want)%len(id) != 0 || slices.ContainsFunc(id, math.IsNaN) {
					return nil
				}
				which := slices.Min(id)
				if last {
					which = slices.Max(id)
				}
				if slices.Min(id) == slices.Max(id) {
					return nil
				}
				r := altered(p)
				for i := range r.Want {
					if id[i/(len(r.Want)/len(id))] == which {
						r.Want[i], r.Bound[i] = q.Want[i], q.Bound[i]
					}
				}
				return r
			}})
		}
	}
	return list
}
