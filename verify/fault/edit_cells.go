package fault

import (
	"fmt"
	"math"
	"slices"

	"plumbline/internal/format/dump"
	"plumbline/verify/convention"
	"plumbline/verify/stage"
)

// A set of cells that programs treat apart. A bug that touches some tokens only is right on all others: the cells that are wrong must be
// those of a set, as far as the change shows there.
type cellSet struct {
	id, title string
	in        func(c *stage.Case, row, col, i int) bool
}

func logRatio(c *stage.Case, i int) float64 {
	lp, old := c.B.Token("logp_new"), c.B.Token("logp_old")
	if lp == nil || old == nil {
		return 0
	}
	return lp[i] - old[i]
}

func numberOr(c *stage.Case, name string, absent float64) float64 {
	if v := c.Set.Value(name); v.Kind() == convention.Number {
		return v.Num()
	}
	return absent
}

var cellSets = []cellSet{
	{"LOSS-MASK-TRUNCATED", "of responses that were cut off", func(c *stage.Case, r, _, _ int) bool { return truncated(c, r) }},
	{"EXTRA-TERM", "of responses that ended", func(c *stage.Case, r, _, _ int) bool { return c.FactList("eos_token_id") != nil && !truncated(c, r) }},
	{"LOSS-MASK-FIRST", "that are the first of their response", func(c *stage.Case, r, _, i int) bool { return i == firstOf(c.B, r) }},
	{"LOSS-MASK-NO-EOS", "that are the last of their response", func(c *stage.Case, r, _, i int) bool { return i == lastOf(c.B, r) }},
	{"LOSS-MASK-EARLY", "that are the last of their response, but for those in the last column: what a mask leaves out that is rolled by one token", func(c *stage.Case, r, t, i int) bool {
		return i == lastOf(c.B, r) && t+1 < c.B.Cols && (c.B.Origin[r].Cols <= 0 || t+1 < c.B.Origin[r].Cols)
	}},
	{"LOSS-MASK-NEGATIVE", "whose advantage is negative", func(c *stage.Case, _, _, i int) bool { return advantageAt(c, i) < 0 }},
	{"LOSS-MASK-ADVANTAGES", "whose advantage is positive", func(c *stage.Case, _, _, i int) bool { return advantageAt(c, i) > 0 }},
	{"CLIP-DROPS", "whose ratio is above 1 + clip.high", func(c *stage.Case, _, _, i int) bool {
		return logRatio(c, i) > math.Log1p(numberOr(c, "clip.high", math.Inf(1)))
	}},
	{"CLIP-DROPS", "whose ratio is below 1 − clip.low", func(c *stage.Case, _, _, i int) bool {
		return logRatio(c, i) < math.Log1p(-numberOr(c, "clip.low", 1))
	}},
	{"CLIP-DROPS", "whose ratio is outside the clip bounds", func(c *stage.Case, _, _, i int) bool {
		d := logRatio(c, i)
		return d > math.Log1p(numberOr(c, "clip.high", math.Inf(1))) || d < math.Log1p(-numberOr(c, "clip.low", 1))
	}},
	{"CLIP-MIN-MAX", "whose ratio is above 1", func(c *stage.Case, _, _, i int) bool { return logRatio(c, i) > 0 }},
	{"CLIP-MIN-MAX", "whose ratio is below 1", func(c *stage.Case, _, _, i int) bool { return logRatio(c, i) < 0 }},
	{"KL-CUT-OFF", "whose log-prob is below that of the reference", func(c *stage.Case, _, _, i int) bool {
		lp, ref := c.B.Token("logp_new"), c.B.Token("logp_ref")
		return lp != nil && ref != nil && lp[i] < ref[i]
	}},
	{"KL-CUT-OFF", "whose log-prob is above that of the reference", func(c *stage.Case, _, _, i int) bool {
		lp, ref := c.B.Token("logp_new"), c.B.Token("logp_ref")
		return lp != nil && ref != nil && lp[i] > ref[i]
	}},
	{"GRAD-LAST-CHUNK", "of the last micro-batch", func(c *stage.Case, r, _, _ int) bool {
		return len(c.B.Files) > 1 && c.B.File(r) == len(c.B.Files)-1
	}},
	{"GRAD-LOST", "of the last rank", func(c *stage.Case, r, _, _ int) bool {
		return c.B.Meta.WorldSize > 1 && c.B.Files[c.B.File(r)].Rank == c.B.Files[len(c.B.Files)-1].Rank
	}},
	{"GRAD-LOST", "of the first rank", func(c *stage.Case, r, _, _ int) bool {
		return c.B.Meta.WorldSize > 1 && c.B.Files[c.B.File(r)].Rank == c.B.Files[0].Rank
	}},
	{"GRAD-LOST", "of the first micro-batch", func(c *stage.Case, r, _, _ int) bool { return len(c.B.Files) > 1 && c.B.File(r) == 0 }},
	{"GRAD-LAST-CHUNK", "of the last row of their micro-batch", func(c *stage.Case, r, _, _ int) bool { return r == c.B.Files[c.B.File(r)].Hi-1 }},
	{"EXTRA-TERM", "of the first row of their micro-batch", func(c *stage.Case, r, _, _ int) bool { return r == c.B.Files[c.B.File(r)].Lo }},
	{"LOSS-MASK-TOOL", "behind a hole of the response mask", func(c *stage.Case, r, t, _ int) bool {
		row := c.B.Mask[r*c.B.Cols : (r+1)*c.B.Cols]
		first, _ := firstLast(row)
		return first >= 0 && t > first && slices.Contains(row[first:t], false)
	}},
	{"LOSS-MASK-TOOL", "that follow a hole of the response mask", func(c *stage.Case, r, _, i int) bool {
		first := firstOf(c.B, r)
		return first >= 0 && i > first && !c.B.Mask[i-1]
	}},
}

// cellEdits returns edits of some cells of a per-token output, or rows of a per-row one: on a set of them the number is 0, has the other
// sign, or is a multiple of the right one; all others are right.
func cellEdits(o *stage.Outcome) []edit {
	c := o.Case.Of(o.Case.B, o.Case.Set)
	b := c.B
	t := b.Tensors[o.Check.Output]
	if t == nil || t.Width > 1 || b.Cols == 0 || len(o.Got) != len(t.Data) {
		return nil
	}
	perRow := t.Layout == dump.PerRow
	if !perRow && t.Layout != dump.PerToken {
		return nil
	}
	judged := func(i int) bool {
		if o.Pred.Judge != nil {
			return o.Pred.Judge[i]
		}
		return perRow || b.Mask[i]
	}
	wrong := func(i int) bool { return !(math.Abs(o.Got[i]-o.Pred.Want[i]) <= o.Limit(i)) }
	var list []edit
	for _, s := range cellSets {
		in := s.of(c, perRow)
		inside, outside, all := 0, false, true
		var quotients []float64
		for i := range o.Got {
			if !judged(i) {
				continue
			}
			if !in[i] {
				outside = true
				if wrong(i) {
					all = false
					break
				}
				continue
			}
			inside++
			if math.Abs(o.Pred.Want[i]) > 100*o.Limit(i) {
				quotients = append(quotients, o.Got[i]/o.Pred.Want[i])
			}
		}
		if !all || !outside || inside == 0 || len(quotients) == 0 {
			continue
		}
		slices.Sort(quotients)
		k := quotients[len(quotients)/2]
		if short := rounded(k, 3); math.Abs(short-k) <= 1e-4*math.Abs(k) {
			k = short
		}
		if math.Abs(k) < 1e-6 {
			k = 0
		}
		what := "tokens"
		if perRow {
			what = "rows"
		}
		title := fmt.Sprintf("%s of %s %s is %.6g times what it should be, and right elsewhere", o.Check.Output, what, s.title, k)
		id := "FACTOR"
		switch k {
		case 0:
			id, title = s.id, fmt.Sprintf("%s of %s %s is 0, and right elsewhere", o.Check.Output, what, s.title)
			switch {
			case o.Check.Output == "advantages" && s.id == "LOSS-MASK-TRUNCATED":
				id = "ADV-TRUNCATED-ZERO"
			case o.Check.Stage != convention.Gradient && s.id == "GRAD-LOST":
				id = "EXTRA-TERM"
			}
		case -1:
			id, title = s.id, fmt.Sprintf("%s of %s %s has the wrong sign, and is right elsewhere", o.Check.Output, what, s.title)
		case 1:
			continue
		}
		list = append(list, edit{id: id, title: title, changes: 1, predict: s.times(k)})
	}
	return list
}

// of returns which elements of an output belong to the set.
func (s cellSet) of(c *stage.Case, perRow bool) []bool {
	b := c.B
	if perRow {
		in := make([]bool, b.Rows)
		for r := range in {
			first, _ := firstLast(b.Mask[r*b.Cols : (r+1)*b.Cols])
			in[r] = first >= 0 && s.in(c, r, first, r*b.Cols+first)
		}
		return in
	}
	in := make([]bool, len(b.Mask))
	for i := range in {
		in[i] = b.Mask[i] && s.in(c, i/b.Cols, i%b.Cols, i)
	}
	return in
}

// times returns the predictor of an output whose cells of the set are k times what they should be.
func (s cellSet) times(k float64) func(*stage.Case, *stage.Check) *stage.Prediction {
	return func(c *stage.Case, ch *stage.Check) *stage.Prediction {
		p := under(sameInput, c, ch)
		if p == nil {
			return nil
		}
		in := s.of(c, len(p.Want) != len(c.B.Mask))
		if len(in) != len(p.Want) || !slices.Contains(in, true) {
			return nil
		}
		return timesCells(p, 0, func(i int) float64 {
			if in[i] {
				return k
			}
			return 1
		})
	}
}
