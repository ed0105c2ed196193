package fault

import (
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// noScore leaves the scores out of token rewards, and what a missing EOS takes off them.
func noScore(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
	b, set, ok := constant("scores", 0)(c)
	if ok && c.EnumOr("eos.rule", "none") != "none" {
		set = set.With("eos.rule", parsed("eos.rule", "none"), "hypothesis")
	}
	return b, set, ok
}

// endingScores are scores that have the declared penalty of a response without EOS by another test of whether it has one.
func endingScores() []shapedScore {
	var list []shapedScore
	for _, f := range []struct {
		id, title string
		unended   func(c *stage.Case, row int) bool
	}{
		{"EOS-PENALTY-MISSING", "EOS is looked for in the last column alone: responses that end before it are penalised, too", func(c *stage.Case, row int) bool {
			at := row*c.B.Cols + width(c.B, row) - 1
			id, ok := c.B.TokenID(row, at-row*c.B.Cols)
			return !(ok && c.B.Mask[at] && slices.Contains(c.FactList("eos_token_id"), float64(id)))
		}},
		{"EOS-PENALTY-MISSING", "every response is penalised, whether it has an EOS or not", func(*stage.Case, int) bool { return true }},
		{"EOS-INVERTED", "responses with EOS are penalised, and those without are not", ended},
	} {
		list = append(list, shapedScore{f.id, f.title, func(c *stage.Case, s []float64) []float64 {
			k := numberOr(c, "eos.penalty", 0)
			if k == 0 || c.EnumOr("eos.rule", "none") != "subtract" || c.FactList("eos_token_id") == nil || c.B.Cols == 0 {
				return nil
			}
			y := slices.Clone(s)
			for r := range y { // the stage takes the penalty of the responses without EOS off once more
				y[r] -= k * float64(boolToInt(f.unended(c, r))-boolToInt(!ended(c, r)))
			}
			return y
		}})
	}
	return list
}
