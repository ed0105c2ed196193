package stage

import (
	"fmt"

	"plumbline/internal/format/dump"
)

// firstLeftOut looks for masks that begin after the first tokens of every response. What two responses to one prompt differ in was sampled: no prompt and no
// forced beginning differs between them, and nothing stands before it that a tool could have answered. A mask that leaves it out in every row, and the same
// number of tokens, begins late.
//
// In columns of a response the first one is its first token; in columns of the ids it stands behind the prompt_len tokens that are attended to.
func (c *Case) firstLeftOut(a *Assertion, places []placement) {
	const farthest, least = 2, 4 // tokens that are left out, and rows
	b := c.B
	group, prompt := b.Row("group_id"), b.Row("prompt_len")
	if len(group) != b.Rows || b.Cols == 0 {
		return
	}
	skipped, rows := -1, 0
	begins := make([]int, b.Rows) // the column of the first token of a response, −1 of a row without tokens
	for r := range b.Rows {
		if begins[r] = -1; c.last(r) < 0 {
			continue
		}
		first := 0
		if b.Origin[r].Col != 0 {
			return // a part of a packed row
		}
		var p placement
		if places != nil {
			p = places[r]
		}
		if b.Meta.Align != dump.AlignResponse {
			if !p.known || p.attention == nil || len(prompt) != b.Rows {
				return
			}
			if first = afterPrompt(p.attention, int(prompt[r])) - p.start; first < 0 || first >= b.Cols {
				return
			}
		}
		late := 0
		for first+late < b.Cols && !b.Mask[r*b.Cols+first+late] {
			if at := p.start + first + late; p.known && p.attention != nil && (at >= len(p.attention) || p.attention[at] == 0) {
				return // nothing stands there
			}
			late++
		}
		if late == 0 || late > farthest || skipped >= 0 && late != skipped {
			return
		}
		begins[r], skipped = first, late
		rows++
	}
	if rows < least {
		return
	}
	first, groups, differ, row := map[float64]int{}, map[float64]bool{}, map[float64]bool{}, -1
	for r := range b.Rows {
		if begins[r] < 0 {
			continue
		}
		s, known := first[group[r]]
		if !known {
			first[group[r]] = r
			continue
		}
		groups[group[r]] = true
		for t := range skipped {
			one, ok := b.TokenID(r, begins[r]+t)
			other, too := b.TokenID(s, begins[s]+t)
			if !ok || !too {
				return
			}
			if one != other {
				differ[group[r]] = true
				row = r
				break
			}
		}
	}
	if len(groups) == 0 || 2*len(differ) < len(groups) || len(differ) < 2 {
		return
	}
	a.Checked += rows
	a.Violations = append(a.Violations, Violation{Row: row, Col: begins[row], Got: 0, Fault: "LOSS-MASK-FIRST",
		Reason: fmt.Sprintf("the mask leaves out the first %s of all %d responses, which responses to one prompt differ in: the policy sampled it", plural(skipped, "token"), rows)})
}

// plural returns "token" for 1, "2 tokens" for 2.
func plural(n int, word string) string {
	if n == 1 {
		return word
	}
	return fmt.Sprintf("%d %ss", n, word)
}
