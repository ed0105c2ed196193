package stage

import (
	"fmt"
	"slices"

	"plumbline/internal/format/dump"
)

// endsEarly looks in dumps whose columns are those of the ids for masks that end one token before what the model attends to. A prompt may hold the id of
// EOS, so that the first one says nothing; the last token of a row does. Where it is EOS the response has ended, and where it is not the response was
// cut off: a mask that leaves out both is one column early, one that leaves out EOS alone was made from the ids. All rows must be so: a row of several
// turns ends with what the tools say, and one with its EOS tells of a trainer that knows why others are without.
func (c *Case) endsEarly(a *Assertion, eos map[int]bool, places []placement) {
	b := c.B
	if eos == nil || places == nil || b.Meta.Align == dump.AlignResponse || c.stopsOtherwise() {
		return
	}
	const least = 3
	row, ended, cut, whole := -1, 0, 0, 0
	for r, p := range places {
		last := c.last(r)
		if last < 0 {
			continue
		}
		if !p.known || p.attention == nil || c.holes(r) {
			return
		}
		end := len(p.attention) - 1
		for end >= 0 && p.attention[end] == 0 {
			end--
		}
		switch left, eos := end-p.start-last, end >= 0 && eos[int(p.ids[end])]; {
		case left == 1 && eos:
			row = r
			ended++
		case left == 1:
			cut++
		case left == 0 && !eos:
			whole++
		default:
			return
		}
	}
	if ended < least || cut > 0 && whole > 0 {
		return
	}
	a.Checked += ended + cut + whole
	v := Violation{Row: row, Col: c.last(row), Fault: "MASK-NO-EOS",
		Reason: fmt.Sprintf("the mask ends one token before EOS in all %d rows, whose last token it is", ended)}
	if cut > 0 {
		v.Fault = "MASK-SHIFT"
		v.Reason = fmt.Sprintf("the mask ends one token before the last one in all rows, EOS in %d of them and none in %d that were cut off: it is a column early", ended, cut)
	}
	a.Violations = append(a.Violations, v)
}

// firstOfPacked reports the first tokens of packed sequences that count as targets, where columns are those of the ids: what predicts one is the last
// token of the sequence before it in the row (TRL 1.16 DataCollatorForLanguageModeling sets labels[position_ids == 0] = -100). The token before must
// count, too: numbers of segments that are those of the inputs, not of the targets, begin a column late, behind a token that the mask leaves out.
func (c *Case) firstOfPacked(a *Assertion) {
	b := c.B
	if b.Meta.Align == dump.AlignResponse {
		return
	}
	for r := 1; r < b.Rows; r++ {
		o, before := b.Origin[r], b.Origin[r-1]
		if o.Col == 0 || o.File != before.File || o.Row != before.Row || before.Cols == 0 || before.Col+before.Cols != o.Col {
			continue
		}
		a.Checked++
		if b.Mask[r*b.Cols] && b.Mask[(r-1)*b.Cols+before.Cols-1] && len(a.Violations) < 4*most {
			a.Violations = append(a.Violations, Violation{Row: r, Col: 0, Got: 1, Fault: "MASK-PACKED-FIRST",
				Reason: "the first token of a packed sequence counts, which only the sequence before it predicts"})
		}
	}
}

// stopsOtherwise reports whether responses may be ended by something else than EOS.
func (c *Case) stopsOtherwise() bool {
	return slices.ContainsFunc([]string{"stop", "stop_strings", "stop_sequences", "stop_token_ids", "stop_token_id", "stop_token"}, func(name string) bool {
		_, known := c.Set.Fact(name)
		return known
	}) || c.EnumOr("eos.test", "eos_id") != "eos_id"
}
