package stage

import (
	"fmt"
	"math"

	"plumbline/internal/format/dump"
)

// assertTruncated holds the mask against mask_truncated_completions: a response that was cut off by its length has no cell of the mask.
//
// A row was cut off if it is as long as responses can be and does not end with EOS or padding, by the ids alone; TRL asks for
// ids[-1] not in eos_and_pad, so that a response whose last sampled token is padding counts as ended; where nobody declares that id it is
// the one that stands behind EOS, and without it no row is known to be cut off. Where another token ends responses, too, and nobody says
// so, some rows end early without EOS: then nothing is asserted. Rows of several turns are left out, whose last token is a tool's.
func assertTruncated(c *Case) *Assertion {
	b := c.B
	if on, _ := c.Set.Fact("mask_truncated_completions"); on != true || b.Meta.Align != dump.AlignResponse {
		return nil
	}
	eos := c.eosIDs()
	if eos == nil || b.Token("response_ids") == nil && b.Tensors["input_ids"] == nil {
		return nil
	}
	pad, padKnown := c.padID(eos)
	a := &Assertion{}
	var cut []int
	ended, left, empty := 0, 0, 0
	for r := range b.Rows {
		width := c.width(r)
		limit := int(math.Min(float64(width), c.FactOr("max_completion_length", float64(width))))
		last := c.last(r)
		id, known := b.TokenID(r, max(last, 0))
		if !known {
			return nil
		}
		switch {
		case last < 0:
			if empty++; c.answered(r, width, eos) {
				left++
			}
		case c.holes(r):
		case eos[id] || padKnown && id == pad:
			ended++
		case last+1 < limit:
			if !padKnown || !c.unended(r, limit, eos, pad) {
				return nil
			}
			cut = append(cut, r) // a part of it is left in the mask
		default:
			cut = append(cut, r)
		}
		a.Checked++
	}
	if ended+left == 0 || !padKnown && len(cut) > 0 { // perhaps none of the ids ends a response, or padding does
		return nil
	}
	fault, why := "MASK-TRUNCATED-KEPT", fmt.Sprintf("%d such rows train", len(cut))
	if left > 0 && ended == 0 {
		fault, why = "EOS-INVERTED", fmt.Sprintf("all %d rows that train were cut off, and %d of the %d that do not train have ended with EOS: the test is inverted", len(cut), left, empty)
	}
	for _, r := range cut {
		a.Violations = append(a.Violations, Violation{Row: r, Col: c.last(r), Got: 1, Fault: fault,
			Reason: "the mask is true on a response that was cut off by its length, where mask_truncated_completions is declared; " + why})
	}
	return a
}

// unended reports whether the ids of a row up to the limit have no EOS, and no padding in the last place.
func (c *Case) unended(r, limit int, eos map[int]bool, pad int) bool {
	for t := range limit {
		if id, known := c.B.TokenID(r, t); !known || eos[id] || t == limit-1 && id == pad {
			return false
		}
	}
	return limit > 0
}

// padID returns the id of padding: the declared one, else that of all cells behind the first EOS of every row that has some.
func (c *Case) padID(eos map[int]bool) (id int, known bool) {
	if v := c.FactOr("pad_token_id", math.NaN()); !math.IsNaN(v) {
		return int(v), true
	}
	for r := range c.B.Rows {
		behind := false
		for t := range c.width(r) {
			switch v, ok := c.B.TokenID(r, t); {
			case !ok:
				return 0, false
			case !behind:
				behind = eos[v]
			case known && v != id:
				return 0, false // more than padding stands there
			default:
				id, known = v, true
			}
		}
	}
	return id, known
}

// answered reports whether a row has an EOS that is no padding: another id behind it, or nothing.
func (c *Case) answered(row, width int, eos map[int]bool) bool {
	for t := range width {
		id, ok := c.B.TokenID(row, t)
		if !ok || !eos[id] {
			continue
		}
		next, ok := c.B.TokenID(row, t+1)
		return t+1 == width || ok && !eos[next]
	}
	return false
}
