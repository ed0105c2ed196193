package stage

import (
	"fmt"
	"math"
	"slices"
	"strings"

	"plumbline/internal/format/dump"
)

// placement is where the response of a row stands in input_ids.
type placement struct {
	ids, attention []float64 // of the row, as wide as input_ids; attention is nil if it was not dumped
	start          int       // column of input_ids that column 0 of the row belongs to
	known          bool
	found          int // where the tokens stand instead if they do not stand there; −1 nowhere, or not looked for
}

// placements finds the response of every row in input_ids: where the file says, or behind the prompt where prompts are
// padded on the right. nil without input_ids.
func (c *Case) placements() []placement {
	b := c.B
	t := b.Tensors["input_ids"]
	if t == nil || b.Row("input_ids") == nil || t.Width < 1 || len(t.Data) != b.Rows*t.Width {
		return nil
	}
	attention := b.Row("attention_mask")
	if m := b.Tensors["attention_mask"]; m == nil || m.Width != t.Width {
		attention = nil
	}
	prompt := b.Row("prompt_len")
	response := b.Token("response_ids")
	list := make([]placement, b.Rows)
	for r := range list {
		p := &list[r]
		p.ids, p.found = t.Data[r*t.Width:(r+1)*t.Width], -1
		if attention != nil {
			p.attention = attention[r*t.Width : (r+1)*t.Width]
		}
		p.start = b.Files[b.Origin[r].File].PromptCols
		p.known = p.start >= 0
		if response == nil || p.known && c.standsAt(r, response, p.ids, p.start) {
			continue
		}
		if len(prompt) == b.Rows && p.attention != nil {
			if at := afterPrompt(p.attention, int(prompt[r])); at >= 0 && c.standsAt(r, response, p.ids, at) {
				p.start, p.known = at, true
				continue
			}
		}
		for at := range p.ids {
			if c.standsAt(r, response, p.ids, at) {
				p.found = at
				break
			}
		}
	}
	return list
}

// afterPrompt returns the column after the prompt, which is the first n attended columns; −1 if there are fewer.
func afterPrompt(attention []float64, n int) int {
	for at, m := range attention {
		if m != 0 {
			n--
		}
		if n == 0 {
			return at + 1
		}
	}
	return -1
}

// standsAt reports whether the tokens of a row's mask are those of ids from column at on.
func (c *Case) standsAt(row int, response, ids []float64, at int) bool {
	b := c.B
	for t := range b.Cols {
		if i := row*b.Cols + t; b.Mask[i] && (at+t >= len(ids) || ids[at+t] != response[i]) {
			return false
		}
	}
	return true
}

func assertIDs(c *Case) *Assertion {
	b := c.B
	a := &Assertion{}
	vocab := c.vocabulary()
	response := b.Token("response_ids")
	outside := fmt.Sprintf("token id outside the vocabulary of %g", vocab)
	if math.IsNaN(vocab) {
		outside = "token id below 0"
	}
	out := 0
	for i, id := range response {
		if !b.Mask[i] {
			continue
		}
		a.Checked++
		if id < 0 || id >= vocab {
			if out++; out <= most {
				a.Violations = append(a.Violations, Violation{Reason: outside, Row: i / b.Cols, Col: i % b.Cols, Got: id})
			}
		}
	}
	if response != nil && math.IsNaN(vocab) {
		a.Note = "vocab_size is not known: only id ≥ 0 is asserted"
	}
	if response == nil {
		return a
	}
	for r, p := range c.placements() {
		if c.last(r) < 0 {
			continue
		}
		a.Checked++
		if p.known && c.standsAt(r, response, p.ids, p.start) {
			continue
		}
		v := Violation{Reason: "the tokens of response_ids are not those of input_ids", Row: r, Col: -1, Fault: "IDS-RETOKENISED"}
		switch {
		case p.found >= 0 && p.known:
			v.Fault = "PROMPT-TRUNCATED"
			v.Reason = fmt.Sprintf("the tokens of response_ids stand %+d columns from their place in input_ids", p.found-p.start)
		case p.found >= 0:
			continue // the file does not say where the response begins, and there it is
		case p.known:
			for t := range b.Cols {
				if i := r*b.Cols + t; b.Mask[i] && (p.start+t >= len(p.ids) || p.ids[p.start+t] != response[i]) {
					v.Col, v.Got = t, response[i]
					break
				}
			}
		}
		if a.Violations = append(a.Violations, v); len(a.Violations) >= 4*most {
			break
		}
	}
	return a
}

// assertPosition holds the mask against attention, prompt and EOS. What cannot be told is not asserted: a row cut off by its
// length or ended by another token has no EOS, one of several turns has many, and without attention_mask padding that has
// the id of EOS is taken for one.
func assertPosition(c *Case) *Assertion {
	b := c.B
	a := &Assertion{}
	if c.EnumOr("mask.tokens", "response") == "none" {
		if !slices.Contains(b.Mask, false) {
			a.Checked = b.Rows
		}
		return a // prompts and padding count by declaration
	}
	prompt := b.Row("prompt_len")
	eos := c.eosIDs()
	pad, padKnown := c.padID(eos)
	places := c.placements()
	response := b.Token("response_ids")
	ambiguous, reported := 0, 0
	fail := func(r, col int, fault, format string, args ...any) {
		if reported++; reported <= 4*most {
			a.Violations = append(a.Violations, Violation{Reason: fmt.Sprintf(format, args...), Row: r, Col: col, Got: b2f(b.Mask[r*b.Cols+col]), Fault: fault})
		}
	}
	for r := range b.Rows {
		last := c.last(r)
		p := placement{found: -1}
		if places != nil {
			p = places[r]
		}
		if last < 0 || p.found >= 0 {
			continue // no mask, or judged by masks/ids
		}
		mask := b.Mask[r*b.Cols : (r+1)*b.Cols]
		attended := func(t int) (yes, known bool) {
			if p.attention == nil || !p.known || p.start+t >= len(p.attention) {
				return false, false
			}
			return p.attention[p.start+t] != 0, true
		}
		if _, known := attended(0); known {
			a.Checked++
			c.onPadding(r, mask, attended, fail)
			if b.Meta.Align != dump.AlignResponse && len(prompt) == b.Rows {
				if at := afterPrompt(p.attention, int(prompt[r])) - p.start; at > 0 {
					for t := range min(at, b.Cols) {
						if mask[t] {
							fail(r, t, "MASK-SHIFT", "the mask is true on the prompt, which has %g tokens", prompt[r])
							break
						}
					}
				}
			}
		}
		if eos == nil || response == nil && places == nil || c.holes(r) {
			continue
		}
		first := -1
		sure := false // the first EOS is no padding
		for t := range c.width(r) {
			id, ok := b.TokenID(r, t)
			if !ok || !eos[id] || b.Meta.Align != dump.AlignResponse {
				continue
			}
			yes, known := attended(t)
			sampled := padKnown && id != pad // an EOS that is none of it was sampled, whatever attention makes of it
			if known && !yes && !sampled {
				break
			}
			first, sure = t, known || sampled
			break
		}
		if places == nil && (first < 0 || last <= first || !padKnown || eos[pad] || !c.padded(r, first+1, last, pad)) {
			continue // of response_ids alone that padding counts is sure, and nothing else
		}
		switch {
		case first < 0:
			continue
		case last > first:
			a.Checked++
			fault := "MASK-PAST-EOS"
			if last == first+1 && !mask[0] {
				fault = "MASK-SHIFT"
			}
			fail(r, last, fault, "the mask goes on for %d tokens after the first EOS, in column %d", last-first, first)
		case last < first-1 && padKnown && !eos[pad] && endsAtPadding(b, r, last, pad):
			a.Checked++ // a model may sample the id of padding, and what comes after it: TRL's PPO takes the first one as the end
		case sure && last < first && last >= 0:
			a.Checked++
			fail(r, first, "MASK-NO-EOS", "the first EOS is outside the mask, which ends in column %d", last)
		case last < first:
			ambiguous++
		default:
			a.Checked++
		}
	}
	if c.beginsLate() {
		for i := range a.Violations {
			if v := &a.Violations[i]; v.Fault == "MASK-PAST-EOS" { // one that ends early, too, leaves EOS out
				v.Fault = "MASK-SHIFT"
			}
		}
	}
	var notes []string
	c.neverEnds(a, eos)
	if eos == nil {
		c.endLeftOut(a, places)
	}
	c.endsEarly(a, eos, places)
	c.firstOfPacked(a)
	c.firstLeftOut(a, places)
	if ambiguous > 0 {
		notes = append(notes, fmt.Sprintf("in %d rows what follows the mask is EOS or padding of the same id: without attention_mask that cannot be told", ambiguous))
	}
	if reported > 4*most {
		notes = append(notes, fmt.Sprintf("%d places in all", reported))
	}
	a.Note = strings.Join(notes, "; ")
	return a
}

// padded reports whether the cells of a row from one column to another are the id of padding.
func (c *Case) padded(row, from, to, pad int) bool {
	for t := from; t <= to; t++ {
		if id, ok := c.B.TokenID(row, t); !ok || id != pad {
			return false
		}
	}
	return true
}

// endsAtPadding reports whether the id of padding stands behind the last token of a row.
func endsAtPadding(b *dump.Batch, r, last, pad int) bool {
	id, ok := b.TokenID(r, last+1)
	return ok && id == pad
}

// beginsLate reports whether the mask of every row that is not as wide as the grid leaves out the first token: then it is one
// position late.
func (c *Case) beginsLate() bool {
	rows := 0
	for r := range c.B.Rows {
		if last := c.last(r); last < 0 || last == c.width(r)-1 {
			continue
		}
		if rows++; c.B.Mask[r*c.B.Cols] || c.B.Meta.Align != dump.AlignResponse {
			return false
		}
	}
	return rows > 1
}

// neverEnds reports a batch in which no response that stopped early has an EOS in its mask, although the ids behind the masks
// are EOS: padding has that id, and the mask was made from it. Responses that were stopped by another token end alike.
func (c *Case) neverEnds(a *Assertion, eos map[int]bool) {
	b := c.B
	if eos == nil || b.Meta.Align != dump.AlignResponse || c.stopsOtherwise() {
		return
	}
	limit := c.FactOr("max_completion_length", math.Inf(1))
	row, rows := -1, 0
	ends := map[int]bool{}
	for r := range b.Rows {
		last := c.last(r)
		if last < 0 || last+1 >= c.width(r) || float64(last+1) >= limit {
			continue
		}
		for t := range last + 1 {
			if id, ok := b.TokenID(r, t); !ok || eos[id] && b.Mask[r*b.Cols+t] {
				return
			}
		}
		next, _ := b.TokenID(r, last+1)
		if !eos[next] {
			return
		}
		id, _ := b.TokenID(r, last)
		ends[id] = true
		rows++
		row = r
	}
	if rows >= 3 && len(ends) >= 2 {
		a.Checked += rows
		a.Violations = append(a.Violations, Violation{Row: row, Col: c.last(row) + 1, Fault: "MASK-NO-EOS",
			Reason: fmt.Sprintf("none of the %d responses that stopped early has its EOS in the mask; they end with %d different tokens, and behind each stands the id of EOS", rows, len(ends))})
	}
}

// onPadding reports the first true cell of a row that the model does not attend to.
func (c *Case) onPadding(row int, mask []bool, attended func(int) (bool, bool), fail func(int, int, string, string, ...any)) {
	for t, m := range mask {
		if yes, known := attended(t); m && known && !yes {
			fail(row, t, "MASK-PAST-EOS", "the mask is true on padding, which attention_mask leaves out")
			return
		}
	}
}

func b2f(b bool) float64 {
	if b {
		return 1
	}
	return 0
}
