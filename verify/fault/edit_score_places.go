package fault

import (
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// A scorePlace says in which column a row has its score: own is the declared one, cells are those of its tokens, −1 says that it has none.
type scorePlace struct {
	id, title  string
	configured []string
	column     func(c *stage.Case, row, own int, cells []int) int
}

// scorePlaces are places that no score.index has, of all rows or of some. A rule that replaces the scores of responses without EOS may do so by 0.
var scorePlaces = []scorePlace{
	{"SCORE-INDEX", "the score stands at the first token of the response, not at its end", nil,
		func(_ *stage.Case, _, _ int, cells []int) int { return cells[0] }},
	{"SCORE-LOST", "responses without EOS have no score, and those with one have theirs", []string{"eos.rule"}, func(c *stage.Case, row, own int, _ []int) int {
		if truncated(c, row) {
			return -1
		}
		return own
	}},
	{"SCORE-LOST", "responses with EOS have no score, and those without one have theirs", nil, func(c *stage.Case, row, own int, _ []int) int {
		if c.FactList("eos_token_id") != nil && !truncated(c, row) {
			return -1
		}
		return own
	}},
	{"SCORE-LOST", "responses that fill their row have no score, and shorter ones have theirs", []string{"eos.rule"}, func(c *stage.Case, row, own int, cells []int) int {
		if cells[len(cells)-1] == width(c.B, row)-1 {
			return -1
		}
		return own
	}},
}

// scorePlaceEdits returns edits of token rewards whose scores stand in other places, or nowhere, before the rewards are whitened.
func scorePlaceEdits(o *stage.Outcome) (list []edit) {
	if o.Check.ID != "reward/token" {
		return nil
	}
	for _, f := range scorePlaces {
		list = append(list, edit{id: f.id, title: f.title, changes: 1, configured: f.configured, predict: f.predict})
	}
	return list
}

// predict returns token rewards of the scores, as eos.rule leaves them, in the place of each. Those that are moved stand as a penalty of KL, r_t = −kl_t, which
// is whitened with the rest.
func (f scorePlace) predict(c *stage.Case, ch *stage.Check) *stage.Prediction {
	b, raw := c.B, input(sameInput)
	white := c.EnumOr("rewards.whiten", "no") != "no"
	if white {
		raw = option("rewards.whiten", "no")
	}
	with, without := under(raw, c, ch), under(both(raw, noScore), c, ch)
	if with == nil || without == nil || b.Cols == 0 || len(with.Want) != len(b.Mask) || len(without.Want) != len(b.Mask) {
		return nil
	}
	rewards, kept, moved := altered(without), make([]float64, b.Rows), 0
	rewards.Judge = with.Judge
	for r := range b.Rows {
		own, cells := -1, []int(nil)
		for t := range b.Cols {
			if i := r*b.Cols + t; with.Want[i] != without.Want[i] {
				if own >= 0 {
					return nil // a score of every token has no place
				}
				own = t
			}
			if b.Mask[r*b.Cols+t] {
				cells = append(cells, t)
			}
		}
		if own < 0 || len(cells) == 0 {
			continue
		}
		from := r*b.Cols + own
		s, e := with.Want[from]-without.Want[from], with.Bound[from]
		to := f.column(c, r, own, cells)
		if to != own {
			moved++
		} else if white {
			kept[r] = s
			continue
		}
		if to >= 0 {
			rewards.Want[r*b.Cols+to] += s
			rewards.Bound[r*b.Cols+to] += e
		}
	}
	if moved == 0 {
		return nil
	}
	if !white {
		return rewards
	}
	kl := slices.Clone(rewards.Want)
	for i := range kl {
		kl[i] = -kl[i]
	}
	p := under(func(c *stage.Case) (*dump.Batch, *convention.Set, bool) {
		d, set, ok := perToken("kl", kl)(c)
		for _, o := range [][2]string{{"kl.place", "token_reward"}, {"eos.rule", "none"}, {"reward.clip", "none"}} {
			if set.Value(o[0]).Kind() == convention.Enum {
				set = set.With(o[0], parsed(o[0], o[1]), "hypothesis")
			}
		}
		return d.Without("rewards_per_func").With("scores", kept), set.With("kl.beta", convention.NumberValue(1), "hypothesis"), ok
	}, c, ch)
	return withErrors(p, rewards.Want, slices.Max(rewards.Bound), c)
}
