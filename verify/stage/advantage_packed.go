package stage

import (
	"fmt"

	"plumbline/internal/format/dump"
)

// packedTokens returns a per-token tensor of a batch that has packed rows, nil of another.
func (c *Case) packedTokens(name string) []float64 {
	for _, f := range c.B.Files {
		if f.Packed {
			return c.B.Token(name)
		}
	}
	return nil
}

// packedAdvantages reports responses of packed rows that have an advantage of their neighbour. Where every response has one number for all of its tokens but the first, and
// the first has that of the token before it in the packed row, of the neighbour, advantages are a column late; so are those a column early whose last tokens have the
// next number. Nothing but the row has to be known.
func (c *Case) packedAdvantages(a *Assertion) {
	x := c.packedTokens("advantages")
	if x == nil || c.B.Cols == 0 {
		return
	}
	for _, late := range []bool{true, false} {
		if v := c.ofNeighbours(x, late); v != nil {
			a.Violations = append(a.Violations, *v)
		}
	}
}

// ofNeighbours reports that the first token of every response, or the last, has the number of the neighbour's token beside it, where all others have one number.
func (c *Case) ofNeighbours(x []float64, late bool) *Violation {
	const least = 4 // responses whose first token has another number than the rest
	b := c.B
	told, row := 0, -1
	for r := range b.Rows {
		lo, hi := r*b.Cols, r*b.Cols+c.width(r)-1 // the cells of the response
		edge, beside, known := lo, 0.0, false
		if late && r > 0 && adjacent(b.Origin[r-1], b.Origin[r]) {
			beside, known = x[(r-1)*b.Cols+b.Origin[r-1].Cols-1], true
		} else if !late && r+1 < b.Rows && adjacent(b.Origin[r], b.Origin[r+1]) {
			beside, known = x[(r+1)*b.Cols], true
		}
		if !late {
			edge = hi
		}
		own, n := 0.0, 0
		for i := lo; i <= hi; i++ {
			if !b.Mask[i] || i == edge {
				continue
			}
			if n++; n > 1 && x[i] != own {
				return nil
			}
			own = x[i]
		}
		if !known || n == 0 || !b.Mask[edge] {
			continue
		}
		if x[edge] != beside {
			return nil
		}
		if n > 1 && beside != own {
			told, row = told+1, r
		}
	}
	if told < least {
		return nil
	}
	v := &Violation{Row: row, Col: 0, Got: x[row*b.Cols], Fault: "ADV-SHIFT",
		Reason: fmt.Sprintf("the first token of every packed response has the advantage of the response before it, in %d rows another than its own: advantages are a column late", told)}
	if !late {
		v.Col, v.Got = c.width(row)-1, x[row*b.Cols+c.width(row)-1]
		v.Reason = fmt.Sprintf("the last token of every packed response has the advantage of the response behind it, in %d rows another than its own: advantages are a column early", told)
	}
	return v
}

// adjacent reports whether a row stands right behind another one in a packed row.
func adjacent(before, o dump.Origin) bool {
	return o.Col > 0 && o.File == before.File && o.Row == before.Row && before.Cols > 0 && before.Col+before.Cols == o.Col
}
