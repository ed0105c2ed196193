package stage

import (
	"fmt"

	"plumbline/internal/format/dump"
)

// endLeftOut reports a batch, of which nobody says how its responses end, in which every response that stopped early is followed by one and the same token that no
// mask has, and behind which padding stands that is another: it was sampled. Responses whose masks end with few tokens have their end in them, and what
// follows it is of a template.
func (c *Case) endLeftOut(a *Assertion, places []placement) {
	const least, kinds = 4, 3 // rows; different tokens before it
	b := c.B
	if b.Meta.Align != dump.AlignResponse || c.stopsOtherwise() {
		return
	}
	end, pad, rows, shown, row := -1, -1, 0, 0, -1
	last := map[int]bool{}
	for r := range b.Rows {
		at := c.last(r)
		if at < 0 || at+1 >= c.width(r) {
			continue
		}
		id, ok := b.TokenID(r, at+1)
		if !ok || end >= 0 && id != end || c.holes(r) {
			return
		}
		own, _ := b.TokenID(r, at)
		last[own] = true
		end, row = id, r
		if rows++; at+2 >= c.width(r) {
			continue
		}
		if p := places; p != nil && p[r].known && p[r].attention != nil && p[r].start+at+2 < len(p[r].attention) && p[r].attention[p[r].start+at+2] != 0 {
			return // more of the conversation
		}
		behind, _ := b.TokenID(r, at+2)
		if behind == end || pad >= 0 && behind != pad {
			return
		}
		pad = behind
		shown++
	}
	if rows < least || shown < least || len(last) < kinds {
		return
	}
	for i, m := range b.Mask {
		if id, _ := b.TokenID(i/b.Cols, i%b.Cols); m && id == end {
			return
		}
	}
	a.Checked += rows
	a.Violations = append(a.Violations, Violation{Row: row, Col: c.last(row) + 1, Got: 0, Fault: "MASK-NO-EOS",
		Reason: fmt.Sprintf("behind each of the %d responses that stopped early stands token %d, no padding, which no mask has: it ends them", rows, end)})
}
