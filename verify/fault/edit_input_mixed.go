package fault

import (
	"fmt"
	"slices"
	"strings"

	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// mixedShares are shares of another pass in log-probs that two passes are mixed of.
var mixedShares = []float64{0.5, 0.25, 0.75, 0.1, 0.9}

// mixedInputEdits returns edits of log-probs that are a mean of two passes where they should be of one, as proximal ones between the trainer's and the engine's.
// The new and the old ones together are a power of the ratio, which has an edit of its own.
func mixedInputEdits(o *stage.Outcome) (list []edit) {
	c := o.Case.Of(o.Case.B, o.Case.Set)
	if !slices.Contains([]convention.Stage{convention.Ratio, convention.KL, convention.TokenLoss, convention.Aggregate, convention.Gradient}, o.Check.Stage) || o.Check.Output == "value_loss" || o.Check.Output == "dvalues" {
		return nil
	}
	passes := slices.DeleteFunc([]string{"logp_new", "logp_old", "logp_gen", "logp_ref"}, func(name string) bool { return c.B.Token(name) == nil })
	for _, name := range passes {
		for _, other := range passes {
			if name == other || name == "logp_new" || name == "logp_old" && other == "logp_new" {
				continue // the gradient of new ones is another
			}
			id := swappedIDs[[2]string{name, other}]
			if id == "" || strings.HasPrefix(id, "REF-") {
				id = "OTHER-TENSOR"
			}
			for _, share := range mixedShares {
				if share != 0.5 && o.Check.Stage == convention.Aggregate {
					continue // one number of a file has a share by chance
				}
				title := fmt.Sprintf("the mean of %s and %s is read where %s should be", name, other, name)
				if share != 0.5 {
					title = fmt.Sprintf("%g·%s + %g·%s is read where %s should be", 1-share, name, share, other, name)
				}
				list = append(list, edit{id: id, title: title, changes: 1, foreign: share == 0.5, predict: guarded(token(name, func(c *stage.Case, x []float64) []float64 {
					y := c.B.Token(other)
					if len(y) != len(x) {
						return nil
					}
					return eachOf(len(x), func(i int) float64 { return (1-share)*x[i] + share*y[i] })
				}))})
			}
		}
	}
	return list
}
